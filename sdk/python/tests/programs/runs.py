"""Every way to run an observed session. Argument: a folder of models."""

import logging
import sys
import threading
import types
from pathlib import Path

import numpy
import onnxruntime

import epwatch

MODELS = Path(sys.argv[1])
CPU = ["CPUExecutionProvider"]


def zeros(*shape):
    return numpy.zeros(shape, numpy.float32)


class Lines(logging.Handler):
    lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


logging.getLogger("epwatch").addHandler(Lines())
logging.getLogger("epwatch").setLevel(logging.INFO)

# The session is made before `start`, and observed from `start` on.
early = epwatch.InferenceSession(MODELS / "d_mlp.fp32.onnx", providers=CPU, model="early")
early.run(None, {"x": zeros(1, 64)})
assert not epwatch.is_started() and epwatch.explain()["sessions"] == []
assert "epwatch.start was not called" in str(epwatch.explain())
try:
    epwatch.flush()
    raise AssertionError("flushed without a start")
except RuntimeError as error:
    assert "epwatch.start" in str(error)

for wrong, part in [
    ({"endpoint": "https://x:99999"}, "99999"),
    ({"app": ""}, "EPWATCH_APP"),
    ({"trusted_roots": "all"}, "trusted_roots"),
    ({"directive_keys": {"ops": "12"}}, "64 hex digits"),
    ({"report_interval": -1.0}, "report_interval"),
    ({"report_interval": 0.0}, "report interval"),
]:
    try:
        epwatch.start(**wrong)
        raise AssertionError(f"{wrong} was taken")
    except epwatch.ConfigError as error:
        assert part in str(error), error

epwatch.start(app_version="3.2.1", chipset="SM8650", rollout={"wave": "1"}, report_interval=3600)
epwatch.start()
assert ("WARNING", "epwatch.start was called twice; the first call counts") in Lines.lines
for _ in range(3):
    early.run(None, {"x": zeros(1, 64)})

# A model with one shape: runs by every call of onnxruntime.
session = epwatch.InferenceSession(
    str(MODELS / "d_mlp.fp32.onnx"), providers=CPU, model="mlp", version="7", provider_options=[{}]
)
assert isinstance(session, onnxruntime.InferenceSession) and isinstance(session, epwatch.InferenceSession)
assert type(session.session) is onnxruntime.InferenceSession and "get_inputs" in dir(session)
name = session.get_outputs()[0].name
expected = session.session.run([name], {"x": zeros(1, 64)})
assert numpy.array_equal(session.run([name], {"x": zeros(1, 64)}), expected)
value = onnxruntime.OrtValue.ortvalue_from_numpy(zeros(1, 64))
session.run_with_ort_values([name], {"x": value})
binding = session.io_binding()
binding.bind_cpu_input("x", zeros(1, 64))
binding.bind_output(name)
session.run_with_iobinding(binding)
done = threading.Event()
session.run_async([name], {"x": zeros(1, 64)}, lambda results, event, error: event.set(), done)
assert done.wait(300)
with epwatch.measure(session) as raw:
    raw.run(None, {"x": zeros(1, 64)})


@epwatch.measure(session)
def infer(times):
    return [session.session.run(None, {"x": zeros(1, 64)}) for _ in range(times)]


assert len(infer(2)) == 2
epwatch.record(session, 0.002)
for wrong_seconds in (-1.0, float("nan")):
    try:
        epwatch.record(session, wrong_seconds)
        raise AssertionError(f"{wrong_seconds} was taken")
    except ValueError as error:
        assert "seconds" in str(error), error
threads = [threading.Thread(target=session.run, args=(None, {"x": zeros(1, 64)})) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

# Failed runs: onnxruntime's error, unchanged, and its code.
for feed, kind in [({"x": zeros(1, 2)}, "InvalidArgument"), ({}, "ValueError")]:
    try:
        session.run(None, feed)
        raise AssertionError("ran")
    except Exception as error:
        assert type(error).__name__ == kind, error

# onnxruntime makes the session again, and reports show it as another session.
session.set_providers(CPU)
session.run(None, {"x": zeros(1, 64)})

# Free dimensions.
free = epwatch.InferenceSession(MODELS / "a_cnn_dynbatch.fp32.onnx", providers=CPU, model="free", version="1")
for batch in (1, 2, 2):
    free.run(None, {"x": zeros(batch, 3, 32, 32)})
free.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(zeros(3, 3, 32, 32))})
by_name = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(zeros(4, 3, 32, 32))}
free.run_with_ort_values(None, types.MappingProxyType(by_name))

