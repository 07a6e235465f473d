"""The golden self-test: does the NPU compute what the CPU computes?"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Callable, List, Mapping, NamedTuple, Tuple, Union

from . import _native, _placement, _process
from ._session import InferenceSession

logger = logging.getLogger("epwatch")

# Element types of numbers, as ONNX numbers them. 0 is refused.
_ONNX_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
# ONNX Runtime's code, and two of epwatch.
_EP_FAIL, _NO_CPU_SESSION, _TOO_LARGE = 11, -2, -6
# The SDK refuses more. An output's bytes are copied, so a larger one is not copied at all.
_MAX_OUTPUT_BYTES = 64 << 20

_Tensor = Tuple[str, int, List[int], bytes]
# Outputs, or the error code in their place.
_Side = Union[List[_Tensor], int]


class SelfTestResult(NamedTuple):
    """What a self-test has found. Distances are None if the outputs were not compared."""

    max_abs: float | None
    """The greatest absolute difference of two elements."""
    cosine: float | None
    """The lowest cosine of an output."""
    top1_equal: bool | None
    """Whether the largest element of every output is the same one."""
    error_code: int
    """0, ONNX Runtime's code of a failure, or epwatch's, which is below 0."""


def self_test(
    session: InferenceSession,
    golden_id: str,
    feed: Mapping[str, Any],
    cpu_session: Callable[[], Any] | None = None,
    *,
    tolerance: float | None = None,
) -> SelfTestResult | None:
    """Runs a golden input on the session and on one for the CPU, and compares their outputs, once per model, firmware and runtime.

    `feed` has the model's inputs as NumPy arrays: random or public data, never the data of a user. Reports name it by `golden_id`, 1 to
    64 bytes, and hold hashes and distances, no outputs. `cpu_session` makes onnxruntime's session for the CPU, for example of
    the file before its quantisation; without it the session's own model is taken. `tolerance` is the greatest absolute
    difference that is accepted.

    Takes a session's creation and two runs, which are not recorded, and writes to the folder: call it when the app is idle. A
    failure is the result's `error_code`. Returns None if there is nothing to do: the logger has the reason at INFO.
    """
    if type(session) is not InferenceSession:
        raise TypeError(f"expected a session of epwatch.InferenceSession or epwatch.attach, got {type(session).__name__}")
    if not _process.is_started():
        raise RuntimeError("epwatch.start was not called")
    if cpu_session is not None and not callable(cpu_session):
        raise TypeError(f"cpu_session: expected a function that makes a session, got {type(cpu_session).__name__}")
    make_cpu_session = _same_model(session) if cpu_session is None else cpu_session
    inputs = [_input(name, array) for name, array in feed.items()]
    session._observe()
    # A run may make the session again. The one that the test is of stays open until the end, since its report has the result.
    observed = session._observed
    if observed is None:
        logger.info("no self-test of %r: it is not observed", session)
        return None
    begun = observed.begin_self_test(golden_id, tolerance, inputs)
    if isinstance(begun, str):
        logger.info("no self-test of %r: %s", session, begun)
        return None
    on_npu = _of_observed(session, feed)
    # If the NPU fails, the CPU session need not be made.
    on_cpu = on_npu if isinstance(on_npu, int) else _on_cpu(make_cpu_session, feed)
    return SelfTestResult(*begun.end(on_npu, on_cpu))


def _same_model(session: InferenceSession) -> Callable[[], Any]:
    path, content = _placement.model_of(session)
    model = path or content
    if model is None:
        raise ValueError("cpu_session is missing: the session's model is not known")
    return lambda: importlib.import_module("onnxruntime").InferenceSession(model, providers=[_placement.CPU])


def _input(name: str, array: Any) -> _Tensor:
    if not hasattr(array, "dtype") or not hasattr(array, "tobytes"):
        raise TypeError(f"input {name!r}: expected a NumPy array, got {type(array).__name__}")
    dtype = array.dtype
    if dtype.name not in _ONNX_TYPES:
        raise ValueError(f"input {name!r}: expected an array of numbers, got {dtype}")
    if not dtype.isnative:
        convert = f"convert it by `astype({dtype.name!r})`"
        raise ValueError(f"input {name!r}: expected an array in this machine's byte order, got {dtype}: {convert}")
    return _tensor(name, array)


def _tensor(name: str, value: Any) -> _Tensor:
    """Copies a NumPy array. Anything else, and an array of other elements, gets the type 0."""
    dtype = getattr(value, "dtype", None)
    number = _ONNX_TYPES.get(dtype.name, 0) if dtype is not None and getattr(dtype, "isnative", False) else 0
    return (name, number, list(value.shape), value.tobytes()) if number else (name, 0, [], b"")


def _of_observed(session: InferenceSession, feed: Mapping[str, Any]) -> _Side:
    on_npu = _outputs(session.session, feed)
    if not session._is_remade():
        return on_npu
    # onnxruntime's Python part made the session again on the CPU in the middle of the run.
    session._remade(after_run_error=True)
    return _EP_FAIL


def _on_cpu(make_session: Callable[[], Any], feed: Mapping[str, Any]) -> _Side:
    try:
        session = make_session()
    except Exception as error:
        logger.warning("the CPU session of a self-test could not be made: %s", error)
        return _placement.ort_code(error) or _NO_CPU_SESSION
    elsewhere = [ep for ep in _placement.used(session) if _native.is_off_cpu(ep)]
    if elsewhere or not callable(getattr(session, "run", None)):
        what = f"a session on {', '.join(elsewhere)}" if elsewhere else type(session).__name__
        logger.warning("cpu_session of a self-test: expected a session on the CPU alone, got %s", what)
        return _NO_CPU_SESSION
    return _outputs(session, feed)


def _outputs(session: Any, feed: Mapping[str, Any]) -> _Side:
    try:
        names = [output.name for output in session.get_outputs()]
        values = session.run(names, feed)
    except Exception as error:
        logger.warning("a run of a self-test failed: %s", error)
        return _placement.error_code(error)
    if sum(getattr(value, "nbytes", 0) for value in values) > _MAX_OUTPUT_BYTES:
        return _TOO_LARGE
    return [_tensor(name, value) for name, value in zip(names, values)]
