package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.Native
import java.io.File
import java.nio.FloatBuffer
import java.util.concurrent.CountDownLatch
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.atomic.AtomicBoolean

/**
 * Nanoseconds a call, next to those of `System.nanoTime` in the same rounds: FOLDER MODEL [zygote]. Each figure is the least
 * of its rounds, since other processes can only add to one. Of whole runs it is the median. `start` is the configuration and the first call of the process,
 * class loading included; with `zygote` the platform's own classes were loaded before, as they are in every Android app.
 */
public object CostsApp {
    @Volatile private var sink = 0L

    @JvmStatic
    public fun main(args: Array<String>) {
        val (folder, model) = args
        if (args.contains("zygote")) loadPlatform()
        val began = System.nanoTime()
        val config = EpwatchConfig.Builder("com.example.camera", "http://127.0.0.1:1", "key").setConsent(true).build()
        Epwatch.start(JvmPlatform(File(folder)), config)
        val started = System.nanoTime()
        Epwatch.setConsent(true)
        val consented = System.nanoTime()

        val env = OrtEnvironment.getEnvironment()
        val options = OrtSession.SessionOptions().apply { setIntraOpNumThreads(1) }
        val observed = Epwatch.createSession(env, model, options, ModelInfo("segmenter", "3"))
        val (name, node) = observed.session.inputInfo.entries.first()
        val shape = (node.info as TensorInfo).shape
        val input = OnnxTensor.createTensor(env, FloatBuffer.allocate(shape.reduce(Long::times).toInt()), shape)
        val inputs = mapOf(name to input)
        val batch = LongArray(2 * BATCH) { if (it % 2 == 0) System.nanoTime() else 8_000 }

        val calls = listOf<Triple<String, Int, () -> Unit>>(
            Triple("nano_time", N) { sink += System.nanoTime() },
            Triple("record_at", N) { Native.record(observed.handle, started, 8_000) },
            Triple("begin_end", N) { observed.end(observed.begin()) },
            Triple("record_all", BATCH) { observed.recordAll(batch, BATCH) },
        )
        val least = HashMap<String, Double>()
        repeat(ROUNDS) {
            for ((call, n, work) in calls) {
                val times = if (call == "record_all") 1 else n
                val from = System.nanoTime()
                for (i in 0 until times) work()
                val each = (System.nanoTime() - from).toDouble() / n
                least.merge(call, each, ::minOf)
            }
        }
        println("start_us ${(started - began) / 1000}")
        println("set_consent_us ${(consented - started) / 1000}")
        for ((call, _, _) in calls) println("$call ${"%.1f".format(least[call])}")
        // The two sides take turns, so that other processes slow down both alike.
        val pairs = List(2) { LongArray(PAIRS) }
        for (at in -COLD until PAIRS) {
            for ((of, run) in listOf<() -> OrtSession.Result>({ observed.session.run(inputs) }, { observed.run(inputs) }).withIndex()) {
                val from = System.nanoTime()
                val result = run()
                if (at >= 0) pairs[of][at] = System.nanoTime() - from
                result.close()
            }
        }
        for ((of, which) in listOf("run_plain", "run_observed").withIndex()) {
            println("$which ${pairs[of].sorted()[PAIRS / 2]}")
        }
        observed.close()
        Epwatch.stop(60_000)
    }

    private fun loadPlatform() {
        val pool = ScheduledThreadPoolExecutor(1) { work -> Thread(work, "zygote").apply { isDaemon = true } }
        val done = CountDownLatch(1)
        pool.execute { done.countDown() }
        done.await()
        pool.shutdown()
        AtomicBoolean().compareAndSet(false, true)
    }

    private const val ROUNDS = 30
    private const val N = 200_000
    private const val BATCH = 10_000
    private const val PAIRS = 50_000
    private const val COLD = 20_000
}
