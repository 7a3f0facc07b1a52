"""A stand-in of Nomad's HTTP API, as documented, that really runs what it is asked to run.

    nomad_standin.py PORT FOLDER [TOKEN]

Jobs with one group and one task, drivers `raw_exec` (a process of this host) and `docker` (the engine of DOCKER_HOST,
on the host's network). Templates are files, ports are free ports of this host, allocations can be waited for with
blocking queries. It does no scheduling, knows one node, and answers what it does not know with 404 or 400.

Not of Nomad: POST /standin {"status": 500, "times": 3, "delay": 0} makes the next answers fail, or slow.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Allocation:
    def __init__(self, cluster, job):
        self.id = str(uuid.uuid4())
        self.job = job
        self.status = "pending"
        self.events = []
        self.ports = []
        self.folder = cluster.folder / self.id
        self.process = None
        self.container = ""

    def stub(self):
        failed = self.status == "failed"
        state = {"State": "dead" if failed else self.status, "Failed": failed, "Events": self.events}
        task = self.job["TaskGroups"][0]["Tasks"][0]["Name"]
        return {
            "ID": self.id,
            "JobID": self.job["ID"],
            "TaskGroup": self.job["TaskGroups"][0]["Name"],
            "ClientStatus": self.status,
            "TaskStates": {task: state},
        }

    def whole(self):
        return {**self.stub(), "AllocatedResources": {"Shared": {"Ports": self.ports, "Networks": []}}}

    def say(self, kind, message):
        self.events.append({"Type": kind, "DisplayMessage": message, "Time": time.time_ns()})

    def start(self):
        group = self.job["TaskGroups"][0]
        task = group["Tasks"][0]
        local, secrets = self.folder / task["Name"] / "local", self.folder / task["Name"] / "secrets"
        for part in (local, secrets):
            part.mkdir(parents=True)
        inside = task["Driver"] == "docker"
        variables = {
            "NOMAD_TASK_DIR": "/local" if inside else str(local),
            "NOMAD_SECRETS_DIR": "/secrets" if inside else str(secrets),
            "NOMAD_ALLOC_DIR": "/alloc" if inside else str(self.folder / "alloc"),
            "NOMAD_ALLOC_ID": self.id,
        }
        for network in group.get("Networks") or []:
            for port in network.get("DynamicPorts") or []:
                number = free_port()
                self.ports.append({"Label": port["Label"], "Value": number, "To": 0, "HostIP": "127.0.0.1"})
                variables[f"NOMAD_PORT_{port['Label']}"] = str(number)
        for template in task.get("Templates") or []:
            path = self.folder / task["Name"] / template["DestPath"]
            left, right = template.get("LeftDelim", "{{"), template.get("RightDelim", "}}")
            assert left not in template["EmbeddedTmpl"], "this stand-in renders no templates"
            assert right not in template["EmbeddedTmpl"]
            path.write_text(template["EmbeddedTmpl"])
            path.chmod(int(template.get("Perms", "0644"), 8))
        self.say("Task Setup", "Building Task Directory")
        config = json.loads(interpolate(json.dumps(task["Config"]), variables))
        env = {**variables, **(task.get("Env") or {})}
        if inside:
            command = self.docker(config, task, env, local, secrets)
        else:
            command = [config["command"], *config.get("args", [])]
            if shutil.which(command[0]) is None:
                raise OSError(f"failed to launch command: {command[0]} not found")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("wb"),
            stderr=subprocess.STDOUT,
            env={
                "PATH": os.environ["PATH"],
                "LUDUS_STANDIN_USER": "0",
                "DOCKER_HOST": os.environ.get("DOCKER_HOST", ""),
                **env,
            },
            cwd=self.folder,
            start_new_session=True,
        )
        self.status = "running"
        self.say("Started", "Task started by client")

    def docker(self, config, task, env, local, secrets):
        self.container = f"{task['Name']}-{self.id}"
        options = ["--rm", "--name", self.container, "--network", "host"]
        options += ["-v", f"{local}:/local", "-v", f"{secrets}:/secrets"]
        options += ["--memory", f"{task['Resources']['MemoryMB']}m"]
        for name, flag in (("cap_add", "--cap-add"), ("cap_drop", "--cap-drop"), ("security_opt", "--security-opt")):
            options += [part for value in config.get(name, []) for part in (flag, value)]
        options += [part for value in config.get("volumes", []) for part in ("-v", value)]
        options += ["--user", task["User"]] if task.get("User") else []
        options += ["--privileged"] if config.get("privileged") else []
        options += ["--pids-limit", str(config["pids_limit"])] if "pids_limit" in config else []
        options += [part for name, value in env.items() for part in ("-e", f"{name}={value}")]
        return ["docker", "run", *options, config["image"], config["command"], *config.get("args", [])]

    def stop(self):
        if self.container:
            subprocess.run(["docker", "stop", "-t", "5", self.container], capture_output=True, check=False)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Cluster:
    def __init__(self, folder, token):
        self.folder = folder
        self.token = token
        self.jobs = {}
        self.evaluations = {}
        self.allocations = {}
        self.index = 1
        self.changed = threading.Condition()
        self.trouble = {"times": 0}

    def touch(self):
        with self.changed:
            self.index += 1
            self.changed.notify_all()

    def submit(self, job):
        evaluation = str(uuid.uuid4())
        with self.changed:
            self.evaluations[evaluation] = {"ID": evaluation, "Status": "complete", "FailedTGAllocs": None}
            if job["ID"] in self.jobs:
                return evaluation
            self.jobs[job["ID"]] = job
            if job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] > 100_000:
                failed = {job["TaskGroups"][0]["Name"]: {"DimensionExhausted": {"memory": 1}}}
                self.evaluations[evaluation]["FailedTGAllocs"] = failed
                return evaluation
            allocation = Allocation(self, job)
            self.allocations[allocation.id] = allocation
        threading.Thread(target=self.run, args=(allocation,), daemon=True).start()
        return evaluation

    def run(self, allocation):
        try:
            allocation.start()
        except (OSError, KeyError, AssertionError) as error:
            allocation.status = "failed"
            allocation.say("Driver Failure", str(error))
            self.touch()
            return
        self.touch()
        code = allocation.process.wait()
        allocation.status = "complete" if code == 0 else "failed"
        allocation.say("Terminated", f"Exit Code: {code}")
        self.touch()

    def remove(self, job):
        for allocation in [a for a in self.allocations.values() if a.job["ID"] == job]:
            allocation.stop()
            shutil.rmtree(allocation.folder, ignore_errors=True)
            self.allocations.pop(allocation.id, None)
        self.jobs.pop(job, None)
        self.touch()

    def of(self, job):
        return [a.stub() for a in self.allocations.values() if a.job["ID"] == job]


def handler(cluster):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer()

        do_POST = do_PUT = do_DELETE = do_GET

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if parts.path == "/standin":
                cluster.trouble = json.loads(body)
                return self.reply(200, {})
            if cluster.trouble["times"] > 0:
                cluster.trouble["times"] -= 1
                time.sleep(cluster.trouble.get("delay", 0))
                if cluster.trouble.get("status"):
                    return self.reply(cluster.trouble["status"], "rpc error: No cluster leader")
            if cluster.token and self.headers.get("X-Nomad-Token") != cluster.token:
                return self.reply(403, "Permission denied")
            return self.route(self.command, [unquote(p) for p in parts.path.split("/")[1:]], query, body)

        def route(self, method, path, query, body):
            if (method, path) == ("GET", ["v1", "status", "leader"]):
                return self.reply(200, "127.0.0.1:4647")
            if method in ("POST", "PUT") and path == ["v1", "jobs"]:
                job = json.loads(body)["Job"]
                if not job.get("Datacenters") or job["Type"] not in ("batch", "service"):
                    return self.reply(400, "job validation failed")
                return self.reply(200, {"EvalID": cluster.submit(job), "JobModifyIndex": cluster.index})
            if (method, path) == ("GET", ["v1", "jobs"]):
                names = [name for name in cluster.jobs if name.startswith(query.get("prefix", ""))]
                return self.reply(200, [{"ID": name, "Status": "running"} for name in names])
            if method == "GET" and path[:2] == ["v1", "job"] and path[3:] == ["allocations"]:
                self.wait(int(query.get("index", 0)), query.get("wait", "0s"))
                return self.reply(200, cluster.of(path[2]))
            if method == "GET" and path[:2] == ["v1", "allocation"] and path[2] in cluster.allocations:
                return self.reply(200, cluster.allocations[path[2]].whole())
            if method == "GET" and path[:2] == ["v1", "evaluation"] and path[2] in cluster.evaluations:
                return self.reply(200, cluster.evaluations[path[2]])
            if method == "DELETE" and path[:2] == ["v1", "job"] and path[2] in cluster.jobs:
                cluster.remove(path[2])
                return self.reply(200, {"EvalID": str(uuid.uuid4())})
            return self.reply(404, "not found")

        def wait(self, index, wait):
            seconds = float(wait.rstrip("s"))
            with cluster.changed:
                cluster.changed.wait_for(lambda: index == 0 or cluster.index > index, timeout=seconds)

        def reply(self, status, body):
            data = body.encode() if isinstance(body, str) and status >= 400 else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Nomad-Index", str(cluster.index))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


def interpolate(text, variables):
    return re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], match[0]), text)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main():
    port, folder, *token = sys.argv[1:]
    cluster = Cluster(Path(folder), token[0] if token else "")
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), handler(cluster))
    server.daemon_threads = True

    def stop(*_):
        for allocation in list(cluster.allocations.values()):
            allocation.stop()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever()


if __name__ == "__main__":
    main()
