"""Prints what a run costs more than onnxruntime's own, in microseconds.

Pairs of runs alternate, A B B A, so that a slower moment hits both. The cost is the difference of the medians. Use a wheel of
`wheel.py`, as apps do: the library of a test's build is not optimised.
"""

import os
import tempfile
import time

import numpy
import onnxruntime

import epwatch

PAIRS = 20_000
now = time.perf_counter_ns


def field(number, value):
    """A field of a protobuf message: a small number, or text and messages below 128 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value


def model(inputs, batch):
    """The smallest model: the sum of its inputs. `batch` is a number, or a name for a free dimension."""
    dims = field(1, field(1 if isinstance(batch, int) else 2, batch)) + field(1, field(1, 8))

    def value(name):
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    node = b"".join(field(1, name) for name in inputs) + field(2, "y") + field(4, "Sum")
    values = b"".join(field(11, value(name)) for name in inputs)
    graph = field(1, node) + field(2, "g") + values + field(12, value("y"))
    # The graph may be longer than 127 bytes.
    length = bytes([len(graph) & 127 | 128, len(graph) >> 7])
    return field(1, 8) + field(8, field(2, 13)) + bytes([7 << 3 | 2]) + length + graph


def median(values):
    return sorted(values)[len(values) // 2] / 1000


def print_cost(name, inputs, batch):
    options = onnxruntime.SessionOptions()
    # A second thread of the runtime would wait for a processor on a busy machine.
    options.intra_op_num_threads = 1
    cpu = ["CPUExecutionProvider"]
    session = epwatch.InferenceSession(model(inputs, batch), options, providers=cpu, model=name, version="1")
    feed = {name: numpy.zeros((1, 8), numpy.float32) for name in inputs}
    plain, observed = session.session.run, session.run
    times = {plain: [], observed: []}
    for run in (plain, observed) * 500:
        run(None, feed)
    for _ in range(PAIRS // 2):
        for run in (plain, observed, observed, plain):
            began = now()
            run(None, feed)
            times[run].append(now() - began)
    bare = median(times[plain])
    print(f"{name}: {median(times[observed]) - bare:.2f} us more than {bare:.2f} us")


with tempfile.TemporaryDirectory() as folder:
    epwatch.start(app="cost", endpoint="http://127.0.0.1:1", key="k", folder=folder, consent=True, exit_seconds=0)
    print(f"load {os.getloadavg()[0]:.1f}")
    print_cost("one shape", ["x"], 1)
    print_cost("free dimensions, one input", ["x"], "N")
    print_cost("free dimensions, three inputs", ["x", "ids", "mask"], "N")
    print(f"load {os.getloadavg()[0]:.1f}")
    epwatch.stop()
