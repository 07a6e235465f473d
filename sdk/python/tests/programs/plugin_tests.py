"""A team's tests by the fixtures of epwatch's plugin, without a conftest: MODEL, PLUGIN and BACKEND are in the environment."""

import os
import sys

import pytest

QNN = "QNNExecutionProvider"


def test_the_plugin_imports_nothing():
    for heavy in ("epwatch", "numpy", "onnxruntime"):
        assert heavy not in sys.modules


@pytest.fixture(scope="session")
def session():
    import onnxruntime

    import epwatch

    onnxruntime.register_execution_provider_library(QNN, os.environ["PLUGIN"])
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device], {"backend_path": os.environ["BACKEND"], "soc_model": "57"})
    return epwatch.InferenceSession(os.environ["MODEL"], options)


def image():
    import numpy

    return {"x": numpy.zeros((1, 3, 32, 32), numpy.float32)}


def test_the_model_runs_on_the_npu(session, epwatch_assert_on_npu):
    epwatch_assert_on_npu(session, max_partitions=1)


def test_the_model_is_fast(session, epwatch_assert_latency):
    epwatch_assert_latency(session, image(), max_ms=600_000, runs=5)


def test_which_fails(session, epwatch_assert_latency):
    epwatch_assert_latency(session, image(), max_ms=0, runs=5)
