package sample

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.ObservedSession
import java.io.File
import java.nio.FloatBuffer
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread

private const val QNN = "QNNExecutionProvider"

/** An app on a desktop JVM: MODEL ENDPOINT FOLDER RUNS_PER_THREAD [QNN_PLUGIN QNN_BACKEND SOC_MODEL] */
public fun main(args: Array<String>) {
    val (model, endpoint, folder, runs) = args
    val npu = args.drop(4)
    val config = EpwatchConfig.Builder("com.example.camera", endpoint, "demo-key")
        .setAppVersion("3.2.1", "4711")
        .setConsent(true)
        .build()
    val began = System.nanoTime()
    Epwatch.start(JvmPlatform(File(folder)), config)
    println("start_us ${(System.nanoTime() - began) / 1000}")

    val env = OrtEnvironment.getEnvironment()
    val info = ModelInfo(
        "segmenter",
        "3",
        requested = if (npu.isEmpty()) emptyList() else listOf(QNN),
        socModel = npu.getOrElse(2) { "" },
    )
    val plan = Epwatch.plan(info, 1000)
    val options = OrtSession.SessionOptions()
    if (npu.isNotEmpty() && plan.useNpu) addNpu(env, options, npu)
    val observed = Epwatch.createSession(env, model, options, info, plan)
    println("session ${observed.explain()}")
    infer(env, observed)

    // Without prepare there is no placement.
    env.createSession(model, OrtSession.SessionOptions()).use { bare ->
        Epwatch.observe(bare, ModelInfo("bare", "1")).use { println("bare ${it.explain()}") }
    }
    try {
        Epwatch.createSession(env, "no model".toByteArray(), OrtSession.SessionOptions(), info)
    } catch (error: OrtException) {
        println("failed ${error.code}")
    }

    val threads = List(8) {
        thread { repeat(runs.toInt()) { observed.end(observed.begin()) } }
    }
    threads.forEach { it.join() }
    observed.recordAll(longArrayOf(System.nanoTime(), 8_000_000, System.nanoTime(), 9_000_000), 2)
    observed.close()
    observed.close()
    observed.end(observed.begin())
    println("closed ${observed.explain()}")
    observed.session.close()

    val sent = CountDownLatch(1)
    Epwatch.upload { outcome ->
        println("upload $outcome")
        sent.countDown()
    }
    sent.await()
    println("explain ${Epwatch.explain()}")

    // Wrong calls on purpose, which must do no harm.
    Epwatch.start(JvmPlatform(File(folder)), config)
    println("twice ${Epwatch.explain()}")
    println("stopped ${Epwatch.stop(60_000)}")
    Epwatch.setConsent(false)
    println("after ${Epwatch.explain()}")
}

private fun addNpu(env: OrtEnvironment, options: OrtSession.SessionOptions, npu: List<String>) {
    val (plugin, backend, soc) = npu
    env.registerExecutionProviderLibrary(QNN, plugin)
    val devices = env.epDevices.filter { it.epName == QNN }.take(1)
    options.addExecutionProvider(devices, mapOf("backend_path" to backend, "soc_model" to soc))
}

private fun infer(env: OrtEnvironment, observed: ObservedSession) {
    val (name, node) = observed.session.inputInfo.entries.first()
    val shape = (node.info as TensorInfo).shape.map { if (it < 0) 1 else it }.toLongArray()
    val zeros = FloatBuffer.allocate(shape.reduce(Long::times).toInt())
    OnnxTensor.createTensor(env, zeros, shape).use { input ->
        repeat(20) { observed.run(mapOf(name to input)).close() }
        observed.measure { observed.session.run(mapOf(name to input)) }.close()
    }
}
