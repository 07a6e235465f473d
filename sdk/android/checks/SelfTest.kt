package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.GoldenInput
import dev.epwatch.ModelInfo
import dev.epwatch.SelfTestResult
import java.io.File
import java.nio.FloatBuffer
import java.util.concurrent.Callable
import java.util.concurrent.CountDownLatch

/**
 * MACs of a session on the NPU, and self-tests of it: ENDPOINT KEY FOLDER MODEL SIDE_CAR QNN_PLUGIN QNN_BACKEND SOC_MODEL
 */
public object SelfTestApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model, sideCar) = args
        val (plugin, backend, soc) = args.drop(5)
        start(endpoint, key, folder)
        loaded()
        val env = OrtEnvironment.getEnvironment()
        env.registerExecutionProviderLibrary(QNN, plugin)
        val options = OrtSession.SessionOptions()
        val devices = env.epDevices.filter { it.epName == QNN }.take(1)
        options.addExecutionProvider(devices, mapOf("backend_path" to backend, "soc_model" to soc))
        val info = ModelInfo.Builder("segmenter", "3")
            .setRequested(QNN)
            .setSocModel(soc)
            .setSideCar(File(sideCar).readText())
            .build()
        val observed = Epwatch.createSession(env, model, options, info)
        println("session ${observed.explain()}")

        val n = 3 * 32 * 32
        val ramp = FloatBuffer.wrap(FloatArray(n) { it.toFloat() / n })
        OnnxTensor.createTensor(env, ramp, longArrayOf(1, 3, 32, 32)).use { input ->
            val inputs = mapOf(observed.session.inputNames.first() to input)
            val cpu = Callable { env.createSession(model, OrtSession.SessionOptions()) }
            println("first ${shown(observed.selfTest(GoldenInput("ramp-1", inputs), cpu))}")
            println("again ${shown(observed.selfTest(GoldenInput("ramp-1", inputs), cpu))}")
            val broken = Callable<OrtSession> { throw IllegalStateException("no model") }
            println("broken ${shown(observed.selfTest(GoldenInput("broken", inputs), broken))}")
            println("wrong ${shown(observed.selfTest(GoldenInput("wrong", mapOf("no input" to input)), cpu))}")
            println("refused ${shown(observed.selfTest(GoldenInput("", inputs), cpu))}")
            println("problem ${Epwatch.explanation().hostProblem}")
            observed.session.close()
            println("closed ${shown(observed.selfTest(GoldenInput("closed", inputs), cpu))}")
        }
        observed.close()
        val sent = CountDownLatch(1)
        Epwatch.upload { sent.countDown() }
        sent.awaitOrFail()
        Epwatch.stop(60_000)
    }

    private fun shown(result: SelfTestResult?): String =
        result?.run { "$maxAbs $cosine $top1Equal $errorCode" } ?: "none"

    private const val QNN = "QNNExecutionProvider"
}
