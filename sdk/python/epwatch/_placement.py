"""What onnxruntime says of a session: the EP of each node, the EPs and options that it was given, its shapes.

Nothing here raises for a session that lacks a call: older versions have fewer.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from typing import Any, List, Iterable, Mapping, Sequence, Tuple

from . import _native

logger = logging.getLogger("epwatch")

RECORD = "session.record_ep_graph_assignment_info"
CPU = "CPUExecutionProvider"
_COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
# The version that onnxruntime returns for a model without a version.
_NO_VERSION = (0, 2**63 - 1)
_CODE = re.compile(r"\[ONNXRuntimeError\] : (\d{1,3}) :")
# A name with such characters is refused.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FAIL, _INVALID_ARGUMENT = 1, 2


# Of each subgraph its EP, and of each node name, op type and domain.
Listed = List[Tuple[str, List[Tuple[str, str, str]]]]


def runtime_version() -> str:
    """Returns the version of the onnxruntime that is imported, or an empty text."""
    return str(getattr(sys.modules.get("onnxruntime"), "__version__", ""))


def record_assignment(options: Any) -> None:
    """Makes sessions of these options keep the EP of each node. Older versions ignore it."""
    try:
        options.add_session_config_entry(RECORD, "1")
    except Exception:
        # A session that is not observed is better than none.
        pass


def own_name(ep: str) -> str:
    """Returns the EP's name in reports. An app may register a plugin under any name; its devices say what it is."""
    try:
        devices = [device for device in sys.modules["onnxruntime"].get_ep_devices() if device.ep_name == ep]
        types = {str(device.device.type).rpartition(".")[2] for device in devices}
        return _native.own_name(ep, str(devices[0].ep_vendor), types.pop() if len(types) == 1 else "") if devices else ep
    except Exception:
        # Older versions have no list of devices.
        return ep


def is_off_cpu(ep: Any) -> bool:
    """Returns whether an EP, by the app's name, is an accelerator that a directive may forbid."""
    return _native.is_off_cpu(own_name(str(ep)))


def subgraphs(session: Any) -> Listed | None:
    """Returns onnxruntime's list, or None if it has none: it is older than 1.24, or the session did not record."""
    listed = getattr(session, "get_provider_graph_assignment_info", None)
    if listed is None:
        return None
    try:
        return [
            (own_name(subgraph.ep_name), [(node.name, node.op_type, node.domain) for node in subgraph.get_nodes()])
            for subgraph in listed()
        ]
    except Exception:
        return None


def devices(session: Any) -> list[tuple[str, str, str]]:
    """Returns EP, type and vendor of the device of each input that has one; needs onnxruntime 1.23."""
    try:
        return [
            (own_name(device.ep_name), str(device.device.type).rpartition(".")[2], str(device.device.vendor))
            for device in session.get_input_epdevices()
            if device is not None
        ]
    except Exception:
        return []


def _metadata(session: Any) -> Any:
    try:
        return session.get_modelmeta()
    except Exception:
        return None


def ep_compatibility(session: Any) -> str:
    """Returns the compatibility text of a precompiled model."""
    custom = getattr(_metadata(session), "custom_metadata_map", None) or {}
    return str(custom.get(_COMPATIBILITY, ""))


def identity(session: Any, path: str | None, model: str | None, version: str | None) -> tuple[str, str]:
    """Returns id and version of a model: as given, else of its metadata, else by its file's name."""
    meta = _metadata(session)
    custom = getattr(meta, "custom_metadata_map", None) or {}
    stem = os.path.splitext(os.path.basename(path))[0] if path else ""
    number = getattr(meta, "version", 0)
    of_number = "0" if number in _NO_VERSION else str(number)
    found = custom.get("epwatch.model") or stem or getattr(meta, "graph_name", "") or "model"
    found_version = custom.get("epwatch.version") or of_number
    return _cut(model or _CONTROL.sub("_", found), 128), _cut(version or _CONTROL.sub("_", found_version), 64)


def _cut(text: str, n_bytes: int) -> str:
    """Returns the begin of a text: whole characters, at most so many bytes. What UTF-8 lacks becomes a question mark."""
    return text.encode(errors="replace")[:n_bytes].decode(errors="ignore")


def _open_at_once(name: Any, flags: int) -> int:
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    return os.open(name, flags | os.O_NONBLOCK)


