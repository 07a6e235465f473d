"""Self-tests on QNN's emulator and on the CPU. The distances are computed here once more, by NumPy."""

import logging
import os
import sys
import threading
import time
from pathlib import Path

import numpy
import onnxruntime

import epwatch

FIXTURES, PLUGIN, BACKEND = Path(sys.argv[1]), *sys.argv[2:]
MODEL, TEXT, TYPES = (FIXTURES / name for name in ("models/mixed_v2.head32.onnx", "self_test/text.onnx", "self_test/every_type.onnx"))
QNN, CPU = "QNNExecutionProvider", ["CPUExecutionProvider"]
FEED = {"x": (numpy.arange(3 * 32 * 32) % 7 / 8).astype(numpy.float32).reshape(1, 3, 32, 32)}


class Lines(logging.Handler):
    lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


logging.getLogger("epwatch").addHandler(Lines())
logging.getLogger("epwatch").setLevel(logging.INFO)


def raises(kind, part, *args, **arguments):
    try:
        epwatch.self_test(*args, **arguments)
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"expected {kind}")


def not_called():
    raise AssertionError("no CPU session is needed")


def on_the_cpu(path):
    return onnxruntime.InferenceSession(path, providers=CPU)


onnxruntime.register_execution_provider_library(QNN, PLUGIN)
device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)
options = onnxruntime.SessionOptions()
options.add_provider_for_devices([device], {"backend_path": BACKEND, "soc_model": "68"})
session = epwatch.InferenceSession(MODEL, options, model="segmenter", version="3")
raises(RuntimeError, "epwatch.start was not called", session, "ramp-1", FEED)

# Without consent nothing is tested.
epwatch.start(report_interval=3600, consent=False)
assert epwatch.self_test(session, "ramp-1", FEED, not_called) is None
assert "consent is missing" in Lines.lines[-1], Lines.lines
epwatch.set_consent(True)

# The SDK's thread opens the folder.
begun = time.monotonic()
while (tested := epwatch.self_test(session, "ramp-1", FEED, tolerance=0.25)) is None:
    assert "consent is missing" in Lines.lines[-1] and time.monotonic() < begun + 300, Lines.lines
    time.sleep(0.01)
(on_npu,), (on_cpu,) = session.session.run(None, FEED), on_the_cpu(MODEL).run(None, FEED)
assert tested.error_code == 0 and tested.max_abs == numpy.abs(on_npu.astype(float) - on_cpu.astype(float)).max(), tested
cosine = float(on_npu.ravel().astype(float) @ on_cpu.ravel().astype(float))
cosine /= float(numpy.linalg.norm(on_npu.astype(float)) * numpy.linalg.norm(on_cpu.astype(float)))
assert abs(tested.cosine - cosine) < 1e-9, (tested, cosine)
assert tested.top1_equal == (on_npu.argmax() == on_cpu.argmax()), tested

# Once for each model, firmware and runtime.
assert epwatch.self_test(session, "ramp-1", FEED, not_called, tolerance=0.25) is None
assert "it ran before" in Lines.lines[-1], Lines.lines



def while_it_runs():
    begin_again = threading.Thread(target=lambda: again.append(epwatch.self_test(session, "threads", FEED, not_called)))
    begin_again.start()
    begin_again.join()
    return on_the_cpu(MODEL)


# In one thread at a time.
again = []
assert epwatch.self_test(session, "threads", FEED, while_it_runs).error_code == 0
assert again == [None] and any("another thread runs it" in line for line in Lines.lines), (again, Lines.lines)

# Failures are results: an input that the model does not have, a CPU session that cannot be made.
wrong = {"no such input": numpy.zeros(1, numpy.float32)}
assert epwatch.self_test(session, "wrong", wrong, not_called) == (None, None, None, 2)
assert epwatch.self_test(session, "no session", FEED, not_called) == (None, None, None, -2)
assert "no CPU session is needed" in Lines.lines[-1], Lines.lines
assert epwatch.self_test(session, "no model", FEED, lambda: on_the_cpu(b"no model")) == (None, None, None, 7)


# Without a list of its nodes, a session that asked for the NPU is tested. All types of elements, as onnxruntime has them.
def attached(path, model, kind=onnxruntime.InferenceSession):
    return epwatch.attach(kind(path, providers=CPU), model=model, version="1", requested=[QNN])


