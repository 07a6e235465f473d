package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import java.io.File
import java.util.concurrent.CountDownLatch

/** Ten runs, and one upload: ENDPOINT KEY FOLDER MODEL */
public object PortalApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model) = args
        val config = EpwatchConfig.Builder("com.example.camera", endpoint, key).setConsent(true).build()
        Epwatch.start(JvmPlatform(File(folder)), config)
        val env = OrtEnvironment.getEnvironment()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("segmenter", "3"))
        repeat(10) { observed.end(observed.begin()) }
        val sent = CountDownLatch(1)
        Epwatch.flush { sent.countDown() }
        sent.await()
        println("flushed ${Epwatch.explain()}")
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
    }
}
