"""The question before a compiled model is loaded: prints the answers. A graph of QNN 2.51 for SM8650."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import onnxruntime

import epwatch

MODEL, QNN_SDK, PLAIN_MODEL = sys.argv[1:]

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

# The answer is about the file's content, whatever its name.
folder = Path(tempfile.mkdtemp())
answer = epwatch.compatibility(MODEL, soc_model="68")
for name in (b"of\ntwo lines.onnx", ("\u00e9" * 100 + ".onnx").encode(), b"not UTF-8 \xff.onnx"):
    path = os.path.join(os.fsencode(folder), name)
    shutil.copy(MODEL, path)
    for given in (path, os.fsdecode(path), Path(os.fsdecode(path))):
        assert epwatch.compatibility(given, soc_model="68") == answer, given
shutil.rmtree(folder)

# A text would count as a list of its letters.
plain = onnxruntime.InferenceSession(PLAIN_MODEL, providers=["CPUExecutionProvider"])
for call in (
    lambda: epwatch.compatibility(MODEL, requested="QNNExecutionProvider"),
    lambda: epwatch.InferenceSession(PLAIN_MODEL, providers=["CPUExecutionProvider"], requested="QNNExecutionProvider"),
    lambda: epwatch.attach(plain, requested="QNNExecutionProvider"),
):
    try:
        call()
    except TypeError as error:
        expected = "requested: expected a list, for example ['QNNExecutionProvider'], got 'QNNExecutionProvider'"
        assert str(error) == expected, error
    else:
        raise AssertionError("a text was taken for a list")
