"""Slots of real docker and podman that have the image of a task: what they are, how they are judged, and what an agent
that is root in them can do.

`make test-hostile` repeats all attacks on both engines; the other tests take a few seconds each.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import attacks_kit
from tests.attacks_kit import check_honest, run_attack
from tests.envs.test_attacks_on_tasks import choose_target
from tests.envs.test_harbor import CHEATS, LONGEST
from tests.sandbox.remote import machinery
from tests.sandbox.remote.machinery import run_command
from tests.verifier_kit import find_attack, get_solution, write_targets

from ludus.attacks.library import Attack, list_attacks
from ludus.envs.harbor import Harbor
from ludus.errors import SandboxError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import ImageSpec, Sandbox, SandboxSpec
from ludus.sandbox.agent_files import collect_files, copy_files
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.remote.fleet import Fleet
from ludus.types import Rollout

ENGINES = ("docker", "podman")
hostile = pytest.mark.skipif(not os.environ.get("LUDUS_TEST_HOSTILE"), reason="runs with `make test-hostile`")
DOCKERFILE = f"""\
FROM {machinery.IMAGE}
ENV GREETING="good day"
WORKDIR /srv/work
RUN mkdir -p /opt/old/deep && echo one >/opt/old/deep/one && echo two >/opt/old/two && ln -s /opt/old /opt/link
COPY <<'EOF' here.txt
costs $5
EOF
RUN <<EOF
echo "$GREETING" >greeting.txt
chown 65534 greeting.txt
EOF
USER nobody
"""
NO_PYTHON = f"FROM {machinery.IMAGE}\nRUN rm /usr/bin/python3*\n"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def command(request: pytest.FixtureRequest, engine: str) -> tuple[str, ...]:
    """The engine's command."""
    socket = request.getfixturevalue(f"{engine}_socket")
    if engine == "docker":
        return ("docker", "--host", f"unix://{socket}")
    return ("podman", "--remote", "--url", f"unix://{socket}")


@pytest.fixture
def fleet(request: pytest.FixtureRequest, engine: str) -> Callable[..., Fleet]:
    return request.getfixturevalue(f"{engine}_fleet")


def make_spec(folder: Path, dockerfile: str = DOCKERFILE, **changes: Any) -> SandboxSpec:
    (folder / "Dockerfile").write_text(dockerfile)
    image = ImageSpec(folder=str(folder), seconds=120)
    return SandboxSpec(**{"disk_mb": 64, "memory_mb": 256, "image": image, **changes})


@asynccontextmanager
async def in_slots(make: Callable[..., Fleet], spec: SandboxSpec, count: int = 1) -> AsyncGenerator[list[Sandbox]]:
    """Slots of a spec that are made at the same time."""
    fleet = make()
    try:
        yield await asyncio.gather(*(fleet.create(spec) for _ in range(count)))
    finally:
        await fleet.close()


async def show(box: Sandbox, command: str) -> str:
    return (await box.exec(command)).text


def list_built(command: Sequence[str]) -> set[str]:
    """The images that were built for tasks."""
    return set(run_command(*command, "image", "ls", "--quiet", "--filter", "label=ludus.image").split())


# ---- what they are ------------------------------------------------------------------------------------------------


async def test_a_slot_is_the_image_of_its_task_and_its_user_is_root(fleet, command, tmp_path):
    before = list_built(command)
    async with in_slots(fleet, make_spec(tmp_path), 2) as (box, other):
        seen = await show(box, "pwd; id -u; echo $GREETING; cat here.txt greeting.txt; stat -c %u greeting.txt")
        assert seen == "/srv/work\n0\ngood day\ncosts $5\ngood day\n65534\n"
        assert await box.read("/workspace/here.txt") == b"costs $5\n"  # /workspace stands for the working folder
        assert await show(box, "echo $HOME $USER; chown 7:8 here.txt && stat -c %u:%g here.txt") == "/ root\n7:8\n"
        assert "localhost" in await show(box, "cat /etc/hosts")
        assert "Network is unreachable" in await show(box, "echo >/dev/tcp/192.0.2.1/80")
        assert "No space left" in await show(box, "head -c 80M /dev/zero >/var/big")
        assert await show(other, "stat -c %u here.txt; ls /var/big /var/lib/ludus* 2>&-") == "0\n"
    assert len(list_built(command) - before) == 1  # although two slots were asked for at once


