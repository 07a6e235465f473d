package dev.epwatch

/**
 * Everything that an app, or a person with one of its devices, may want to know about the SDK: [Epwatch.explanation]. Later
 * versions add properties at the end.
 *
 * @property hostProblem the latest problem of this library, for example why it does not run; `null` if there is none.
 * @property hostMissedRuns runs that were lost before the native library was loaded.
 * @property ortVersion empty until a session has been made.
 * @property runtimeTelemetry of ONNX Runtime itself: `unknown`, `not_in_this_version`, `switched_off`, `not_switched_off`.
 * @property chipset the device's, for example `SM8650`.
 * @property installation the id by which `epwatch devices` finds it; `null` without consent.
 * @property endpoint the collector's address.
 * @property sessions sessions that are observed now.
 * @property startFailures sessions that could not be made.
 * @property dropped lost runs and reports by reason.
 * @property failedChecks findings of the latest [Epwatch.preflight].
 * @property directives held directives, one or more lines each.
 * @property lastUpload `null` before the first.
 * @property spoolReports reports that wait on disk.
 * @property spoolBytes their bytes.
 * @property nextUploadSeconds the time until the next upload is due.
 * @property network as the platform reported it.
 * @property consent whether the SDK may record, in words.
 * @property deletionsWaiting installations whose deletion the collector has not confirmed.
 * @property lastProblem the latest problem of the native library, which the next success clears.
 * @property internalErrors panics of the native library that were caught.
 */
public data class Explanation(
    public val hostProblem: String?,
    public val hostMissedRuns: Long,
    public val ortVersion: String = "",
    public val runtimeTelemetry: String = "",
    public val chipset: String = "",
    public val installation: String? = null,
    public val endpoint: String = "",
    public val sessions: List<SessionExplanation> = emptyList(),
    public val startFailures: List<StartFailure> = emptyList(),
    public val dropped: Map<String, Loss> = emptyMap(),
    public val failedChecks: List<FailedCheck> = emptyList(),
    public val directives: List<String> = emptyList(),
    public val lastUpload: LastUpload? = null,
    public val spoolReports: Long = 0,
    public val spoolBytes: Long = 0,
    public val nextUploadSeconds: Double = 0.0,
    public val network: String = "",
    public val sentUnmeteredBytes: Long = 0,
    public val sentMeteredBytes: Long = 0,
    public val consent: String = "",
    public val deletionsWaiting: Long = 0,
    public val lastProblem: String? = null,
    public val internalErrors: Long = 0,
) {
    internal companion object {
        /** Of the native library, or of a library that does not run (`known` is `null`). */
        fun of(hostProblem: String, missedRuns: Long, known: JsonObject?): Explanation {
            val problem = hostProblem.ifEmpty { null }
            if (known == null) return Explanation(problem, missedRuns)
            return Explanation(
                hostProblem = problem,
                hostMissedRuns = missedRuns,
                ortVersion = known.text("ort_version"),
                runtimeTelemetry = known.text("runtime_telemetry"),
                chipset = known.text("chipset"),
                installation = known.textOrNull("installation"),
                endpoint = known.text("endpoint"),
                sessions = known.each("sessions", SessionExplanation::of),
                startFailures = known.each("start_failures", StartFailure::of),
                dropped = known.byName("dropped") { Loss(it.number("reports"), it.number("runs")) },
                failedChecks = known.each("failed_checks") { FailedCheck(Reason.of(it), it.text("seen")) },
                directives = known.texts("directives"),
                lastUpload = known.child("last_upload")?.let { LastUpload(it.real("seconds_ago"), it.text("answer")) },
                spoolReports = known.number("spool_reports"),
                spoolBytes = known.number("spool_bytes"),
                nextUploadSeconds = known.real("next_upload_seconds"),
                network = known.text("network"),
                sentUnmeteredBytes = known.number("sent_unmetered_bytes"),
                sentMeteredBytes = known.number("sent_metered_bytes"),
                consent = known.text("consent"),
                deletionsWaiting = known.number("deletions_waiting"),
                lastProblem = known.textOrNull("last_problem"),
                internalErrors = known.number("internal_errors"),
            )
        }
    }
}

/**
 * One session: its speed, the EPs of its nodes, and the reasons. [ObservedSession.explanation] returns it.
 *
 * @property socModel the chipset that QNN was given; `null` if it is not known.
 * @property runs runs that were sealed; the other numbers are of these.
 * @property p50Us their median in microseconds; `null` without runs.
 * @property requested EPs that the app asked for, without the CPU's.
 * @property requestedInEffect EPs in effect, after directives.
 * @property directive the id of the directive that changed the request.
 * @property source of the placement: `assignment_api`, `log`, `host` or `unavailable`.
 * @property graphKind `jit` or `epcontext`.
 * @property eps the share of each EP, by its name.
 * @property cpuNodes nodes on the CPU, as many as fit into a report; `cpuNodesTruncated` if there are more.
 * @property fingerprint hash of all pairs of node and EP.
 * @property reasons why the NPU did not get nodes.
 * @property runtime name and version of another runtime than ONNX Runtime; `null` for that one.
 * @property selectionPolicy the app's policy for the choice of devices, for example `prefer_npu`; `null` for none.
 * @property deviceType the device that the EP was to run on, for example `gpu`; `null` if it is not known.
 * @property devices where ONNX Runtime has inputs and outputs, for example `OpenVINOExecutionProvider on GPU (Intel)`.
 */
