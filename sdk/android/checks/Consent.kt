package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.ObservedSession
import java.io.File

/**
 * Without consent, with it, with a directive that turns recording off, and after a withdrawal, all without ONNX Runtime's own
 * telemetry: ENDPOINT KEY FOLDER MODEL PUBLIC_KEY. Prints the files of the folder after each.
 */
public object ConsentApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model, publicKey) = args
        val config = EpwatchConfig.Builder("com.example.camera", endpoint, key)
            .setDirectiveKey("ops", publicKey)
            .build()
        check(Epwatch.disableRuntimeTelemetry()) { Epwatch.explain() }
        Epwatch.start(JvmPlatform(File(folder)), config)
        val env = OrtEnvironment.getEnvironment()
        val info = ModelInfo("segmenter", "3")
        Epwatch.createSession(env, model, OrtSession.SessionOptions(), info).use { observed ->
            use(observed, "without", folder)
            Epwatch.setConsent(true)
            use(observed, "given", folder)
            // The answer has turned recording off.
            observed.failed(failure(env, info))
            use(observed, "quiet", folder)
            println("explain ${Epwatch.explain()}")
            Epwatch.setConsent(false)
            use(observed, "withdrawn", folder)
        }
        check(Epwatch.stop(60_000)) { "the SDK did not end" }
    }

    private fun use(observed: ObservedSession, state: String, folder: String) {
        // Runs do not count before the SDK's thread has the consent.
        flush()
        repeat(10) { observed.end(observed.begin()) }
        flush()
        val files = File(folder).walk().filter { it.isFile }.map { it.name }.sorted().toList()
        println("$state $files")
    }

    private fun failure(env: OrtEnvironment, info: ModelInfo): OrtException = try {
        Epwatch.createSession(env, "no model".toByteArray(), OrtSession.SessionOptions(), info)
        error("the session was made")
    } catch (error: OrtException) {
        error
    }
}