async def test_settling_ends_processes_and_a_reset_slot_is_the_image_again(fleet, tmp_path):
    async with in_slots(fleet, make_spec(tmp_path)) as (box,):
        await box.exec("echo kept >/etc/kept; (setsid sleep 649.5 &); rm -rf /opt/old; rm greeting.txt")
        await box.settle()
        assert await show(box, "cat /etc/kept; ls /opt; echo /proc/[0-9]*") == "kept\nlink\n/proc/1 /proc/2\n"
        await box.reset()
        assert await show(box, "ls /etc/kept 2>&-; ls /opt/old/two greeting.txt; pwd") == (
            "/opt/old/two\ngreeting.txt\n/srv/work\n"
        )


async def test_the_changes_of_the_whole_root_are_copied_to_a_fresh_slot(fleet, tmp_path):
    async with in_slots(fleet, make_spec(tmp_path), 2) as (agent, fresh):
        await fresh.exec("mkdir -p /tests && echo expected >/tests/expected")
        await agent.exec(
            "rm -r /opt/old && mkdir /opt/old && echo new >/opt/old/new; rm greeting.txt; echo own >>/etc/issue; "
            "mkdir -p /home/me /tests; echo x >/home/me/x; ln -s /tests/expected out.txt; echo mine >/tests/expected; "
            "cp /bin/false /usr/bin/env; mkfifo pipe; ln -s home/me /me"
        )
        await agent.settle()
        left_out = await copy_files(await collect_files(agent), fresh, ("usr", "bin"), ("tests",))
        assert await show(fresh, "ls /opt/old .") == ".:\nhere.txt\n\n/opt/old:\nnew\n"
        assert await show(fresh, "tail -1 /etc/issue; cat /me/x /tests/expected") == "own\nx\nexpected\n"
        assert (await fresh.exec("env true")).exit_code == 0
        assert any("out.txt -> /tests/expected" in line for line in left_out)
        assert any("named pipe" in line for line in left_out)


async def test_what_is_wrong_with_an_image_is_said(engine, fleet, tmp_path):
    (tmp_path / "empty").mkdir()
    remedy = f"Python 3.8 or later; without them use --sandbox.backend bwrap --env.engine {engine}"
    wrong = {
        rf"(?s){engine} cannot build .*told": make_spec(tmp_path, f"FROM {machinery.IMAGE}\nRUN echo told; exit 3\n"),
        remedy: make_spec(tmp_path / "empty", NO_PYTHON),
        rf"'{engine} pull --quiet localhost:1/nothing' failed": SandboxSpec(
            image=ImageSpec(name="localhost:1/nothing", seconds=60)
        ),
        "a slot has an image or a base, not both": SandboxSpec(image=ImageSpec(name="x"), base=("/srv",)),
    }

    there = fleet()
    try:
        for words, spec in wrong.items():
            with pytest.raises(SandboxError, match=words) as told:
                await there.create(spec)
            assert not told.value.retryable, words
    finally:
        await there.close()


# ---- hostile agents -----------------------------------------------------------------------------------------------

ATTACKS: Mapping[str, str] = {
    **CHEATS,
    "a link in the place of the tests": "rm -rf /tests; mkdir /app/t; echo 'echo 1 >/logs/verifier/reward.txt' "
    ">/app/t/test.sh; ln -s /app/t /tests; ln -s /tests/expected /app/longest.txt",
    "its own bash, python, pytest and loader": "for p in bash sh python3 pytest env cat tar; do "
    "printf '#!/usr/bin/perl\nexit 0' >/tmp/p; chmod +x /tmp/p; mv -f /tmp/p /usr/bin/$p; done; "
    "cp /bin/true /lib64/ld-linux-x86-64.so.2; echo /app/evil.so >/etc/ld.so.preload",
    "a fork bomb": ":() { : | : & }; :",
    "a full disk": "head -c 4G /dev/zero >/big; for i in {1..300000}; do : >/app/$i || break; done",
    "all memory": "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'",
    "signals to everything": "kill -9 1; kill -TERM 1; kill -9 -1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done",
    "no files": "rm -rf --no-preserve-root / 2>&-",
    "memory, devices and mounts of others": "mknod /app/sda b 8 0; mount -t proc p /mnt; cat /proc/1/environ; "
    "nsenter -t 1 -a sh; unshare -Ur sh; echo b >/proc/sysrq-trigger; echo 1 >/proc/sys/kernel/panic; "
    "for f in /proc/$$/fd/*; do echo forged >$f; done",
}
QUICK = (
    "a link in the place of the tests",
    "its own bash, python, pytest and loader",
    "signals to everything",
    "memory, devices and mounts of others",
)