public data class SessionExplanation(
    public val model: String,
    public val version: String,
    public val socModel: String?,
    public val runs: Long,
    public val failedRuns: Long,
    public val p50Us: Double?,
    public val requested: List<String>,
    public val requestedInEffect: List<String>,
    public val directive: String?,
    public val source: String,
    public val graphKind: String,
    public val eps: Map<String, EpShare>,
    public val cpuNodes: List<CpuNode>,
    public val cpuNodesTruncated: Boolean,
    public val fingerprint: String?,
    public val fingerprintNormalised: String?,
    public val reasons: List<Reason>,
    public val runtime: String? = null,
    public val selectionPolicy: String? = null,
    public val deviceType: String? = null,
    public val devices: List<String> = emptyList(),
) {
    /** For example `QNNExecutionProvider 30 nodes, CPUExecutionProvider 1 nodes; fp16_not_supported`. */
    internal fun placement(): String {
        if (source == "unavailable") return "placement unknown: " + reasons.joinToString { it.code }
        val shares = eps.entries.sortedByDescending { it.value.nodes }.joinToString { "${it.key} ${it.value.nodes} nodes" }
        return if (reasons.isEmpty()) shares else shares + reasons.joinToString(prefix = "; ") { it.code }
    }

    internal companion object {
        fun of(known: JsonObject): SessionExplanation = SessionExplanation(
            model = known.text("model"),
            version = known.text("version"),
            socModel = known.textOrNull("soc_model"),
            runs = known.number("runs"),
            failedRuns = known.number("failed_runs"),
            p50Us = known.realOrNull("p50_us"),
            requested = known.texts("requested"),
            requestedInEffect = known.texts("requested_in_effect"),
            directive = known.textOrNull("directive"),
            source = known.text("source"),
            graphKind = known.text("graph_kind"),
            eps = known.byName("eps") {
                EpShare(it.number("nodes"), it.realOrNull("partitions")?.toLong(), it.realOrNull("macs_share"))
            },
            cpuNodes = known.each("cpu_nodes", CpuNode::of),
            cpuNodesTruncated = known.flag("cpu_nodes_truncated"),
            fingerprint = known.textOrNull("fingerprint"),
            fingerprintNormalised = known.textOrNull("fingerprint_normalised"),
            reasons = known.each("reasons", Reason::of),
            runtime = known.textOrNull("runtime"),
            selectionPolicy = known.textOrNull("selection_policy"),
            deviceType = known.textOrNull("device_type"),
            devices = known.texts("devices"),
        )
    }
}

/** The share of one EP. `partitions` is `null` for the CPU, `macsShare`, 0 to 1, without the model's manifest. */
public data class EpShare(public val nodes: Long, public val partitions: Long?, public val macsShare: Double?)

/**
 * A node on the CPU. `name` and `domain` may be empty; `reasonText` is the validator's sentence, if it is known; `benign` is
 * the edge of a quantised graph, where the CPU is expected.
 */
public data class CpuNode(
    public val name: String,
    public val opType: String,
    public val domain: String,
    public val reason: String,
    public val reasonText: String?,
    public val macsShare: Double?,
    public val benign: Boolean,
) {
    internal companion object {
        fun of(known: JsonObject): CpuNode = CpuNode(
            known.text("name"),
            known.text("op_type"),
            known.text("domain"),
            known.text("reason"),
            known.textOrNull("reason_text"),
            known.realOrNull("macs_share"),
            known.flag("benign"),
        )
    }
}

/** A reason's code, its meaning in one sentence, and the way out. */
public data class Reason(public val code: String, public val meaning: String, public val fix: String) {
    internal companion object {
        fun of(known: JsonObject): Reason = Reason(known.text("code"), known.text("meaning"), known.text("fix"))
    }
}

/** A finding of [Epwatch.preflight]; `seen` is the value or path that was found. */
public data class FailedCheck(public val reason: Reason, public val seen: String)

/** Sessions of one model that could not be made for one reason. `text` is ONNX Runtime's, without paths and numbers. */
public data class StartFailure(
    public val model: String,
    public val version: String,
    public val reason: Reason,
    public val text: String,
    public val count: Long,
) {
    internal companion object {
        fun of(known: JsonObject): StartFailure = StartFailure(
            known.text("model"),
            known.text("version"),
            Reason.of(known.child("reason") ?: JsonObject(emptyMap<String, Any>())),
            known.text("text"),
            known.number("count"),
        )
    }
}

/** Losses for one reason: sealed reports, and runs with those in the reports. */
public data class Loss(public val reports: Long, public val runs: Long)

/** The latest request to the collector, and what came of it. */
public data class LastUpload(public val secondsAgo: Double, public val answer: String)
