"""A folder that cannot be used: no call says that all is well. Argument: a model."""

import logging
import sys

import numpy

import epwatch

# Not even root may create a folder there.
FOLDER = "/proc/epwatch"
lines = []


class Lines(logging.Handler):
    def emit(self, record):
        lines.append((record.levelname, record.getMessage()))


def check(call):
    try:
        call()
        raise AssertionError(f"{call} said that all is well")
    except epwatch.FolderError as error:
        assert FOLDER in str(error), error


logging.getLogger("epwatch").addHandler(Lines())
epwatch.start(endpoint="http://127.0.0.1:1", folder=FOLDER, report_interval=3600)
session = epwatch.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], model="mlp", version="7")
session.run(None, {"x": numpy.zeros((1, 64), numpy.float32)})
check(epwatch.seal)
check(epwatch.flush)
assert not epwatch.stop(300)
[(level, line)] = lines
assert level == "WARNING" and line.startswith("runs are lost") and FOLDER in line, lines
print("as expected")
