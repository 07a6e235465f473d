"""Stands in for the service of Qualcomm AI Hub, over the messages of the qai-hub client that runs it. For tests.

Usage: aihub_service.py SCENARIO LOG. The first line of standard output is the port. The scenario (JSON) says what the service
does: `times_us` (by SHA-256 of the uploaded model), `queued` (looks at a job before it ends), `failures` (by the file in a
job's name: failure types of its tries, one after the other), `status` (by method and path: statuses before the real answer)
and `body` (with such a status).
LOG gets a line for each request. A request that the real client does not make ends with 599 and a line that begins with
`unexpected`.
"""

import hashlib
import io
import json
import posixpath
import sys
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

import qai_hub
from qai_hub import public_api_pb2 as pb

scenario = json.load(open(sys.argv[1], encoding="utf-8"))
log, lock = open(sys.argv[2], "a", encoding="utf-8", buffering=1), Lock()
DEVICES = [
    pb.Device(name="Samsung Galaxy S24", os="14", attributes=["framework:onnx", "chipset:qualcomm-snapdragon-8gen3"]),
    pb.Device(name="Samsung Galaxy S23", os="13", attributes=["framework:onnx", "chipset:qualcomm-snapdragon-8gen2"]),
]
models, jobs = {}, {}
statuses = {where: list(codes) for where, codes in scenario.get("status", {}).items()}


class Unexpected(Exception):
    pass


def need(is_so, what):
    if not is_so:
        raise Unexpected(what)


def named(job):
    """The file in the job's name: epwatch TOKEN FILE try N."""
    words = job["name"].split(" ")
    need(len(words) == 5 and words[0] == "epwatch" and words[3] == "try", job["name"])
    return words[2], int(words[4])


def state_of(job):
    file, attempt = named(job)
    job["looks"] += 1
    if job["looks"] <= scenario.get("queued", 1):
        return pb.JobState.JOB_STATE_CREATED, 0
    failures = scenario.get("failures", {}).get(file, [])
    if attempt <= len(failures):
        return pb.JobState.JOB_STATE_FAILED, failures[attempt - 1]
    return pb.JobState.JOB_STATE_DONE, pb.JobFailureType.JOB_FAILURE_TYPE_SUCCESS


def model_of(body):
    """The model of an upload: the file itself, or the one of a zip that has its tensors next to it."""
    if not body.startswith(b"PK"):
        return body
    files = zipfile.ZipFile(io.BytesIO(body))
    names = [name for name in files.namelist() if not name.endswith("/")]
    [model] = [name for name in names if name.endswith(".onnx")]
    [data] = [name for name in names if name != model]
    need(data.endswith((".data", ".bin")) and posixpath.dirname(data) == posixpath.dirname(model), names)
    need(len(files.read(data)) > 0, "tensors")
    return files.read(model)


def reason(kind):
    return f"reason of {pb.JobFailureType.Name(kind)}" if kind else ""


def job_message(job_id, job):
    # The answer to a submission has the job's present state, and does not count as a look.
    state, failure = state_of(job)
    common = {"job_state": state, "name": job["name"], "failure_reason": reason(failure) if state == 30 else ""}
    if job["kind"] == "compile":
        own = pb.CompileJob(compile_job_id=job_id, model=models[job["model"]]["message"], device=DEVICES[0], **common)
        own.devices.devices.append(DEVICES[0])
        if state == pb.JobState.JOB_STATE_DONE:
            target = f"m{job_id}"
            models.setdefault(target, {"sha256": models[job["model"]]["sha256"], "message": pb.Model(model_id=target, name="target", model_type=pb.ModelType.MODEL_TYPE_ONNX)})
            own.target_model.CopyFrom(models[target]["message"])
        return pb.Job(compile_job=own, failure_type=failure)
    own = pb.InferenceJob(inference_job_id=job_id, model=models[job["model"]]["message"], device=DEVICES[0], is_profiling_on=True, **common)
    return pb.Job(inference_job=own, failure_type=failure)


