"""Measures which ops QNN's validator accepts, chipset by chipset, and which other form of an op it accepts instead.

    cargo build --release
    python3 -m venv VENV && VENV/bin/pip install onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
    VENV/bin/python detector/gate/ops/measure.py target/release/epwatch [answers.json]

`answers.json` keeps the answer to each model, so that a run that was broken off goes on.

The oldest and the newest QNN that `epwatch inspect --qnn-version` has are asked. A full run makes 4,074 sessions.

Each case is a model of one op in three forms: float; 8-bit, as ONNX Runtime's quantiser makes it with
`get_qnn_qdq_config`; and 8-bit as plain `quantize_static` makes it. Both quantisers keep a bias in int32.
`epwatch inspect` makes a session of each on each chipset. Alternatives are run next to the op on the CPU, and count only
if their outputs are equal. Writes `ops.json` next to this file, which the gate reads, and `docs/ops.md`, for people.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "ops.md"
CHIPSETS = ["SM8350", "SM8450", "SM8550", "SM8635", "SM8650", "SM8750", "SM8850"]
# Versions of onnxruntime-qnn.
OLDEST, NEWEST = "2.3.0", "2.7.0"
FORMS = ["float", "8-bit", "8-bit, quantize_static"]
FLOAT = TensorProto.FLOAT
IMAGE, ROWS = [1, 8, 16, 16], [1, 16, 32]
# Ops that ONNX Runtime's transformer optimiser makes; the package onnx does not know them.
FUSED = ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "BiasGelu", "FastGelu", "QuickGelu"]
# Answers by the hash of the graph.
ANSWERS = json.loads(pathlib.Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 and pathlib.Path(sys.argv[2]).exists() else {}
# Largest difference of an alternative's float outputs.
EQUAL = 1e-4


class Model:
    """A graph from `x` to `y`, made node by node."""

    def __init__(self, shape=IMAGE, opset=17):
        self.random = np.random.default_rng(7)
        self.shape, self.opset = shape, opset
        self.nodes, self.constants = [], []
        self.last = "x"

    def weight(self, *shape, low=-0.5, high=0.5):
        return self.constant(self.random.uniform(low, high, shape).astype(np.float32))

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, op, *inputs, outputs=1, **attributes):
        """Adds a node whose first input is the last output."""
        at = len(self.nodes)
        names = [f"t{at}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, [self.last, *inputs], names, name=f"{op.lower()}_{at}", **attributes))
        self.last = names[0]

    def made(self):
        domains = sorted({node.domain for node in self.nodes} | {""})
        graph = helper.make_graph(
            self.nodes,
            "op",
            [helper.make_tensor_value_info("x", FLOAT, self.shape)],
            [helper.make_empty_tensor_value_info(self.last)],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, 1 if d else self.opset) for d in domains], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        typed = [value for value in model.graph.value_info if value.type.WhichOneof("value")]
        del model.graph.value_info[:]
        model.graph.value_info.extend(typed)
        if not model.graph.output[0].type.WhichOneof("value"):
            # Inference leaves out the type of an op that is defined as a function.
            model.graph.output[0].CopyFrom(helper.make_tensor_value_info(self.last, FLOAT, self.shape))
        if not any(node.op_type in FUSED for node in self.nodes):
            onnx.checker.check_model(model)
        return model


def one(op, *inputs, shape=IMAGE, opset=17, **attributes):
    """Makes a model of one op whose further inputs are made by functions of the model."""

    def make():
        model = Model(shape, opset)
        model.add(op, *[given(model) for given in inputs], **attributes)
        return model.made()

    return make


def chain(build, shape=IMAGE, opset=17):
    def make():
        model = Model(shape, opset)
        build(model)
        return model.made()

    return make


def w(*shape, low=-0.5, high=0.5):
    return lambda model: model.weight(*shape, low=low, high=high)


def c(values, dtype=np.int64):
    return lambda model: model.constant(np.asarray(values, dtype))


def gelu_by_erf(model):
    x = model.last
    model.add("Div", model.constant(np.float32(np.sqrt(2))))
    model.add("Erf")
    model.add("Add", model.constant(np.float32(1)))
    model.add("Mul", model.constant(np.float32(0.5)))
    model.add("Mul", x)


def layer_norm_by_reshape(model):
    model.add("Reshape", model.constant(np.array([1, 8 * 16 * 16], np.int64)))
    model.random = np.random.default_rng(7)
    scale, bias = model.weight(8, 16, 16), model.weight(8, 16, 16)
    for at, name in ((0, scale), (1, bias)):
        flat = numpy_helper.to_array(model.constants[-2 + at]).reshape(-1)
        model.constants[-2 + at].CopyFrom(numpy_helper.from_array(flat, name))
    model.add("LayerNormalization", scale, bias, axis=-1)
    model.add("Reshape", model.constant(np.array(IMAGE, np.int64)))


def layer_norm_by_parts(model, axis=-1, weight=(32,)):
    scale, bias, x = model.weight(*weight), model.weight(*weight), model.last
    model.add("ReduceMean", axes=[axis], keepdims=1)
    model.nodes.append(helper.make_node("Sub", [x, model.last], ["centred"], name="sub"))
    model.last = "centred"
    model.add("Pow", model.constant(np.float32(2)))
    model.add("ReduceMean", axes=[axis], keepdims=1)
    model.add("Add", model.constant(np.float32(1e-5)))
    model.add("Sqrt")
    model.nodes.append(helper.make_node("Div", ["centred", model.last], ["normal"], name="div"))
    model.last = "normal"
    model.add("Mul", scale)
    model.add("Add", bias)


def channel_norm_by_parts(model):
    layer_norm_by_parts(model, axis=1, weight=(8, 1, 1))


def channel_norm_by_transpose(model):
    scale, bias = model.weight(8), model.weight(8)
    model.add("Transpose", perm=[0, 2, 3, 1])
    model.add("LayerNormalization", scale, bias, axis=-1)
    model.add("Transpose", perm=[0, 3, 1, 2])


def fused(op, *weights, **attributes):
    """One op of ONNX Runtime's transformer optimiser. The sum of a SkipLayerNormalization is with a weight."""
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"

    def build(model):
        model.add(op, *[model.weight(*shape) for shape in weights], domain=domain, **attributes)

    return chain(build, ROWS)


