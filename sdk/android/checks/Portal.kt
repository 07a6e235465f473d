package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.ModelInfo

/** Ten runs, and one upload: ENDPOINT KEY FOLDER MODEL */
public object PortalApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model) = args
        start(endpoint, key, folder)
        val env = OrtEnvironment.getEnvironment()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("segmenter", "3"))
        repeat(10) { observed.end(observed.begin()) }
        flush()
        println("flushed ${Epwatch.explain()}")
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
    }
}
