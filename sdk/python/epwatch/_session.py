"""An onnxruntime session whose runs are measured. Outputs, errors and everything else are onnxruntime's own."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import _native, _placement, _process
from ._explanation import Explanation
from ._runtime import RuntimeSession, refused, unobserved

logger = logging.getLogger("epwatch")

_now = _native.now
_EP_FAIL = 11
# Infinity cannot be converted to nanoseconds.
_LONGEST_RUN = 1e6
_OWN = frozenset(
    ("_session", "_run", "_c_session", "_observed", "_record", "_described", "_creation_ns", "_refused", "_policy", "__weakref__")
)


class InferenceSession:
    """As `onnxruntime.InferenceSession`, with the same arguments, and observed.

    `model` and `version` name the model in reports. Without them they come from its metadata (`epwatch.model`,
    `epwatch.version`, ONNX's `model_version`) and from its file's name. `requested` names the EPs that were asked for,
    if `providers` does not. `plan` is what `epwatch.plan` returned; where directives are obeyed, and model and version
    are named, it is asked for here. `side_car` is the file that `epwatch manifest` writes: reports then have shares of the
    model's MACs. `after_run_error` says that the session replaces one whose run failed. `selection_policy` is what
    `SessionOptions.set_provider_selection_policy` was given: onnxruntime does not return it.

    All other attributes come from onnxruntime's session, which is `session`. `isinstance` takes it for one, too.
    """

    __slots__ = tuple(_OWN)

    _session: Any
    _run: Callable[..., Any]
    _c_session: Any
    _observed: _native.Session | None
    _record: Callable[[int, Any], None] | None
    _described: dict[str, Any]
    _creation_ns: int
    # The SDK's error, once it refused to observe the session.
    _refused: str | None
    # The policy in the session's options, which ONNX Runtime follows if no EP is named.
    _policy: str

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        model: str | None = None,
        version: str | None = None,
        sha256: str = "",
        requested: Sequence[str] | None = None,
        reasons: Sequence[str] = (),
        plan: _native.Plan | None = None,
        variant: str | None = None,
        after_run_error: bool = False,
        side_car: str | os.PathLike[str] | None = None,
        selection_policy: Any = None,
        **kwargs: Any,
    ) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        _placement.record_assignment(options)
        path = None if isinstance(path_or_bytes, bytes) else os.fsdecode(path_or_bytes)
        asked = _placement.names_of(providers) if requested is None else _requested(requested)
        self._policy = _policy(selection_policy)
        given = _placement.given_options(providers, provider_options)
        described = _describe(sha256, path, asked or [], given, reasons, variant, after_run_error, side_car, self._followed(asked))
        plan = plan if plan is not None else _planned(model, version)
        if plan is not None and not plan.use_npu:
            providers, provider_options, plan = _without_npu(providers, provider_options, options, plan)
        described["plan"] = plan
        began = _now()
        try:
            session = onnxruntime.InferenceSession(path_or_bytes, options, providers, provider_options, **kwargs)
        except Exception as error:
            described["model"], described["version"] = _placement.identity(None, path, model, version)
            _start_failed(described, error)
            raise
        self._creation_ns = _now() - began
        described["model"], described["version"] = _placement.identity(session, path, model, version)
        self._begin(session, described, asked, given)

    def _begin(
        self, session: Any, described: dict[str, Any], asked: Sequence[str] | None, given: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._run = session.run
        self._c_session = getattr(session, "_sess", None)
        self._forget()
        # Without a list of requested EPs, the session's actual EPs were requested, by its options or by default.
        described["requested"] = list(asked) if asked is not None else _placement.used(session)
        options = _placement.npu_options(session, given)
        described["soc_model"] = str(options.get("soc_model", ""))
        described["htp_arch"] = str(options.get("htp_arch", ""))
        described["performance_mode"] = str(options.get("htp_performance_mode", ""))
        self._described = described
        _add_missing(described, session)
        _process.track(self)
        self._observe()

    @property
    def session(self) -> Any:
        """onnxruntime's session. Its own runs are not measured."""
        return self._session

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's, measured."""
        began = _now()
        try:
            outputs = self._run(output_names, input_feed, run_options)
        except Exception as error:
            self._failed(error)
            raise
        record = self._record
        if record is None or getattr(self._session, "_sess", None) is not self._c_session:
            self._ended(began, input_feed)
        else:
            record(began, input_feed)
        return outputs

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As onnxruntime's, measured."""
        with self._measured(input_dict_ort_values):
            return self._session.run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As onnxruntime's, measured. Runs of a model with free dimensions count together."""
        with self._measured(None):
            self._session.run_with_iobinding(iobinding, run_options)

    def run_with_ortvaluevector(self, *args: Any, **kwargs: Any) -> None:
        """As onnxruntime's, measured."""
        with self._measured(None):
            self._session.run_with_ortvaluevector(*args, **kwargs)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Callable[..., Any], user_data: Any, run_options: Any = None
    ) -> None:
        """As onnxruntime's, measured to the begin of the callback."""
        began = _now()

        def ended(results: Any, data: Any, error: str) -> None:
            if error:
                self._failed(error)
            else:
                self._ended(began, input_feed)
            callback(results, data, error)

        self._session.run_async(output_names, input_feed, ended, user_data, run_options)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As onnxruntime's: makes the session again, which is observed as another one."""
        self._session.set_providers(providers, provider_options)
        asked = _placement.names_of(providers)
        self._described["requested"] = asked or _placement.used(self._session)
        self._described["reasons"] = []
        self._described["selection_policy"] = self._followed(asked)
        self._described["device_type"] = str(_placement.given_options(providers, provider_options).get("device_type", ""))
        _add_missing(self._described, self._session)
        self._remade(after_run_error=False)

    def _followed(self, asked: Sequence[str] | None) -> str:
        """Returns the policy that ONNX Runtime follows: none if EPs are named."""
        return "" if asked else self._policy

    @contextlib.contextmanager
    def _measured(self, feed: Any) -> Iterator[Any]:
        began = _now()
        try:
            yield self._session
        except Exception as error:
            self._failed(error)
            raise
        self._ended(began, feed)

    def _ended(self, began: int, feed: Any) -> None:
        """A run has ended; the usual case is in `run`."""
        if self._is_remade():
            # onnxruntime's Python part made the session again on the CPU in the middle of the run.
            self._failed(None)
            self._remade(after_run_error=True)
            return
        latency = _now() - began
        if self._observed is None:
            # This may be another process now, or `start` was called after the session was made.
            self._observe()
        if self._observed is not None:
            self._observed.record_latency(began, latency, feed)

    def _failed(self, error: BaseException | str | None) -> None:
        if self._observed is None:
            self._observe()
        if self._observed is not None:
            self._observed.record_error(_EP_FAIL if error is None else _placement.error_code(error))

    def _is_remade(self) -> bool:
        return getattr(self._session, "_sess", None) is not self._c_session

    def _remade(self, after_run_error: bool) -> None:
        self._run = self._session.run
        self._c_session = getattr(self._session, "_sess", None)
        self._described["after_run_error"] = after_run_error
        self._creation_ns = 0
        self._forget()
        self._observe()

    def _observe(self) -> None:
        """Begins the session's record, if the process has an SDK. The app never gets an error of it."""
        watch = _process.watch()
        if watch is None or self._refused is not None:
            return
        with _process.lock():
            # Another thread's run may have been here first.
            if self._observed is not None or self._refused is not None:
                return
            try:
                listed = _placement.subgraphs(self._session)
                read = {
                    "runtime": _placement.runtime_version(),
                    "subgraphs": listed,
                    "devices": _placement.devices(self._session),
                    "ep_compatibility": _placement.ep_compatibility(self._session),
                    "creation_ns": self._creation_ns,
                    "free_inputs": _placement.free_inputs(self._session),
                }
                observed = watch.observe(self._described, read)
                _check_side_car(self._described, listed)
            except Exception as error:
                self._refused = refused(self._described, error)
                return
            self._observed = observed
            self._record = observed.record
        _log_placement(observed)

    def _forget(self) -> None:
        self._observed = self._record = self._refused = None

    def _explained(self) -> Explanation:
        if self._observed is None:
            self._observe()
        explained = self._observed.explain() if self._observed is not None else None
        return Explanation(*(explained or ("{}", unobserved(self._refused))))

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._session, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._session)})

    def __repr__(self) -> str:
        return f"<epwatch.InferenceSession of {self._described['model']} {self._described['version']}>"

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._session)