def skip_layer_norm(model):
    model.add("Add", model.weight(*ROWS))
    model.add("LayerNormalization", model.weight(32), model.weight(32), axis=-1, epsilon=1e-5)


def bias_skip_layer_norm(model):
    skip, scale, shift, bias = model.weight(*ROWS), model.weight(32), model.weight(32), model.weight(32)
    model.add("Add", skip)
    model.add("Add", bias)
    model.add("LayerNormalization", scale, shift, axis=-1, epsilon=1e-5)


def rms_norm(model, scale=None):
    scale, x = scale or model.weight(32), model.last
    model.add("Mul", x)
    model.add("ReduceMean", axes=[-1], keepdims=1)
    model.add("Add", model.constant(np.float32(1e-5)))
    model.add("Sqrt")
    model.nodes.append(helper.make_node("Div", [x, model.last], ["normal"], name="div"))
    model.last = "normal"
    model.add("Mul", scale)


def skip_rms_norm(model):
    model.add("Add", model.weight(*ROWS))
    rms_norm(model)


def bias_skip_rms_norm(model):
    skip, scale, bias = model.weight(*ROWS), model.weight(32), model.weight(32)
    model.add("Add", skip)
    model.add("Add", bias)
    rms_norm(model, scale)


def bias_gelu(model, **attributes):
    model.add("Add", model.weight(32))
    model.add("Gelu", **attributes)


def bias_fast_gelu(model):
    bias_gelu(model, approximate="tanh")


def quick_gelu(model):
    x = model.last
    model.add("Mul", model.constant(np.float32(1.702)))
    model.add("Sigmoid")
    model.add("Mul", x)


