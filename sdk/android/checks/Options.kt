package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpsConfigurator
import com.sun.net.httpserver.HttpsServer
import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import java.io.File
import java.net.HttpURLConnection
import java.net.InetSocketAddress
import java.net.URL
import java.security.KeyStore
import javax.net.ssl.KeyManagerFactory
import javax.net.ssl.SSLContext

/**
 * Runs of a model with free dimensions in every way, to a collector with a private CA: ENDPOINT KEY FOLDER MODEL STORE PEM
 *
 * The endpoint is plain; a server here stands before it with the certificate of STORE (PKCS12, password `secret`). Without
 * PEM the certificate is not trusted.
 */
public object OptionsApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model, store) = args
        val server = before(endpoint, store)
        val config = EpwatchConfig.Builder("com.example.camera", "https://127.0.0.1:${server.address.port}", key)
            .setConsent(true)
            .addRolloutLabel("ring", "canary")
            .setUnmeteredBytesPerDay(1 shl 20)
            .setThermalZones(true)
        if (args.size > 5) config.setRootCertificate(File(args[5]).readText(), true)
        Epwatch.start(JvmPlatform(File(folder)), config.build())
        val env = OrtEnvironment.getEnvironment()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("dynamic", "1"))
        loaded()
        val name = observed.session.inputNames.first()
        for (batch in 1..3) {
            val image = Array(3) { Array(32) { FloatArray(32) } }
            OnnxTensor.createTensor(env, Array(batch) { image }).use { input ->
                val inputs = mapOf(name to input)
                repeat(10) { observed.measure(inputs) { observed.session.run(inputs) }.close() }
                observed.run(inputs, observed.session.outputNames).close()
                val options = OrtSession.RunOptions()
                observed.run(inputs, observed.session.outputNames, options).use { result ->
                    val outputs = mapOf(observed.session.outputNames.first() to result.get(0))
                    observed.run(inputs, outputs).close()
                    observed.run(inputs, emptySet(), outputs).close()
                    observed.run(inputs, emptySet(), outputs, options).close()
                }
            }
        }
        observed.end(observed.begin(), "$name:4x3x32x32")
        flush()
        println("explain ${Epwatch.explain()}")
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
        server.stop(0)
    }

    private fun before(endpoint: String, store: String): HttpsServer {
        val keys = KeyStore.getInstance("PKCS12")
        File(store).inputStream().use { keys.load(it, PASSWORD) }
        val managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm())
        managers.init(keys, PASSWORD)
        val context = SSLContext.getInstance("TLS")
        context.init(managers.keyManagers, null, null)
        val server = HttpsServer.create(InetSocketAddress("127.0.0.1", 0), 0)
        server.httpsConfigurator = HttpsConfigurator(context)
        server.createContext("/") { pass(it, endpoint) }
        server.start()
        return server
    }

    private fun pass(request: HttpExchange, endpoint: String) {
        val body = request.requestBody.readBytes()
        val onwards = URL(endpoint + request.requestURI).openConnection() as HttpURLConnection
        onwards.doOutput = true
        onwards.setFixedLengthStreamingMode(body.size)
        for (name in listOf("content-type", "authorization")) {
            onwards.setRequestProperty(name, request.requestHeaders.getFirst(name))
        }
        onwards.outputStream.use { it.write(body) }
        val answer = onwards.inputStream.use { it.readBytes() }
        request.responseHeaders.set("content-type", onwards.contentType)
        request.sendResponseHeaders(onwards.responseCode, answer.size.toLong())
        request.responseBody.use { it.write(answer) }
    }

    private val PASSWORD = "secret".toCharArray()
}
