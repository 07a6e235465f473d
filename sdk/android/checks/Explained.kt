package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.Explanation
import dev.epwatch.HealthListener
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.PreflightFacts
import dev.epwatch.SessionExplanation
import java.io.File
import java.util.concurrent.CountDownLatch

/** The typed explanation beside the text, with a listener and the debug lines: ENDPOINT KEY FOLDER MODEL UPLOADS */
public object ExplainedApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model, uploads) = args
        System.setErr(System.out)
        Epwatch.debug = true
        Epwatch.addHealthListener { throw IllegalStateException("of the app") }
        val listener = HealthListener {
            println("health ${it.isRunning}|${it.isGood}|${it.hostProblem}|${it.lastProblem}|${it.consent}")
        }
        Epwatch.addHealthListener(listener)
        val config = EpwatchConfig.Builder("com.example.camera", endpoint, key).build()
        Epwatch.start(JvmPlatform(File(folder)), config)
        Epwatch.setConsent(true)
        upload()
        val env = OrtEnvironment.getEnvironment()
        val info = ModelInfo.Builder("segmenter", "3").setSelectionPolicy("PREFER_NPU").setDeviceType("GPU.1").build()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), info)
        val input = OnnxTensor.createTensor(env, Array(1) { Array(3) { Array(32) { FloatArray(32) } } })
        repeat(20) { observed.run(mapOf(observed.session.inputNames.first() to input)).close() }
        try {
            Epwatch.createSession(env, "no model".toByteArray(), OrtSession.SessionOptions(), ModelInfo("bad", "1"))
        } catch (error: OrtException) {
            println("failed ${error.code}")
        }
        val facts = PreflightFacts().apply {
            modelQairt = "2.31.0"
            runtimeQairt = "2.20.0"
            rpcLibrary = true
        }
        println("preflight ${Epwatch.preflight(facts)}")
        repeat(uploads.toInt()) { upload() }
        println("json ${Epwatch.explain()}")
        println("typed ${shown(Epwatch.explanation())}")
        println("session ${observed.explain()}")
        println("typed_session ${shown(observed.explanation()!!)}")
        observed.close()
        check(observed.explanation() == null)
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
    }

    private fun upload() {
        val done = CountDownLatch(1)
        Epwatch.upload {
            println("outcome_$it now")
            done.countDown()
        }
        done.awaitOrFail()
    }

    private fun shown(of: Explanation): String = listOf(
        of.hostMissedRuns, of.ortVersion, of.runtimeTelemetry, of.installation, of.endpoint, of.consent, of.spoolReports,
        of.startFailures.single().run { "$model $count ${reason.code}" }, of.failedChecks.map { it.reason.code },
        of.lastUpload?.answer, of.lastProblem, of.sessions.map { it.model },
    ).joinToString("|")

    private fun shown(of: SessionExplanation): String = listOf(
        of.model, of.version, of.runs, of.p50Us, of.source, of.graphKind, of.eps.map { "${it.key}=${it.value.nodes}" },
        of.cpuNodes.size, of.cpuNodes.firstOrNull()?.opType, of.fingerprintNormalised, of.reasons.map { it.code },
        of.selectionPolicy, of.deviceType, of.devices, of.requestedInEffect,
    ).joinToString("|")
}
