package dev.epwatch

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OnnxValue
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo.OnnxTensorType
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.concurrent.Callable

/**
 * A reference input of a model, for [ObservedSession.selfTest]: random or public data, never the data of a user.
 *
 * @property id by which reports name it: 1 to 64 bytes.
 * @property inputs the model's inputs by name, of numbers. They stay the app's.
 * @property tolerance the greatest absolute difference between two outputs that is accepted; 0 is not given.
 */
public class GoldenInput @JvmOverloads constructor(
    public val id: String,
    public val inputs: Map<String, OnnxTensor>,
    public val tolerance: Double = 0.0,
)

/** What a self-test has found. Distances are `null` if the outputs were not compared. */
public class SelfTestResult internal constructor(
    /** The greatest absolute difference of two elements. */
    public val maxAbs: Double?,
    /** The lowest cosine of an output. */
    public val cosine: Double?,
    /** Whether the largest element of every output is the same one. */
    public val top1Equal: Boolean?,
    /** 0, ONNX Runtime's code of a failure, or epwatch's, which is below 0. */
    public val errorCode: Int,
)

/** Tensors for [Native], or the failure in their place. */
internal class Tensors {
    private val bytes = ArrayList<ByteArray>()
    private val numbers = ArrayList<Long>()
    private var n = 0

    /** 0 without one. */
    var error = 0
        private set

    fun add(name: String, tensor: OnnxTensor) {
        // Null for tensors of texts, which the library refuses by their type.
        val elements = tensor.byteBuffer ?: ByteBuffer.allocate(0)
        bytes.add(name.toByteArray(Charsets.UTF_8))
        bytes.add(ByteArray(elements.remaining()).also { elements.get(it) })
        numbers.add(onnxType(tensor))
        numbers.add(tensor.info.shape.size.toLong())
        tensor.info.shape.forEach { numbers.add(it) }
        n++
    }

    /** Adds the outputs of a run. The session must be open meanwhile, because its outputs are in its memory. */
    private fun addOutputs(session: OrtSession, inputs: Map<String, OnnxTensor>) {
        session.run(inputs).use { result ->
            for ((name, value) in result) if (isOfNumbers(value)) add(name, value as OnnxTensor) else fail(NOT_NUMBERS)
        }
    }

    /** Keeps the code of an exception: ONNX Runtime's, or `otherwise`. */
    fun tried(otherwise: Int, work: () -> Unit) {
        try {
            work()
        } catch (error: OrtException) {
            // ONNX Runtime's Java part has errors of its own, whose code is below 0. 0 would mean success.
            fail(codeOf(error).takeIf { it > 0 } ?: FAILED)
        } catch (_: Exception) {
            fail(otherwise)
        }
    }

    /** Runs the golden input, and keeps the outputs or the failure. */
    fun run(session: OrtSession, inputs: Map<String, OnnxTensor>): Unit = tried(FAILED) { addOutputs(session, inputs) }

    fun fail(code: Int) {
        error = code
    }

    /** Begins the test of a golden input whose tensors these are. */
    fun begin(session: Long, golden: GoldenInput): Long = Native.beginSelfTest(
        session,
        (listOf(golden.id.toByteArray(Charsets.UTF_8)) + bytes).toTypedArray(),
        longArrayOf(java.lang.Double.doubleToRawLongBits(golden.tolerance)) + numbers,
    )

    /** Ends a test by these outputs of the NPU, and others of the CPU. */
    fun end(test: Long, cpu: Tensors): SelfTestResult? {
        val heads = longArrayOf(error.toLong(), cpu.error.toLong(), n.toLong(), cpu.n.toLong())
        val answer = Native.endSelfTest(test, (bytes + cpu.bytes).toTypedArray(), heads + numbers + cpu.numbers)
        val fields = ByteBuffer.wrap(answer ?: return null).order(ByteOrder.LITTLE_ENDIAN)
        val (maxAbs, cosine) = fields.double to fields.double
        val (top1, code) = fields.int to fields.int
        return SelfTestResult(
            maxAbs.takeIf { it >= 0 },
            cosine.takeIf { it >= -1 },
            if (top1 < 0) null else top1 == 1,
            code,
        )
    }

    companion object {
        /** ORT_FAIL, for an exception without a code, for example of a session that is closed. */
        private const val FAILED = 1
        const val NO_SESSION = -2
        private const val NOT_NUMBERS = -5

        private const val TEXT = 8L

        private fun isOfNumbers(value: OnnxValue): Boolean =
            value is OnnxTensor && onnxType(value).let { it > 0 && it != TEXT }

        /** Returns ONNX's number of a type, 0 for others than the library knows. Java's enum has numbers of its own. */
        private fun onnxType(tensor: OnnxTensor): Long = when (tensor.info.onnxType) {
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT -> 1
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 -> 2
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 -> 3
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 -> 4
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 -> 5
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 -> 6
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 -> 7
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING -> TEXT
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL -> 9
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 -> 10
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE -> 11
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 -> 12
            OnnxTensorType.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 -> 13
            else -> 0
        }
    }
}

/** The test of [ObservedSession.selfTest], once the session is open in the library. */
internal fun selfTest(
    handle: Long,
    session: OrtSession,
    golden: GoldenInput,
    cpuSession: Callable<OrtSession>,
): SelfTestResult? {
    val inputs = Tensors().apply { golden.inputs.forEach { (name, tensor) -> add(name, tensor) } }
    val test = Epwatch.beginSelfTest { inputs.begin(handle, golden) }
    if (test <= 0) return null
    val (npu, cpu) = Tensors() to Tensors()
    npu.run(session, golden.inputs)
    // If the NPU fails, the CPU session need not be made.
    if (npu.error == 0) {
        cpu.tried(Tensors.NO_SESSION) { cpuSession.call().use { cpu.run(it, golden.inputs) } }
    }
    return npu.end(test, cpu)
}
