"""The socket of a run that runs: what its owner can change, and what nobody can break with it."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.build import make_rollout

from ludus import control_server
from ludus.control_client import (
    FOLDER,
    LONGEST_REQUEST,
    SOCKET,
    ControlReply,
    ControlRequest,
    PauseRequest,
    RequeueRequest,
    ResumeRequest,
    SetRequest,
    StatusRequest,
    StopRequest,
    ask_run,
)
from ludus.control_server import MOST_CLIENTS, find_failed, serve_control
from ludus.engine import address_jobs, run_stored
from ludus.env import Env
from ludus.errors import ModelError, StoreError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.run_events import read_events
from ludus.runner import Job, Runner, RunOptions
from ludus.store import RunDir
from ludus.types import Rollout, Score, Task


class Yes(Env, frozen=True):
    """Always right."""

    name = "yes"
    sandbox = None

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(1.0)


@asynccontextmanager
async def open_controlled(path: Path, told: list[str] | None = None) -> AsyncGenerator[Runner, None]:
    with RunDir.open(path, {}) as directory:
        runner = Runner(Yes(), store=directory, options=RunOptions(3, retries=0))
        async with serve_control(runner, directory, (told if told is not None else []).append):
            yield runner


async def ask(path: Path, request: ControlRequest) -> ControlReply:
    return await asyncio.to_thread(ask_run, path, request)


# ---- what the owner can do ----------------------------------------------------------------------------------------


async def test_a_run_does_what_it_is_asked_and_records_who_asked(tmp_path: Path):
    told: list[str] = []
    async with open_controlled(tmp_path / "r", told) as runner:
        control = runner.options.control
        assert (await ask(tmp_path / "r", SetRequest(concurrency=9))).text == "concurrency set to 9"
        reply = await ask(tmp_path / "r", PauseRequest())
        assert reply.status is not None and (reply.status.paused, reply.status.concurrency) == (True, 9)
        assert control.paused
        await ask(tmp_path / "r", ResumeRequest())
        assert not control.paused
        await ask(tmp_path / "r", StopRequest())
        assert (control.is_stopping, control.reason) == (True, "stopped by ludus ctl")
        refused = await ask(tmp_path / "r", PauseRequest())
        assert (refused.ok, refused.text) == (False, "the run is stopping: there is nothing to pause")
        assert isinstance(runner.store, RunDir)
        events = list(read_events(runner.store))
    assert [event.facts["do"] for event in events] == ["set", "pause", "resume", "stop"]
    assert all(event.who.endswith(f"process {os.getpid()}") for event in events)
    assert len(told) == 4 and told[0].startswith("concurrency set to 9 (ludus ctl, ")


async def test_a_status_is_not_recorded_and_says_what_the_run_waits_for(tmp_path: Path):
    async with open_controlled(tmp_path / "r") as runner:
        with runner.activity.follow("t#1"):
            status = (await ask(tmp_path / "r", StatusRequest())).status
        assert status is not None
        assert (status.pid, status.concurrency, status.stored, status.stopping) == (os.getpid(), 3, 0, False)
        assert [(each.phase, each.who) for each in status.activity.phases] == [("other", "t#1")]
        assert isinstance(runner.store, RunDir) and list(read_events(runner.store)) == []


async def test_what_failed_is_run_again_in_the_same_run(tmp_path: Path):
    broken, asked = {"b"}, list[str]()

    async def reply(messages: list[object], *_: object) -> str:
        name = str(getattr(messages[-1], "content", ""))
        asked.append(name)
        if name in broken:
            raise ModelError("no server", retryable=False)
        if name == "c":  # the last one: in the meantime, somebody repairs the server and asks for the failed one again
            broken.clear()
            assert (await ask(tmp_path / "r", RequeueRequest(ids=("b",)))).ok
        return "yes"

    policy = Policy(ScriptedModel(reply))
    async with open_controlled(tmp_path / "r") as runner:
        jobs = address_jobs([Job(Task(id=name, prompt=name), policy) for name in "abc"], runner.env)
        found: list[tuple[str, bool]] = []
        await run_stored(
            jobs, runner, on_outcome=lambda _, rollout: found.append((rollout.task.id, rollout.score is not None))
        )
        assert runner.options.control.requeued == ()
        assert all(runner.store.read_scores().values())
    assert sorted(asked) == ["a", "b", "b", "c"]
    assert found[-1] == ("b", True) and ("b", False) in found


def test_only_rollouts_without_a_score_are_found():
    failed = [(f"key{n}", make_rollout(None, task=Task(id=task, prompt=""))) for n, task in enumerate("aab")]
    assert find_failed(failed, ["a"]) == ["key0", "key1"]
    assert find_failed(failed, ["key2", "b#1"]) == ["key2"]
    with pytest.raises(StoreError, match="no rollout of 'c' has failed"):
        find_failed(failed, ["a", "c"])


# ---- where it is, and who can reach it ----------------------------------------------------------------------------


async def test_the_socket_is_its_owners_alone_and_is_removed_at_the_end(tmp_path: Path):
    folder = tmp_path / "r" / FOLDER
    before = os.umask(0)
    try:
        async with open_controlled(tmp_path / "r"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not folder.exists()


async def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_controlled(tmp_path / "r") as runner:
        monkeypatch.setattr(control_server, "_find_peer", lambda _: None)
        reply = await ask(tmp_path / "r", StopRequest())
        assert (reply.ok, reply.status) == (False, None) and "only the user who runs it" in reply.text
        assert not runner.options.control.is_stopping


async def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path):
    folder = tmp_path / "r" / FOLDER
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / SOCKET))
    with pytest.raises(StoreError, match="no run answers there"):
        ask_run(tmp_path / "r", StatusRequest())
    with RunDir.open(tmp_path / "x", {}) as directory:
        (tmp_path / "x" / FOLDER).mkdir()
        (folder / SOCKET).rename(tmp_path / "x" / FOLDER / SOCKET)
        async with serve_control(Runner(Yes(), store=directory), directory, print):
            assert (await ask(tmp_path / "x", StatusRequest())).ok


async def test_a_path_that_is_too_long_for_an_address_works(tmp_path: Path):
    path = tmp_path / ("long" * 30) / ("name" * 30)
    async with open_controlled(path):
        assert (await ask(path, StatusRequest())).ok
    with pytest.raises(StoreError, match="no run answers there"):
        ask_run(path, StatusRequest())


async def test_a_run_without_a_place_for_its_socket_goes_on_and_says_so(tmp_path: Path):
    told: list[str] = []
    (tmp_path / "r").mkdir()
    with RunDir.open(tmp_path / "r", {}) as directory:
        (tmp_path / "r" / FOLDER / SOCKET).mkdir(parents=True)
        async with serve_control(Runner(Yes(), store=directory), directory, told.append):
            pass
    assert len(told) == 1 and told[0].startswith("this run cannot be controlled with `ludus ctl`: ")


# ---- hostile clients ----------------------------------------------------------------------------------------------


async def send(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path / FOLDER / SOCKET)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    except OSError:  # the run has closed the connection
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"pause",
        b"{}",
        b'{"do":"explode"}',
        b'{"do":"set"}',
        b'{"do":"set","concurrency":0}',
        b'{"do":"set","concurrency":1e30}',
        b'{"do":"set","concurrency":"many"}',
        b'{"do":"pause","why":"because"}',
        b'{"do":"requeue","ids":[]}',
        b'{"do":"requeue","ids":["' + b"x" * 2000 + b'"]}',
        b"[" * 20_000,
        b"\xff\xfe\x00",
    ],
)
async def test_a_request_that_is_wrong_is_refused_and_changes_nothing(tmp_path: Path, line: bytes):
    async with open_controlled(tmp_path / "r") as runner:
        reply = json.loads(await send(tmp_path / "r", line + b"\n"))
        control = runner.options.control
        assert (reply["ok"], reply["status"]) == (False, None) and reply["text"]
        assert (control.paused, control.is_stopping, control.concurrency, control.requeued) == (False, False, None, ())
        assert (await ask(tmp_path / "r", StatusRequest())).ok


async def test_clients_that_send_too_much_nothing_or_half_a_line_hold_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control_server, "CLIENT_SECONDS", 0.2)
    async with open_controlled(tmp_path / "r"):
        path = tmp_path / "r"
        slow = [await asyncio.open_unix_connection(path / FOLDER / SOCKET) for _ in range(MOST_CLIENTS)]
        slow[0][1].write(b'{"do":')
        await asyncio.sleep(0.05)
        assert await send(path, b'{"do":"status"}\n') == b""  # no room: closed at once
        assert [await reader.read() for reader, _ in slow] == [b""] * MOST_CLIENTS  # their time is over
        assert await send(path, b"x" * (4 * LONGEST_REQUEST)) == b""
        assert (await ask(path, StatusRequest())).ok
        for _, writer in slow:
            writer.close()


async def test_a_client_that_is_connected_when_the_run_ends_does_not_delay_it(tmp_path: Path):
    async with open_controlled(tmp_path / "r"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "r" / FOLDER / SOCKET)
        await asyncio.sleep(0)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()
