package dev.epwatch

import javax.net.ssl.SSLSocketFactory

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
    internal val unmeteredBytesPerDay = builder.unmeteredBytesPerDay
    internal val readsThermalZones = builder.readsThermalZones
    internal val labels = builder.labels.toList()
    internal val rootCertificate = builder.rootCertificate
    internal val trustsRootAlone = builder.trustsRootAlone
    internal val sockets = builder.sockets

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
        internal var unmeteredBytesPerDay = 0L
        internal var readsThermalZones = false
        internal val labels = ArrayList<String>()
        internal var rootCertificate = ""
        internal var trustsRootAlone = false
        internal var sockets: SSLSocketFactory? = null

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

        /** Limits the bytes a day over other networks than metered ones; the default is 64 MiB. */
        public fun setUnmeteredBytesPerDay(bytes: Long): Builder = apply {
            require(bytes > 0) { "the limit must be positive" }
            unmeteredBytesPerDay = bytes
        }

        /** Adds a roll-out group of this installation, for example `ring` and `canary`. The first eight count. */
        public fun addRolloutLabel(key: String, value: String): Builder = apply {
            labels.add(key)
            labels.add(value)
        }

        /** Reads the thermal zones of Linux, for a JVM on a robot. Android reports heat by itself. */
        public fun setThermalZones(isRead: Boolean): Builder = apply { readsThermalZones = isRead }

        /**
         * Trusts this root certificate, PEM text, for a collector with a private CA: next to the platform's, or `alone`.
         */
        @JvmOverloads
        public fun setRootCertificate(pem: String, alone: Boolean = false): Builder = apply {
            rootCertificate = pem
            trustsRootAlone = alone
        }

        /**
         * Opens the connections of uploads, in place of [setRootCertificate]: for a client certificate (mTLS), or an app with
         * trust of its own.
         */
        public fun setSslSocketFactory(sockets: SSLSocketFactory): Builder = apply { this.sockets = sockets }

        /** Allows `http://` to other hosts than this one, for test networks. */
        public fun setPlaintextAllowed(isAllowed: Boolean): Builder = apply { allowsPlaintext = isAllowed }

        public fun build(): EpwatchConfig = EpwatchConfig(this)
    }
}
