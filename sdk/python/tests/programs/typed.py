"""Uses of the package that mypy checks: the installed one, by its `py.typed`. Nothing runs it."""

from __future__ import annotations

import epwatch


def watched(path: str) -> list[str]:
    epwatch.start(app="com.example.robot", endpoint="http://127.0.0.1:4717", key="demo-key", consent=True)
    plan: epwatch.Plan = epwatch.plan("segmenter", "3")
    session = epwatch.InferenceSession(path, providers=["CPUExecutionProvider"], model="segmenter", version="3", plan=plan)
    checks: list[epwatch.FailedCheck] = epwatch.preflight(soc_model="68")
    print([check.reason for check in checks])
    with epwatch.measure(session) as raw:
        raw.run(None, {})

    @epwatch.measure(session)
    def infer(size: int) -> int:
        return size

    infer(3)
    epwatch.record(session, 0.0042)
    explanation: epwatch.Explanation = epwatch.explain()
    try:
        epwatch.flush(timeout=1.0)
    except epwatch.UploadError as error:
        return [str(error)]
    return [str(found["model"]) for found in explanation.sessions]
