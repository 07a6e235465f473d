"""A collector that is not there: `on_health` gets the problem, and its exceptions end nothing. Argument: a model."""

import sys

import numpy

import epwatch

problems = []


def on_health(problem):
    problems.append(problem)
    raise RuntimeError("a fault of the app")


epwatch.start(endpoint="http://127.0.0.1:1", report_interval=3600, on_health=on_health)
session = epwatch.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], model="mlp", version="7")
session.run(None, {"x": numpy.zeros((1, 64), numpy.float32)})
try:
    epwatch.flush(300)
    raise AssertionError("flushed")
except epwatch.UploadError:
    pass
assert len(problems) == 1 and problems[0].startswith("failed to upload"), problems
assert epwatch.explain()["last_problem"] == problems[0]
assert epwatch.stop(300)
print("as expected")
