"""Where LiteRT runs the ops of a model: the partitions for `epwatch.session_of`. docs/runtimes.md says what it cannot know."""

from __future__ import annotations

from typing import Any

from ._runtime import Partition

_DELEGATE = "DELEGATE"


def partitions_of(interpreter: Any, delegate: str = "XNNPACK") -> list[Partition] | None:
    """Returns the partitions of an `ai_edge_litert.interpreter.Interpreter`, after its tensors are allocated.

    The interpreter lists the ops of the model, and a node for each partition that a delegate took, with the tensors at its
    border. The ops between these tensors are the partition's. `delegate` is the accelerator of the one delegate that the
    interpreter has: LiteRT's own is XNNPACK. None if this version lists no ops.
    """
    listed = getattr(interpreter, "_get_ops_details", None)
    if listed is None:
        return None
    nodes = listed()
    ops = [node for node in nodes if node["op_name"] != _DELEGATE]
    maker = {tensor: at for at, op in enumerate(ops) for tensor in _tensors(op, "outputs")}
    taken: dict[int, list[int]] = {}
    owned: set[int] = set()
    for node in nodes:
        if node["op_name"] != _DELEGATE:
            continue
        own = _between(ops, maker, node) - owned
        owned |= own
        if own:
            taken[min(own)] = sorted(own)
    partitions: list[Partition] = []
    for at in range(len(ops)):
        if at in taken:
            partitions.append((delegate, [_named(ops, op) for op in taken[at]]))
        elif at not in owned:
            partitions.append(("CPU", [_named(ops, at)]))
    return partitions


def _between(ops: list[Any], maker: dict[int, int], node: Any) -> set[int]:
    """Returns the ops from the node's inputs to its outputs."""
    border = set(_tensors(node, "inputs"))
    found: set[int] = set()
    wanted = _tensors(node, "outputs")
    while wanted:
        at = maker.get(wanted.pop())
        if at is not None and at not in found:
            found.add(at)
            wanted += [tensor for tensor in _tensors(ops[at], "inputs") if tensor not in border]
    return found


def _tensors(node: Any, side: str) -> list[int]:
    # -1 is an optional tensor that is left out.
    return [int(tensor) for tensor in node[side] if tensor >= 0]


def _named(ops: list[Any], at: int) -> tuple[str, str]:
    return str(at), str(ops[at]["op_name"])