def side_car_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a side-car's file."""
    try:
        name = os.fspath(path)
    except TypeError:
        raise TypeError(f"side_car: expected the path of a file, got {path!r}") from None
    with open(name, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"side_car: expected a regular file, got {name!r}")
        # The SDK refuses more than 64 MiB.
        return file.read((64 << 20) + 1)


def side_car(path: str | os.PathLike[str]) -> _native.SideCar | None:
    """Reads a model's side-car. A session is made without it, too."""
    try:
        return _native.SideCar(side_car_bytes(path))
    except (OSError, ValueError) as error:
        logger.warning("the MACs of a model are not reported: %s", error)
        return None


def names_of(providers: Sequence[Any] | None) -> list[str] | None:
    """Returns the names of EPs in reports. onnxruntime takes names, or names with options."""
    if providers is None:
        return None
    return [own_name(str(provider[0] if isinstance(provider, (tuple, list)) else provider)) for provider in providers]


def model_of(session: Any) -> tuple[Any, bytes | None]:
    """Returns the path or the bytes of a session's model, as far as onnxruntime names them. A path is the one of its start."""
    described = getattr(session, "_described", None) or {}
    path = described.get("model_file") or getattr(session, "_model_path", None)
    return path, getattr(session, "_model_bytes", None)


def side_car_of(session: Any) -> str | None:
    """Returns the path of the side-car that an observed session was made with."""
    described = getattr(session, "_described", None) or {}
    path = described.get("side_car_file")
    return None if path is None else str(path)


def listed(argument: str, names: Iterable[str], example: str) -> list[str]:
    """Returns the names of an argument. Refuses a text, which would count as a list of its letters."""
    if isinstance(names, (str, bytes)):
        raise TypeError(f"{argument}: expected a list, for example [{example!r}], got {names!r}")
    return list(names)


def used(session: Any) -> list[str]:
    """Returns the EPs that a session has."""
    try:
        return [own_name(str(name)) for name in session.get_providers()]
    except Exception:
        return []


def npu_options(session: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the options of the session's NPU, as it has them, or else as they were given."""
    try:
        options = session.get_provider_options()
    except Exception:
        return given
    of_npu = [of for name, of in options.items() if is_off_cpu(name)]
    return {**given, **of_npu[0]} if of_npu else given


def given_options(providers: Sequence[Any] | None, provider_options: Sequence[Any] | None) -> Mapping[str, Any]:
    """Returns the options that an NPU was asked for with."""
    for at, provider in enumerate(providers or ()):
        name, options = provider if isinstance(provider, (tuple, list)) else (provider, None)
        if options is None and provider_options is not None and at < len(provider_options):
            options = provider_options[at]
        if is_off_cpu(name):
            return dict(options or {})
    return {}


def is_plugin(ep: str) -> bool:
    """Returns whether a registered plugin has a device of this EP."""
    try:
        return any(own_name(device.ep_name) == ep for device in sys.modules["onnxruntime"].get_ep_devices())
    except Exception:
        return False


def missing(requested: Sequence[str], session: Any) -> list[str]:
    """Returns the NPU's EPs that were asked for and that the session does not have: onnxruntime drops them silently."""
    has = used(session)
    return [ep for ep in requested if _native.is_off_cpu(ep) and ep not in has]


def ort_code(error: BaseException | str) -> int | None:
    """Returns the code in an error of onnxruntime; None if there is none, as for other errors."""
    found = _CODE.search(str(error))
    return int(found.group(1)) if found else None


def error_code(error: BaseException | str) -> int:
    """Returns onnxruntime's code of an error. Its Python part raises ValueError for wrong inputs."""
    otherwise = _INVALID_ARGUMENT if isinstance(error, (TypeError, ValueError)) else _FAIL
    return ort_code(error) or otherwise


def free_inputs(session: Any) -> list[str] | None:
    """Returns the names of the model's inputs; None if every input is a tensor of fixed shape."""
    try:
        inputs = session.get_inputs()
    except Exception:
        return None
    is_fixed = all(
        str(node.type).startswith("tensor(") and all(isinstance(dim, int) and dim >= 0 for dim in node.shape)
        for node in inputs
    )
    return None if is_fixed else [str(node.name) for node in inputs]
