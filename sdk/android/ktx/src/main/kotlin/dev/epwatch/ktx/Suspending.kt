package dev.epwatch.ktx

import ai.onnxruntime.OnnxTensorLike
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.Explanation
import dev.epwatch.Health
import dev.epwatch.HealthListener
import dev.epwatch.ModelInfo
import dev.epwatch.ObservedSession
import dev.epwatch.PreflightFacts
import dev.epwatch.SessionPlan
import dev.epwatch.UploadOutcome
import kotlin.coroutines.resume
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.suspendCancellableCoroutine
import kotlinx.coroutines.withContext

/** The SDK's health now, then each change. A slow collector gets the latest only. It never ends by itself. */
public fun Epwatch.healthFlow(): Flow<Health> = callbackFlow {
    val listener = HealthListener { trySend(it) }
    addHealthListener(listener)
    awaitClose { removeHealthListener(listener) }
}.conflate()

/** As [Epwatch.upload]. A cancelled coroutine waits no more; the upload goes on. */
public suspend fun Epwatch.awaitUpload(): UploadOutcome = suspendCancellableCoroutine { waiting ->
    upload { if (waiting.isActive) waiting.resume(it) }
}

/** As [Epwatch.explanation], on another thread. */
public suspend fun Epwatch.awaitExplanation(on: CoroutineDispatcher = Dispatchers.IO): Explanation =
    withContext(on) { explanation() }

/** As [Epwatch.plan], on another thread. A plan that a cancelled coroutine does not get is closed. */
public suspend fun Epwatch.awaitPlan(
    model: ModelInfo,
    timeoutMs: Long = 200,
    on: CoroutineDispatcher = Dispatchers.IO,
): SessionPlan = handedOver(on, { plan(model, timeoutMs) }, SessionPlan::close)

/** As [Epwatch.preflight], on another thread. */
public suspend fun Epwatch.awaitPreflight(facts: PreflightFacts, on: CoroutineDispatcher = Dispatchers.IO): Int =
    withContext(on) { preflight(facts) }

/**
 * As [Epwatch.createSession] from a file, on another thread: QNN compiles a graph for seconds. A session that a cancelled
 * coroutine does not get is closed.
 */
public suspend fun Epwatch.awaitSession(
    env: OrtEnvironment,
    path: String,
    options: OrtSession.SessionOptions,
    model: ModelInfo,
    plan: SessionPlan? = null,
    on: CoroutineDispatcher = Dispatchers.IO,
): ObservedSession = handedOver(on, { createSession(env, path, options, model, plan) }) {
    it.close()
    it.session.close()
}

/**
 * As [ObservedSession.run], on another thread. ONNX Runtime goes on when the coroutine is cancelled; the result is closed then.
 */
public suspend fun ObservedSession.awaitRun(
    inputs: Map<String, OnnxTensorLike>,
    on: CoroutineDispatcher = Dispatchers.Default,
): OrtSession.Result = handedOver(on, { run(inputs) }, OrtSession.Result::close)

/** Makes something on another thread. If the caller was cancelled meanwhile nobody gets it, so it is closed. */
internal suspend fun <T : Any> handedOver(on: CoroutineDispatcher, make: () -> T, close: (T) -> Unit): T {
    var made: T? = null
    var isHandedOver = false
    try {
        return withContext(on) { make().also { made = it } }.also { isHandedOver = true }
    } finally {
        if (!isHandedOver) made?.let(close)
    }
}
