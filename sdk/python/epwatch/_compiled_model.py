"""The question before a compiled model is loaded: is it for this device?"""

from __future__ import annotations

import os
from typing import Literal, Sequence, cast

from . import _placement, _process

Compatibility = Literal["optimal", "prefer_recompilation", "unsupported"]


def compatibility(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    requested: Sequence[str] = ("QNNExecutionProvider",),
    soc_model: str = "",
) -> Compatibility | None:
    """Returns whether a compiled model (EPContext) is for this device, before it is loaded.

    The chipset and the version of QNN that the file names are compared with `soc_model` or the device, and with
    `qnn_sdk_version` of `epwatch.start`. "prefer_recompilation": the file was made for other devices, and may load. "unsupported": it
    will not load. None: nothing speaks against it, or it is not a compiled model of a requested EP.
    """
    names = _placement.listed("requested", requested, "QNNExecutionProvider")
    watch = _process.watch()
    if watch is None:
        raise RuntimeError("epwatch.start was not called")
    return cast("Compatibility | None", watch.compatibility(os.fsdecode(path), names, soc_model))