# A session that other code made: without the option there is no placement.
attached = epwatch.attach(onnxruntime.InferenceSession(MODELS / "d_mlp.fp32.onnx", providers=CPU), model="attached", version="1")
attached.run(None, {"x": zeros(1, 64)})
Lines.lines.clear()
assert epwatch.attach(attached) is attached and not Lines.lines
assert epwatch.attach(attached, model="another", side_car="no such file") is attached
expected = "epwatch.attach got <epwatch.InferenceSession of attached 1>, which is observed; its first arguments count"
assert Lines.lines == [("WARNING", expected)], Lines.lines
assert [reason["code"] for reason in epwatch.explain(attached)["reasons"]] in (
    ["assignment_not_recorded"],
    ["assignment_api_unavailable"],
)

# Asks for an NPU that is missing; onnxruntime falls back to the CPU without an error.
dropped = epwatch.InferenceSession(
    MODELS / "d_mlp.fp32.onnx",
    providers=[("QNNExecutionProvider", {"soc_model": "57", "htp_performance_mode": "burst"}), "CPUExecutionProvider"],
    model="dropped",
    version="1",
)
dropped.run(None, {"x": zeros(1, 64)})
explained = epwatch.explain(dropped)
assert "ep_not_available" in [reason["code"] for reason in explained["reasons"]], explained
assert explained["requested"] == ["QNNExecutionProvider"] and explained["soc_model"] == "SM8650"

# OpenVINO is one EP for several devices; its option names the device, also if this build lacks the EP.
laptop = epwatch.InferenceSession(
    MODELS / "d_mlp.fp32.onnx",
    providers=[("OpenVINOExecutionProvider", {"device_type": "GPU.1"}), "CPUExecutionProvider"],
    model="laptop",
    version="1",
)
assert epwatch.explain(laptop)["device_type"] == "gpu", epwatch.explain(laptop)
laptop.set_providers(["CPUExecutionProvider"])
assert epwatch.explain(laptop)["device_type"] in (None, ""), epwatch.explain(laptop)

# Names no EP: onnxruntime chooses one by the policy, and here has none but the CPU.
policy = onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_NPU
options = onnxruntime.SessionOptions()
options.set_provider_selection_policy(policy)
chosen = epwatch.InferenceSession(MODELS / "d_mlp.fp32.onnx", options, model="chosen", version="1", selection_policy=policy)
chosen.run(None, {"x": zeros(1, 64)})
explained = epwatch.explain(chosen)
assert explained["selection_policy"] == "prefer_npu", explained
assert explained["requested_in_effect"] == ["policy:prefer_npu"], explained

# Another session, for which EPs are named, and then by the policy in the options again.
for providers, policies, in_effect in [(CPU, (None, ""), []), (None, ("prefer_npu",), ["policy:prefer_npu"])]:
    chosen.set_providers(providers)
    explained = epwatch.explain(chosen)
    assert explained["selection_policy"] in policies, explained
    assert explained["requested_in_effect"] == in_effect, explained

# onnxruntime follows no policy if EPs are named. A name that it does not have is told.
named = epwatch.InferenceSession(
    MODELS / "d_mlp.fp32.onnx", providers=["CPUExecutionProvider"], model="named", version="1", selection_policy=policy
)
explained = epwatch.explain(named)
assert explained["selection_policy"] in (None, ""), explained
assert explained["requested_in_effect"] == [], explained
epwatch.InferenceSession(MODELS / "d_mlp.fp32.onnx", model="named", version="1", selection_policy="PREFER_NPUU")
assert any("selection_policy: expected one of" in line for _, line in Lines.lines), Lines.lines

# Not a model.
try:
    epwatch.InferenceSession(b"not a model", model="broken", version="2")
    raise AssertionError("made")
except Exception as error:
    assert "INVALID_PROTOBUF" in str(error), error

try:
    epwatch.attach("session")
    raise AssertionError("attached")
except TypeError:
    pass

epwatch.seal()
html = epwatch.explain()._repr_html_()
assert "epwatch-placement" in html or "<table></table>" in html, html
assert "<b>mlp</b>" in html and "mlp version 7" in str(epwatch.explain())
epwatch.flush(300)
assert epwatch.stop(300) and not epwatch.is_started()
session.run(None, {"x": zeros(1, 64)})
print("as expected")
