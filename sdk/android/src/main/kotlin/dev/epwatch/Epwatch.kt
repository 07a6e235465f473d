package dev.epwatch

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import androidx.annotation.AnyThread
import androidx.annotation.WorkerThread
import java.util.concurrent.CountDownLatch
import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.atomic.AtomicLong

/**
 * The SDK of this process.
 *
 * [start] returns at once: a thread of the SDK loads the library, reads the facts, and does all work with files and
 * the network. Every other call works before [start], and after a start that failed: then nothing is recorded, and
 * [explain] has the reason. No call throws, except for ONNX Runtime's own exceptions.
 */
public object Epwatch {
    private val isStarted = AtomicBoolean()
    private val isReady = CountDownLatch(1)
    private val thread = ScheduledThreadPoolExecutor(1) { work ->
        Thread(work, "epwatch-host").apply { isDaemon = true }
    }

    @Volatile private var watch = 0L
    @Volatile private var consent: Boolean? = null
    private var uploader: Uploader? = null
    private val health = HealthListeners { Health.of(watch > 0, explanation()) }
    private val polls = AtomicBoolean()

    @Volatile private var problem = "Epwatch.start was not called"
        set(value) {
            if (value == field) return
            field = value
            if (value.isNotEmpty()) Debug.log { "problem: $value" }
            if (!health.isEmpty) later {}
        }

    /**
     * Whether the SDK writes what it does: in logcat with the tag `epwatch`, on a desktop to standard error. Off by default.
     * On Android `adb shell setprop log.tag.epwatch DEBUG` before the app's start turns it on, too.
     */
    @JvmStatic
    public var debug: Boolean
        @AnyThread get() = Debug.isOn
        @AnyThread set(value) {
            Debug.isOn = value
        }

    /** Sessions that were observed before the library was loaded, and are not opened yet. Guarded by itself. */
    private val waiting = LinkedHashSet<MeasuredSession>()
    private val missedRuns = AtomicLong()

    /**
     * Turns ONNX Runtime's own telemetry, which goes to Microsoft, off for this process. Call it before the first
     * `OrtEnvironment`, and before [start]; a later call has no effect. Loads the native library on this thread. Returns
     * false if that cannot be used; [explain] has the reason then.
     */
    @AnyThread
    @JvmStatic
    public fun disableRuntimeTelemetry(): Boolean = try {
        System.loadLibrary("epwatch")
        Native.disableRuntimeTelemetry() == 0
    } catch (error: LinkageError) {
        problem = "the native library cannot be used: $error"
        false
    }

    /** Starts the SDK. A second call changes nothing. */
    @AnyThread
    @JvmStatic
    public fun start(platform: Platform, config: EpwatchConfig) {
        if (!isStarted.compareAndSet(false, true)) {
            problem = "Epwatch.start was called twice; the first configuration is in effect"
            return
        }
        problem = LOADING
        later { open(platform, config) }
    }

    /** Gives or withdraws the user's consent. A withdrawal wipes the folder and asks the collector to delete. */
    @AnyThread
    @JvmStatic
    public fun setConsent(isGiven: Boolean) {
        consent = isGiven
        Debug.log { if (isGiven) "consent given" else "consent withdrawn" }
        later { if (watch > 0) Native.setConsent(watch, isGiven) }
    }

    /** Makes the session of these options keep the EP of each node. Call it before the session is made. */
    @AnyThread
    @JvmStatic
    public fun prepare(options: OrtSession.SessionOptions): OrtSession.SessionOptions {
        OrtSessions.prepare(options)?.let { problem = it }
        return options
    }

    /**
     * Observes a session, and reads its placement. No other thread may close the session during the call. Never waits: while
     * the library is being loaded, [ObservedSession] keeps the runs, and its first call after that reads the placement.
     */
    @AnyThread
    @JvmStatic
    @JvmOverloads
    public fun observe(
        session: OrtSession,
        model: ModelInfo,
        plan: SessionPlan? = null,
        creationNanos: Long = 0,
    ): ObservedSession {
        val numbers = model.numbers(plan?.handle ?: 0, creationNanos)
        val open = { of: Any? ->
            // Checked as late as possible: the app may have closed its session while the library was being loaded.
            val own = of?.let { ifOpen(session) }
            handle(0) { Native.observe(it, own, model.texts(), numbers) }
        }
        return measured(model, session, open) { opened, early -> ObservedSession(session, opened, early) }
    }

