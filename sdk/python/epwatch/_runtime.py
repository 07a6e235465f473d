"""A session of another runtime than onnxruntime, by its placement in the app's words."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Iterator, Sequence

from . import _native, _placement, _process
from ._explanation import Explanation

logger = logging.getLogger("epwatch")

_now = _native.now
# ORT_FAIL.
_FAILED = 1

Partition = tuple[str, Sequence[tuple[str, str]]]


def refused(described: dict[str, Any], error: Exception) -> str:
    """Returns the SDK's refusal of a description, and logs it. The next run would get the same: it is not asked again."""
    logger.warning("a session of %r is not observed: %s", described["model"], error)
    return str(error)


def unobserved(refusal: str | None) -> str:
    """Returns the text about a session that is not observed."""
    return f"the session is not observed: {refusal or 'epwatch.start was not called'}"


class RuntimeSession:
    """A session whose runs the app makes itself: `epwatch.measure(session)` or `epwatch.record(session, seconds)`."""

    __slots__ = ("_described", "_read", "_observed", "_refused", "__weakref__")

    def __init__(self, described: dict[str, Any], read: dict[str, Any]) -> None:
        self._described = described
        self._read = read
        self._observed: _native.Session | None = None
        self._refused: str | None = None
        _process.track(self)
        self._observe()

    def _observe(self) -> None:
        """Begins the session's record, if the process has an SDK. The app never gets an error of it."""
        watch = _process.watch()
        if watch is None or self._observed is not None or self._refused is not None:
            return
        with _process.lock():
            # Another thread's run may have been here first.
            if self._observed is not None or self._refused is not None:
                return
            try:
                self._observed = watch.observe(self._described, self._read)
            except Exception as error:
                self._refused = refused(self._described, error)

    def _forget(self) -> None:
        self._observed = self._refused = None

    @contextlib.contextmanager
    def _measured(self, feed: Any) -> Iterator[RuntimeSession]:
        began = _now()
        try:
            yield self
        except Exception:
            self._observe()
            if self._observed is not None:
                self._observed.record_error(_FAILED)
            raise
        self._ended(began, feed)

    def _ended(self, began: int, _feed: Any) -> None:
        latency = _now() - began
        # This may be another process now, or `start` was called after the session was made.
        self._observe()
        if self._observed is not None:
            self._observed.record_latency(began, latency, None)

    def _explained(self) -> Explanation:
        self._observe()
        explained = self._observed.explain() if self._observed is not None else None
        return Explanation(*(explained or ("{}", unobserved(self._refused))))

    def __repr__(self) -> str:
        return f"<epwatch.RuntimeSession of {self._described['model']} {self._described['version']}>"


def session_of(
    *,
    model: str,
    version: str,
    runtime: str,
    requested: Sequence[str],
    partitions: Sequence[Partition] | None,
    model_file: str | os.PathLike[str] | None = None,
    creation_seconds: float = 0.0,
    reasons: Sequence[str] = (),
) -> RuntimeSession:
    """Observes a session of another runtime, whose name and version is `runtime`, for example "LiteRT 2.3.0".

    `requested` names the accelerators that the app asked for, without the CPU. `partitions` is what each got, in the
    runtime's order: the accelerator and its ops, each with name and type. Ops on the CPU are partitions of one op, as
    accelerator "CPU". None says that the runtime does not tell: runs are measured all the same.
    """
    if not runtime[:1].isalpha():
        raise ValueError(f"runtime: expected a name and a version, for example 'LiteRT 2.3.0', got {runtime!r}")
    subgraphs = None
    if partitions is not None:
        subgraphs = [(ep, [(name, op_type, "") for name, op_type in ops]) for ep, ops in partitions]
    described = {
        "model": model,
        "version": version,
        "sha256": "",
        "model_file": os.path.abspath(model_file) if model_file else None,
        "requested": _placement.listed("requested", requested, "XNNPACK"),
        "performance_mode": "",
        "soc_model": "",
        "htp_arch": "",
        "selection_policy": "",
        "device_type": "",
        "reasons": _placement.listed("reasons", reasons, "no_ep_device"),
        "plan": None,
        "variant": None,
        "after_run_error": False,
        "side_car": None,
    }
    read = {
        "runtime": runtime,
        "subgraphs": subgraphs,
        "devices": [],
        "ep_compatibility": "",
        "creation_ns": max(0, round(creation_seconds * 1e9)),
        "free_inputs": None,
    }
    return RuntimeSession(described, read)
