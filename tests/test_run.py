"""A run: what is open in it, what is in its record, and how its work ends."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli_kit import write_sums

from ludus.batch import Batch, evaluate, is_complete, load_tasks
from ludus.config import MAY_CHANGE, Config, load
from ludus.config.build_agent import build_env
from ludus.engine import run_group
from ludus.env import Env
from ludus.errors import BudgetExhausted, ConfigError, ModelError, ModelUnusable, StoreError
from ludus.models import Model
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel
from ludus.policy import Agent, Limits, Policy, Scene
from ludus.run import OPTIMIZER, Run, RunKind, Tell, open_judging, open_run, run_to_end
from ludus.run_events import read_events
from ludus.run_info import read_info, read_spent
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.store import MemoryStore
from ludus.types import Message, Sampling, StopReason, Task

TRIAL = RunKind("trial", failures=(ModelError,))


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sums(tmp_path)


def make_config(**flags: str) -> Config:
    given = {
        "env.name": "sums.py",
        "model.type": "scripted",
        "model.script": "models.py:right",
        "run.out": "r",
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    return load(flags=list(given.items()))


@asynccontextmanager
async def open_trial(config: Config | None = None, kind: RunKind = TRIAL, **more: Any) -> AsyncGenerator[Run, None]:
    async with open_run(config or make_config(), kind, **more) as run:
        yield run


def read_end(path: Path = Path("r")) -> tuple[str, str]:
    info = read_info(path)
    assert info is not None
    return info.state, info.message


# ---- opening ------------------------------------------------------------------------------------------------------


async def test_a_run_has_what_rollouts_are_run_with():
    told: list[str] = []
    async with open_trial(command="ludus trial sums.py", tell=told.append) as run:
        summary = await evaluate(Batch(load_tasks(run.env, "train"), run.policy), run.runner)
        info = read_info(Path("r"))
        assert info is not None and (info.kind, info.state, info.command) == ("trial", "running", "ludus trial sums.py")
        assert run.ledger.total.calls == 4 == len(run.directory.read_scores())
    assert summary.overall.mean == 1.0
    assert read_end() == ("finished", "")
    assert told == []


async def test_what_is_wrong_is_found_before_the_directory_is_made():
    def refuse(policy: Policy) -> None:
        raise ConfigError("the skill is missing")

    with pytest.raises(ConfigError, match="the skill is missing"):
        async with open_trial(prepare=refuse):
            pass
    with pytest.raises(ConfigError, match=r"tracking\.use"):
        async with open_trial(make_config(tracking__use="nonsense")):
            pass
    assert not Path("r").exists()


async def test_a_resumed_run_has_the_same_settings_and_content():
    def hash_skill(found: str) -> Mapping[str, Any]:
        return {"prepare": lambda policy: {"skill": found}}

    async with open_trial(**hash_skill("a")):
        pass
    again = make_config(run__resume="true")
    async with open_trial(again, **hash_skill("a")):
        pass
    with pytest.raises(StoreError, match=r"content\.skill"):
        async with open_trial(again, **hash_skill("b")):
            pass
    with pytest.raises(StoreError, match=r"run\.seed"):
        async with open_trial(make_config(run__resume="true", run__seed="7"), **hash_skill("a")):
            pass
    async with open_trial(make_config(run__resume="true", run__concurrency="7"), **hash_skill("a")):
        pass


async def test_a_kind_says_what_may_change():
    async with open_trial():
        pass
    resumed = make_config(run__resume="true", budget__calls="7")
    with pytest.raises(StoreError, match=r"budget\.calls"):
        async with open_trial(resumed, RunKind("trial", fixed=frozenset({"budget"}))):
            pass
    seeded = make_config(run__resume="true", run__seed="7")
    async with open_trial(seeded, RunKind("trial", may_change=frozenset({"run.seed"}))):
        pass


def test_the_record_of_a_kind_has_the_sections_that_decide_it():
    config = make_config()
    assert {"train", "rl"}.isdisjoint(TRIAL.make_record(config))
    assert "train" in RunKind("trial", sections=frozenset({"train"})).make_record(config)
    assert "sampling" not in RunKind("trial", left_out=frozenset({"sampling"})).make_record(config)
    assert TRIAL.make_record(config, {"tasks": "0"})["content"] == {"tasks": "0"}


class Noted(ScriptedModel):
    """A model that says when it is closed."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(["0"])
        self._notes = notes

    async def close(self) -> None:
        self._notes.append("model")