def instance_norm(model):
    scale, bias = model.weight(8), model.weight(8)
    for at, name in ((-2, scale), (-1, bias)):
        flat = numpy_helper.to_array(model.constants[at]).reshape(1, 8, 1, 1)
        model.constants[at].CopyFrom(numpy_helper.from_array(flat, name))
    model.add("Reshape", model.constant(np.array([1, 8, 16 * 16], np.int64)))
    ones = model.constant(np.ones(16 * 16, np.float32))
    model.add("LayerNormalization", ones, model.constant(np.zeros(16 * 16, np.float32)), axis=-1)
    model.add("Reshape", model.constant(np.array(IMAGE, np.int64)))
    model.add("Mul", scale)
    model.add("Add", bias)


def softmax_by_transpose(model):
    model.add("Transpose", perm=[0, 2, 3, 1])
    model.add("Softmax", axis=-1)
    model.add("Transpose", perm=[0, 3, 1, 2])


def hardmax_by_argmax(model, axis=-1, size=32):
    model.add("ArgMax", axis=axis, keepdims=0)
    depth = model.constant(np.array(size, np.int64))
    model.add("OneHot", depth, model.constant(np.array([0, 1], np.float32)), axis=axis)


def hardmax_by_max(model, axis=-1):
    x = model.last
    model.add("ReduceMax", axes=[axis], keepdims=1)
    model.add("Equal", x)
    model.add("Cast", to=FLOAT)


def cumsum_by_matmul(reverse):
    def build(model):
        ones = np.triu(np.ones((32, 32), np.float32))
        model.add("MatMul", model.constant(ones.T.copy() if reverse else ones))

    return build


def mish(model):
    x = model.last
    model.add("Softplus")
    model.add("Tanh")
    model.add("Mul", x)


def softplus(model):
    model.add("Exp")
    model.add("Add", model.constant(np.float32(1)))
    model.add("Log")


def selu(model):
    model.add("Elu", alpha=1.6732632)
    model.add("Mul", model.constant(np.float32(1.0507010)))


def reduce_l2(model):
    model.add("Mul", model.last)
    model.add("ReduceSum", model.constant(np.array([-1], np.int64)), keepdims=1)
    model.add("Sqrt")


def lp_norm(model):
    x = model.last
    reduce_l2(model)
    length = model.last
    model.nodes.append(helper.make_node("Div", [x, length], ["by_length"], name="div_last"))
    model.last = "by_length"


def einsum_by_matmul(model):
    model.add("MatMul", model.weight(32, 24))


def group_norm(model):
    model.add("Reshape", model.constant(np.array([1, 2, 4 * 16 * 16], np.int64)))
    ones = model.constant(np.ones(2, np.float32))
    zeros = model.constant(np.zeros(2, np.float32))
    model.add("InstanceNormalization", ones, zeros)
    model.add("Reshape", model.constant(np.array(IMAGE, np.int64)))
    model.random = np.random.default_rng(7)
    scale, bias = model.weight(8), model.weight(8)
    for at, name in ((-2, scale), (-1, bias)):
        flat = numpy_helper.to_array(model.constants[at]).reshape(1, 8, 1, 1)
        model.constants[at].CopyFrom(numpy_helper.from_array(flat, name))
    model.add("Mul", scale)
    model.add("Add", bias)


def square(model):
    model.add("Mul", model.last)


def reciprocal(model):
    x = model.last
    model.nodes.append(helper.make_node("Div", [model.constant(np.float32(1)), x], ["div"], name="div_0"))
    model.last = "div"


def where(model):
    mask = model.constant(np.arange(16 * 32).reshape(ROWS) % 3 > 0)
    model.nodes.append(helper.make_node("Where", [mask, "x", model.weight(*ROWS)], ["y"], name="where_0"))
    model.last = "y"


