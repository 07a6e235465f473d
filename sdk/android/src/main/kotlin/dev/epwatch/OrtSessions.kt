package dev.epwatch

import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession

/** What catches ONNX Runtime's exceptions. [Epwatch] has none of it, because an app with another runtime lacks these classes. */
internal object OrtSessions {
    /** Returns the problem, if there is one. */
    fun prepare(options: OrtSession.SessionOptions): String? = try {
        options.addConfigEntry("session.record_ep_graph_assignment_info", "1")
        null
    } catch (error: OrtException) {
        "ONNX Runtime refused the option: ${error.message}"
    } catch (error: IllegalStateException) {
        "the options are closed: ${error.message}"
    }

    fun create(
        options: OrtSession.SessionOptions,
        model: ModelInfo,
        plan: SessionPlan?,
        make: () -> OrtSession,
    ): ObservedSession {
        Epwatch.prepare(options)
        val began = System.nanoTime()
        val session = try {
            make()
        } catch (error: OrtException) {
            Epwatch.startFailed(model, error, plan)
            throw error
        }
        return Epwatch.observe(session, model, plan, System.nanoTime() - began)
    }
}
