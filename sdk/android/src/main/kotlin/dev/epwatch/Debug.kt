package dev.epwatch

import java.lang.reflect.Method

/**
 * Lines for a developer: [Epwatch.debug]. Android has them in logcat, with the tag `epwatch`; elsewhere they go to standard
 * error. They hold no key and no id of the installation.
 */
internal object Debug {
    private const val TAG = "epwatch"
    private const val LEVEL = 3

    /** logcat cuts longer lines. */
    private const val MAX_CHARS = 2_000

    @Volatile internal var isOn = false

    /** Of `android.util.Log`, which a JVM does not have. */
    private val toLogcat: Method? by lazy { logcat("d", String::class.java, String::class.java) }

    inline fun log(line: () -> String) {
        if (isOn) write(line())
    }

    /** Turns the lines on if `setprop log.tag.epwatch DEBUG` asks for them. */
    fun readProperty() {
        val isLoggable = logcat("isLoggable", String::class.java, Int::class.javaPrimitiveType)
        if (isLoggable?.invoke(null, TAG, LEVEL) == true) isOn = true
    }

    internal fun write(line: String) {
        val cut = line.take(MAX_CHARS)
        val method = toLogcat
        if (method != null) method.invoke(null, TAG, cut) else System.err.println("$TAG: $cut")
    }

    private fun logcat(name: String, vararg types: Class<*>?): Method? = try {
        Class.forName("android.util.Log").getMethod(name, *types)
    } catch (_: ReflectiveOperationException) {
        null
    }
}
