"""The SDK of this process: its start, its end, and its new start in the child of a fork.

One SDK for a process. A child of a fork has none of its parent's threads, so the parent's SDK is left alone there, and
the first use starts another one with the same configuration and folder, in a stream of its own.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import logging
import multiprocessing
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Mapping, Protocol, Sequence, Union

from . import _native
from ._explanation import Explanation

logger = logging.getLogger("epwatch")

StrPath = Union[str, "os.PathLike[str]"]

# Packages of the QNN plugin, the likeliest first.
_EP_PACKAGES = ("onnxruntime-qnn", "onnxruntime-ep-qnn")
# Reading the stored directives takes milliseconds at the start of a process.
_PLAN_SECONDS = 0.2
_STOP_SECONDS = 1.0


class _Restarted(Protocol):
    """An observed session, as far as starts and forks concern it."""

    def _observe(self) -> None: ...

    def _forget(self) -> None: ...


class _State:
    """What this process has; `watch` is None before the start, after the end, and in a child until its first use."""

    def __init__(self) -> None:
        self.config: dict[str, Any] | None = None
        self.watch: _native.Watch | None = None
        self.exit_seconds = 0.0
        self.is_forked = False
        self.has_exit_hook = False
        self.lock = threading.RLock()
        self.sessions: weakref.WeakSet[_Restarted] = weakref.WeakSet()


_state = _State()


def _flag(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise _native.ConfigError(f"{name}: expected yes or no, got {value!r}")


def _required(argument: str, value: str | None, example: str) -> str:
    variable = f"EPWATCH_{argument.upper()}"
    given = value if value is not None else os.environ.get(variable, "")
    if not given:
        raise _native.ConfigError(f"{argument} is missing: pass {argument}={example!r} to epwatch.start, or set {variable}")
    return given


def _default_folder(app: str) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in app)
    state = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if state:
        return os.path.join(state, "epwatch")
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    if not os.path.isabs(base):
        raise _native.ConfigError("folder is missing, and there is no home folder: pass folder=..., or set EPWATCH_FOLDER")
    return os.path.join(base, "epwatch", name)


def _ep_package() -> tuple[str, str]:
    for package in _EP_PACKAGES:
        try:
            return package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def disable_runtime_telemetry() -> None:
    """Turns onnxruntime's own telemetry, which goes to Microsoft, off for this process. Call it before onnxruntime is imported."""
    if "onnxruntime" in sys.modules:
        raise RuntimeError(
            "onnxruntime is imported, and its telemetry runs: call epwatch.disable_runtime_telemetry() before the import, or set "
            "ORT_DISABLE_TELEMETRY=1 for the process"
        )
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def start(
    app: str | None = None,
    endpoint: str | None = None,
    key: str | None = None,
    folder: StrPath | None = None,
    consent: bool | None = None,
    *,
    app_version: str = "",
    app_build: str = "",
    environment: str | None = None,
    chipset: str = "",
    rollout: Mapping[str, str] | None = None,
    directive_keys: Mapping[str, str] | None = None,
    report_interval: float | None = None,
    upload_interval: float | None = None,
    metered_bytes_per_day: int | None = None,
    unmetered_bytes_per_day: int | None = None,
    root_certificates: Sequence[StrPath] = (),
    trusted_roots: str = "bundled",
    client_certificate: tuple[StrPath, StrPath] | None = None,
    thermal_zones: bool = False,
    allow_plaintext: bool = False,
    qnn_sdk_version: str = "",
    exit_seconds: float = 2.0,
    on_health: Callable[[str | None], object] | None = None,
) -> None:
    """Starts the SDK. Its own thread uploads, writes reports by schedule, and computes the hashes of models.

    The first five arguments may come from `EPWATCH_APP`, `EPWATCH_ENDPOINT`, `EPWATCH_KEY`, `EPWATCH_FOLDER` and
    `EPWATCH_CONSENT` (yes or no), `environment` from `EPWATCH_ENVIRONMENT`. Without a folder it is
    `$STATE_DIRECTORY/epwatch` under systemd, and `~/.local/state/epwatch/APP` otherwise. Without consent nothing is
    recorded, written or sent.

    Intervals are seconds. `root_certificates` are PEM files of a private CA, `client_certificate` the PEM files of
    certificate and key, `directive_keys` the operator's ids and public keys. At the end of the process reports are sent
    for at most `exit_seconds`; 0 only seals them for the next process.

    `on_health` is called with the problem that `explain` has as `last_problem` when it begins or changes, and with None when
    it is over. The SDK's thread calls it until `stop`; it must not call `flush` or `stop`.

    Raises `ConfigError` if a setting is missing or refused. A second call changes nothing.
    """
    with _state.lock:
        if _state.watch is not None:
            logger.warning("epwatch.start was called twice; the first call counts")
            return
        app = _required("app", app, "com.example.robot")
        has_consent = consent if consent is not None else _flag("EPWATCH_CONSENT", os.environ.get("EPWATCH_CONSENT", ""))
        folder = folder if folder is not None else os.environ.get("EPWATCH_FOLDER") or _default_folder(app)
        package, version = _ep_package()
        config = {
            "app": app,
            "endpoint": _required("endpoint", endpoint, "https://epwatch.example:4717"),
            "key": _required("key", key, "the app's key"),
            "folder": os.path.abspath(os.fspath(folder)),
            "consent": has_consent,
            "app_version": app_version,
            "app_build": app_build,
            "environment": environment or os.environ.get("EPWATCH_ENVIRONMENT") or "production",
            "chipset": chipset,
            "ep": (package, version, qnn_sdk_version),
            "rollout": list((rollout or {}).items()),
            "directive_keys": list((directive_keys or {}).items()),
            "report_interval": report_interval,
            "upload_interval": upload_interval,
            "metered_bytes_per_day": metered_bytes_per_day,
            "unmetered_bytes_per_day": unmetered_bytes_per_day,
            "root_certificates": [Path(path).read_text(encoding="utf-8") for path in root_certificates],
            "trusted_roots": trusted_roots,
            "client_certificate": client_certificate,
            "thermal_zones": thermal_zones,
            "allow_plaintext": allow_plaintext,
            "on_health": None if on_health is None else _listener(on_health),
        }
        _state.watch = _native.Watch(config)
        _state.config = config
        _state.is_forked = False
        _state.exit_seconds = exit_seconds
        _add_exit_hook()
        logger.info("started: app %s, endpoint %s, folder %s, consent %s", app, config["endpoint"], config["folder"],
                    "given" if has_consent else "not given")
        sessions = list(_state.sessions)
    for session in sessions:
        session._observe()


