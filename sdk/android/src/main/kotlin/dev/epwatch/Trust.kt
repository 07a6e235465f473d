package dev.epwatch

import java.io.ByteArrayInputStream
import java.security.KeyStore
import java.security.cert.CertificateFactory
import javax.net.ssl.SSLContext
import javax.net.ssl.SSLSocketFactory
import javax.net.ssl.TrustManager
import javax.net.ssl.TrustManagerFactory
import javax.net.ssl.X509TrustManager

/** The sockets of uploads; `null` for the platform's own. */
internal fun socketsOf(config: EpwatchConfig): SSLSocketFactory? = when {
    config.sockets != null -> config.sockets
    config.rootCertificate.isEmpty() -> null
    else -> trusting(config.rootCertificate, config.trustsRootAlone)
}

private fun trusting(pem: String, alone: Boolean): SSLSocketFactory {
    val roots = KeyStore.getInstance(KeyStore.getDefaultType())
    roots.load(null, null)
    if (!alone) {
        val known = managers(null).filterIsInstance<X509TrustManager>().flatMap { it.acceptedIssuers.toList() }
        known.forEachIndexed { at, root -> roots.setCertificateEntry("platform$at", root) }
    }
    val given = CertificateFactory.getInstance("X.509").generateCertificates(ByteArrayInputStream(pem.toByteArray()))
    require(given.isNotEmpty()) { "the root certificate is no PEM text of a certificate" }
    given.forEachIndexed { at, root -> roots.setCertificateEntry("given$at", root) }
    val context = SSLContext.getInstance("TLS")
    context.init(null, managers(roots), null)
    return context.socketFactory
}

/** Those of a store, or the platform's. */
private fun managers(roots: KeyStore?): Array<TrustManager> {
    val factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm())
    factory.init(roots)
    return factory.trustManagers
}