    /**
     * Observes a session of another runtime, whose name and version is `runtime`, for example `LiteRT 2.3.0`. The model's
     * `requested` names the accelerators that the app asked for, without the CPU. `partitions` is what each got, in the
     * runtime's order; `null` if the runtime does not tell. Ops on the CPU are partitions of one op. Never waits, as [observe].
     * A `runtime` without a name is refused: nothing is recorded, and [explain] has the problem.
     */
    @AnyThread
    @JvmStatic
    @JvmOverloads
    public fun sessionOf(
        model: ModelInfo,
        runtime: String,
        partitions: List<Partition>?,
        plan: SessionPlan? = null,
        creationNanos: Long = 0,
    ): RuntimeSession {
        val numbers = model.numbers(plan?.handle ?: 0, creationNanos)
        val nodes = partitions?.flatMap { of -> of.ops.flatMap { op -> listOf(of.accelerator, op) } }
        val ofNodes = partitions.orEmpty().flatMapIndexed { at, of -> of.ops.map { at.toLong() } }.toLongArray()
        val open = { _: Any? ->
            val listed = nodes?.let { texts(*it.toTypedArray()) }
            handle(0) {
                Native.sessionOf(it, model.texts(), numbers, runtime.toByteArray(Charsets.UTF_8), listed, ofNodes)
            }
        }
        return measured(model, null, open) { opened, early -> RuntimeSession(opened, early) }
    }

    /** Opens a session in the library, or keeps its runs until that is loaded. */
    private fun <S : MeasuredSession> measured(
        model: ModelInfo,
        session: Any?,
        open: (Any?) -> Long,
        make: (Long, EarlyRuns?) -> S,
    ): S {
        val opening = { of: Any? -> open(of).also { logSession(model, it) } }
        if (!isLoading()) return make(opening(session), null)
        return synchronized(waiting) {
            val early = if (waiting.size < MAX_WAITING) EarlyRuns(opening) else null
            if (early == null) problem = "more than $MAX_WAITING sessions before the native library was loaded"
            make(0, early).also { if (early != null) waiting.add(it) }
        }
    }

    /**
     * Returns whether the compiled model (EPContext) of the model's `modelFile` is for this device, before it is loaded. The
     * chipset and the version of QNN that the file names are compared with the model's `socModel` or the device, and with the
     * configuration. `null` if nothing speaks against it, it is not a compiled model of an EP in `requested`, or the SDK does
     * not run. Also if `requested` is empty or the file cannot be opened: [explain] has the problem then. The answer is never
     * `OPTIMAL`, which only an EP gives. Waits at most a second for the library.
     */
    @WorkerThread
    @JvmStatic
    public fun compatibility(model: ModelInfo): Compatibility? {
        val answer = handle(1000) { Native.compatibility(it, model.texts(), model.numbers(0, 0)) }
        return Compatibility.entries.getOrNull(answer.toInt() - 1)
    }

    /**
     * Returns what the operator's directives ask of the next session of a model. Waits at most `timeoutMs` for them to
     * be read. Pass it to [observe].
     */
    @WorkerThread
    @JvmStatic
    @JvmOverloads
    public fun plan(model: ModelInfo, timeoutMs: Long = 200): SessionPlan {
        val until = System.nanoTime() + timeoutMs * 1_000_000
        val plan = handle(timeoutMs) {
            val left = maxOf((until - System.nanoTime()) / 1_000_000, 0)
            Native.plan(it, model.texts(), model.numbers(0, 0), left)
        }
        if (plan <= 0) return SessionPlan(0, true, "")
        return SessionPlan(plan, Native.planUsesNpu(plan), utf8(Native.planVariant(plan)))
    }