def _listener(on_health: Callable[[str | None], object]) -> Callable[[str | None], None]:
    def call(problem: str | None) -> None:
        try:
            on_health(problem)
        except Exception:
            logger.warning("on_health raised an exception", exc_info=True)

    return call


def _add_exit_hook() -> None:
    if not _state.has_exit_hook:
        atexit.register(_at_exit)
        _state.has_exit_hook = True
    if multiprocessing.parent_process() is not None:
        # multiprocessing's children end by os._exit, which skips the hooks of atexit.
        from multiprocessing.util import Finalize

        Finalize(None, _at_exit, exitpriority=10)


def _at_exit() -> None:
    # A child that has not used epwatch has nothing to end.
    watch, _state.watch = _state.watch, None
    if watch is None:
        return
    level = logging.WARNING
    try:
        if _state.exit_seconds > 0:
            watch.flush(_state.exit_seconds)
    except _native.FolderError as error:
        logger.warning("runs are lost: %s", error)
        level = logging.DEBUG
    except Exception as error:
        logger.info("reports wait for the next start: %s", error)
    _ended(watch, _STOP_SECONDS, level)


def _ended(watch: _native.Watch, timeout: float, level: int = logging.WARNING) -> bool:
    """Ends an SDK, and returns whether it ended in time with all runs in its folder. Lost runs are a line of this level."""
    try:
        watch.stop(timeout)
    except _native.FolderError as error:
        logger.log(level, "runs are lost: %s", error)
        return False
    except Exception as error:
        logger.info("not ended: %s", error)
        return False
    return True


