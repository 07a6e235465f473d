"""The plugin that pytest loads wherever epwatch is installed: the assertions of `epwatch.testing` as fixtures.

    def test_segmenter_runs_on_the_npu(epwatch_assert_on_npu):
        epwatch_assert_on_npu(make_session())

It is a module next to the package, so that a test run without these fixtures does not import epwatch.
"""

from __future__ import annotations

from typing import Callable

import pytest


@pytest.fixture(scope="session")
def epwatch_assert_on_npu() -> Callable[..., None]:
    """`epwatch.testing.assert_on_npu`: fails unless the NPU runs every op of a session that computes."""
    from epwatch.testing import assert_on_npu

    return assert_on_npu


@pytest.fixture(scope="session")
def epwatch_assert_latency() -> Callable[..., None]:
    """`epwatch.testing.assert_latency`: fails if the median of a session's runs is above `max_ms`."""
    from epwatch.testing import assert_latency

    return assert_latency
