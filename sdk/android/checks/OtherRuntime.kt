package checks

import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.Partition
import java.io.File

/**
 * Sessions of another runtime, in an app without ONNX Runtime's classes, and the question before a compiled model is loaded:
 * ENDPOINT KEY FOLDER COMPILED_MODEL
 */
public object OtherRuntimeApp {
    private const val RUNTIME = "LiteRT 2.3.0"

    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, compiled) = args
        val config = EpwatchConfig.Builder("com.example.camera", endpoint, key)
            .setConsent(true)
            .setRuntime("onnxruntime-qnn", "2.7.0", "2.51.0")
            .build()
        Epwatch.start(JvmPlatform(File(folder)), config)
        val early = Epwatch.sessionOf(ModelInfo("early", "3", listOf("GPU")), RUNTIME, null)
        early.measure { work() }
        loaded()

        val gpu = "TfLiteGpuDelegateV2"
        val partitions = listOf(
            Partition(gpu, listOf("CONV_2D", "CONV_2D")),
            Partition("CPU", listOf("CUMSUM")),
            Partition(gpu, listOf("SOFTMAX")),
        )
        val info = ModelInfo.Builder("segmenter", "3").setRequested("GPU").build()
        val session = Epwatch.sessionOf(info, RUNTIME, partitions, null, 1_000_000)
        repeat(5) { session.measure { work() } }
        session.end(session.begin())
        try {
            session.measure<Unit> { throw IllegalStateException("of the app") }
        } catch (error: IllegalStateException) {
            println("passed_on ${error.message}")
        }
        Epwatch.startFailed(ModelInfo("bad", "1", listOf("GPU")), "no delegate")
        println("session ${session.explain()}")
        for (soc in listOf("57", "68")) {
            val model = ModelInfo("compiled", "1", listOf("QNNExecutionProvider"), socModel = soc, modelFile = compiled)
            println("compiled_$soc ${Epwatch.compatibility(model)}")
        }
        println("problem ${Epwatch.explanation().hostProblem}")
        for ((case, path, eps) in listOf(
            Triple("missing", "$compiled.gone", listOf("QNNExecutionProvider")),
            Triple("unasked", compiled, emptyList()),
        )) {
            println("$case ${Epwatch.compatibility(ModelInfo("compiled", "1", eps, modelFile = path))}")
            println("problem_$case ${Epwatch.explanation().hostProblem}")
        }
        for ((case, runtime) in listOf("number" to "2.3.0", "nameless" to "")) {
            val refused = Epwatch.sessionOf(ModelInfo("refused", "1", listOf("GPU")), runtime, partitions)
            refused.measure { work() }
            println("$case ${refused.explain()}")
            println("problem_$case ${Epwatch.explanation().hostProblem}")
        }
        flush()
        session.close()
        early.close()
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
    }

    private fun work(): Int = (1..1000).sum()
}