def attach(
    session: Any,
    *,
    model: str | None = None,
    version: str | None = None,
    sha256: str = "",
    requested: Sequence[str] | None = None,
    reasons: Sequence[str] = (),
    plan: _native.Plan | None = None,
    variant: str | None = None,
    after_run_error: bool = False,
    side_car: str | os.PathLike[str] | None = None,
    selection_policy: Any = None,
) -> InferenceSession:
    """Observes a session of onnxruntime that exists, and returns one to use in its place.

    Its placement can be read only if its options had `session.record_ep_graph_assignment_info` at "1" when it was made;
    otherwise runs are measured, and `explain` says so. `requested` names the EPs that it was given: onnxruntime returns
    only those that it has. An observed session is returned as it is, with a warning if there are arguments for it.
    """
    asked = None if requested is None else _requested(requested)
    if type(session) is InferenceSession:
        if any((model, version, sha256, requested, reasons, plan, variant, after_run_error, side_car, selection_policy)):
            logger.warning("epwatch.attach got %r, which is observed; its first arguments count", session)
        return session
    if not callable(getattr(session, "run", None)):
        raise TypeError(f"expected a session of onnxruntime, got {type(session).__name__}")
    observed = InferenceSession.__new__(InferenceSession)
    path = getattr(session, "_model_path", None)
    observed._policy = _policy(selection_policy)
    described = _describe(sha256, path, [], {}, reasons, variant, after_run_error, side_car, observed._followed(asked))
    described["plan"] = plan
    described["model"], described["version"] = _placement.identity(session, path, model, version)
    # OpenVINO's option. A session that is made here has it from its arguments, as one that fails.
    described["device_type"] = str(_placement.npu_options(session, {}).get("device_type", ""))
    observed._creation_ns = 0
    observed._begin(session, described, asked, {})
    return observed


