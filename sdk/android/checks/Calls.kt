package checks

import dev.epwatch.Epwatch
import dev.epwatch.EpwatchConfig
import dev.epwatch.JvmPlatform
import dev.epwatch.Platform
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

private const val MOST_SECONDS = 300L

/** Starts the SDK of the app, whose user has consented. */
internal fun start(platform: Platform, endpoint: String, key: String) {
    val config = EpwatchConfig.Builder("com.example.camera", endpoint, key).setConsent(true).build()
    Epwatch.start(platform, config)
}

internal fun start(endpoint: String, key: String, folder: String): Unit =
    start(JvmPlatform(File(folder)), endpoint, key)

/** Waits until the library is loaded. */
internal fun loaded() {
    val until = System.nanoTime() + TimeUnit.SECONDS.toNanos(MOST_SECONDS)
    while (Epwatch.explain().contains("is being loaded")) {
        check(System.nanoTime() < until) { "the library is not loaded after $MOST_SECONDS s: ${Epwatch.explain()}" }
        Thread.sleep(5)
    }
}

/** Sends everything, and waits for the end. */
internal fun flush() {
    val done = CountDownLatch(1)
    Epwatch.flush { done.countDown() }
    done.awaitOrFail()
}

/** Waits for an answer of the SDK. */
internal fun CountDownLatch.awaitOrFail() {
    check(await(MOST_SECONDS, TimeUnit.SECONDS)) { "no answer after $MOST_SECONDS s: ${Epwatch.explain()}" }
}
