"""Makes the jobs of `epwatch gate --aihub` with the user's own qai-hub client, and keeps their raw results.

Standard input has the plan as JSON: models by side, devices, options, jobs of a side, a folder, and the seconds between two
looks. The folder gets jobs.json, which is written before and after each submission, and a file for each result. So the jobs
survive the end of this program, and the next call with the same plan goes on. The exit code is 0 if all jobs have ended, 2 if
the service refused the request, 3 if it could not be reached. Standard output says why.
"""

import difflib
import json
import os
import signal
import sys
import tempfile
import time

# The client prints to standard output, which is for the answer alone.
ANSWER = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
STATE = "jobs.json"
MOST_TRIES = 3
# Error codes that the service calls transient, and its code for a throttled request.
TRANSIENT = range(20_000, 30_000)
THROTTLED = 12_102
# A lost submission is searched in this many latest jobs of the account.
MOST_SUMMARIES = 100


class Refused(Exception):
    """The service does not take the request as it is."""


class Unreachable(Exception):
    """The service gave no answer."""


def say(text):
    print(f"epwatch: {text}", file=sys.stderr, flush=True)


def write(path, data):
    """Writes a file as a whole or not at all."""
    with open(path + ".part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


class Farm:
    def __init__(self, plan):
        import qai_hub
        from qai_hub import public_api_pb2, public_rest_api

        self.hub, self.pb, self.rest = qai_hub, public_api_pb2, public_rest_api
        self.plan = plan
        try:
            self.client = qai_hub.Client()
            self.config = self.client.config
        except Exception as error:
            raise Refused(f"the client has no usable configuration: {plain(error)}") from None
        self.client.set_verbose(False)
        # Change the folder only now, because the path of the client's configuration may be relative.
        os.chdir(plan["folder"])
        self.state = begun(plan)

    def keep(self):
        write(STATE, json.dumps(self.state, indent=1).encode())

    def call(self, what, *arguments, **named):
        """Calls the client. It has repeated what may be repeated by then."""
        errors = self.hub.client
        try:
            return what(*arguments, **named)
        except errors.UserError as error:
            raise Refused(plain(error)) from None
        except (errors.RateLimitedError, errors.InternalError) as error:
            raise Unreachable(plain(error)) from None
        except self.rest.APIException as error:
            refused = error.status_code is not None and 400 <= error.status_code < 500 and error.status_code != 429
            raise (Refused if refused else Unreachable)(plain(error)) from None
        except OSError as error:
            raise Unreachable(plain(error)) from None

    def device(self, name):
        found = self.call(self.client.get_devices, name=name)
        if found:
            # The newest system, as the client itself selects.
            return found[-1]
        names = sorted({device.name for device in self.call(self.client.get_devices)})
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        near = f"; near: {', '.join(near)}" if near else "; `qai-hub list-devices` shows all"
        raise Refused(f"no device {name!r}{near}")

    def model(self, arm):
        """The id of an uploaded model."""
        model = self.state["models"][arm]
        if "id" not in model:
            say(f"uploading {model['path']}")
            with tempfile.TemporaryDirectory() as folder:
                model["id"] = self.call(self.client.upload_model, with_data(model, folder)).model_id
            self.keep()
        return self.call(self.client.get_model, model["id"])

    def submit(self, job):
        """Submits a job once: if an earlier call ended in the middle, the job with its name is taken."""
        name = f"epwatch {self.state['token']} {job['file']} try {len(job['tries']) + 1}"
        if job.get("submitting") == name:
            job["id"] = self.lost(name)
        if not job.get("id"):
            device = self.device(job["device"])
            if job["kind"] == "compile":
                model, options = self.model(job["arm"]), self.plan["compile_options"]
            else:
                compiled = next(other for other in self.state["jobs"] if other["file"] == job["compiled"])
                model, options = self.call(self.client.get_model, compiled["target"]), self.plan["profile_options"]
            job["submitting"] = name
            self.keep()
            if job["kind"] == "compile":
                made = self.call(self.client.submit_compile_job, model, device, name=name, options=options)
            else:
                made = self.call(
                    self.client.submit_inference_job, model, device, name=name, options=options, profile=True, retry=False
                )
            job["id"] = made.job_id
        del job["submitting"]
        self.keep()
        say(f"{job['kind']} job {job['id']} of {job['arm']} on {job['device']}")

    def lost(self, name):
        for summary in self.call(self.client.get_job_summaries, limit=MOST_SUMMARIES):
            if summary.name == name:
                return summary.job_id
        return None

    def look(self, job):
        found = self.call(self.rest.get_job, self.config, job["id"])
        own = getattr(found, found.WhichOneof("job"))
        states = self.pb.JobState
        if own.job_state == states.JOB_STATE_DONE:
            if job["kind"] == "compile":
                job["target"] = own.target_model.model_id
            else:
                result = self.call(self.rest.get_job_results, self.config, job["id"])
                write(job["file"], result.SerializeToString())
            job["state"] = "done"
        elif own.job_state == states.JOB_STATE_FAILED:
            kind = found.failure_type
            job["tries"].append({"id": job.pop("id"), "failure": kind, "reason": own.failure_reason})
            may_again = kind in TRANSIENT or kind == THROTTLED
            if not may_again or len(job["tries"]) >= MOST_TRIES:
                job["state"] = "failed"
            say(f"{job['kind']} job {job['tries'][-1]['id']} failed ({kind}): {own.failure_reason or 'no reason given'}")
        else:
            return
        self.keep()

    def advance(self, job):
        if job.get("id"):
            return self.look(job)
        if job["kind"] == "inference":
            # If one model fails on a phone, there is nothing to compare. The phone's other jobs are not made.
            of_phone = (other for other in self.state["jobs"] if other["device"] == job["device"])
            states = {other["state"] for other in of_phone if other["kind"] == "compile"}
            if "failed" in states:
                job["state"] = "skipped"
                return self.keep()
            if "open" in states:
                return None
        return self.submit(job)


def with_data(model, folder):
    """The model's path, or a folder of this name with the model and the file of its tensors."""
    if "data" not in model:
        return model["path"]
    whole = os.path.join(folder, os.path.basename(model["path"]))
    os.mkdir(whole)
    for path in (model["path"], model["data"]):
        os.symlink(path, os.path.join(whole, os.path.basename(path)))
    return whole


def plain(error):
    """The text of an error, without the client's frame of lines around it."""
    text = str(error).translate({ord(mark): " " for mark in "┌┐└┘─|"})
    return " ".join(text.split())


def begun(plan):
    """The state of an earlier call with this plan, or a new one."""
    try:
        with open(STATE, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        pass
    jobs = []
    for at, device in enumerate(plan["devices"], 1):
        for arm in plan["models"]:
            compiled = f"{arm}-{at}-compile"
            common = {"arm": arm, "device": device, "state": "open", "tries": []}
            jobs.append({"kind": "compile", "file": compiled, **common})
            for n in range(1, plan["jobs"] + 1):
                file = f"{arm}-{at}-{n:03}.pb"
                jobs.append({"kind": "inference", "file": file, "compiled": compiled, **common, "tries": []})
    return {
        "schema": "epwatch.aihub/1",
        "token": os.urandom(6).hex(),
        "models": {arm: dict(model) for arm, model in plan["models"].items()},
        "plan": {key: plan[key] for key in ("devices", "jobs", "compile_options", "profile_options")},
        "jobs": jobs,
    }


def main():
    # The command also gets Ctrl-C, ends this program, and prints which jobs continue.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = json.load(sys.stdin)
    try:
        farm = Farm(plan)
    except ImportError as error:
        raise Refused(f"{sys.executable} has no qai-hub ({error}); pip install qai-hub, or give --aihub-python") from None
    for device in plan["devices"]:
        farm.device(device)
    farm.keep()
    unanswered = 0
    is_open = lambda job: job["state"] == "open"
    while any(map(is_open, farm.state["jobs"])):
        for job in filter(is_open, farm.state["jobs"]):
            try:
                farm.advance(job)
                unanswered = 0
            except Unreachable as error:
                unanswered += 1
                if unanswered >= MOST_TRIES:
                    raise
                say(f"asked again: {error}")
                break
        if any(map(is_open, farm.state["jobs"])):
            time.sleep(plan["poll_seconds"])


try:
    main()
except Refused as error:
    print(f"AI Hub: {error}", file=ANSWER)
    sys.exit(2)
except Unreachable as error:
    print(f"AI Hub gave no answer: {error}", file=ANSWER)
    sys.exit(3)
