"""Assertions for a team's own tests, before there is a pipeline: `epwatch gate` has more rules, and evidence.

    from epwatch.testing import assert_latency, assert_on_npu

    def test_segmenter_runs_on_the_npu():
        session = make_session()  # epwatch.InferenceSession
        assert_on_npu(session)
        assert_latency(session, {"x": image}, max_ms=20)

Under pytest they are the fixtures `epwatch_assert_on_npu` and `epwatch_assert_latency`, too. They need no `epwatch.start`
and send nothing. Placement on QNN's emulator is real, its latency is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from typing import Any, Collection, Mapping

from . import _native, _placement

# Where they are in the graph decides whether they may be outside of the NPU.
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
# The first runs on an NPU cost up to 20 times a later one.
_COLD_RUNS = 3
# Below this share of MACs that were found, the session's nodes are called others than the side-car's.
_COMPARABLE = 0.95
# The shares of all nodes may add up to a little less than 1.
_ROUNDING = 1e-9


def assert_on_npu(
    session: Any,
    *,
    min_macs: float | None = None,
    side_car: str | os.PathLike[str] | None = None,
    max_partitions: int | None = None,
    allowed_cpu_ops: Collection[str] | None = None,
) -> None:
    """Fails unless the NPU runs every op that computes, in at most so many partitions: one, if `max_partitions` is None.

    QuantizeLinear and DequantizeLinear may be on the CPU at the graph's own inputs and outputs and next to another node there, as
    for `epwatch gate`, and so may the op types of `allowed_cpu_ops`. With `min_macs` any op may be elsewhere, as long as the NPU has this share of the model's MACs, 0 to 1. They are counted in `side_car`,
    the file that `epwatch manifest` writes of the session's model file. Without it the session's own is read, which
    `epwatch.InferenceSession` or `attach` was given. Ops elsewhere split the NPU's graph, so then the
    number of partitions is judged only if `max_partitions` is given. `session` is of `epwatch.InferenceSession`, or of
    onnxruntime with the option `session.record_ep_graph_assignment_info` at "1".
    """
    # pytest then shows the test's own line, and not the source of this function.
    __tracebackhide__ = True
    if session is None or isinstance(session, (str, bytes, os.PathLike)):
        raise TypeError(f"expected a session, got {type(session).__name__}")
    allowed = set() if allowed_cpu_ops is None else set(_placement.listed("allowed_cpu_ops", allowed_cpu_ops, "Softmax"))
    if max_partitions is not None and max_partitions < 0:
        raise ValueError(f"max_partitions: expected at least 0, got {max_partitions}")
    if min_macs is not None and allowed_cpu_ops is not None:
        raise ValueError("allowed_cpu_ops is read only without min_macs, which allows every op elsewhere")
    if min_macs is None:
        if side_car is not None:
            raise ValueError("side_car is read only with min_macs, the NPU's least share of the MACs")
        max_partitions = 1 if max_partitions is None else max_partitions
    elif not 0 <= min_macs <= 1:
        raise ValueError(f"min_macs: expected a share, 0 to 1, got {min_macs!r}")
    else:
        side_car = _placement.side_car_of(session) if side_car is None else side_car
        if side_car is None:
            raise ValueError("min_macs needs side_car, here or for the session: the file that `epwatch manifest MODEL` writes")
    listed = _placement.subgraphs(session)
    if listed is None:
        raise AssertionError(
            "the session has no placement: make it by epwatch.InferenceSession, with onnxruntime 1.24 or later; "
            f"this is {_placement.runtime_version() or 'an unknown version'}"
        )
    on_npu = [nodes for ep, nodes in listed if _native.is_on_npu(ep)]
    used = sorted({ep for ep, _ in listed})
    if not any(on_npu):
        raise AssertionError(f"no node is on the NPU; the session's nodes are on {', '.join(used) or 'no EP'}")
    if min_macs is not None and side_car is not None:
        _assert_macs(session, listed, min_macs, side_car)
    elif elsewhere := [node for node in _computing_elsewhere(session, listed) if node[2] not in allowed]:
        n_nodes = sum(len(nodes) for _, nodes in listed)
        shown = [f"  {name or '(without a name)'} ({op_type}) on {ep}" for ep, name, op_type in elsewhere[:20]]
        more = [f"  and {len(elsewhere) - 20} more"] if len(elsewhere) > 20 else []
        head = f"{len(elsewhere)} of {n_nodes} nodes compute outside of the NPU:"
        raise AssertionError("\n".join([head, *shown, *more, "`epwatch inspect MODEL` has the reason of each"]))
    if max_partitions is not None and len(on_npu) > max_partitions:
        sizes = ", ".join(str(len(nodes)) for nodes in on_npu)
        raise AssertionError(f"the NPU has {len(on_npu)} partitions instead of at most {max_partitions}: {sizes} nodes")


def _computing_elsewhere(session: Any, listed: _placement.Listed) -> list[tuple[str, str, str]]:
    """Returns EP, name and op type of each node outside of the NPU, without conversions that may be there."""
    __tracebackhide__ = True
    elsewhere = [(ep, name, op) for ep, nodes in listed if not _native.is_on_npu(ep) for name, op, _ in nodes]
    in_place = [op in _CONVERSIONS for _, _, op in elsewhere]
    path, content = _placement.model_of(session)
    model = os.fsdecode(path) if path else content
    if any(in_place) and model:
        of_npu = [nodes for ep, nodes in listed if _native.is_on_npu(ep)]
        names = [name for nodes in of_npu for name, _, _ in nodes]
        try:
            in_place = _native.are_in_place(model, [node[1:] for node in elsewhere], names, len(of_npu))
        except OSError as error:
            raise ValueError(f"the session's model cannot be read to find the place of its conversions: {error}") from error
        except ValueError:
            # Another format than ONNX, or a model with functions: the place is not known.
            pass
    return [node for node, may_be_there in zip(elsewhere, in_place) if not may_be_there]


def _assert_macs(session: Any, listed: _placement.Listed, min_macs: float, path: str | os.PathLike[str]) -> None:
    __tracebackhide__ = True
    content = _placement.side_car_bytes(path)
    side_car = _native.SideCar(content)
    _check_model(session, path, json.loads(content)["model_sha256"].lower())
    nodes = [(name, ep) for ep, of_ep in listed for name, _, _ in of_ep]
    share, found = side_car.macs(nodes)
    if share < min_macs - _ROUNDING:
        missing = f"; {1 - found:.2%} are of nodes that the session does not have" if found < _COMPARABLE else ""
        raise AssertionError(f"the NPU has {share:.2%} of the MACs instead of at least {min_macs:.2%}{missing}")


def _check_model(session: Any, path: str | os.PathLike[str], expected: str) -> None:
    """Refuses the side-car of another file than the session's model, if onnxruntime's session names it."""
    __tracebackhide__ = True
    model, content = _placement.model_of(session)
    if model:
        shown = os.fsdecode(model)
        try:
            found = _sha256_of(model)
        except OSError as error:
            raise ValueError(f"side_car: the session's model cannot be read to compare the two: {error}") from error
    elif content:
        found, shown = hashlib.sha256(content).hexdigest(), "the session's model"
    else:
        return
    if found != expected:
        raise ValueError(
            f"side_car: {os.fspath(path)} is of a model with the SHA-256 {expected}, and {shown} has {found}: give the one "
            "that `epwatch manifest` writes of this model"
        )


def _sha256_of(path: str | bytes | os.PathLike[str]) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            sha.update(part)
    return sha.hexdigest()


def assert_latency(session: Any, feed: Mapping[str, Any], *, max_ms: float, runs: int = 50) -> None:
    """Fails if the median of `runs` runs, after the cold ones, is above `max_ms`."""
    __tracebackhide__ = True
    if runs < 1:
        raise ValueError(f"runs: expected at least 1, got {runs}")
    if not max_ms >= 0:
        raise ValueError(f"max_ms: expected at least 0, got {max_ms}")
    taken = []
    for _ in range(_COLD_RUNS + runs):
        began = time.perf_counter_ns()
        session.run(None, feed)
        taken.append((time.perf_counter_ns() - began) / 1e6)
    warm = taken[_COLD_RUNS:]
    median = statistics.median(warm)
    if median > max_ms:
        raise AssertionError(
            f"the median of {runs} runs is {median:.3g} ms instead of at most {max_ms:.3g} ms "
            f"(fastest {min(warm):.3g}, slowest {max(warm):.3g})"
        )
