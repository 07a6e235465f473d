"""A day's budget for unmetered networks: reports beyond it wait. Argument: a model."""

import sys

import numpy

import epwatch

epwatch.start(unmetered_bytes_per_day=0, report_interval=3600)
session = epwatch.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], model="mlp", version="7")
session.run(None, {"x": numpy.zeros((1, 64), numpy.float32)})
try:
    epwatch.flush(300)
    raise AssertionError("sent")
except epwatch.UploadError as error:
    assert "the budget of 0 bytes a day on" in str(error), error
assert epwatch.stop(300)
epwatch.start(report_interval=3600)
epwatch.flush(300)
print("as expected")
