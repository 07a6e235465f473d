"""One start of one robot's program: loads one version after the other, as after updates, and reports each.

Arguments: the QNN plugin, its back end, QNN's soc_model, the chipset; then for each version its name, its model's file,
"npu" or "cpu", and the microseconds of its runs. The placement is real. Latencies are made up: an emulator's mean nothing.
"""

import os
import random
import sys
import time

import numpy
import onnxruntime

import epwatch

PLUGIN, BACKEND, SOC_MODEL, CHIPSET, *REST = sys.argv[1:]
QNN = "QNNExecutionProvider"
N_RUNS = 120

epwatch.start(chipset=CHIPSET)
onnxruntime.register_execution_provider_library(QNN, PLUGIN)
NPU = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)


def make_session(version, model, place):
    named = {"model": "segmenter", "version": version}
    if place == "npu":
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices([NPU], {"backend_path": BACKEND, "soc_model": SOC_MODEL})
        return epwatch.InferenceSession(model, options, **named)
    # A mistake that onnxruntime does not report: `providers` does not reach a plugin, so all nodes run on the CPU.
    return epwatch.InferenceSession(model, providers=[QNN, "CPUExecutionProvider"], **named)


def report(version, model, place, latency_us):
    session = make_session(version, model, place)
    (output, *_) = session.session.run(None, {"x": numpy.zeros((1, 3, 32, 32), numpy.float32)})
    assert output.shape[0] == 1
    # Robots differ from each other by some percent, and the runs of one robot by some percent too.
    chance = random.Random(f"{os.environ['EPWATCH_FOLDER']} {version}")
    of_robot = int(latency_us) / 1e6 * (1 + 0.05 * random.Random(os.environ["EPWATCH_FOLDER"]).gauss(0, 1))
    latencies = [of_robot * (1 + 0.04 * chance.gauss(0, 1)) for _ in range(N_RUNS)]
    # The runs of a report may not take longer than its interval.
    time.sleep(sum(latencies))
    for latency in latencies:
        epwatch.record(session, latency)
    epwatch.flush(300)


for at in range(0, len(REST), 4):
    report(*REST[at : at + 4])
assert epwatch.explain().get("last_problem") is None, epwatch.explain()