@contextlib.contextmanager
def measure(observed: InferenceSession | RuntimeSession) -> Iterator[Any]:
    """Measures its block, or a decorated function, as one run: `with epwatch.measure(observed) as session: ...`.

    For runs that go by another way than the observed session, for example in a library that has onnxruntime's own, which
    is the block's value. An exception counts as a failed run.
    """
    with observed._measured(None) as session:
        yield session


def record(observed: InferenceSession | RuntimeSession, seconds: float) -> None:
    """Records a run that the app has measured itself, and that ends now. It counts as a block of `measure` does."""
    if not seconds >= 0.0:
        raise ValueError(f"seconds: expected the time that a run took, got {seconds!r}")
    observed._ended(max(0, _now() - round(min(seconds, _LONGEST_RUN) * 1e9)), None)


def _requested(names: Sequence[str]) -> list[str]:
    return [_placement.own_name(name) for name in _placement.listed("requested", names, "QNNExecutionProvider")]


def _policy(given: Any) -> str:
    """Returns a policy's name. One that onnxruntime does not have is reported as unknown, as an app's own function is."""
    if given is None:
        return ""
    name = str(given).rpartition(".")[2]
    known = getattr(importlib.import_module("onnxruntime"), "OrtExecutionProviderDevicePolicy", None)
    names = list(getattr(known, "__members__", ()))
    if names and name.upper() not in names and not callable(given):
        logger.warning("selection_policy: expected one of %s, got %r", ", ".join(names), given)
    return name


