#!/usr/bin/env python3
"""Writes MODEL.macs.json: the multiply-accumulates (MACs) of each node of an ONNX model.

    pip install onnx
    python3 macs.py segmenter.onnx      # writes segmenter.macs.json

`epwatch inspect` reads it and shows which share of the work is on the NPU. A dimension without a fixed size counts as 1.
"""

import hashlib
import json
import math
import pathlib
import sys

import onnx
from onnx import shape_inference


def macs(model):
    """Returns the MACs of each node that has any, by the node's name in the file."""
    inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes = {weight.name: list(weight.dims) for weight in inferred.graph.initializer}
    for value in [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]:
        shapes[value.name] = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    result = {}
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        if not node.name or node.name in result:
            sys.exit(f"a {node.op_type} has no name of its own: reports name nodes by it")
        unknown = [name for name in [*node.input[:2], *node.output] if name not in shapes]
        if unknown:
            sys.exit(f"the shape of {unknown[0]} is not known: fix the sizes of the model's inputs")
        output, left = math.prod(shapes[node.output[0]]), shapes[node.input[0]]
        if node.op_type == "Conv":
            # Weight is [out, in / group, kernel...].
            result[node.name] = output * math.prod(shapes[node.input[1]][1:])
        else:
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            result[node.name] = output * left[0 if transposed else -1]
    return result


def side_car(data):
    """Returns the text of the file for the bytes of a model."""
    by_node = macs(onnx.load_from_string(data))
    document = {
        "model_sha256": hashlib.sha256(data).hexdigest(),
        "total_macs": sum(by_node.values()),
        "nodes": by_node,
    }
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1])
    path.with_suffix(".macs.json").write_text(side_car(path.read_bytes()))