    /** Prepares, makes and observes a session; counts a failure, and passes ONNX Runtime's exception on. */
    @WorkerThread
    @JvmStatic
    @JvmOverloads
    @Throws(OrtException::class)
    public fun createSession(
        env: OrtEnvironment,
        bytes: ByteArray,
        options: OrtSession.SessionOptions,
        model: ModelInfo,
        plan: SessionPlan? = null,
    ): ObservedSession = OrtSessions.create(options, model, plan) { env.createSession(bytes, options) }

    /** As [createSession], from a file, which becomes the model's `modelFile`. */
    @WorkerThread
    @JvmStatic
    @JvmOverloads
    @Throws(OrtException::class)
    public fun createSession(
        env: OrtEnvironment,
        path: String,
        options: OrtSession.SessionOptions,
        model: ModelInfo,
        plan: SessionPlan? = null,
    ): ObservedSession = OrtSessions.create(options, model.ofFile(path), plan) { env.createSession(path, options) }

    /** Counts a session that the app could not make. */
    @AnyThread
    @JvmStatic
    @JvmOverloads
    public fun startFailed(model: ModelInfo, error: OrtException, plan: SessionPlan? = null) {
        Debug.log { "session of ${model.id} ${model.version} could not be made: $error" }
        startFailed(model, codeOf(error), error.message ?: "", plan)
    }

    /** As [startFailed], of another runtime, with its message. Paths and numbers in it do not leave the device. */
    @AnyThread
    @JvmStatic
    @JvmOverloads
    public fun startFailed(model: ModelInfo, message: String, plan: SessionPlan? = null) {
        Debug.log { "session of ${model.id} ${model.version} could not be made: $message" }
        startFailed(model, RuntimeSession.FAILED, message, plan)
    }

    private fun startFailed(model: ModelInfo, code: Int, text: String, plan: SessionPlan?) {
        val numbers = model.numbers(plan?.handle ?: 0, 0)
        val message = text.toByteArray(Charsets.UTF_8)
        val count = { handle(0) { -Native.startFailed(it, model.texts(), numbers, code, message).toLong() } }
        if (isLoading()) later { count() } else count()
    }

    /** Returns sessions, reasons, directives and the last upload. May wait for the disk. */
    @WorkerThread
    @JvmStatic
    public fun explanation(): Explanation {
        val known = if (watch > 0) utf8(Native.explain(watch)) else ""
        val read = try {
            if (known.isEmpty()) null else Json.read(known)
        } catch (error: IllegalArgumentException) {
            problem = "the native library's explanation cannot be read: ${error.message}"
            null
        }
        return Explanation.of(problem, missedRuns.get(), read)
    }

    /**
     * Calls a listener on the SDK's thread: at once with the present state, then after each change. While there is a
     * listener the SDK looks once a minute, and after each of its own steps. A listener that fails is called again.
     */
    @AnyThread
    @JvmStatic
    public fun addHealthListener(listener: HealthListener) {
        health.add(listener)
        later {
            if (polls.compareAndSet(false, true)) {
                thread.scheduleWithFixedDelay({ guarded {} }, HEALTH_S, HEALTH_S, TimeUnit.SECONDS)
            }
        }
    }

    /** A listener that is being called meanwhile may still hear this one state. */
    @AnyThread
    @JvmStatic
    public fun removeHealthListener(listener: HealthListener): Unit = health.remove(listener)

    /**
     * As [explanation], as one JSON object with the names of `epwatch inspect --json`; `host_problem` is the latest
     * problem of this library, `host_missed_runs` counts runs that were lost before the library was loaded, or for which it
     * had no place. May wait for the disk.
     */
    @WorkerThread
    @JvmStatic
    public fun explain(): String {
        val known = if (watch > 0) utf8(Native.explain(watch)) else ""
        val text = problem.map { if (it < ' ' || it == '"' || it == '\\') ' ' else it }.joinToString("")
        val head = "{\"host_problem\":\"$text\",\"host_missed_runs\":${missedRuns.get()}"
        return if (known.length > 2) head + "," + known.substring(1) else "$head}"
    }