def _describe(
    sha256: str,
    path: str | None,
    requested: Sequence[str],
    options: Mapping[str, Any],
    reasons: Sequence[str],
    variant: str | None,
    after_run_error: bool,
    side_car: str | os.PathLike[str] | None,
    selection_policy: str,
) -> dict[str, Any]:
    return {
        "model": "",
        "version": "",
        "sha256": sha256,
        "model_file": os.path.abspath(path) if path else None,
        "requested": list(requested),
        "performance_mode": str(options.get("htp_performance_mode", "")),
        "soc_model": str(options.get("soc_model", "")),
        "htp_arch": str(options.get("htp_arch", "")),
        "selection_policy": selection_policy,
        "device_type": str(options.get("device_type", "")),
        "reasons": _placement.listed("reasons", reasons, "no_ep_device"),
        "plan": None,
        "variant": variant,
        "after_run_error": after_run_error,
        "side_car": None if side_car is None else _placement.side_car(side_car),
        # For `epwatch.testing`.
        "side_car_file": None if side_car is None else os.path.abspath(os.fsdecode(side_car)),
    }


def _planned(model: str | None, version: str | None) -> _native.Plan | None:
    if not model or not version or not _process.has_directive_keys():
        return None
    try:
        return _process.plan(model, version)
    except Exception:
        logger.warning("failed to read the directives for %s %s", model, version, exc_info=True)
        return None


def _without_npu(
    providers: Sequence[Any] | None, provider_options: Sequence[Any] | None, options: Any, plan: _native.Plan
) -> tuple[Sequence[Any] | None, Sequence[Any] | None, _native.Plan | None]:
    """Takes the NPU's EPs out of a request. Those in the options cannot be taken out: the directive is not followed."""
    has_providers = getattr(options, "has_providers", None)
    if providers is None and has_providers is not None and has_providers():
        logger.warning("a directive forbids the NPU, but the session's options name it: ask epwatch.plan before them")
        return providers, provider_options, None
    kept = [
        (provider, None if provider_options is None else provider_options[at])
        for at, provider in enumerate(providers or ())
        if not _placement.is_off_cpu(provider[0] if isinstance(provider, (tuple, list)) else provider)
    ]
    names: list[Any] = [provider for provider, _ in kept] or [_placement.CPU]
    of_names = None if provider_options is None else [of or {} for _, of in kept] or [{}]
    return names, of_names, plan


def _add_missing(described: dict[str, Any], session: Any) -> None:
    for ep in _placement.missing(described["requested"], session):
        if described["plan"] is not None and not described["plan"].use_npu:
            continue
        if _placement.is_plugin(ep):
            logger.warning("%s is a plugin: `providers` does not reach it; use SessionOptions.add_provider_for_devices", ep)
        if "ep_not_available" not in described["reasons"]:
            described["reasons"].append("ep_not_available")


def _start_failed(described: dict[str, Any], error: Exception) -> None:
    watch = _process.watch()
    if watch is None:
        return
    try:
        watch.start_failed(described, _placement.error_code(error), str(error))
    except Exception:
        logger.warning("failed to count a session that was not made", exc_info=True)


def _check_side_car(described: dict[str, Any], listed: _placement.Listed | None) -> None:
    """Warns of a side-car of another model. Its hash cannot tell: it is the original model's, and the file may be another form."""
    side_car = described["side_car"]
    if side_car is None or listed is None or side_car.total_macs == 0:
        return
    _, found = side_car.macs([(name, ep) for ep, nodes in listed for name, _, _ in nodes])
    if found == 0:
        logger.warning("none of the nodes in the side-car are in the session of %r: is it of this model?", described["model"])


def _log_placement(observed: _native.Session) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    explained = observed.explain()
    if explained is not None:
        logger.info("%s", explained[1].rstrip())
