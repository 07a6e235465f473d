"""Where ExecuTorch runs the ops of a program: the partitions for `epwatch.session_of`. docs/runtimes.md says what it cannot know."""

from __future__ import annotations

from typing import Any

from ._runtime import Partition

_DELEGATE, _OP, _KERNEL = "DELEGATE_CALL", "OPERATOR_CALL", "native_call_"


def partitions_of(inspector: Any) -> list[Partition]:
    """Returns the partitions that a run had, from an `executorch.devtools.Inspector` with the run's ETDump.

    The ETDump has an event for each instruction of the program: a call of a delegate, or an op on the CPU. The program's
    ETRecord has the delegate's name and its ops, so the `Inspector` needs both. Raises ValueError without it, and if the
    runs of the ETDump differ.
    """
    runs = [block.events for block in inspector.event_blocks if block.name == "Execute"]
    if len(runs) != 1:
        raise ValueError(f"the ETDump has {len(runs)} different runs: expected runs of one method with the same ops")
    partitions: list[Partition] = []
    n_ops, kernel = 0, ""
    for event in runs[0]:
        if event.is_delegated_op:
            continue
        if event.name == _DELEGATE:
            ep, ops = event.delegate_backend_name, event.op_types
            if not ep or not ops:
                raise ValueError("a delegate's ops have no names: make the Inspector with etrecord=..., without branches")
        elif event.name == _OP:
            ep, ops = "CPU", [op for op in event.op_types[:1] if _is_of_library(op)] or [kernel]
        else:
            # The kernel's own event comes before the instruction's.
            kernel = event.name.removeprefix(_KERNEL) if event.name.startswith(_KERNEL) else ""
            continue
        named = [op for op in ops if op]
        if named:
            partitions.append((ep, [(str(n_ops + at), op) for at, op in enumerate(named)]))
        n_ops += len(named)
        kernel = ""
    return partitions


def _is_of_library(op: str) -> bool:
    """Whether it is an op such as `aten.erf.default`. Views and arithmetic on shapes have no such name, and no kernel."""
    return op.count(".") == 2