async def attempt(fleet: Fleet, env: Harbor, commands: Sequence[str]) -> list[Rollout]:
    """A rollout of the task `longest-line` for each command."""
    task = next(task for task in env.tasks("train") if task.id == "longest-line")

    async def act(pool: Pool, command: str) -> Rollout:
        policy = Policy(ScriptedModel([call("terminal", command=command, timeout=20), say("done")]))
        return await run(Job(task, policy), Runner(env, pool))

    try:
        async with Pool(fleet.create, PoolSettings(max_slots=4)) as pool:
            return [await act(pool, command) for command in commands]
    finally:
        await fleet.close()


async def check_attacks(make: Callable[..., Fleet], command: Sequence[str], names: Sequence[str]) -> None:
    """An honest agent passes, and no attack gets a reward or makes its rollout a failure of the world."""
    name = machinery.IMAGE if command[0] == "docker" else f"localhost/{machinery.IMAGE}"
    run_command(*command, "tag", name, "docker.io/library/python:3.11-slim")
    honest, *others = await attempt(make(), Harbor(engine="backend"), [LONGEST, *(ATTACKS[name] for name in names)])
    assert honest.score is not None, honest.failure
    assert honest.score.passed, honest.score.feedback
    found = {name: (each.failure, each.score and each.score.value) for name, each in zip(names, others, strict=True)}
    assert found == dict.fromkeys(names, (None, 0.0))


async def test_attacks_on_the_verdict_score_0(fleet, command, engine):
    await check_attacks(fleet, command, QUICK if engine == "docker" else QUICK[:2])


@hostile
async def test_every_attack_scores_0(fleet, command):
    await check_attacks(fleet, command, list(ATTACKS))


async def check_library(
    make: Callable[..., Fleet], command: Sequence[str], folder: Path, attacks: list[Attack]
) -> None:
    """The reference solution of every task passes, and no attack of the library on it is paid."""
    name = machinery.IMAGE if command[0] == "docker" else f"localhost/{machinery.IMAGE}"
    targets = sorted({choose_target(attack) for attack in attacks})
    write_targets(folder / "tasks", name, tuple(targets))
    env, fleet = Harbor(path=str(folder / "tasks"), cache=str(folder / "cache"), engine="backend"), make()
    tasks = {task.id: task for task in env.tasks("train")}

    async def act(pool: Pool, id: str, script: str) -> float | None:
        policy = Policy(ScriptedModel([call("terminal", command=script), say("done")]))
        rollout = await run(Job(tasks[id], policy), Runner(env, pool))
        return rollout.score and rollout.score.value

    try:
        async with Pool(fleet.create, PoolSettings(max_slots=4)) as pool:
            solved = {id: await act(pool, id, get_solution(id)) for id in targets}
            found = {attack.name: await act(pool, choose_target(attack), attack.script) for attack in attacks}
    finally:
        await fleet.close()
    assert solved == dict.fromkeys(targets, 1.0)
    assert found == dict.fromkeys(found, 0.0)


async def test_attacks_of_the_library_are_not_paid(docker_fleet, docker_socket, tmp_path):
    names = ("python-shadow-json", "pytest-toml", "program-runs-no-test")
    await check_library(docker_fleet, ("docker",), tmp_path, [find_attack(name) for name in names])


@hostile
async def test_no_attack_of_the_library_is_paid(fleet, command, tmp_path):
    attacks = [
        attack for attack in list_attacks() if choose_target(attack) != "tools"
    ]  # the image has no such programs
    await check_library(fleet, command, tmp_path, attacks)


@hostile
@pytest.mark.parametrize("program", ["HIJACK", "JAM", "QUEUE_ORDERS", "FLOOD_STATUS", "EXHAUST_MEMORY"])
async def test_the_shell_of_a_slot_answers_for_itself(fleet, tmp_path, program):
    async with in_slots(fleet, make_spec(tmp_path)) as (box,):
        arguments = (8, 40) if program == "HIJACK" else ()
        await run_attack(box, getattr(attacks_kit, program), *arguments, seconds=5)
        await check_honest(box)
