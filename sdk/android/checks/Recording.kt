package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.ModelInfo
import kotlin.concurrent.thread

/**
 * Records from eight threads, and sends: ENDPOINT KEY FOLDER MODEL RUNS_PER_THREAD [until_killed]
 *
 * With `until_killed` it records as many again after it has sent, says so, and waits.
 */
public object RecordingApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model, runs) = args
        start(endpoint, key, folder)
        val env = OrtEnvironment.getEnvironment()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("segmenter", "3"))
        val record = {
            val threads = List(8) { thread { repeat(runs.toInt()) { observed.end(observed.begin()) } } }
            threads.forEach { it.join() }
        }
        record()
        flush()
        if (args.contains("until_killed")) {
            record()
            println("recorded")
            Thread.sleep(Long.MAX_VALUE)
        }
        observed.close()
        check(Epwatch.stop(60_000)) { "the SDK did not end" }
        println("explain ${Epwatch.explain()}")
    }
}
