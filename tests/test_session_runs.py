"""Sessions as rollouts: their tasks, their ends, and runs of earlier versions."""

import asyncio
from pathlib import Path

import pytest
from tests.gateway_kit import Kit, kit

from ludus.config import load, to_record
from ludus.encoding import to_json
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.service import BadRequest
from ludus.gateway.session import Exchange, SessionRecord
from ludus.models.scripted import ScriptedModel
from ludus.run import tell_nobody
from ludus.session_runs import (
    SESSIONS,
    SessionWriter,
    find_task,
    group_sessions,
    import_sessions,
    make_rollout,
    make_session_key,
    read_sessions,
)
from ludus.store import RunDir
from ludus.types import Call, Completion, Failure, Finish, Message, Sampling, Score, StopReason

__all__ = ["kit"]


def make_record(name: str = "sum-1", *, finish: Finish = Finish.STOP, **fields) -> SessionRecord:
    call = Call("c", "add", "{}")
    first = Exchange(
        api="chat",
        messages=(Message("system", "Be brief."), Message("user", "1+1")),
        sampling=Sampling(temperature=0.5),
        completion=Completion(Message("assistant", "", (call,)), Finish.CALLS),
    )
    second = Exchange(
        api="chat",
        follows=0,
        messages=(Message("tool", "2", call_id="c"),),
        completion=Completion(Message("assistant", "2"), finish),
    )
    return SessionRecord(**{"name": name, "model": "m", "exchanges": (first, second), "requests": 2, **fields})


def test_a_session_is_a_rollout():
    rollout = make_rollout(make_record(seconds=3.0))
    assert (rollout.task.id, rollout.task.prompt) == ("sum-1", "1+1")
    assert (rollout.stop, rollout.score, rollout.failure, rollout.seconds) == (StopReason.FINISHED, None, None, 3.0)
    assert [message.role for message in rollout.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (rollout.answer, rollout.turns[-1].stop) == ("2", StopReason.FINISHED)
    assert (rollout.provenance.model, rollout.provenance.sampling.temperature) == ("m", 0.5)


@pytest.mark.parametrize(
    ("record", "stop"),
    [
        (make_record(stop="budget"), StopReason.MAX_TURNS),
        (make_record(stop="context"), StopReason.CONTEXT),
        (make_record(finish=Finish.LENGTH), StopReason.LENGTH),
        (make_record(finish=Finish.FILTER), StopReason.FILTERED),
        (make_record(failure=Failure("model", "on fire")), StopReason.FAILED),
        (make_record(failure=Failure("model", "no key"), stop="unusable"), StopReason.FAILED),
        (make_record(exchanges=()), StopReason.FAILED),
    ],
)
def test_how_a_session_ended(record: SessionRecord, stop: StopReason):
    assert make_rollout(record).stop is stop


def test_a_failed_session_has_no_score():
    assert make_rollout(make_record(score=Score.of(0.5))).score == Score.of(0.5)
    assert make_rollout(make_record(score=Score.of(0.5), failure=Failure("model", "on fire"))).score is None


@pytest.mark.parametrize(
    ("name", "task", "found"),
    [("sum-1", "", "sum-1"), ("sum-1~2", "", "sum-1"), ("a~b~c", "", "a"), ("~x", "", "~x"), ("s~1", "a/b~c", "a/b~c")],
)
def test_the_client_names_the_task(name: str, task: str, found: str):
    assert find_task(make_record(name, task=task)) == found


def open_run(folder: Path) -> RunDir:
    return RunDir.open(folder / "run", to_record(load()), resume=True)


def test_sessions_form_groups_by_task(tmp_path: Path):
    with open_run(tmp_path) as directory:
        writer = SessionWriter(directory, tell_nobody)
        for number, name in enumerate(("a~1", "b", "a~2", "a~1")):
            writer(make_record(name, started=float(number)))
        writer(make_record("empty", requests=0))
        assert writer.count == 4
        groups = group_sessions(directory)
    assert [(group.task.id, [r.provenance.replicate for r in group.rollouts]) for group in groups] == [
        ("a", [0, 1, 2]),
        ("b", [0]),
    ]


def test_runs_of_earlier_versions_are_read_and_stored_once(tmp_path: Path):
    records = [make_record("a~1", started=1.0), make_record("a~2", started=2.0)]
    with open_run(tmp_path) as directory:
        for record in records:
            directory.append(SESSIONS, to_json(record))
    with RunDir.read(tmp_path / "run") as directory:
        assert [key for key, _ in read_sessions(directory)] == [make_session_key(record) for record in records]
        assert [len(group.rollouts) for group in group_sessions(directory)] == [2]
    with open_run(tmp_path) as directory:
        import_sessions(directory)
        import_sessions(directory)
        SessionWriter(directory, tell_nobody)(make_record("a~3", started=3.0))
        assert len(list(read_sessions(directory))) == len(list(directory.read_outcomes())) == 3


async def test_a_session_is_scored_while_it_is_open_and_after_it_ended(tmp_path: Path, kit: Kit):
    with open_run(tmp_path) as directory:
        writer = SessionWriter(directory, tell_nobody)
        sessions = NamedSessions(writer)
        release = asyncio.Event()

        async def reply(messages, tools, sampling):
            if messages[-1].content == "wait":
                await release.wait()
            return "ok"

        async with kit.serve_model(ScriptedModel(reply), routes=[sessions.handle]) as client:
            gateway = client.gateway

            async def ask(name: str, words: str) -> None:
                body = {"messages": [{"role": "user", "content": words}]}
                assert (await client.post(f"{gateway.url}/s/{name}/v1/chat/completions", body)).status == 200

            async def score(name: str, value: float) -> str:
                try:
                    scored = await writer.store_score(sessions, gateway, name, Score.of(value))
                except BadRequest as error:
                    return f"{error.status} {error}"
                return scored.task

            waiting = asyncio.create_task(ask("a~1", "wait"))
            await kit.until(lambda: gateway.count == 1 and gateway.sessions[0].tasks)
            assert (await score("a~1", 1.0)).startswith("409 session 'a~1' still has requests that run")
            release.set()
            await waiting
            assert await score("a~1", 1.0) == "a"
            assert gateway.count == 0
            assert (await score("a~1", 0.0)).startswith("409 session 'a~1' already has the score 1")
            assert await score("b", 0.0) == "404 there is no session 'b'"
            await ask("a~1", "hi")  # a new session of the same name
            await sessions.close(gateway)
            assert await score("a~1", 0.25) == "a"
        assert sorted(value or 0.0 for value in directory.read_scores().values()) == [0.25, 1.0]
        assert len(list(directory.read_lines(SESSIONS))) == 2
