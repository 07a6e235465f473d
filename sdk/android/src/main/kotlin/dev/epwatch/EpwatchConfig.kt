package dev.epwatch

/** Configuration. Wrong texts are found by [Epwatch.start], and [Epwatch.explain] names them. */
public class EpwatchConfig private constructor(builder: Builder) {
    internal val appId = builder.appId
    private val givenEndpoint = builder.endpoint
    internal val appKey = builder.appKey
    internal val appVersion = builder.appVersion
    internal val appBuild = builder.appBuild
    internal val environment = builder.environment
    internal val directiveKeyId = builder.directiveKeyId
    internal val directiveKey = builder.directiveKey
    internal val epPackage = builder.epPackage
    internal val epVersion = builder.epVersion
    internal val qnnSdkVersion = builder.qnnSdkVersion
    internal val hasConsent = builder.hasConsent
    internal val reportIntervalMs = builder.reportIntervalMs
    internal val uploadIntervalMs = builder.uploadIntervalMs
    internal val meteredBytesPerDay = builder.meteredBytesPerDay
    internal val allowsPlaintext = builder.allowsPlaintext

    /** For the SDK's thread: Kotlin's functions on texts load 37 ms of classes on a busy JVM. */
    internal val endpoint: String
        get() = givenEndpoint.trimEnd('/')

    public class Builder(internal val appId: String, internal val endpoint: String, internal val appKey: String) {
        internal var appVersion = ""
        internal var appBuild = ""
        internal var environment = ""
        internal var directiveKeyId = ""
        internal var directiveKey = ""
        internal var epPackage = ""
        internal var epVersion = ""
        internal var qnnSdkVersion = ""
        internal var hasConsent = false
        internal var reportIntervalMs = 15 * 60_000L
        internal var uploadIntervalMs = 15 * 60_000L
        internal var meteredBytesPerDay = 0L
        internal var allowsPlaintext = false

        /** The app's version and build, as its users see them. */
        public fun setAppVersion(version: String, build: String): Builder = apply {
            appVersion = version
            appBuild = build
        }

        /** For example `staging`; the default is `production`. */
        public fun setEnvironment(environment: String): Builder = apply { this.environment = environment }

        /** Obeys directives signed with this Ed25519 public key, 64 hexadecimal digits. */
        public fun setDirectiveKey(id: String, publicKey: String): Builder = apply {
            directiveKeyId = id
            directiveKey = publicKey
        }

        /** Package and version of the QNN EP, and the QAIRT version of the runtime. */
        public fun setRuntime(epPackage: String, epVersion: String, qnnSdkVersion: String): Builder = apply {
            this.epPackage = epPackage
            this.epVersion = epVersion
            this.qnnSdkVersion = qnnSdkVersion
        }

        /** Whether the user has consented; the default is `false`. Without consent nothing is recorded or sent. */
        public fun setConsent(isGiven: Boolean): Builder = apply { hasConsent = isGiven }

        /** Milliseconds between two reports, and between two uploads; the defaults are 15 minutes. */
        public fun setIntervals(reportMs: Long, uploadMs: Long): Builder = apply {
            require(reportMs > 0 && uploadMs > 0) { "intervals must be positive" }
            reportIntervalMs = reportMs
            uploadIntervalMs = uploadMs
        }

        /** Allows uploads over metered networks, up to this many bytes a day. */
        public fun setMeteredBytesPerDay(bytes: Long): Builder = apply { meteredBytesPerDay = bytes }

        /** Allows `http://` to other hosts than this one, for test networks. */
        public fun setPlaintextAllowed(isAllowed: Boolean): Builder = apply { allowsPlaintext = isAllowed }

        public fun build(): EpwatchConfig = EpwatchConfig(this)
    }
}
