package dev.epwatch

import androidx.annotation.AnyThread
import androidx.annotation.WorkerThread
import java.io.File

/** What the SDK needs of the machine. Called on the SDK's own thread only. */
@WorkerThread
public interface Platform {
    /** A private folder of the app. Processes share it. */
    public fun folder(): File

    /** Facts of the device. None may identify it. */
    public fun facts(): DeviceFacts

    /** Reports conditions to the SDK from now on, at once and at each change. */
    public fun listen(signals: Signals)
}

/** Conditions as the platform reports them. */
@AnyThread
public interface Signals {
    /** Android's thermal status, -1 if not known; power save 1, off 0, not known -1. */
    public fun conditions(thermal: Int, powerSave: Int)

    /** 0 not known, 1 unmetered, 2 metered, 3 none. */
    public fun network(kind: Int)

    /** The app is no longer visible: what was recorded is sealed and sent. */
    public fun background()
}

/** Facts of the device; empty is not known. */
public class DeviceFacts {
    @JvmField public var chipset: String = ""
    @JvmField public var socManufacturer: String = ""
    @JvmField public var board: String = ""
    @JvmField public var abi: String = ""
    @JvmField public var manufacturer: String = ""
    @JvmField public var model: String = ""
    @JvmField public var os: String = ""
    @JvmField public var osVersion: String = ""
    @JvmField public var securityPatch: String = ""
    @JvmField public var vendorFingerprint: String = ""
    @JvmField public var ramBytes: Long = 0
    @JvmField public var apiLevel: Int = 0
    @JvmField public var reportsThermal: Boolean = false
    @JvmField public var reportsPowerSave: Boolean = false
}

/** A JVM on a desktop or robot: the facts are what the SDK reads of Linux. */
public class JvmPlatform(private val folder: File) : Platform {
    override fun folder(): File = folder

    override fun facts(): DeviceFacts = DeviceFacts()

    override fun listen(signals: Signals) {}
}
