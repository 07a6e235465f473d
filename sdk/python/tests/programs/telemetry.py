"""onnxruntime's own telemetry: `off` turns it off before the import. Prints what `explain` says."""

import sys

import epwatch

if sys.argv[1:] == ["off"]:
    epwatch.disable_runtime_telemetry()
import onnxruntime  # noqa: E402
from onnxruntime.datasets import get_example  # noqa: E402

try:
    epwatch.disable_runtime_telemetry()
except RuntimeError as error:
    assert "before the import" in str(error), error
else:
    raise AssertionError("the call came too late, and did not say so")
epwatch.start()
options = onnxruntime.SessionOptions()
path = get_example("sigmoid.onnx")
session = epwatch.InferenceSession(path, options, providers=["CPUExecutionProvider"], model="sigmoid", version="1")
print(epwatch.explain()["runtime_telemetry"])