async def test_what_was_opened_is_closed_in_reverse_also_after_an_error():
    notes: list[str] = []

    class Silent(Agent):
        name = "silent"

        async def act(self, scene: Scene) -> StopReason:
            return StopReason.FINISHED

        async def close(self) -> None:
            notes.append("agent")

    async def open_model(config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
        stack.callback(notes.append, "server")
        return Noted(notes)

    async def open_agent(
        config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack, tell: Tell
    ) -> Agent:
        return Silent()

    with pytest.raises(ZeroDivisionError):
        async with open_trial(open_model=open_model, open_agent=open_agent) as run:
            assert run.policy.agent_name == "silent"
            raise ZeroDivisionError("bug")
    assert notes == ["agent", "model", "server"]
    assert read_end() == ("failed", "bug")


async def test_what_the_optimizer_spends_is_kept_at_once_and_what_a_run_has_spent_is_not_given_twice():
    async with open_trial(make_config(budget__calls="3")) as run:
        await MeteredModel(ScriptedModel(["x"]), run.ledger, OPTIMIZER).complete((), (), Sampling())
        assert read_spent(Path("r"))[OPTIMIZER].calls == 1
    async with open_trial(make_config(budget__calls="3", run__resume="true")) as run:
        assert run.ledger.total.calls == 1


async def test_judging_opens_neither_a_model_nor_a_directory():
    config = make_config(model__script="nowhere.py:act")
    async with open_judging(config, build_env(config)) as runner:
        assert (runner.env.name, runner.pool, type(runner.store)) == ("sums", None, MemoryStore)
    assert not Path("r").exists()


# ---- to the end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [
        (None, "completed", "finished"),
        (BudgetExhausted("the budget is spent"), "budget", "drained"),
        (ModelError("the server is gone"), "broken", "failed"),
        (ModelUnusable("status 401"), "broken", "failed"),
    ],
)
async def test_how_work_ends(error: Exception | None, status: str, state: str):
    async def work(run: Run) -> bool:
        if error is not None:
            raise error
        return True

    async with open_trial() as run:
        outcome = await run_to_end(run, work)
    assert (outcome.status, outcome.message) == (status, str(error or ""))
    assert read_end() == (state, str(error or ""))
    assert Path("r/ledger.jsonl").exists()


@pytest.mark.parametrize(("signals", "words"), [(1, "was finished"), (2, "was dropped")])
async def test_one_signal_asks_the_work_to_stop_and_a_second_one_cancels_it(signals: int, words: str):
    told: list[str] = []

    async def work(run: Run) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        await run.control.wait_for_stop()
        if signals == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return False

    async with open_trial(tell=told.append) as run:
        outcome = await run_to_end(run, work)
    assert (outcome.status, outcome.message) == ("interrupted", f"interrupted; what was under way {words}")
    assert read_end() == ("drained", outcome.message)
    assert told == ["stopping: what runs is finished first; Ctrl-C again drops it"]


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), asyncio.CancelledError()])
async def test_an_error_that_nobody_expects_is_not_an_outcome(error: BaseException):
    async def work(run: Run) -> bool:
        raise error

    with pytest.raises(type(error)):
        async with open_trial() as run:
            await run_to_end(run, work)
    assert read_end() == ("failed", str(error) or "CancelledError")


# ---- runs in which the world does not work ------------------------------------------------------------------------


async def never_answer(*_: object) -> str:
    await asyncio.Event().wait()
    return ""


