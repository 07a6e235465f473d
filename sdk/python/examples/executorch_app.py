"""An app with ExecuTorch, whose runs epwatch watches. XNNPACK takes its convolutions and leaves an op to the CPU.

Usage: executorch_app.py FOLDER

`export` belongs to the build: it writes the program, runs it once with the event tracer, and writes the partitions of
this run next to it. `watched` belongs to the app, which loads both. Needs PyTorch and `pip install executorch epwatch`;
the addresses of the collector are in the environment.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.devtools import Inspector
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

import epwatch
from epwatch.executorch import partitions_of


class Scenes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.last = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, image):
        summed = torch.cumsum(torch.relu(self.first(image)), 1)
        return torch.relu(self.last(summed))


def export(folder, model, image):
    """Writes `scenes.pte` and `scenes.json`, its partitions."""
    exported = torch.export.export(model.eval(), (image,))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True)
    made = edge.to_executorch()
    (folder / "scenes.pte").write_bytes(made.buffer)
    made.get_etrecord().save(str(folder / "scenes.etrecord"))
    program = Runtime.get().load_program(folder / "scenes.pte", enable_etdump=True)
    program.load_method("forward").execute([image])
    program.write_etdump_result_to_file(str(folder / "scenes.etdp"), str(folder / "scenes.debug"))
    inspector = Inspector(etdump_path=str(folder / "scenes.etdp"), etrecord=str(folder / "scenes.etrecord"))
    (folder / "scenes.json").write_text(json.dumps(partitions_of(inspector)))


def watched(folder, images):
    """Runs the program on each image."""
    method = Runtime.get().load_program(folder / "scenes.pte").load_method("forward")
    session = epwatch.session_of(
        model="scenes",
        version="2",
        runtime=f"ExecuTorch {version('executorch')}",
        requested=["XnnpackBackend"],
        partitions=json.loads((folder / "scenes.json").read_text()),
        model_file=folder / "scenes.pte",
    )
    for image in images:
        with epwatch.measure(session):
            method.execute([image])
    return session


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    export(folder, Scenes(), torch.zeros(1, 3, 16, 16))
    epwatch.start()
    session = watched(folder, [torch.full((1, 3, 16, 16), float(n)) for n in range(20)])
    print(epwatch.explain(session))
    epwatch.flush()
