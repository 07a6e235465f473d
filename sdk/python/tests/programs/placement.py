"""A session on QNN's emulator, as a robot's program makes it, with the plugin under a name of its own: prints what is explained of it, and runs it 20 times."""

import json
import os
import sys

import numpy
import onnxruntime

import epwatch

MODEL, PLUGIN, BACKEND, SOC_MODEL, SIDE_CAR, QNN = sys.argv[1:]

epwatch.start()
onnxruntime.register_execution_provider_library(QNN, PLUGIN)
device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)
options = onnxruntime.SessionOptions()
options.add_provider_for_devices([device], {"backend_path": BACKEND, "soc_model": SOC_MODEL})
session = epwatch.InferenceSession(MODEL, options, model="segmenter", version="3", side_car=SIDE_CAR)
for _ in range(20):
    (output, *_) = session.run(None, {"x": numpy.zeros((1, 3, 32, 32), numpy.float32)})
    assert output.shape[0] == 1
# Inputs of this model belong to nodes on the CPU, so onnxruntime names no device of QNN.
assert epwatch.explain(session)["devices"] == [], epwatch.explain(session)
if QNN == "QNNExecutionProvider":
    # The other model's inputs are QNN's, and the emulator's hardware is this machine's processor. onnxruntime's change of the
    # layout refuses this model under any other name of the plugin.
    floats = onnxruntime.InferenceSession(os.path.join(os.path.dirname(MODEL), "c_cnn_hardmax.fp32.onnx"), options)
    ((ep, device_type, _vendor),) = epwatch._placement.devices(floats)
    assert (ep, device_type) == (QNN, "CPU"), (ep, device_type)
print()
print(json.dumps(epwatch.explain(session)))
epwatch.flush(300)
