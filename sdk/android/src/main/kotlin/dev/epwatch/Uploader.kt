package dev.epwatch

import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.HttpURLConnection
import java.net.URL
import javax.net.ssl.HttpsURLConnection
import javax.net.ssl.SSLSocketFactory

/** Sends what waits, one POST a request. */
internal class Uploader(
    private val endpoint: String,
    private val appKey: String,
    /** `null`: the platform's. */
    private val sockets: SSLSocketFactory?,
) {
    /** The collector refused the key of the latest request. */
    var isRefused = false
        private set

    /** Sends until nothing waits, or a request fails. */
    fun send(watch: Long) {
        while (true) {
            val upload = Native.nextUpload(watch)
            if (upload <= 0 || !send(upload, utf8(Native.uploadPath(upload)))) return
        }
    }

    private fun sendOver(connection: HttpURLConnection, upload: Long): Boolean {
        val body = Native.uploadBody(upload) ?: ByteArray(0)
        connection.requestMethod = "POST"
        connection.connectTimeout = TIMEOUT_MS
        connection.readTimeout = TIMEOUT_MS
        connection.doOutput = true
        // A redirect would turn the call into a GET to a host that the app key is not meant for.
        connection.instanceFollowRedirects = false
        connection.setFixedLengthStreamingMode(body.size)
        connection.setRequestProperty("content-type", MEDIA_TYPE)
        connection.setRequestProperty("connect-protocol-version", "1")
        connection.setRequestProperty("authorization", "Bearer $appKey")
        connection.outputStream.use { it.write(body) }
        val status = connection.responseCode
        isRefused = status == HttpURLConnection.HTTP_UNAUTHORIZED || status == HttpURLConnection.HTTP_FORBIDDEN
        Debug.log { "sent ${body.size} bytes: HTTP $status" }
        if (status == HttpURLConnection.HTTP_OK) {
            val type = connection.contentType?.substringBefore(';')?.trim()
            if (type != MEDIA_TYPE) {
                failed(upload, status, 0, "HTTP 200 of ${type?.take(MAX_TEXT)}, not $MEDIA_TYPE: a captive portal?")
                return false
            }
            val answer = connection.inputStream.use { whole(it) }
            val isTaken = Native.uploadAnswer(upload, answer) == 0
            if (!isTaken) Debug.log { "the answer is not the collector's: ${utf8(Native.lastError())}" }
            return isTaken
        }
        val why = connection.errorStream?.use { String(beginning(it), Charsets.UTF_8) } ?: ""
        val retryAfter = connection.getHeaderField("retry-after")?.toLongOrNull() ?: 0
        failed(upload, status, retryAfter * 1000, "HTTP $status ${why.take(MAX_TEXT)}")
        return false
    }

    /** Reads an answer. One that is longer, or takes longer, than a collector's is a failure. */
    private fun whole(stream: InputStream): ByteArray {
        val began = System.nanoTime()
        val read = ByteArrayOutputStream()
        val piece = ByteArray(PIECE_BYTES)
        while (true) {
            val n = stream.read(piece)
            if (n < 0) return read.toByteArray()
            read.write(piece, 0, n)
            if (read.size() > MAX_ANSWER_BYTES) throw IOException("the answer is longer than $MAX_ANSWER_BYTES bytes")
            if (System.nanoTime() - began > TIMEOUT_MS * 1_000_000L) throw IOException("the answer does not end")
        }
    }

    /** Reads what is shown of an error. */
    private fun beginning(stream: InputStream): ByteArray {
        val piece = ByteArray(PIECE_BYTES)
        val n = stream.read(piece)
        return piece.copyOf(maxOf(n, 0))
    }

    private fun send(upload: Long, path: String): Boolean {
        var connection: HttpURLConnection? = null
        try {
            connection = URL(endpoint + path).openConnection() as HttpURLConnection
            if (sockets != null && connection is HttpsURLConnection) connection.sslSocketFactory = sockets
            return sendOver(connection, upload)
        } catch (error: IOException) {
            failed(upload, 0, 0, error.toString())
        } catch (error: RuntimeException) {
            failed(upload, 0, 0, error.toString())
        } finally {
            connection?.disconnect()
        }
        return false
    }

    private fun failed(upload: Long, status: Int, retryAfterMs: Long, why: String) {
        Debug.log { "upload failed: $why" }
        Native.uploadFailed(upload, status, retryAfterMs, why.toByteArray(Charsets.UTF_8))
    }

    private companion object {
        const val TIMEOUT_MS = 30_000
        const val MAX_TEXT = 200
        const val MEDIA_TYPE = "application/proto"
        const val PIECE_BYTES = 8 shl 10

        /** Longest answer, as over gRPC. */
        const val MAX_ANSWER_BYTES = 4 shl 20
    }
}
