package dev.epwatch.ktx

import dev.epwatch.Epwatch
import dev.epwatch.ModelInfo
import dev.epwatch.UploadOutcome
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

/** Before a start, without the native library. */
class SuspendingTest {
    @Test
    fun theFlowHasThePresentStateAndTheCallsReturn() = runBlocking {
        val health = Epwatch.healthFlow().first()
        assertEquals("Epwatch.start was not called", health.hostProblem)
        assertEquals(false, health.isGood)
        assertEquals(UploadOutcome.FAILED, Epwatch.awaitUpload())
        assertEquals(health.hostProblem, Epwatch.awaitExplanation().hostProblem)
        Epwatch.awaitPlan(ModelInfo("segmenter", "3")).use { assertTrue(it.useNpu) }
    }

    @Test
    fun whatACancelledCoroutineDoesNotGetIsClosed() = runBlocking {
        val (isMaking, mayEnd) = List(2) { CountDownLatch(1) }
        val closed = mutableListOf<String>()
        val waiting = async(Dispatchers.IO) {
            val make = {
                isMaking.countDown()
                mayEnd.await(300, TimeUnit.SECONDS)
                "a session"
            }
            handedOver(Dispatchers.IO, make, closed::add)
        }
        assertTrue(isMaking.await(300, TimeUnit.SECONDS))
        waiting.cancel()
        mayEnd.countDown()
        val ended = runCatching { waiting.await() }.exceptionOrNull()
        assertTrue("$ended", ended is CancellationException)
        waiting.join()
        assertEquals(listOf("a session"), closed)
        assertEquals("kept", handedOver(Dispatchers.IO, { "kept" }, closed::add))
        assertEquals(1, closed.size)
    }
}
