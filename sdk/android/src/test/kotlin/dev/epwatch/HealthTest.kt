package dev.epwatch

import org.junit.Assert.assertEquals
import org.junit.Test

class HealthTest {
    private var now = Health(true, "given", null, null, 0, 0)
    private val listeners = HealthListeners { now }
    private val heard = mutableListOf<Health>()

    @Test
    fun aListenerHearsThePresentStateAndEachChangeOnce() {
        val listener = HealthListener { heard += it }
        listeners.add(listener)
        listeners.add(listener)
        repeat(2) { listeners.check() }
        now = now.copy(lastProblem = "the folder is full")
        repeat(2) { listeners.check() }
        assertEquals(listOf(null, "the folder is full"), heard.map { it.lastProblem })
        assertEquals(false, now.isGood)
        listeners.remove(listener)
        now = now.copy(lastProblem = null)
        listeners.check()
        assertEquals(2, heard.size)
        listeners.add(listener)
        listeners.check()
        assertEquals(3, heard.size)
    }

    @Test
    fun aListenerThatFailsOrLeavesHindersNoOther() {
        lateinit var leaving: HealthListener
        leaving = HealthListener { listeners.remove(leaving) }
        listeners.add(leaving)
        listeners.add { error("of the app") }
        listeners.add { heard += it }
        repeat(2) { listeners.check() }
        assertEquals(listOf(now), heard)
    }
}
