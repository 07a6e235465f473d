"""Checks before a session is made: why may the NPU not start on this device?"""

from __future__ import annotations

import os
from typing import NamedTuple

from . import _process


class FailedCheck(NamedTuple):
    """A cause that keeps the NPU from starting."""

    reason: str
    """The code of the reason; `reasons=` of a session takes it."""
    seen: str
    """The value or path that was found."""
    meaning: str
    """One sentence on the cause."""
    fix: str
    """One sentence on the fix."""


def preflight(
    *,
    backend_path: str | os.PathLike[str] = "",
    soc_model: str = "",
    model_qairt: str = "",
    runtime_qairt: str = "",
) -> list[FailedCheck]:
    """Finds what keeps the NPU from starting on this device; `explain` has the result as `failed_checks`. Reads the disk.

    `backend_path` and `soc_model` are the options of the QNN EP. `model_qairt` is the QAIRT version of the model's export, and
    `runtime_qairt` the runtime's: without it, `qnn_sdk_version` of `epwatch.start`. An empty argument is not checked. If the
    session then runs on the CPU, pass the reasons to it: `reasons=[check.reason for check in found]`.
    """
    watch = _process.watch()
    if watch is None:
        raise RuntimeError("epwatch.start was not called")
    found = watch.preflight(os.fspath(backend_path), soc_model, model_qairt, runtime_qairt)
    return [FailedCheck(*check) for check in found]
