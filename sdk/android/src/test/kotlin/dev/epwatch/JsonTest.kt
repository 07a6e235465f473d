package dev.epwatch

import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class JsonTest {
    @Test
    fun kindsEscapesAndNumbersAreRead() {
        val read = Json.read(
            """ { "text": "a\"b\\\/\n\u00e9\ud83d\ude00", "n": -12, "large": 18446744073709551615, "real": 1.5e-3,
                "yes": true, "no": false, "none": null, "list": ["x", 1, "y", []], "of": {"k": {"n": 7}, "wrong": 3} } """,
        )
        assertEquals("a\"b\\/\né😀", read.text("text"))
        assertEquals(-12, read.number("n"))
        assertEquals(1.8446744073709552E19, read.real("large"), 0.0)
        assertEquals(1.5e-3, read.real("real"), 0.0)
        assertEquals(listOf(true, false), listOf(read.flag("yes"), read.flag("no")))
        assertEquals(listOf("x", "y"), read.texts("list"))
        assertEquals(mapOf("k" to 7L), read.byName("of") { it.number("n") })
        // A value that is missing, null or of another kind reads as the default.
        assertEquals(listOf(null, null, 0L, null), listOf(read.textOrNull("none"), read.textOrNull("n"), read.number("gone"), read.child("list")))
    }

    @Test
    fun wrongTextsAreRefused() {
        val deep = "{\"a\":" + "[".repeat(100_000)
        val wrong = listOf("", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{} {}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12\"}", "{\"a\":tru}", "{\"a\":--}", deep)
        for (text in wrong) assertThrows(text.take(20), IllegalArgumentException::class.java) { Json.read(text) }
    }

    @Test
    fun anExplanationOfANewerLibraryIsRead() {
        val known = Json.read(
            """{"chipset":"SM8650","new":[{}],"sessions":[{"model":"a","source":"assignment_api","eps":
                {"CPUExecutionProvider":{"nodes":1,"partitions":null},"QNNExecutionProvider":{"nodes":30,"partitions":2}},
                "reasons":[{"code":"fp16_not_supported","meaning":"m","fix":"f"}]}],"dropped":{"contended":{"reports":0,"runs":5}}}""",
        )
        val explained = Explanation.of("", 2, known)
        val session = explained.sessions.single()
        assertEquals("SM8650", explained.chipset)
        assertEquals(EpShare(30, 2, null), session.eps["QNNExecutionProvider"])
        assertEquals("QNNExecutionProvider 30 nodes, CPUExecutionProvider 1 nodes; fp16_not_supported", session.placement())
        assertEquals(Health(true, "", null, null, 7, 0), Health.of(true, explained))
        assertEquals(true, Health.of(true, explained).isGood)
    }
}