    /**
     * Seals what was recorded and sends it, on the SDK's thread; then calls `done` there, whatever came of it. For tests,
     * and apps without a lifecycle.
     */
    @AnyThread
    @JvmStatic
    @JvmOverloads
    public fun flush(done: Runnable? = null) {
        val isQueued = later {
            try {
                sealAndSend()
            } finally {
                done?.run()
            }
        }
        if (!isQueued) done?.run()
    }

    /**
     * As [flush], and tells `done` what came of it: for schedulers, which try again if something waits. On Android
     * `BackgroundUpload` does the same for all processes of the app.
     */
    @AnyThread
    @JvmStatic
    public fun upload(done: UploadListener) {
        val isQueued = later {
            var outcome = UploadOutcome.WAITING
            try {
                outcome = outcome(sealAndSend())
            } finally {
                Debug.log { "upload: $outcome" }
                done.onDone(outcome)
            }
        }
        if (!isQueued) done.onDone(UploadOutcome.FAILED)
    }

    /** Returns whether everything that was recorded is on disk, or was sent. */
    private fun sealAndSend(): Boolean {
        openWaiting()
        val isKept = seal()
        send()
        return isKept
    }

    /** Writes what was recorded to the folder; returns whether that worked. */
    private fun seal(): Boolean {
        val isKept = watch <= 0 || Native.seal(watch) == 0
        if (!isKept) problem = utf8(Native.lastError())
        return isKept
    }

    /** What the state is after an upload. */
    private fun outcome(isKept: Boolean): UploadOutcome {
        if (watch <= 0 || uploader?.isRefused == true) return UploadOutcome.FAILED
        val known = explanation()
        val isSent = isKept && known.spoolReports == 0L && known.deletionsWaiting == 0L
        return if (isSent) UploadOutcome.SENT else UploadOutcome.WAITING
    }

    /**
     * Counts causes that will keep the NPU from starting; [explain] lists them with the way out. Touches the disk. 0 if
     * there is none, or if the SDK does not run.
     */
    @WorkerThread
    @JvmStatic
    public fun preflight(facts: PreflightFacts): Int =
        handle(1000) { Native.preflight(it, facts.texts(), facts.declaresRpcLibrary()).toLong() }.toInt()

    /**
     * Ends the SDK of this process, within `timeoutMs`. It cannot be started again. Runs are written to the folder on this
     * thread first, because the SDK's own may wait for a collector that does not answer. Returns whether the SDK has ended
     * and every run was written. An interrupted thread does not wait, and gets false unless the SDK has ended by then.
     */
    @WorkerThread
    @JvmStatic
    public fun stop(timeoutMs: Long): Boolean {
        openWaiting()
        val isKept = seal()
        var isEnded = true
        later {
            openWaiting()
            val ended = watch
            watch = 0
            problem = "Epwatch.stop was called"
            if (ended > 0) isEnded = Native.stop(ended, timeoutMs) == 0
        }
        thread.shutdown()
        // The second value is set before the thread ends.
        return waited { thread.awaitTermination(timeoutMs, TimeUnit.MILLISECONDS) } && isEnded && isKept
    }

    /** Runs work on the SDK's thread, unless that has ended. What it throws is a problem of the SDK, not of the app. */
    private fun later(work: () -> Unit): Boolean = try {
        thread.execute { guarded(work) }
        true
    } catch (_: RejectedExecutionException) {
        // The SDK was stopped.
        false
    }

    private fun guarded(work: () -> Unit) {
        try {
            work()
        } catch (error: Exception) {
            problem = error.toString()
        } catch (error: LinkageError) {
            problem = "the native library cannot be used: $error"
        }
        health.check()
    }

    private fun logSession(model: ModelInfo, handle: Long) = Debug.log {
        val text = if (handle > 0) utf8(Native.explainSession(handle)) else ""
        val known = if (text.isEmpty()) "not recorded" else SessionExplanation.of(Json.read(text)).placement()
        "session of ${model.id} ${model.version}: $known"
    }