async def open_silent(config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
    """A model that answers the first task and no other."""

    async def reply(messages: Sequence[Message], *_: object) -> str:
        return "1" if "1 + 0" in messages[-1].content else await never_answer()

    return MeteredModel(ScriptedModel(reply), ledger, "agent")


async def run_batch(run: Run) -> bool:
    batch = Batch(load_tasks(run.env, "train"), run.policy)
    await evaluate(batch, run.runner)
    return is_complete(batch, run.runner)


async def test_a_model_that_never_answers_ends_the_run_which_can_be_resumed():
    told: list[str] = []
    config = make_config(limits__stall_seconds="0.2")
    async with open_trial(config, open_model=open_silent, tell=told.append) as run:
        outcome = await run_to_end(run, run_batch)
        events = list(read_events(run.directory))
        (line,) = [json.loads(line) for line in run.directory.read_lines("metrics.jsonl")]
    done = len(told)
    assert outcome.status == "stalled"
    assert "It waits for: model " in outcome.message and "limits.stall_seconds 0.2" in outcome.message
    assert read_end() == ("drained", outcome.message)
    assert done == 1 and told[0].startswith("nothing has moved for 0 s. It waits for: model ")
    assert [event.kind for event in events] == ["quiet", "ended"]
    assert events[0].facts["phases"][0]["phase"] == "model"
    assert line["activity/model"] >= 1 and line["activity/quiet_seconds"] >= 0.1
    async with open_trial(make_config(run__resume="true")) as run:  # the limit may change, and nothing is lost
        assert (await run_to_end(run, run_batch)).status == "completed"
        assert len(run.directory.read_scores()) == 4


async def test_a_slot_that_never_comes_is_named():
    async with open_trial(make_config(limits__stall_seconds="0.2")) as run:
        runner = replace(run.runner, env=NeedsSlot(), pool=cast(Pool, NoSlots()))

        async def work(_: Run) -> bool:
            await run_group(Task(id="t", prompt="p"), run.policy, runner, size=3)
            return True

        outcome = await run_to_end(run, work)
    assert outcome.status == "stalled" and "It waits for: slot 3 (longest 0 s: t#1)" in outcome.message


class NeedsSlot(Env):
    """An environment with slots."""

    name = "needs-slot"
    sandbox = SandboxSpec()


class NoSlots:
    """A pool whose slots never become free."""

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec) -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()
        yield


async def test_too_many_failures_end_the_run_which_can_be_resumed():
    config = make_config(limits__failed_share="0.25", env__limit="4", run__concurrency="1", run__retries="0")

    async def open_broken(config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
        def reply(messages: Sequence[Message], *_: object) -> str:
            raise ModelError("the server is gone", retryable=False)

        return ScriptedModel(reply)

    async with open_trial(config, open_model=open_broken) as run:

        async def work(run: Run) -> bool:
            batch = Batch(load_tasks(run.env, "train"), run.policy, group_size=10)
            await evaluate(batch, run.runner)
            return is_complete(batch, run.runner)

        outcome = await run_to_end(run, work)
        ended = len(run.directory.read_scores())
        (event,) = read_events(run.directory)
    assert (outcome.status, ended) == ("failing", 20)
    assert outcome.message.startswith("20 of 20 rollouts ended without a score (server 20), more than limits.failed_sh")
    assert read_end() == ("drained", outcome.message)
    assert (event.kind, event.facts["lost"]) == ("ended", {"model": 20})


def test_limits_of_a_run_are_no_part_of_its_policy_or_of_old_records():
    plain = make_config()
    limited = make_config(limits__stall_seconds="9", limits__failed_share="0.5")
    assert limited.limits.get_rollout_limits() == plain.limits.get_rollout_limits() == Limits()
    assert "stall_seconds" not in TRIAL.make_record(plain)["limits"]
    assert {"limits.stall_seconds", "limits.failed_share"} <= MAY_CHANGE
