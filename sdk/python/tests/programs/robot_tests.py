"""A team's tests, which pytest runs: MODEL, PLUGIN and BACKEND are in the environment."""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy
import onnxruntime
import pytest

import epwatch
from epwatch import _native
from epwatch.testing import assert_latency, assert_on_npu

QNN = "QNNExecutionProvider"
IMAGE = {"x": numpy.zeros((1, 3, 32, 32), numpy.float32)}


@pytest.fixture(scope="session")
def device():
    onnxruntime.register_execution_provider_library(QNN, os.environ["PLUGIN"])
    return next(device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN)


def session_on(device, soc_model, model=os.environ["MODEL"], **arguments):
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device], {"backend_path": os.environ["BACKEND"], "soc_model": soc_model})
    return epwatch.InferenceSession(model, options, **arguments)


def test_a_chipset_with_fp16_takes_every_op(device):
    assert_on_npu(session_on(device, "57"))


def test_one_without_leaves_the_head_to_the_cpu(device):
    session = session_on(device, "68")
    with pytest.raises(AssertionError, match=r"nodes compute outside of the NPU") as failure:
        assert_on_npu(session)
    assert "head_fc1 (Gemm) on CPUExecutionProvider" in str(failure.value), failure.value
    ops = ["Gemm", "LayerNormalization", "Relu", "Softmax"]
    assert_on_npu(session, allowed_cpu_ops=ops)
    with pytest.raises(AssertionError, match="1 partitions instead of at most 0"):
        assert_on_npu(session, allowed_cpu_ops=ops, max_partitions=0)
    with pytest.raises(TypeError, match="allowed_cpu_ops: expected a list"):
        assert_on_npu(session, allowed_cpu_ops="LayerNormalization,LeakyRelu,LogSoftmax,FusedGemm")
    with pytest.raises(ValueError, match="allowed_cpu_ops is read only without min_macs"):
        assert_on_npu(session, allowed_cpu_ops=[], min_macs=0.7, side_car=os.environ["SIDE_CAR"])
    with pytest.raises(ValueError, match="max_partitions: expected at least 0"):
        assert_on_npu(session, max_partitions=-1)
    with pytest.raises(TypeError, match="expected a session, got NoneType"):
        assert_on_npu(None)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="max_ms: expected at least 0"):
            assert_latency(session, IMAGE, max_ms=wrong)


def test_conversions_are_where_the_gate_excuses_them(device, tmp_path):
    models, cases = Path(os.environ["FIXTURES"], "models"), Path(os.environ["FIXTURES"], "gate")
    # At the graph's own input and output, and next to another node on the CPU.
    assert_on_npu(session_on(device, "57", models / "cnn.qu8.onnx"))
    beside_norms = session_on(device, "57", cases / "yolo_layernorm.qu8.onnx")
    assert_on_npu(beside_norms, allowed_cpu_ops=["LayerNormalization"], max_partitions=4)
    # This one unpacks weights in each run.
    model = tmp_path / "block_int4.onnx"
    model.write_bytes((cases / "block_int4.onnx").read_bytes())
    for source in (model, model.read_bytes()):
        session = session_on(device, "57", source)
        with pytest.raises(AssertionError, match="1 of 2 nodes compute outside of the NPU") as failure:
            assert_on_npu(session)
        assert "dqw (DequantizeLinear) on CPUExecutionProvider" in str(failure.value), failure.value
        assert_on_npu(session, allowed_cpu_ops=["DequantizeLinear"])
    of_file = session_on(device, "57", model)
    model.unlink()
    with pytest.raises(ValueError, match="model cannot be read to find the place of its conversions"):
        assert_on_npu(of_file)
    # Without a graph their place is not known.
    placed = Placed((QNN, ["a"]), ("CPUExecutionProvider", ["b"]))
    placed.get_provider_graph_assignment_info()[1].get_nodes()[0].op_type = "DequantizeLinear"
    assert_on_npu(placed)
    placed._model_bytes = b"another format"
    assert_on_npu(placed)


