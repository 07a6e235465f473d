"""Without a word on consent nothing is recorded, written or sent; consent begins, a withdrawal wipes. Argument: a model."""

import os
import sys

import numpy

import epwatch

FOLDER = os.environ["EPWATCH_FOLDER"]
del os.environ["EPWATCH_CONSENT"]

epwatch.start()
session = epwatch.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], model="mlp", version="7")


def run(times):
    for _ in range(times):
        session.run(None, {"x": numpy.zeros((1, 64), numpy.float32)})


run(5)
epwatch.seal()
assert not os.path.exists(FOLDER)
epwatch.set_consent(True)
run(7)
epwatch.flush(300)
epwatch.set_consent(False)
run(9)
epwatch.flush(300)
assert not os.path.exists(os.path.join(FOLDER, "installation"))
print("as expected")
