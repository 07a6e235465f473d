"""An operator turns the NPU off: the next session is made for the CPU. Arguments: a model, the operator's public key."""

import json
import sys

import numpy
import onnxruntime

import epwatch

MODEL, KEY = sys.argv[1:]
PROVIDERS = [("QNNExecutionProvider", {"soc_model": "57"}), "CPUExecutionProvider"]

epwatch.start(directive_keys={"ops": KEY}, chipset="SM8650")
assert epwatch.plan("segmenter", "3").use_npu
first = epwatch.InferenceSession(MODEL, providers=PROVIDERS, model="segmenter", version="3")
first.run(None, {"x": numpy.zeros((1, 64), numpy.float32)})
epwatch.flush(300)

plan = epwatch.plan("segmenter", "3")
assert not plan.use_npu and plan.variant is None and "use_npu=False" in repr(plan)
assert epwatch.plan("another", "3").use_npu
made = []


class Recorded(onnxruntime.InferenceSession):
    def __init__(self, *args, **kwargs):
        made.append(args[2])
        super().__init__(*args, **kwargs)


onnxruntime.InferenceSession = Recorded
second = epwatch.InferenceSession(MODEL, providers=PROVIDERS, model="segmenter", version="3")
assert made == [["CPUExecutionProvider"]], made
print(json.dumps(epwatch.explain(second)))
epwatch.flush(300)