def test_most_of_the_work_is_on_the_npu(device):
    session, side_car = session_on(device, "68"), os.environ["SIDE_CAR"]
    # The head's two Gemm, 50,432 of 193,280, are on the CPU.
    assert_on_npu(session, min_macs=0.73, side_car=side_car)
    with pytest.raises(AssertionError, match=r"the NPU has 73\.91% of the MACs instead of at least 98\.00%$"):
        assert_on_npu(session, min_macs=0.98, side_car=side_car)
    for wrong in (-1, 98, float("nan")):
        with pytest.raises(ValueError, match="min_macs: expected a share, 0 to 1, got"):
            assert_on_npu(session, min_macs=wrong, side_car=side_car)
    with pytest.raises(ValueError, match="side_car is read only with min_macs"):
        assert_on_npu(session, side_car="no such file")
    with pytest.raises(ValueError, match="min_macs needs side_car"):
        assert_on_npu(session, min_macs=0.98)
    with pytest.raises(ValueError, match="failed to read the side-car"):
        assert_on_npu(session, min_macs=0.98, side_car=os.environ["MODEL"])


def test_a_side_car_is_of_the_sessions_model(device, tmp_path):
    model = Path(os.environ["MODEL"]).read_bytes()
    found = hashlib.sha256(model).hexdigest()
    # The model was trained again, and the side-car was not written again: the nodes are the same.
    stale = json.loads(Path(os.environ["SIDE_CAR"]).read_text())
    path = tmp_path / "macs.json"
    for hash_in_file, is_right in [(found, True), (found.upper(), True), ("ab" * 32, False)]:
        path.write_text(json.dumps({**stale, "model_sha256": hash_in_file}))
        for source, shown in [(os.environ["MODEL"], os.path.abspath(os.environ["MODEL"])), (model, "the session's model")]:
            session = session_on(device, "68", source)
            if is_right:
                assert_on_npu(session, min_macs=0.73, side_car=path)
                continue
            with pytest.raises(ValueError, match="is of a model with the SHA-256") as failure:
                assert_on_npu(session, min_macs=0.73, side_car=path)
            for part in (str(path), hash_in_file, shown, found):
                assert part in str(failure.value), failure.value


def test_the_sessions_own_side_car_counts_its_macs(device, tmp_path):
    own = session_on(device, "68", side_car=os.environ["SIDE_CAR"])
    assert_on_npu(own, min_macs=0.73)
    with pytest.raises(AssertionError, match=r"the NPU has 73\.91% of the MACs instead of at least 98\.00%$"):
        assert_on_npu(own, min_macs=0.98)
    # An argument counts before the session's own.
    of_another = tmp_path / "macs.json"
    of_another.write_text(json.dumps({**json.loads(Path(os.environ["SIDE_CAR"]).read_text()), "model_sha256": "ab" * 32}))
    with pytest.raises(ValueError, match="is of a model with the SHA-256"):
        assert_on_npu(own, min_macs=0.73, side_car=of_another)
    with pytest.raises(ValueError, match="is of a model with the SHA-256"):
        assert_on_npu(session_on(device, "68", side_car=of_another), min_macs=0.73)


class Placed:
    """A session with this placement, where the emulator's own models have none like it."""

    def __init__(self, *subgraphs):
        self._subgraphs = [Subgraph(ep, [Node(name) for name in names]) for ep, names in subgraphs]

    def get_provider_graph_assignment_info(self):
        return self._subgraphs


class Subgraph:
    def __init__(self, ep_name, nodes):
        self.ep_name, self.get_nodes = ep_name, lambda: nodes


class Node:
    op_type, domain = "Conv", ""

    def __init__(self, name):
        self.name = name


def counted(path, macs):
    path.write_text(json.dumps({"model_sha256": "ab" * 32, "total_macs": sum(macs.values()), "nodes": macs}))
    return path