NAMES = {"float": "float32", "double": "float64"}
types = attached(TYPES, "types")
kinds = [NAMES.get(node.type[7:-1], node.type[7:-1]) for node in types.get_inputs()]
ones = {node.name: numpy.ones(node.shape, kind) for node, kind in zip(types.get_inputs(), kinds)}
assert len(ones) == 12
tested = epwatch.self_test(types, "ones", ones)
assert (tested.max_abs, tested.top1_equal, tested.error_code) == (0.0, True, 0) and abs(tested.cosine - 1) < 1e-12, tested


class Changed:
    """The CPU's session with another value in one output. Read as another type, its distance from 1 would be another."""

    def __init__(self, at):
        self.session, self.at = on_the_cpu(TYPES), at
        self.get_outputs = self.session.get_outputs

    def run(self, names, _):
        outputs = self.session.run(names, ones)
        if self.at is not None:
            outputs[self.at][...] = VALUES[numpy.dtype(kinds[self.at]).kind](kinds[self.at])
        return outputs


VALUES = {"i": lambda _: -1, "u": lambda kind: numpy.iinfo(kind).max, "f": lambda _: 1024, "b": lambda _: False}
for at, kind in enumerate(kinds):
    expected = float(abs(1 - int(VALUES[numpy.dtype(kind).kind](kind))))
    tested = epwatch.self_test(attached(TYPES, kind), kind, ones, lambda: Changed(at))
    assert tested.max_abs == expected and tested.error_code == 0, (kind, tested, expected)

assert epwatch.self_test(session, "another", FEED, lambda: Changed(None)) == (None, None, None, -3)

text = attached(TEXT, "text")
pair = {"x": numpy.ones(2, numpy.float32)}
assert epwatch.self_test(text, "pair", pair) == (None, None, None, -5)


class Large(onnxruntime.InferenceSession):
    def run(self, *_):
        return [numpy.zeros(65 << 20, numpy.uint8)]


assert epwatch.self_test(attached(TEXT, "large", Large), "pair", pair) == (None, None, None, -6)


class Remade(onnxruntime.InferenceSession):
    """As onnxruntime itself, if an EP fails in a run."""

    def run(self, *args):
        self.set_providers(CPU)
        return super().run(*args)


remade = attached(MODEL, "remade", Remade)
assert epwatch.self_test(remade, "ramp-1", FEED) == (None, None, None, 11)

# A session on the CPU has nothing to compare.
on_cpu = epwatch.InferenceSession(MODEL, providers=CPU, model="segmenter", version="3")
assert epwatch.self_test(on_cpu, "ramp-1", FEED, not_called) is None
assert "no node on the NPU" in Lines.lines[-1], Lines.lines

# What is no session on the CPU is not compared.
for other, told in ((lambda: session, "a session on QNNExecutionProvider"), (lambda: None, "got NoneType")):
    assert epwatch.self_test(session, told, FEED, other) == (None, None, None, -2)
    assert told in Lines.lines[-1], Lines.lines

# A session by a relative path goes on after the working folder has changed.
os.chdir(MODEL.parent)
relative = epwatch.InferenceSession(MODEL.name, options, model="relative", version="3")
os.chdir("/")
assert epwatch.self_test(relative, "relative", FEED).error_code == 0

raises(TypeError, "expected a session of epwatch.InferenceSession", on_the_cpu(MODEL), "a", FEED)
raises(TypeError, "cpu_session: expected a function", session, "a", FEED, "model.onnx")
raises(TypeError, "input 'x': expected a NumPy array, got list", session, "a", {"x": [1.0]})
raises(ValueError, "id of a golden input: expected 1 to 64 bytes", session, "", FEED)
raises(ValueError, "tolerance of a golden input", session, "a", FEED, tolerance=-1)
for refused, told in (
    (numpy.array(["a"]), "of numbers, got <U1"),
    (FEED["x"].astype(complex), "of numbers, got complex128"),
    (FEED["x"].astype(">f4"), "in this machine's byte order, got >f4: convert it by `astype('float32')`"),
):
    raises(ValueError, f"input 'x': expected an array {told}", session, "a", {"x": refused})

epwatch.flush(300)
print("as expected")
