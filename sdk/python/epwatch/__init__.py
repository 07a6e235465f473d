"""Watches onnxruntime's sessions: where each node runs, and how long a run takes.

    import epwatch
    epwatch.start(app="com.example.robot", endpoint="https://epwatch.example:4717", key="...", consent=True)
    session = epwatch.InferenceSession("segmenter.onnx", options, model="segmenter", version="3")
    outputs = session.run(None, {"x": image})
    print(epwatch.explain())

Nothing is recorded, written or sent without consent. docs/python.md is the guide.
"""

import logging as _logging

from ._compiled_model import compatibility
from ._explanation import Explanation
from ._native import VERSION as __version__
from ._native import ConfigError, FolderError, Plan, UploadError
from ._preflight import FailedCheck, preflight
from ._process import (
    disable_runtime_telemetry,
    explain,
    flush,
    is_started,
    plan,
    seal,
    set_conditions,
    set_consent,
    set_network,
    start,
    stop,
)
from ._runtime import RuntimeSession, session_of
from ._self_test import SelfTestResult, self_test
from ._session import InferenceSession, attach, measure, record

__all__ = [
    "FailedCheck",
    "ConfigError",
    "Explanation",
    "FolderError",
    "InferenceSession",
    "Plan",
    "RuntimeSession",
    "SelfTestResult",
    "UploadError",
    "__version__",
    "attach",
    "compatibility",
    "disable_runtime_telemetry",
    "explain",
    "flush",
    "is_started",
    "measure",
    "plan",
    "preflight",
    "record",
    "seal",
    "self_test",
    "session_of",
    "set_conditions",
    "set_consent",
    "set_network",
    "start",
    "stop",
]

# An app that configures no logging sees no log lines.
_logging.getLogger("epwatch").addHandler(_logging.NullHandler())