    private fun open(platform: Platform, config: EpwatchConfig) {
        try {
            Debug.readProperty()
            System.loadLibrary("epwatch")
            val facts = platform.facts()
            val started = Native.start(config.texts(platform.folder().path, facts), config.numbers(facts))
            if (started <= 0) {
                problem = utf8(Native.lastError())
                return
            }
            watch = started
            if (problem == LOADING) problem = ""
            Debug.log { "started for ${config.endpoint}, consent ${config.hasConsent || consent == true}" }
        } finally {
            isReady.countDown()
        }
        consent?.let { Native.setConsent(watch, it) }
        uploader = Uploader(config.endpoint, config.appKey, socketsOf(config))
        platform.listen(object : Signals {
            override fun conditions(thermal: Int, powerSave: Int) {
                if (watch > 0) Native.setConditions(watch, thermal, powerSave)
            }

            override fun network(kind: Int) {
                if (watch > 0) Native.setNetwork(watch, kind)
            }

            override fun background() {
                Debug.log { "the app went out of sight" }
                flush(null)
            }
        })
        val interval = config.uploadIntervalMs
        thread.scheduleWithFixedDelay({ guarded(::send) }, interval, interval, TimeUnit.MILLISECONDS)
    }

    private fun send() {
        if (watch > 0) uploader?.send(watch)
    }

    /** Whether the library is still being loaded. */
    internal fun isLoading(): Boolean = isStarted.get() && isReady.count > 0

    internal fun isLoaded(): Boolean = watch > 0

    /** Counts runs that are recorded nowhere. */
    internal fun missed(runs: Long) {
        missedRuns.addAndGet(runs)
    }

    /** Begins a self-test. 0 if there is nothing to do, or if the input is refused; the problem says why. */
    internal fun beginSelfTest(begin: () -> Long): Long = handle(0) { begin() }

    /** A session waits no more. */
    internal fun opened(session: MeasuredSession) {
        synchronized(waiting) { waiting.remove(session) }
    }

    /** Runs work on the SDK's thread, which has tried to load the library by then; `otherwise` if it is not loaded. */
    internal fun onceLoaded(work: () -> Unit, otherwise: () -> Unit) {
        if (!later { if (watch > 0) work() else otherwise() }) otherwise()
    }

    /** Opens sessions that were not used since the library was loaded. They may be closed, so no placement is read. */
    private fun openWaiting() {
        val left = synchronized(waiting) { waiting.toList() }
        left.forEach { it.openIfReady(null) }
    }

    /** The result of a wait; false if the app interrupts this thread, which then stays interrupted. */
    private inline fun waited(wait: () -> Boolean): Boolean = try {
        wait()
    } catch (_: InterruptedException) {
        Thread.currentThread().interrupt()
        false
    }

    /**
     * Makes a native call once the library is loaded, which it waits for. 0 if it is not, or if the call fails; the
     * problem says why.
     */
    private inline fun handle(waitMs: Long, call: (Long) -> Long): Long {
        val isLoaded = isReady.count == 0L || (waitMs > 0 && waited { isReady.await(waitMs, TimeUnit.MILLISECONDS) })
        if (!isStarted.get() || !isLoaded || watch <= 0) return 0
        val made = call(watch)
        if (made < 0) problem = utf8(Native.lastError())
        return maxOf(made, 0)
    }
}

private const val HEALTH_S = 60L
private const val LOADING = "the native library is being loaded"

/** Sessions of an app before its library is loaded; each keeps up to 40 kB. */
private const val MAX_WAITING = 16

private fun EpwatchConfig.texts(folder: String, facts: DeviceFacts): Array<ByteArray> = texts(
    appId, endpoint, appKey, folder, appVersion, appBuild, environment, "kotlin", directiveKeyId, directiveKey,
    facts.chipset, facts.socManufacturer, facts.board, facts.abi, facts.manufacturer, facts.model, facts.os,
    facts.osVersion, facts.securityPatch, facts.vendorFingerprint, epPackage, epVersion, qnnSdkVersion,
    *labels.toTypedArray(),
)

private fun EpwatchConfig.numbers(facts: DeviceFacts): LongArray = longArrayOf(
    facts.ramBytes, reportIntervalMs, meteredBytesPerDay, facts.apiLevel.toLong(), number(hasConsent), 1,
    number(facts.reportsThermal), number(facts.reportsPowerSave), number(allowsPlaintext), unmeteredBytesPerDay,
    number(readsThermalZones),
)