def recurrent(op, gates, hidden=16):
    def build(model):
        model.add("Transpose", perm=[1, 0, 2])
        model.add(op, model.weight(1, gates * hidden, 32), model.weight(1, gates * hidden, hidden),
                  outputs=1, hidden_size=hidden)

    return chain(build, ROWS)


def resize(mode):
    def build(model):
        scales = model.constant(np.array([1, 1, 2, 2], np.float32))
        model.nodes.append(helper.make_node("Resize", ["x", "", scales], ["y"], name="resize_0", mode=mode))
        model.last = "y"

    return chain(build)


POSITIVE = w(*IMAGE, low=0.1, high=1.0)
# Title, model, alternatives: each a sentence and a model with equal outputs.
CASES = [
    ("Conv 3x3", one("Conv", w(8, 8, 3, 3), pads=[1, 1, 1, 1]), []),
    ("Conv, depthwise", one("Conv", w(8, 1, 3, 3), group=8, pads=[1, 1, 1, 1]), []),
    ("Conv, one dimension", one("Conv", w(16, 16, 3), pads=[1, 1], shape=ROWS), []),
    ("Conv, three dimensions", one("Conv", w(4, 4, 3, 3, 3), shape=[1, 4, 8, 8, 8]), []),
    ("ConvTranspose", one("ConvTranspose", w(8, 8, 2, 2), strides=[2, 2]), []),
    ("Gemm", one("Gemm", w(32, 16), shape=[4, 32]), []),
    ("MatMul with weights", one("MatMul", w(32, 16), shape=ROWS), []),
    ("Einsum", chain(lambda m: m.add("Einsum", m.weight(32, 24), equation="bij,jk->bik"), ROWS),
     [("MatMul", chain(einsum_by_matmul, ROWS))]),
    ("LayerNormalization, last axis", one("LayerNormalization", w(32), w(32), axis=-1, shape=ROWS), []),
    ("LayerNormalization, axis 1", one("LayerNormalization", w(8, 16, 16), w(8, 16, 16), axis=1),
     [("Reshape to one last axis, LayerNormalization over it, Reshape back", chain(layer_norm_by_reshape))]),
    ("LayerNormalization as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add", chain(layer_norm_by_parts, ROWS),
     [("LayerNormalization, one node", one("LayerNormalization", w(32), w(32), axis=-1, shape=ROWS))]),
    ("LayerNormalization over the channels as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add", chain(channel_norm_by_parts),
     [("Transpose, LayerNormalization over the last axis, Transpose", chain(channel_norm_by_transpose))]),
    ("SkipLayerNormalization (fused)", fused("SkipLayerNormalization", ROWS, (32,), (32,), epsilon=1e-5),
     [("Add, LayerNormalization", chain(skip_layer_norm, ROWS))]),
    ("SkipLayerNormalization with a bias (fused)", fused("SkipLayerNormalization", ROWS, (32,), (32,), (32,), epsilon=1e-5),
     [("Add, Add, LayerNormalization", chain(bias_skip_layer_norm, ROWS))]),
    ("SimplifiedLayerNormalization (fused)", fused("SimplifiedLayerNormalization", (32,), axis=-1, epsilon=1e-5),
     [("Mul, ReduceMean, Add, Sqrt, Div, Mul", chain(rms_norm, ROWS))]),
    ("SkipSimplifiedLayerNormalization (fused)", fused("SkipSimplifiedLayerNormalization", ROWS, (32,), epsilon=1e-5),
     [("Add, Mul, ReduceMean, Add, Sqrt, Div, Mul", chain(skip_rms_norm, ROWS))]),
    ("SkipSimplifiedLayerNormalization with a bias (fused)",
     fused("SkipSimplifiedLayerNormalization", ROWS, (32,), (32,), epsilon=1e-5),
     [("Add, Add, Mul, ReduceMean, Add, Sqrt, Div, Mul", chain(bias_skip_rms_norm, ROWS))]),
    ("BiasGelu (fused)", fused("BiasGelu", (32,)), [("Add, Gelu (opset 20)", chain(bias_gelu, ROWS, 20))]),
    ("FastGelu (fused)", fused("FastGelu"),
     [("Gelu with approximate tanh (opset 20)", one("Gelu", shape=ROWS, opset=20, approximate="tanh"))]),
    ("FastGelu with a bias (fused)", fused("FastGelu", (32,)),
     [("Add, Gelu with approximate tanh (opset 20)", chain(bias_fast_gelu, ROWS, 20))]),
    ("QuickGelu (fused)", fused("QuickGelu", alpha=1.702), [("Mul by its alpha, Sigmoid, Mul", chain(quick_gelu, ROWS))]),
    ("InstanceNormalization", one("InstanceNormalization", w(8), w(8)),
     [("Reshape to one last axis, LayerNormalization over it, Reshape back, Mul, Add", chain(instance_norm))]),
    ("GroupNormalization", one("GroupNormalization", w(8), w(8), num_groups=2, opset=21),
     [("Reshape to groups, InstanceNormalization, Reshape back, Mul, Add", chain(group_norm))]),
    ("BatchNormalization", one("BatchNormalization", w(8), w(8), w(8), w(8, low=0.1, high=1.0)), []),
    ("LpNormalization", one("LpNormalization", axis=-1, p=2, shape=ROWS), [("Mul, ReduceSum, Sqrt, Div", chain(lp_norm, ROWS))]),
    ("LRN", one("LRN", size=5), []),
    ("Softmax, last axis", one("Softmax", axis=-1, shape=ROWS), []),
    ("Softmax, axis 1 of 4", one("Softmax", axis=1), [("Transpose, Softmax over the last axis, Transpose", chain(softmax_by_transpose))]),
    ("LogSoftmax", one("LogSoftmax", axis=-1, shape=ROWS),
     [("Softmax, Log", chain(lambda m: (m.add("Softmax", axis=-1), m.add("Log")), ROWS))]),
    ("Hardmax", one("Hardmax", axis=-1, shape=ROWS),
     [("ArgMax, OneHot", chain(hardmax_by_argmax, ROWS)), ("ReduceMax, Equal, Cast", chain(hardmax_by_max, ROWS))]),
    ("Hardmax, axis 1 of 4", one("Hardmax", axis=1),
     [("ArgMax, OneHot", chain(lambda m: hardmax_by_argmax(m, 1, 8))), ("ReduceMax, Equal, Cast", chain(lambda m: hardmax_by_max(m, 1)))]),
    ("Erf", one("Erf"), []),
    ("Gelu as Div, Erf, Add, Mul, Mul", chain(gelu_by_erf), [("Gelu, one node (opset 20)", one("Gelu", opset=20))]),
    ("Gelu, one node (opset 20)", one("Gelu", opset=20), [("Div, Erf, Add, Mul, Mul", chain(gelu_by_erf))]),
    ("Tanh", one("Tanh"), []),
    ("Sigmoid", one("Sigmoid"), []),
    ("HardSwish", one("HardSwish"), []),
    ("HardSigmoid", one("HardSigmoid"), []),
    ("Mish", one("Mish", opset=18), [("Softplus, Tanh, Mul", chain(mish))]),
    ("Softplus", one("Softplus"), [("Exp, Add 1, Log", chain(softplus))]),
    ("Elu", one("Elu"), []),
    ("Selu", one("Selu"), [("Elu with its alpha, Mul by its gamma", chain(selu))]),
    ("LeakyRelu", one("LeakyRelu"), []),
    ("PRelu", one("PRelu", w(8, 1, 1)), []),
    ("Clip", one("Clip", c(0, np.float32), c(6, np.float32)), []),
    ("Sqrt", chain(lambda m: (m.add("Abs"), m.add("Sqrt"))), []),
    ("Exp", one("Exp"), []),
    ("Log", chain(lambda m: (m.add("Exp"), m.add("Log"))), []),
    ("Sin", one("Sin"), []),
    ("Cos", one("Cos"), []),
    ("Pow 2", one("Pow", c(2, np.float32)), [("Mul with itself", chain(square))]),
    ("Reciprocal", one("Reciprocal"), [("1 divided by it (Div)", chain(reciprocal))]),
    ("Div", one("Div", POSITIVE), []),
    ("Mod", one("Mod", POSITIVE, fmod=1), []),
    ("Floor", one("Floor"), []),
    ("Round", one("Round"), []),
    ("Sign", one("Sign"), []),
    ("CumSum", one("CumSum", c(-1, np.int64), shape=ROWS), [("MatMul with a triangle of ones", chain(cumsum_by_matmul(False), ROWS))]),
    ("CumSum, reverse", one("CumSum", c(-1, np.int64), reverse=1, shape=ROWS),
     [("MatMul with a triangle of ones", chain(cumsum_by_matmul(True), ROWS))]),
    ("ReduceMean", one("ReduceMean", axes=[-1]), []),
    ("ReduceMax", one("ReduceMax", axes=[-1]), []),
    ("ReduceProd", one("ReduceProd", axes=[-1], shape=ROWS), []),
    ("ReduceL2", one("ReduceL2", axes=[-1], shape=ROWS), [("Mul, ReduceSum, Sqrt", chain(reduce_l2, ROWS))]),
    ("ArgMax", one("ArgMax", axis=-1), []),
    ("TopK", one("TopK", c([4]), outputs=2, shape=ROWS), []),
    ("Gather", one("Gather", c([3, 1]), axis=1, shape=ROWS), []),
    ("GatherElements", one("GatherElements", c(np.zeros(ROWS)), axis=1, shape=ROWS), []),
    ("GatherND", one("GatherND", c([[0, 1], [0, 2]]), shape=ROWS), []),
    ("ScatterND", one("ScatterND", c([[0, 1]]), w(1, 32), shape=ROWS), []),
    ("ScatterElements", one("ScatterElements", c(np.zeros([1, 1, 32])), w(1, 1, 32), axis=1, shape=ROWS), []),
    ("Where", chain(where, ROWS), []),
    ("Expand", one("Expand", c([1, 64, 32]), shape=[1, 1, 32]),
     [("Tile", chain(lambda m: m.add("Tile", m.constant(np.array([1, 64, 1], np.int64))), [1, 1, 32]))]),
    ("Tile", one("Tile", c([1, 4, 1]), shape=ROWS), []),
    ("Slice", one("Slice", c([2]), c([9]), c([1]), shape=ROWS), []),
    ("Pad, constant", one("Pad", c([0, 0, 1, 1, 0, 0, 1, 1])), []),
    ("Pad, reflect", one("Pad", c([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"), []),
    ("Resize, nearest", resize("nearest"), []),
    ("Resize, linear", resize("linear"), []),
    ("Resize, cubic", resize("cubic"), []),
    ("DepthToSpace", one("DepthToSpace", blocksize=2), []),
    ("SpaceToDepth", one("SpaceToDepth", blocksize=2), []),
    ("GridSample", one("GridSample", w(1, 16, 16, 2)), []),
    ("MaxPool", one("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), []),
    ("AveragePool", one("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), []),
    ("GlobalAveragePool", one("GlobalAveragePool"), []),
    ("Transpose", one("Transpose", perm=[0, 2, 3, 1]), []),
    ("LSTM", recurrent("LSTM", 4), []),
    ("GRU", recurrent("GRU", 3), []),
    ("RNN", recurrent("RNN", 1), []),
    ("NonZero", one("NonZero", shape=ROWS), []),
    ("IsNaN", chain(lambda m: (m.add("IsNaN"), m.add("Cast", to=FLOAT))), []),
]


class Inputs(CalibrationDataReader):
    """Four normal inputs."""

    def __init__(self, model):
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        random = np.random.default_rng(5)
        self.left = [{"x": random.normal(0, 1, shape).astype(np.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


def in_form(model, form, folder):
    """The model as its form has it; nothing where the quantiser refuses it."""
    if form == "float":
        return model
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, before)
    try:
        if form == "8-bit":
            quantize(before, after, get_qnn_qdq_config(before, Inputs(model), activation_type=QuantType.QUInt8, weight_type=QuantType.QUInt8))
        else:
            quantize_static(before, after, Inputs(model), QuantFormat.QDQ)
    except Exception as error:
        print(f"{form}: {error}", file=sys.stderr)
        return None
    return onnx.load(after)


def outputs(model):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def in_forms(model, folder):
    return {form: in_form(model, form, folder) for form in FORMS}


def key_of(version, model):
    # The key is of the graph alone, because the quantiser writes its name and the time outside the graph.
    return version + " " + hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def accepted(epwatch, version, models, folder):
    """Returns by form the reason of the first refusal by chipset; none where the NPU has every node that computes."""
    found = {}
    for form, model in models.items():
        if model is None:
            found[form] = {chipset: "unknown" for chipset in CHIPSETS}
            continue
        key = key_of(version, model)
        if key not in ANSWERS:
            path = folder / "op.onnx"
            onnx.save(model, path)
            ANSWERS[key] = asked(epwatch, version, path)
            if len(sys.argv) > 2:
                pathlib.Path(sys.argv[2]).write_text(json.dumps(ANSWERS))
        found[form] = ANSWERS[key]
    return found


def asked(epwatch, version, path):
    options = ["--soc", ",".join(CHIPSETS), "--qnn-version", version, "--json"]
    ran = subprocess.run([epwatch, "inspect", path, *options], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(ran.stderr)
    found = {}
    for on in json.loads(ran.stdout)["chipsets"]:
        refused = [node for node in on["cpu_nodes"] if not node["benign"]]
        on_npu = on["eps"].get("QNNExecutionProvider", {}).get("nodes", 0)
        if on["session"] != "ok":
            found[on["chipset"]] = (on["reasons"] or [{"code": "unknown"}])[0]["code"]
        elif refused:
            # A Quantize or Dequantize node stays on the CPU only because its op does, so it gives no reason.
            reasons = [node["reason"] for node in refused if node["reason"] not in ("edge_quantization", "unknown")]
            found[on["chipset"]] = [*reasons, "unknown"][0]
        else:
            found[on["chipset"]] = None if on_npu else "unknown"
    return found


def measured(epwatch):
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for at, (title, make, alternatives) in enumerate(CASES):
            model = make()
            expected = outputs(model)
            case = {"title": title, "ops": sorted({node.op_type for node in model.graph.node}), "alternatives": []}
            case |= by_version(epwatch, model, folder)
            for sentence, make_other in alternatives:
                other = make_other()
                difference = float(np.abs(outputs(other) - expected).max())
                assert difference <= EQUAL, (title, sentence, difference)
                case["alternatives"].append({"title": sentence, **by_version(epwatch, other, folder)})
            cases.append(case)
            print(f"{at + 1} of {len(CASES)} {title}", file=sys.stderr)
    return cases


def by_version(epwatch, model, folder):
    models = in_forms(model, folder)
    return {"refused": accepted(epwatch, NEWEST, models, folder), "older": accepted(epwatch, OLDEST, models, folder)}


def only_refused(found):
    """The chipsets that refuse, with their reasons: what a reader and a file need."""
    return {chipset: reason for chipset, reason in found.items() if reason}


def cell(chipset, newest, oldest):
    """Whether both versions take it, or which one does."""
    taken = [chipset not in newest, chipset not in oldest]
    return {(True, True): "yes", (False, False): "-", (True, False): NEWEST[:3], (False, True): OLDEST[:3]}[tuple(taken)]


def written(cases):
    """The document: a row for each case and form."""
    lines = [
        "# Ops by chipset",
        "",
        "Which ops QNN's validator takes for the NPU, before you export a model. Each row is a model of one op in a real session on",
        "each chipset (`epwatch inspect`), in one of these forms:",
        "",
        "- float;",
        "- 8-bit: quantised by `get_qnn_qdq_config` of ONNX Runtime, as below, with the bias in int32;",
        "- 8-bit, quantize_static: quantised by plain `quantize_static`, where that differs. It leaves several ops in float.",
        "",
        f"Written by `detector/gate/ops/measure.py` with onnxruntime-qnn {OLDEST} (QNN 2.47) and {NEWEST} (QNN 2.51), the oldest and the newest",
        "of `epwatch gate --qnn-version`. Shapes and attributes matter too: ask `epwatch inspect` about your model. `epwatch gate fix` rewrites a model into some of these forms.",
        "",
        "```python",
        "from onnxruntime.quantization import QuantType, quantize",
        "from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model",
        "",
        'changed = qnn_preprocess_model("model.onnx", "ready.onnx")',
        'config = get_qnn_qdq_config("ready.onnx" if changed else "model.onnx", samples, activation_type=QuantType.QUInt8)',
        'quantize("ready.onnx" if changed else "model.onnx", "model.q8.onnx", config)',
        "```",
        "",
        "`samples` is a `CalibrationDataReader` over real inputs.",
        "",
        f"`yes`: all of it on the NPU; `-`: refused or no session; `{NEWEST[:3]}` and `{OLDEST[:3]}`: taken by that version alone. Reasons and alternatives",
        f"are from {NEWEST}. An alternative computes the same, and is named where it is taken. ONNX Runtime's transformer optimiser makes",
        "the ops with `(fused)`; a model before it has the ops that they stand for.",
        "",
        "| op | form | " + " | ".join(CHIPSETS) + " | reason | instead |",
        "|---|---|" + "---|" * len(CHIPSETS) + "---|---|",
    ]
    for case in cases:
        for form in FORMS:
            refused, older = only_refused(case["refused"][form]), only_refused(case["older"][form])
            is_same = all(only_refused(case[of][form]) == only_refused(case[of]["8-bit"]) for of in ("refused", "older"))
            if form == FORMS[2] and is_same:
                continue
            cells = [cell(chipset, refused, older) for chipset in CHIPSETS]
            instead = [
                other["title"] + ("" if taken == set(refused) else " (" + ", ".join(c for c in CHIPSETS if c in taken) + ")")
                for other in case["alternatives"]
                if (taken := {c for c in refused if c not in only_refused(other["refused"][form])})
            ]
            if refused and form == "float":
                quantised_takes = [c for c in refused if c not in only_refused(case["refused"]["8-bit"])]
                if quantised_takes and not instead:
                    instead = ["the 8-bit form" + ("" if len(quantised_takes) == len(refused) else f" ({', '.join(quantised_takes)})")]
            if form == FORMS[2] and (taken := [c for c in refused if c not in only_refused(case["refused"]["8-bit"])]):
                instead.insert(0, "get_qnn_qdq_config" + ("" if len(taken) == len(refused) else f" ({', '.join(taken)})"))
            reasons = ", ".join(f"`{reason}`" for reason in sorted(set(refused.values()) - {"unknown"}))
            lines.append(f"| {case['title']} | {form} | " + " | ".join(cells) + f" | {reasons} | {'; or '.join(instead)} |")
    return "\n".join(lines) + "\n"


def compact(of):
    return {version: {form: only_refused(of[version][form]) for form in FORMS} for version in ("refused", "older")}


def main():
    cases = measured(sys.argv[1])
    rows = [
        {
            "title": case["title"],
            "ops": case["ops"],
            **compact(case),
            "alternatives": [{"title": other["title"], **compact(other)} for other in case["alternatives"]],
        }
        for case in cases
    ]
    rows = ",\n".join("  " + json.dumps(row) for row in rows)
    (HERE / "ops.json").write_text('{"chipsets": ' + json.dumps(CHIPSETS) + ', "cases": [\n' + rows + "\n]}\n")
    DOCUMENT.write_text(written(cases))


if __name__ == "__main__":
    main()
