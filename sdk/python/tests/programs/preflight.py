"""Checks before a session on QNN's emulator, and the session itself, which has the reasons. Arguments: MODEL PLUGIN BACKEND."""

import sys
from pathlib import Path

import numpy
import onnxruntime

import epwatch

MODEL, PLUGIN, BACKEND = sys.argv[1:]
QNN = "QNNExecutionProvider"

try:
    epwatch.preflight()
except RuntimeError as error:
    assert str(error) == "epwatch.start was not called", error
else:
    raise AssertionError("without a start")

epwatch.start(qnn_sdk_version="2.47.0")
onnxruntime.register_execution_provider_library(QNN, PLUGIN)
device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)


def session_on(options, **arguments):
    session_options = onnxruntime.SessionOptions()
    session_options.add_provider_for_devices([device], options)
    session = epwatch.InferenceSession(MODEL, session_options, version="3", **arguments)
    session.run(None, {"x": numpy.zeros((1, 3, 32, 32), numpy.float32)})
    return epwatch.explain(session)


def reasons(explained):
    return [reason["code"] for reason in explained["reasons"]]


# What the emulator takes passes the checks, and the session is on the NPU.
assert epwatch.preflight() == []
right = {"backend_path": BACKEND, "soc_model": "68"}
assert epwatch.preflight(**right, model_qairt="2.47.0") == []
assert epwatch.preflight(backend_path=Path(BACKEND)) == []
assert epwatch.explain()["failed_checks"] == []
explained = session_on(right, model="right")
assert explained["eps"][QNN]["nodes"] > 0 and "backend_library_missing" not in reasons(explained), explained

# The runtime's version is the one of `start`.
(older,) = epwatch.preflight(model_qairt="2.51.0")
assert older.reason == "runtime_older_than_model" and "2.47.0" in older.seen, older
assert epwatch.preflight(model_qairt="2.51.0", runtime_qairt="2.51.0") == []

# QNN would take another chipset without an error.
(unknown,) = epwatch.preflight(soc_model="snapdragon")
assert (unknown.reason, unknown.seen) == ("soc_model_unknown", 'soc_model is "snapdragon"'), unknown

# A path that is not UTF-8 is a path, too.
missing = f"{BACKEND}\udcff.missing"
(check,) = epwatch.preflight(backend_path=missing, soc_model="68")
assert check.reason == "backend_library_missing" and "nothing at" in check.seen, check
assert check.meaning.endswith(".") and check.fix.endswith("."), check
(in_explanation,) = epwatch.explain()["failed_checks"]
assert in_explanation["code"] == check.reason and in_explanation["seen"] == check.seen, in_explanation
assert check.fix in str(epwatch.explain())
for wrong in (1, None):
    try:
        epwatch.preflight(soc_model=wrong)
    except TypeError:
        pass
    else:
        raise AssertionError(f"{wrong} was taken")

# Without its back end the plugin leaves every node to the CPU, silently. The check's reason is in the session's report.
explained = session_on({"backend_path": f"{BACKEND}.missing"}, model="fallback", reasons=[check.reason])
assert QNN not in explained["eps"] and check.reason in reasons(explained), explained
epwatch.flush(300)
print("as expected")
