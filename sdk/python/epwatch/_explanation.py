"""What `epwatch.explain` returns: a dict for programs, a text for people, HTML for a notebook."""

from __future__ import annotations

import json
from html import escape
from typing import Any, Dict

_NPU, _CPU, _OTHER = "#2a78c2", "#d9822b", "#8a8f98"
# Further nodes on the CPU are only counted.
_SHOWN_NODES = 10


class Explanation(Dict[str, Any]):
    """The SDK's snapshot, or a snapshot of one session. `print` it for the text; in a notebook it shows the placement."""

    def __init__(self, document: str, text: str) -> None:
        super().__init__(json.loads(document))
        self._text = text

    def __str__(self) -> str:
        return self._text

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The sessions that are observed now."""
        if "eps" in self:
            return [self]
        found: list[dict[str, Any]] = self.get("sessions", [])
        return found

    def _repr_html_(self) -> str:
        parts = [_session_html(session) for session in self.sessions]
        if not parts:
            parts.append(f"<pre>{escape(self._text)}</pre>")
        problem = self.get("last_problem")
        if problem:
            parts.append(f"<p><b>last problem:</b> {escape(str(problem))}</p>")
        return "<div>" + "".join(parts) + "</div>"


def _color(ep: str) -> str:
    from ._native import is_on_npu

    if is_on_npu(ep):
        return _NPU
    return _CPU if ep in ("CPUExecutionProvider", "CPU") else _OTHER


def _weight(ep: dict[str, Any], has_macs: bool) -> float:
    return float(ep["macs_share"] if has_macs else ep["nodes"])


def _bar(eps: dict[str, dict[str, Any]]) -> str:
    """One segment for each EP, as wide as its share of the MACs, or of the nodes where those are not known."""
    has_macs = all(ep.get("macs_share") is not None for ep in eps.values())
    total = sum(_weight(ep, has_macs) for ep in eps.values()) or 1.0
    segments = []
    for name, ep in eps.items():
        width = 100.0 * _weight(ep, has_macs) / total
        title = escape(f"{name}: {ep['nodes']} nodes", quote=True)
        segments.append(f'<span title="{title}" style="width:{width:.2f}%;background:{_color(name)}"></span>')
    style = "display:flex;height:14px;width:100%;max-width:480px;border-radius:3px;overflow:hidden"
    return f'<div class="epwatch-placement" style="{style}">' + "".join(segments) + "</div>"


def _session_html(session: dict[str, Any]) -> str:
    runs = f"{session['runs']} runs"
    if session["p50_us"] is not None:
        runs += f", median {session['p50_us'] / 1000:.3g} ms"
    parts = [f"<p><b>{escape(session['model'])}</b> {escape(session['version'])}: {runs}</p>"]
    if session["eps"]:
        parts.append(_bar(session["eps"]))
    rows = []
    for name, ep in session["eps"].items():
        share = "" if ep.get("macs_share") is None else f"{100 * ep['macs_share']:.1f} % of the MACs"
        partitions = "" if ep.get("partitions") is None else f"{ep['partitions']} partitions"
        cells = (name, f"{ep['nodes']} nodes", partitions, share)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    parts.append("<table>" + "".join(rows) + "</table>")
    on_cpu = [node for node in session["cpu_nodes"] if not node["benign"]]
    for node in on_cpu[:_SHOWN_NODES]:
        parts.append(f"<div>on the CPU: {escape(node['name'])} ({escape(node['op_type'])}) {escape(node['reason'])}</div>")
    if len(on_cpu) > _SHOWN_NODES:
        parts.append(f"<div>and {len(on_cpu) - _SHOWN_NODES} more nodes on the CPU</div>")
    for reason in session["reasons"]:
        text = escape(f"{reason['meaning']} {reason['fix']}")
        parts.append(f"<div><code>{escape(reason['code'])}</code> {text}</div>")
    return "".join(parts)
