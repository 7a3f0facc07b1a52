"""Whole runs and commands on each backend, chosen by settings, by the environment or by a task."""

import json
import os
import shlex
import subprocess
import sys

import msgspec
import pytest

from ludus.cli import main
from ludus.sandbox.owner import make_owner_mark

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]

MODELS = """
from ludus.models.scripted import call, say

def write(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    prompt = messages[-1].content
    path = prompt.split("called ")[1].split(" that")[0]
    return call("terminal", command=f"mkdir -p $(dirname {path}) && printf %s '{prompt.split(chr(34))[1]}' > {path}")
"""

ENV = """
from typing import ClassVar
from msgspec.structs import replace
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Score, Task

class Places(Env, frozen=True):
    name: ClassVar[str] = "places"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(disk_mb=32, memory_mb=256)

    def tasks(self, split):
        yield Task(id="here", prompt="-", answer="no")
        yield Task(id="there", prompt="-", answer="yes")

    def slot(self, task, default):
        return replace(default, profile="container" if task.id == "there" else "")

    async def verify(self, rollout, box):
        done = await box.exec("test -e /etc/ludus-image && echo yes || echo no")
        return Score.of(float(done.text.strip() == rollout.task.answer), done.text)

    async def solve(self, task, box):
        return ""
"""


def settings(kind: str, profile: object, where: str = "") -> list[str]:
    """A profile of the tests as flags."""
    found = msgspec.to_builtins(profile)
    words = [] if where else ["--sandbox.backend", kind]
    prefix = where or f"sandbox.{kind}"
    for name, value in found.items():
        if name != "backend" or where:
            words += [f"--{prefix}.{name}", value if isinstance(value, str) else json.dumps(value)]
    return words


@pytest.mark.parametrize("kind", ["docker", "podman", "ssh", "apptainer", "nomad", "modal"])
def test_a_run_of_rollouts_in_each_backend(kind, request, tmp_path, monkeypatch):
    profile = request.getfixturevalue(f"{kind}_fleet").profile()
    for name, value in request.getfixturevalue(f"{kind}_fleet").secrets.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "models.py").write_text(MODELS)
    command = ["process", "terminal-test", "--out", "r", "--json", "--env.limit", "3", "--env.group_size", "2"]
    command += ["--model.type", "scripted", "--model.script", "models.py:write"]
    command += ["--sandbox.disk_mb", "32", "--sandbox.memory_mb", "256", *settings(kind, profile)]
    done = subprocess.run([*LUDUS, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]["overall"]
    assert (summary["rollouts"], summary["scored"], summary["mean"]) == (6, 6, 1.0)


REPAIRS = """
from ludus.models.scripted import call, say

FIXES = "s/late [*] DAILY/(late - FREE_DAYS) * DAILY/; s/ + 7 [*] self.renewed/ * (1 + self.renewed)/"

def repair(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    return call("terminal", command=f"cd /workspace/shelf && sed -i '{FIXES}' shelf/loans.py && git diff --stat")
"""
KNOWN = (
    "process swe-smith-oracle --env.use_wandb false --env.total_steps 2 --env.group_size 1 --env.max_items 2 "
    "--env.tool_pool_mode modal --env.modal_image python:3.11 --env.modal_slots_per_sandbox 10 "
    "--env.modal_min_sandboxes 1"
)


def test_the_command_that_users_of_hermes_know_runs_on_modal(modal_fleet, tmp_path, monkeypatch):
    for variable, name in (("MODAL_TOKEN_ID", "TEST_MODAL_ID"), ("MODAL_TOKEN_SECRET", "TEST_MODAL_SECRET")):
        monkeypatch.setenv(variable, modal_fleet.secrets[name])
    (tmp_path / "models.py").write_text(REPAIRS)
    more = ["--out", "r", "--json", "--model.type", "scripted", "--model.script", "models.py:repair"]
    more += ["--env.cache", str(tmp_path / "cache"), "--env.allow_network", "false"]  # nothing to download here
    command = [*LUDUS, *shlex.split(KNOWN), *more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]["overall"]
    assert (summary["rollouts"], summary["scored"], summary["mean"]) == (2, 2, 1.0), done.stdout


def test_tasks_of_one_run_may_have_different_profiles(docker_single_fleet, tmp_path):
    (tmp_path / "places.py").write_text(ENV)
    words = settings("docker", docker_single_fleet.profile(), "sandbox.profiles.container")
    command = [*LUDUS, "evaluate", "places.py", "--out", "r", "--json", "--model.type", "scripted", *words]
    (tmp_path / "models.py").write_text("def say(messages, tools, sampling):\n    return 'done'\n")
    done = subprocess.run(
        [*command, "--model.script", "models.py:say"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]["overall"]
    assert (summary["scored"], summary["mean"]) == (2, 1.0)


def test_sandbox_commands_and_a_dead_driver(docker_single_fleet, docker_socket, capfd):
    """`ludus sandbox` and the doctor, on an engine where a dead driver has left a container."""
    words = settings("docker", docker_single_fleet.profile())
    host, boot, _, _ = make_owner_mark().split("_")
    marks = {"dead": f"{host}_{boot}_999999_1", "alive": make_owner_mark()}
    engine = ["docker", "--host", f"unix://{docker_socket}"]
    for name, mark in marks.items():
        made = [*engine, "create", "--name", name, "--network", "none", "--label", f"ludus.owner={mark}"]
        subprocess.run([*made, "ludus-test:latest", "true"], check=True, capture_output=True)
    try:
        assert main(["sandbox", "prune", *words]) == 0
        assert f"of process 999999 of {host}" in capfd.readouterr().out
        listed = subprocess.run([*engine, "ps", "--all", "--format", "{{.Names}}"], check=True, capture_output=True)
        assert set(marks) & set(listed.stdout.decode().split()) == {"alive"}
        assert main(["sandbox", "status", *words]) == 0
        said = capfd.readouterr().out
        assert "works   docker: a slot ran" in said
        assert "memory: the container's control group" in said
        assert f"(docker): process {os.getpid()} of {host}" in said
    finally:
        subprocess.run([*engine, "rm", "--force", *marks], capture_output=True, check=False)
    capfd.readouterr()
    assert main(["sandbox", "exec", "cat /etc/ludus-image; echo $HOME", *words]) == 0
    assert capfd.readouterr().out == "/home/agent\n"
