package dev.epwatch

/**
 * Reads JSON of the native library: Android has a parser, Java has none. Wrong text is an [IllegalArgumentException].
 * Numbers become `Long` if they fit, else `Double`.
 */
internal class Json private constructor(private val text: String) {
    private var at = 0
    private var depth = 0

    private fun value(): Any? = when (peek()) {
        '{' -> nested { members() }
        '[' -> nested { elements() }
        '"' -> string()
        't' -> word("true", true)
        'f' -> word("false", false)
        'n' -> word("null", null)
        else -> number()
    }

    private inline fun <T> nested(read: () -> T): T {
        if (++depth > MAX_DEPTH) wrong("at most $MAX_DEPTH levels")
        at++
        return read().also { depth-- }
    }

    private fun members(): Map<String, Any?> {
        val members = LinkedHashMap<String, Any?>()
        if (takes('}')) return members
        do {
            if (peek() != '"') wrong("a name")
            val name = string()
            if (!takes(':')) wrong("a colon")
            members[name] = value()
        } while (takes(','))
        if (!takes('}')) wrong("the end of an object")
        return members
    }

    private fun elements(): List<Any?> {
        val elements = ArrayList<Any?>()
        if (takes(']')) return elements
        do elements.add(value()) while (takes(','))
        if (!takes(']')) wrong("the end of an array")
        return elements
    }

    private fun string(): String {
        val read = StringBuilder()
        at++
        while (true) {
            when (val next = next()) {
                '"' -> return read.toString()
                '\\' -> read.append(escaped())
                else -> read.append(next)
            }
        }
    }

    private fun escaped(): Char = when (val next = next()) {
        '"', '\\', '/' -> next
        'b' -> '\b'
        'f' -> '\u000c'
        'n' -> '\n'
        'r' -> '\r'
        't' -> '\t'
        'u' -> {
            val digits = text.substring(at, minOf(at + 4, text.length))
            at += digits.length
            val isHex = digits.length == 4 && digits.all { Character.digit(it, 16) >= 0 }
            if (isHex) digits.toInt(16).toChar() else wrong("four hexadecimal digits")
        }
        else -> wrong("an escape")
    }

    private fun number(): Any {
        val from = at
        while (at < text.length && text[at] in "+-.0123456789eE") at++
        val digits = text.substring(from, at)
        return digits.toLongOrNull() ?: digits.toDoubleOrNull() ?: wrong("a value")
    }

    private fun word(word: String, value: Boolean?): Boolean? {
        if (!text.startsWith(word, at)) wrong("a value")
        at += word.length
        return value
    }

    private fun next(): Char = if (at < text.length) text[at++] else wrong("more text")

    /** The next character after spaces; a zero at the end. */
    private fun peek(): Char {
        while (at < text.length && text[at] in " \t\r\n") at++
        return if (at < text.length) text[at] else '\u0000'
    }

    private fun takes(wanted: Char): Boolean = (peek() == wanted).also { if (it) at++ }

    private fun wrong(wanted: String): Nothing = throw IllegalArgumentException("expected $wanted at $at of the JSON")

    internal companion object {
        /** Deeper than any of the library's. */
        private const val MAX_DEPTH = 32

        fun read(text: String): JsonObject {
            val json = Json(text)
            val read = json.value()
            if (json.peek() != '\u0000') json.wrong("the end")
            return JsonObject.of(read) ?: json.wrong("an object")
        }
    }
}

/** An object whose members may be missing or of another kind, as in a newer library: then each has a default. */
internal class JsonObject(private val members: Map<*, *>) {
    fun text(name: String): String = textOrNull(name) ?: ""

    fun textOrNull(name: String): String? = members[name] as? String

    fun number(name: String): Long = (members[name] as? Number)?.toLong() ?: 0

    fun real(name: String): Double = realOrNull(name) ?: 0.0

    fun realOrNull(name: String): Double? = (members[name] as? Number)?.toDouble()

    fun flag(name: String): Boolean = members[name] as? Boolean ?: false

    fun texts(name: String): List<String> = list(name).filterIsInstance<String>()

    fun child(name: String): JsonObject? = of(members[name])

    fun <T> each(name: String, read: (JsonObject) -> T): List<T> = list(name).mapNotNull { of(it) }.map(read)

    /** The members of an object whose names are data. */
    fun <T> byName(name: String, read: (JsonObject) -> T): Map<String, T> {
        val found = LinkedHashMap<String, T>()
        (members[name] as? Map<*, *>)?.forEach { (key, value) -> of(value)?.let { found[key.toString()] = read(it) } }
        return found
    }

    private fun list(name: String): List<*> = members[name] as? List<*> ?: emptyList<Any>()

    internal companion object {
        fun of(value: Any?): JsonObject? = (value as? Map<*, *>)?.let(::JsonObject)
    }
}
