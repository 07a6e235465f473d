"""The question before a compiled model is loaded: prints the answers. A graph of QNN 2.51 for SM8650."""

import sys

import epwatch

MODEL, QNN_SDK = sys.argv[1:]

try:
    epwatch.compatibility(MODEL)
except RuntimeError as error:
    assert str(error) == "epwatch.start was not called", error
else:
    raise AssertionError("without a start")
epwatch.start(qnn_sdk_version=QNN_SDK)
for soc_model in ("57", "68"):
    print(epwatch.compatibility(MODEL, soc_model=soc_model))
print(epwatch.compatibility(MODEL, requested=["OpenVINOExecutionProvider"], soc_model="68"))
print(epwatch.compatibility("nowhere.onnx", soc_model="68"))
