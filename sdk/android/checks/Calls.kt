package checks

import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.Platform
import java.io.File
import java.util.concurrent.CountDownLatch

/** Starts the SDK of the app, whose user has consented. */
internal fun start(platform: Platform, endpoint: String, key: String) {
    val config = EpwatchConfig.Builder("com.example.camera", endpoint, key).setConsent(true).build()
    Epwatch.start(platform, config)
}

internal fun start(endpoint: String, key: String, folder: String): Unit =
    start(JvmPlatform(File(folder)), endpoint, key)

/** Waits until the library is loaded. */
internal fun loaded() {
    while (Epwatch.explain().contains("is being loaded")) Thread.sleep(5)
}

/** Sends everything, and waits for the end. */
internal fun flush() {
    val done = CountDownLatch(1)
    Epwatch.flush { done.countDown() }
    done.await()
}
