package dev.epwatch

import java.io.IOException
import java.net.HttpURLConnection
import java.net.URL

/** Sends what waits, one POST a request. */
internal class Uploader(private val endpoint: String, private val appKey: String) {
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
        connection.setFixedLengthStreamingMode(body.size)
        connection.setRequestProperty("content-type", "application/proto")
        connection.setRequestProperty("connect-protocol-version", "1")
        connection.setRequestProperty("authorization", "Bearer $appKey")
        connection.outputStream.use { it.write(body) }
        val status = connection.responseCode
        if (status == HttpURLConnection.HTTP_OK) {
            val answer = connection.inputStream.use { it.readBytes() }
            return Native.uploadAnswer(upload, answer) == 0
        }
        val why = connection.errorStream?.use { String(it.readBytes(), Charsets.UTF_8) } ?: ""
        val retryAfter = connection.getHeaderField("retry-after")?.toLongOrNull() ?: 0
        failed(upload, status, retryAfter * 1000, "HTTP $status ${why.take(MAX_TEXT)}")
        return false
    }

    private fun send(upload: Long, path: String): Boolean {
        var connection: HttpURLConnection? = null
        try {
            connection = URL(endpoint + path).openConnection() as HttpURLConnection
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
        Native.uploadFailed(upload, status, retryAfterMs, why.toByteArray(Charsets.UTF_8))
    }

    private companion object {
        const val TIMEOUT_MS = 30_000
        const val MAX_TEXT = 200
    }
}
