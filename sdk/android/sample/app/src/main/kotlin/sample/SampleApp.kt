package sample

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import android.app.Activity
import android.app.Application
import android.os.Bundle
import android.system.Os
import android.widget.TextView
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.ModelInfo
import dev.epwatch.start
import java.nio.FloatBuffer
import kotlin.concurrent.thread

/** Starts the SDK. A real app asks its user before `setConsent`. */
public class SampleApp : Application() {
    override fun onCreate() {
        super.onCreate()
        // The emulator's name of the machine that it runs on; a phone needs https and your collector's name.
        val config = EpwatchConfig.Builder("dev.epwatch.sample", "http://10.0.2.2:4717", "demo-key")
            .setAppVersion("1.0", "1")
            .setPlaintextAllowed(true)
            .build()
        Epwatch.start(this, config)
        Epwatch.setConsent(true)
        Os.setenv("ADSP_LIBRARY_PATH", applicationInfo.nativeLibraryDir, true)
    }
}

/** Runs `assets/model.onnx` a hundred times, and shows where it ran. */
public class SampleActivity : Activity() {
    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        val text = TextView(this).apply { text = "running" }
        setContentView(text)
        thread {
            val explained = try {
                ran(assets.open("model.onnx").use { it.readBytes() })
            } catch (error: Exception) {
                error.toString()
            }
            runOnUiThread { text.text = explained }
        }
    }

    private fun ran(model: ByteArray): String {
        val env = OrtEnvironment.getEnvironment()
        val info = ModelInfo("sample", "1", requested = listOf("QNNExecutionProvider"))
        val options = OrtSession.SessionOptions()
        val observed = Epwatch.plan(info).use { plan ->
            if (plan.useNpu) options.addQnn(mapOf("backend_path" to "libQnnHtp.so"))
            Epwatch.createSession(env, model, options, info, plan)
        }
        val (name, node) = observed.session.inputInfo.entries.first()
        val shape = (node.info as TensorInfo).shape.map { if (it < 0) 1 else it }.toLongArray()
        val zeros = FloatBuffer.allocate(shape.fold(1L, Long::times).toInt())
        OnnxTensor.createTensor(env, zeros, shape).use { input ->
            repeat(100) { observed.run(mapOf(name to input)).close() }
        }
        Epwatch.flush()
        return observed.use { it.explain() }
    }
}