def test_all_of_the_work_is_on_the_npu(tmp_path):
    # Ten tenths add up to 0.9999999999999999.
    layers = {f"layer{at}": 1 for at in range(10)}
    assert_on_npu(Placed((QNN, list(layers))), min_macs=1.0, side_car=counted(tmp_path / "macs.json", layers))


def test_partitions_are_judged_with_min_macs_only_if_asked(tmp_path):
    side_car = counted(tmp_path / "macs.json", {"a": 49, "b": 2, "c": 49})
    session = Placed((QNN, ["a"]), ("CPUExecutionProvider", ["b"]), (QNN, ["c"]))
    assert_on_npu(session, min_macs=0.98, side_car=side_car)
    assert_on_npu(session, min_macs=0.98, side_car=side_car, max_partitions=2)
    with pytest.raises(AssertionError, match="2 partitions instead of at most 1"):
        assert_on_npu(session, min_macs=0.98, side_car=side_car, max_partitions=1)
    with pytest.raises(AssertionError, match="2 partitions instead of at most 1"):
        assert_on_npu(session, allowed_cpu_ops=["Conv"])
    with pytest.raises(AssertionError, match=r"0\.00% of the MACs .*; 100\.00% are of nodes that the session does not have$"):
        assert_on_npu(session, min_macs=0.98, side_car=counted(tmp_path / "others.json", {"another": 1}))


def test_a_session_is_made_without_its_side_car_too(caplog):
    for path, cause in [(os.environ["MODEL"], "failed to read the side-car"), ("no such file", "No such file")]:
        epwatch.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"], side_car=path)
        assert cause in caplog.text, caplog.text
        caplog.clear()


def on_the_cpu(**arguments):
    return epwatch.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"], **arguments)


def test_a_side_car_is_a_regular_file(caplog, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The session is made at once. A session that waits for the FIFO's writer ends the tests.
    signal.alarm(600)
    for path, cause in [(fifo, "expected a regular file"), (tmp_path, "Is a directory"), ("/dev/zero", "expected a regular file")]:
        on_the_cpu(side_car=path)
        assert cause in caplog.text, caplog.text
        caplog.clear()
    signal.alarm(0)


def test_a_side_car_that_is_not_a_path_is_refused():
    for wrong in (1, object(), ["a.json"]):
        with pytest.raises(TypeError, match="side_car: expected the path of a file"):
            on_the_cpu(side_car=wrong)
    os.fstat(1)


def test_other_threads_run_while_a_side_car_is_read():
    nodes = ",".join(f'"a layer {at}": 1' for at in range(50_000))
    side_car = f'{{"model_sha256": "{"ab" * 32}", "total_macs": 50000, "nodes": {{{nodes}}}}}'.encode()
    count, is_over = 0, threading.Event()

    def run():
        nonlocal count
        while not is_over.is_set():
            count += 1
            time.sleep(0)

    thread = threading.Thread(target=run)
    thread.start()
    interval = sys.getswitchinterval()
    # From here on threads change only where one gives up the interpreter's lock.
    sys.setswitchinterval(1000)
    try:
        # The thread may still wait for the lock by the earlier interval.
        known = count
        while count < known + 2:
            time.sleep(0.001)
        for _ in range(200):
            before = count
            _native.SideCar(side_car)
            if count > before:
                break
        else:
            raise AssertionError("no other thread ran")
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()


def test_the_cpu_is_no_npu():
    session = epwatch.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
    with pytest.raises(AssertionError, match="no node is on the NPU"):
        assert_on_npu(session)
    with pytest.raises(AssertionError, match="has no placement"):
        assert_on_npu(onnxruntime.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"]))
    assert_latency(session, IMAGE, max_ms=600_000, runs=5)
    with pytest.raises(AssertionError, match="instead of at most 0 ms"):
        assert_latency(session, IMAGE, max_ms=0, runs=5)
