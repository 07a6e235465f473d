"""A run that was recorded with ExecuTorch gives the placement, without ExecuTorch.

The ETDump is the runtime's own; the JSON has the events of the `Inspector`, which adds names from the ETRecord to it.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from flatbuffers.number_types import Int32Flags
from flatbuffers.table import Table

import epwatch
from epwatch.executorch import partitions_of

dump, listed = (Path(arg) for arg in sys.argv[1:])


class At(Table):
    """A table of a flatbuffer; fields by their place in etdump_schema_flatcc.fbs."""

    def at(self, field):
        offset = self.Offset(4 + 2 * field)
        return offset and offset + self.Pos

    def table(self, field):
        return At(self.Bytes, self.Indirect(self.at(field))) if self.at(field) else None

    def text(self, field):
        return self.String(self.at(field)).decode() if self.at(field) else ""

    def number(self, field):
        return self.Get(Int32Flags, self.at(field)) if self.at(field) else -1

    def tables(self, field):
        start = self.Vector(self.Offset(4 + 2 * field))
        for n in range(self.VectorLen(self.Offset(4 + 2 * field))):
            yield At(self.Bytes, self.Indirect(start + 4 * n))


def root(data):
    """The table ETDump; the file begins with its size."""
    assert data[8:12] == b"ED00" and int.from_bytes(data[:4], "little") == len(data) - 4, data[:12]
    return At(data, 4 + int.from_bytes(data[4:8], "little"))


def run(data):
    """Name and instruction of the events of the only run, without the delegates' own events."""
    [events] = [list(run.tables(3)) for run in root(data).tables(1) if run.text(0) == "Execute"]
    timed = [event.table(0) for event in events]
    return [(event.text(0), event.number(2)) for event in timed if event and event.text(0)]


def inspector(blocks):
    """What `partitions_of` reads of an `Inspector`."""
    made = [{**block, "events": [SimpleNamespace(**event) for event in block["events"]]} for block in blocks]
    return SimpleNamespace(event_blocks=[SimpleNamespace(**block) for block in made])


def refused(blocks, words):
    try:
        partitions_of(inspector(blocks))
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"taken: {blocks}")


recorded = run(dump.read_bytes())
calls = [event for event in recorded if event[0] in ("DELEGATE_CALL", "OPERATOR_CALL")]
assert calls == [("DELEGATE_CALL", 0), ("OPERATOR_CALL", 1), ("DELEGATE_CALL", 2)], recorded
blocks = json.loads(listed.read_text())
[shown] = [block["events"] for block in blocks if block["name"] == "Execute"]
assert [event["name"] for event in shown if not event["is_delegated_op"]] == [name for name, _ in recorded], shown

partitions = partitions_of(inspector(blocks))
taken = ["aten.convolution.default", "aten.relu.default"]
assert partitions == [
    ("XnnpackBackend", list(zip("01", taken))),
    ("CPU", [("2", "aten.cumsum.default")]),
    ("XnnpackBackend", list(zip("34", taken))),
], partitions

# As it is without the ETRecord, which names back ends and ops.
bare = [{**event, "op_types": [], "delegate_backend_name": None} for event in shown]
refused([{"name": "Execute", "events": bare}], "etrecord=")
kernels = [event for event in bare if event["name"] != "DELEGATE_CALL"]
assert partitions_of(inspector([{"name": "Execute", "events": kernels}])) == [("CPU", [("0", "cumsum.out")])]
# A view and arithmetic on shapes, as a model with an open input has them.
shapes = [{**bare[-1], "name": "OPERATOR_CALL", "op_types": ops} for ops in ([], ["mul"], ["sym_size.int"])]
assert partitions_of(inspector([{"name": "Execute", "events": shapes}])) == []
refused([{"name": "Execute", "events": shown}] * 2, "2 different runs")
refused([], "0 different runs")

epwatch.start(chipset="SM8650", report_interval=3600)
session = epwatch.session_of(
    model="scenes", version="2", runtime="ExecuTorch 1.5.1", requested=["XnnpackBackend"], partitions=partitions
)
for _ in range(20):
    epwatch.record(session, 0.004)
epwatch.flush()
print("as expected")