def watch() -> _native.Watch | None:
    """Returns this process's SDK, and starts it in the child of a fork."""
    if _state.watch is not None or not _state.is_forked:
        return _state.watch
    with _state.lock:
        if _state.watch is None and _state.is_forked and _state.config is not None:
            _state.is_forked = False
            try:
                _state.watch = _native.Watch(_state.config)
                _add_exit_hook()
                logger.debug("started again in the child process %d", os.getpid())
            except Exception:
                logger.warning("failed to start in the child process", exc_info=True)
        return _state.watch


def lock() -> threading.RLock:
    """Returns the lock under which sessions begin to be observed."""
    return _state.lock


def track(session: _Restarted) -> None:
    """Has a session observed at the start, and again in the child of a fork."""
    with _state.lock:
        _state.sessions.add(session)


def _after_fork_in_child() -> None:
    # Threads that do not exist in this process may hold the inherited locks.
    _state.lock = threading.RLock()
    if _state.watch is None:
        return
    _state.watch = None
    _state.is_forked = True
    # multiprocessing clears the hooks of atexit in its children. Registering the hook twice does no harm.
    _state.has_exit_hook = False
    for session in list(_state.sessions):
        session._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _with_watch(call: Callable[[_native.Watch], None]) -> None:
    found = watch()
    if found is None:
        raise RuntimeError("epwatch.start was not called")
    call(found)


def is_started() -> bool:
    """Returns whether this process has an SDK."""
    return watch() is not None


def set_consent(is_given: bool) -> None:
    """Gives or withdraws consent. A withdrawal wipes the folder and asks the collector to delete everything."""
    _with_watch(lambda found: found.set_consent(is_given))
    if _state.config is not None:
        _state.config["consent"] = is_given


def set_network(network: str) -> None:
    """Sets the network that uploads take: "unmetered", "metered", "offline" or "unknown"."""
    _with_watch(lambda found: found.set_network(network))


def set_conditions(thermal: int | None = None, power_save: bool | None = None, performance_mode: str = "") -> None:
    """Sets the conditions of runs from now on. `thermal` is Android's status, 0 to 6."""
    _with_watch(lambda found: found.set_conditions(thermal, power_save, performance_mode))


def plan(model: str, version: str) -> _native.Plan:
    """Returns what the operator's directives ask of the next session of a model: `use_npu` and `variant`."""
    found = watch()
    if found is None:
        raise RuntimeError("epwatch.start was not called")
    return found.plan(model, version, _PLAN_SECONDS)


def has_directive_keys() -> bool:
    """Whether directives are obeyed at all."""
    return bool(_state.config and _state.config["directive_keys"])


def seal() -> None:
    """Writes recorded runs to the folder at once, for example before a worker process is ended by a signal.

    Raises `FolderError` if runs could not be written, now or since the last call.
    """
    _with_watch(lambda found: found.seal())


def flush(timeout: float = 10.0) -> None:
    """Seals and sends everything; blocks at most `timeout` seconds.

    Raises `UploadError` with the cause, or its subclass `FolderError` if runs could not be written to the folder.
    """
    _with_watch(lambda found: found.flush(timeout))


def stop(timeout: float = 5.0) -> bool:
    """Seals recorded runs, and ends the SDK; sessions go on unobserved.

    Returns whether its thread ended in time and no run was lost. If not, the logger has the cause.
    """
    with _state.lock:
        found, _state.watch, _state.is_forked = _state.watch, None, False
        sessions = list(_state.sessions)
    ended = found is None or _ended(found, timeout)
    for session in sessions:
        session._forget()
    return ended


def explain(session: Any = None) -> Explanation:
    """Returns where each session runs and why, what was sent last, and the last problem; or one session's part."""
    if session is not None:
        of_session: Explanation = session._explained()
        return of_session
    found = watch()
    if found is None:
        problem = "epwatch.start was not called in this process"
        return Explanation(json.dumps({"sessions": [], "last_problem": problem}), problem)
    return Explanation(*found.explain())
