"""Runs of LiteRT, observed by the app's word. Its CPU kernels take an op that the XNNPACK delegate leaves."""

import tempfile
import time
from pathlib import Path

import flatbuffers
import numpy
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import epwatch
from epwatch.litert import partitions_of

RUNTIME = "LiteRT 2.3.0"
FLOAT, INT = schema.TensorType.FLOAT32, schema.TensorType.INT32


class Model:
    """A graph of one row of 16 numbers, as LiteRT's schema has it."""

    def __init__(self):
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.operatorCodes = []
        self.model.buffers = [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.name = b"main"
        self.graph.tensors = []
        self.graph.operators = []
        self.model.subgraphs = [self.graph]

    def tensor(self, data=None, kind=FLOAT):
        tensor = schema.TensorT()
        tensor.name = f"t{len(self.graph.tensors)}".encode()
        tensor.type = kind
        tensor.shape = numpy.array((1, 16) if data is None else data.shape, numpy.int32)
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = numpy.frombuffer(data.tobytes(), numpy.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def op(self, name, options, *inputs):
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        self.model.operatorCodes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex = len(self.model.operatorCodes) - 1
        made.inputs = numpy.array(inputs, numpy.int32)
        result = self.tensor()
        made.outputs = numpy.array([result], numpy.int32)
        made.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
        made.builtinOptions = getattr(schema, f"{options}OptionsT")()
        self.graph.operators.append(made)
        return result

    def write(self, path, first, last):
        self.graph.inputs = numpy.array([first], numpy.int32)
        self.graph.outputs = numpy.array([last], numpy.int32)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        path.write_bytes(builder.Output())


def write_model(path):
    model = Model()
    weights = numpy.eye(16, dtype=numpy.float32)
    first = model.tensor()
    at = model.op("FULLY_CONNECTED", "FullyConnected", first, model.tensor(weights), -1)
    at = model.op("ADD", "Add", at, first)
    at = model.op("CUMSUM", "Cumsum", at, model.tensor(numpy.array(1, numpy.int32), INT))
    at = model.op("FULLY_CONNECTED", "FullyConnected", at, model.tensor(weights), -1)
    model.write(path, first, at)


def made(path, **options):
    began = time.monotonic()
    interpreter = Interpreter(str(path), num_threads=1, **options)
    interpreter.allocate_tensors()
    return interpreter, time.monotonic() - began


def run(interpreter):
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], numpy.ones((1, 16), numpy.float32))
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert numpy.array_equal(found[0], numpy.cumsum(numpy.full(16, 2.0, numpy.float32))), found


path = Path(tempfile.mkdtemp()) / "cumsum.tflite"
write_model(path)
interpreter, seconds = made(path)
partitions = partitions_of(interpreter)
assert partitions == [
    ("XNNPACK", [("0", "FULLY_CONNECTED"), ("1", "ADD")]),
    ("CPU", [("2", "CUMSUM")]),
    ("XNNPACK", [("3", "FULLY_CONNECTED")]),
], partitions
plain, _ = made(path, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
assert [ep for ep, _ in partitions_of(plain)] == ["CPU"] * 4
assert partitions_of(object()) is None

# The session is made before `start`, and observed from `start` on.
early = epwatch.session_of(model="early", version="1", runtime=RUNTIME, requested=["XNNPACK"], partitions=None)
epwatch.start(chipset="SM8650", report_interval=3600)
session = epwatch.session_of(
    model="cumsum",
    version="7",
    runtime=RUNTIME,
    requested=["XNNPACK"],
    partitions=partitions,
    model_file=path,
    creation_seconds=seconds,
)
for _ in range(5):
    with epwatch.measure(session):
        run(interpreter)
epwatch.record(session, 0.004)
epwatch.record(early, 0.004)
try:
    with epwatch.measure(session):
        raise RuntimeError("the delegate failed")
except RuntimeError:
    pass
explained = epwatch.explain(session)
assert explained["runtime"] == RUNTIME and explained["source"] == "host", explained
assert explained["cpu_nodes"][0]["op_type"] == "CUMSUM", explained
assert "3 nodes in 2 partitions" in str(explained), explained
try:
    epwatch.session_of(model="m", version="1", runtime="2.3.0", requested=[], partitions=None)
    raise AssertionError("a version without a name was taken")
except ValueError as error:
    assert "LiteRT 2.3.0" in str(error), error
try:
    epwatch.session_of(model="m", version="1", runtime=RUNTIME, requested="XNNPACK", partitions=None)
    raise AssertionError("a text was taken for a list")
except TypeError as error:
    assert "['XNNPACK']" in str(error), error
epwatch.flush()
print("as expected")
