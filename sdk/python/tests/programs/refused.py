"""Sessions that the SDK refuses to observe, and files whose names are long or odd. Argument: a model."""

import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import onnxruntime

import epwatch
from epwatch import _placement

MODEL = sys.argv[1]
CPU = ["CPUExecutionProvider"]
FEED = {"x": numpy.zeros((1, 64), numpy.float32)}


class Lines(logging.Handler):
    lines = []

    def emit(self, record):
        assert record.exc_info is None, record
        self.lines.append((record.levelname, record.getMessage()))


def taken():
    lines, Lines.lines[:] = list(Lines.lines), []
    return lines


logging.getLogger("epwatch").addHandler(Lines())
epwatch.start(report_interval=3600)

n_read = 0
subgraphs = _placement.subgraphs


def counted(session):
    global n_read
    n_read += 1
    return subgraphs(session)


_placement.subgraphs = counted
for wrong, cause in [
    ({"sha256": "zz"}, "sha256"),
    ({"reasons": ["no_such"]}, "no_such"),
    ({"model": "of\ntwo lines"}, "model id"),
]:
    n_read = 0
    session = epwatch.InferenceSession(MODEL, providers=CPU, **wrong)
    for _ in range(5):
        session.run(None, FEED)
    [(level, line)] = taken()
    assert level == "WARNING" and cause in line and "\n" not in line, line
    assert n_read == 1, n_read
    assert cause in str(epwatch.explain(session)) and not taken()
    # onnxruntime makes another session, which is asked about once more. The reasons were about the session before.
    session.set_providers(CPU)
    session.run(None, FEED)
    assert len(taken()) == ("reasons" not in wrong) and n_read == 2, n_read

refused = epwatch.session_of(model="m", version="1", runtime="LiteRT 2.3.0", requested=[], partitions=None, reasons=["no_such"])
for _ in range(5):
    epwatch.record(refused, 0.001)
assert len(taken()) == 1 and "no_such" in str(epwatch.explain(refused))

# Names of files are cut at 128 bytes between two characters, and have no characters that the SDK refuses.
folder = Path(tempfile.mkdtemp())
for name, expected in [
    (("\u00e9" * 100).encode(), "\u00e9" * 64),
    (("a" + "\u00e9" * 100).encode(), "a" + "\u00e9" * 63),
    (b"of\ntwo lines", "of_two lines"),
    (b"not UTF-8 \xff", "not UTF-8 ?"),
]:
    path = os.fsdecode(os.path.join(os.fsencode(folder), name + b".onnx"))
    shutil.copy(MODEL, path)
    # onnxruntime itself takes no path beyond UTF-8.
    identity = _placement.identity(None, path, None, None)
    assert identity[0] == expected, identity
    if "\udcff" not in path:
        session = epwatch.InferenceSession(path, providers=CPU)
        session.run(None, FEED)
        assert epwatch.explain(session)["model"] == expected, epwatch.explain(session)
    assert not taken()
shutil.rmtree(folder)
# The side-car of another model, and one of a model without MACs, which says nothing.
folder = Path(tempfile.mkdtemp())
for n_macs, n_lines in [(9, 1), (0, 0)]:
    (folder / "macs.json").write_text(
        json.dumps({"model_sha256": "ab" * 32, "total_macs": n_macs, "nodes": {"a layer of another model": n_macs}})
    )
    session = epwatch.InferenceSession(MODEL, providers=CPU, side_car=folder / "macs.json")
    for _ in range(5):
        session.run(None, FEED)
    lines = taken()
    assert len(lines) == n_lines, lines
    assert all("none of the nodes in the side-car are in the session" in line for _, line in lines), lines
shutil.rmtree(folder)
epwatch.flush(300)
print("as expected")
