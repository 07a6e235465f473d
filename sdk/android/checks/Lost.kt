package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.ModelInfo
import java.net.InetAddress
import java.net.ServerSocket
import java.util.concurrent.CountDownLatch

private fun observed(env: OrtEnvironment, model: String) =
    Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("segmenter", "3"))

/** A folder that cannot be used, and more sessions than the library takes: KEY FOLDER MODEL SESSIONS */
public object LostApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (key, folder, model, sessions) = args
        start("http://127.0.0.1:1", key, folder)
        Epwatch.plan(ModelInfo("segmenter", "3"), 300_000).close()
        val first = observed(OrtEnvironment.getEnvironment(), model)
        first.end(first.begin())
        repeat(sessions.toInt() - 1) {
            val more = Epwatch.observe(first.session, ModelInfo("segmenter", "3"))
            more.end(more.begin())
        }
        val tried = CountDownLatch(1)
        Epwatch.upload { outcome ->
            println("upload $outcome")
            tried.countDown()
        }
        tried.awaitOrFail()
        println("explain ${Epwatch.explain()}")
        println("stopped ${Epwatch.stop(300_000)}")
    }
}

/** A stop during an upload that hangs: KEY FOLDER MODEL */
public object HangingApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (key, folder, model) = args
        val collector = ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
        start("http://127.0.0.1:${collector.localPort}", key, folder)
        val observed = observed(OrtEnvironment.getEnvironment(), model)
        repeat(10) { observed.end(observed.begin()) }
        Epwatch.flush()
        // Takes the request, and never answers.
        val held = collector.accept()
        repeat(20) { observed.end(observed.begin()) }
        println("stopped ${Epwatch.stop(1)}")
        held.close()
    }
}
