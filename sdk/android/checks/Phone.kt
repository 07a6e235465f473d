package checks

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.DeviceFacts
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.ModelInfo
import dev.epwatch.Platform
import dev.epwatch.Signals
import java.io.File
import java.util.Random

private const val QNN = "QNNExecutionProvider"

/**
 * One start of one phone's app: a session of the real ONNX Runtime, its runs, one upload.
 *
 * ENDPOINT KEY FOLDER CHIPSET MODEL VERSION LATENCY_US [QNN_PLUGIN QNN_BACKEND SOC_MODEL]
 *
 * The placement is real. The latencies are made up: an emulator's mean nothing.
 */
public object PhoneApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, chipset, model) = args
        val (version, latencyUs) = args.drop(5)
        val npu = args.drop(7)
        val config = EpwatchConfig.Builder("com.example.camera", endpoint, key)
            .setAppVersion("3.2.$version", version)
            .setConsent(true)
            .build()
        Epwatch.start(Phone(File(folder), chipset), config)

        val env = OrtEnvironment.getEnvironment()
        val requested = if (npu.isEmpty()) emptyList() else listOf(QNN)
        val info = ModelInfo("segmenter", version, requested, socModel = npu.getOrElse(2) { "" })
        val options = OrtSession.SessionOptions()
        if (npu.isNotEmpty()) {
            env.registerExecutionProviderLibrary(QNN, npu[0])
            val devices = env.epDevices.filter { it.epName == QNN }.take(1)
            options.addExecutionProvider(devices, mapOf("backend_path" to npu[1], "soc_model" to npu[2]))
        }
        val observed = Epwatch.createSession(env, model, options, info)
        println("session ${observed.explain()}")
        record(observed::recordAll, folder.hashCode().toLong(), latencyUs.toLong() * 1000)
        observed.close()

        flush()
        println("explain ${Epwatch.explain()}")
        check(Epwatch.stop(60_000)) { "the SDK did not end" }
    }

    /** Runs of a phone that differs from others by some percent, and its runs by some more. */
    private fun record(recordAll: (LongArray, Int) -> Unit, seed: Long, latencyNanos: Long) {
        val random = Random(seed)
        val ofPhone = latencyNanos * (1 + 0.05 * random.nextGaussian())
        val latencies = LongArray(N_RUNS) { (ofPhone * (1 + 0.04 * random.nextGaussian())).toLong().coerceAtLeast(1000) }
        // Waits as long as the runs took, because a report's runs must fit into its interval.
        Thread.sleep(latencies.sum() / 1_000_000 + 1)
        var began = System.nanoTime() - latencies.sum()
        val runs = LongArray(2 * N_RUNS)
        latencies.forEachIndexed { at, latency ->
            runs[2 * at] = began
            runs[2 * at + 1] = latency
            began += latency
        }
        recordAll(runs, N_RUNS)
    }

    private const val N_RUNS = 120
}

private class Phone(private val folder: File, private val chipsetName: String) : Platform {
    override fun folder(): File = folder

    override fun facts(): DeviceFacts = DeviceFacts().apply {
        chipset = chipsetName
        socManufacturer = "QTI"
        abi = "arm64-v8a"
        manufacturer = "Example"
        model = "Phone of $chipsetName"
        os = "android"
        osVersion = "15"
        vendorFingerprint = "example/$chipsetName/15:user/release-keys"
        apiLevel = 35
        reportsThermal = true
        reportsPowerSave = true
    }

    override fun listen(signals: Signals) {
        signals.conditions(0, 0)
        signals.network(1)
    }
}