def result(job_id, job):
    us = scenario["times_us"][models[job["model"]]["sha256"]]
    at = int(named(job)[0].rsplit("-", 1)[1].split(".")[0])
    detail = pb.ProfileDetail(execution_time=us, cold_load_time=1_234_000, major_version=1, minor_version=2)
    detail.all_execution_times.extend(us + (us // 800) * (n * (6 + at) % 13) for n in range(100))
    for name, kind in [("conv0", "Conv"), ("conv1", "Conv"), ("conv2", "Conv"), ("head_fc1", "Gemm"), ("head_fc2", "Gemm")]:
        detail.layer_details.add(name=name, layer_type_name=kind, compute_unit=3, execution_time=100)
    detail.segment_details.add(id="s0", compute_unit=3, delegate_name="QNN")
    detail.tool_versions.add(name="onnx_runtime", version="1.23.0")
    return pb.JobResult(inference_job_result=pb.InferenceJobResult(inference_job_id=job_id, detail=detail))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        length = self.headers.get("Content-Length")
        if length is not None:
            return self.rfile.read(int(length))
        need(self.headers.get("Transfer-Encoding") == "chunked", "a body without a length")
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status, data=b"", kind="application/x-protobuf", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self):
        url = urlsplit(self.path)
        where = f"{self.command} {url.path}"
        body = self.body() if self.command in ("POST", "PUT") else b""
        with lock:
            print(where, file=log)
            try:
                if codes := statuses.get(where):
                    return self.answer(codes.pop(0), scenario.get("body", "").encode(), "text/plain")
                return self.route(url, body)
            except (Unexpected, KeyError, ValueError) as error:
                print(f"unexpected {where}?{url.query}: {error!r}", file=log)
                return self.answer(599, b"unexpected", "text/plain")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def route(self, url, body):
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        parts = url.path.strip("/").split("/")
        if parts[0] == "upload":
            need(self.command == "PUT" and len(parts) == 2, "an upload")
            models[parts[1]]["sha256"] = hashlib.sha256(model_of(body)).hexdigest()
            need(models[parts[1]]["sha256"] in scenario["times_us"], "a model that the test does not have")
            return self.answer(200, ETag='"part-0"')
        need(self.headers["Authorization"] == "token of-the-test", "authorization")
        need(self.headers["Client-Version"] == str(qai_hub.__version__), "version")
        need(url.path.startswith("/api/v1/") and url.path.endswith("/"), "path")
        send = lambda message: self.answer(200, message.SerializeToString())
        match [self.command, *parts[2:]]:
            case ["GET", "devices"]:
                found = [device for device in DEVICES if query.get("name", device.name) == device.name]
                return send(pb.DeviceList(devices=found[:1] if query.get("select") == "True" else found))
            case ["POST", "models"]:
                message = pb.Model.FromString(body)
                need(message.model_type == pb.ModelType.MODEL_TYPE_ONNX and message.name.endswith(".onnx"), message)
                model_id = f"m{len(models) + 1}"
                message.model_id = model_id
                models[model_id] = {"sha256": None, "message": message}
                return send(pb.CreateUpdateResponse(id=model_id))
            case ["GET", "models", model_id, "multipart_upload"]:
                need(int(query["file_size"]) > 0 and model_id in models, query)
                urls = pb.FileMultipartUploadURL(
                    urls=[f"http://127.0.0.1:{server.server_port}/upload/{model_id}"], upload_id=f"u{model_id}", max_part_size=1 << 30
                )
                return send(pb.FileUploadResponse(multipart_url=urls))
            case ["POST", "models", model_id, "multipart_upload"]:
                done = pb.FileMultipartUploadComplete.FromString(body)
                need(done.upload_id == f"u{model_id}" and list(done.etags) == ['"part-0"'], done)
                return send(pb.CreateUpdateResponse(id=model_id))
            case ["GET", "models", model_id]:
                return send(models[model_id]["message"])
            case ["POST", "jobs"]:
                job = pb.Job.FromString(body)
                kind = job.WhichOneof("job").removesuffix("_job")
                own = getattr(job, f"{kind}_job")
                need(kind in ("compile", "inference"), kind)
                need(models[own.model.model_id]["sha256"] is not None, "a model that is not whole")
                if kind == "compile":
                    need(own.options == "--target_runtime onnx" and len(own.devices.devices) == 1, own)
                if kind == "inference":
                    need(own.is_profiling_on and own.device.name in [device.name for device in DEVICES], own)
                new = {"kind": kind, "name": own.name, "model": own.model.model_id, "looks": 0, "options": own.options}
                need(new["name"] not in [known["name"] for known in jobs.values()], "a job twice")
                job_id = f"j{len(jobs) + 1}"
                jobs[job_id] = new
                # The client fetches a new compile job at once, which must not count as a look.
                new["looks"] -= kind == "compile"
                return send(pb.CreateUpdateResponse(id=job_id))
            case ["GET", "jobs", job_id]:
                return send(job_message(job_id, jobs[job_id]))
            case ["GET", "jobs", job_id, "result"]:
                need(jobs[job_id]["kind"] == "inference", "a result")
                return send(result(job_id, jobs[job_id]))
            case ["GET", "job_summaries"]:
                need(query == {"limit": "100"}, query)
                found = pb.JobSummaryList()
                for job_id, job in reversed(jobs.items()):
                    summary = getattr(found.job_summaries.add(), f"{job['kind']}_job_summary")
                    summary.job_id, summary.name = job_id, job["name"]
                return send(found)
        raise Unexpected("no such path")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
