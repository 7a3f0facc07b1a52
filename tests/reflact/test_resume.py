"""Killed anywhere, a run comes to what it would have come to: the same steps, decisions and skills, byte for byte.

A child process trains and kills itself (SIGKILL) at a random point: before or after any reply of a model and any write
to the store, or where a record is handed over. Then the run is resumed, sometimes to be killed once more, and at the
end compared with a run that was never interrupted. `LUDUS_KILLS=200` tries more points than the default.
"""

import asyncio
import hashlib
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.cli_kit import is_killed

from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.models.scripted import ScriptedModel
from ludus.reflact.gate import Gate
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.optimizer import CALLS
from ludus.reflact.records import LEDGER_ACTIONS, Record, Step, Summary
from ludus.reflact.train_settings import Appendix, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import read_records
from ludus.runner import Runner, RunOptions
from ludus.store import RunDir
from ludus.types import Message, Rollout, Sampling

KILLS = int(os.environ.get("LUDUS_KILLS", "25"))

SETTINGS = TrainSettings(
    recipe="reflact",
    epochs=3,
    batch_size=2,
    accumulation=2,
    minibatch_size=2,
    merge_batch_size=2,
    edit_budget=3,
    min_edit_budget=1,
    slow=SlowUpdate(samples=3, gated=False, pairs="changed"),
    appendix=Appendix(enabled=True, consolidate_above=2),
    gate=Gate(metric="mixed"),
    optimizer_tries=2,
)
VARIANTS = {
    "patch": SETTINGS,
    "rewrite": msgspec.structs.replace(SETTINGS, update_mode="rewrite_from_suggestions", control="autonomous"),
    "documents": msgspec.structs.replace(
        SETTINGS, update_mode="full_rewrite_minibatch", slow=SlowUpdate(samples=3), gate=Gate(metric="soft")
    ),
    "ledger": msgspec.structs.replace(
        SETTINGS, recipe="ledger", epochs=4, ledger=LedgerSettings(batch_size=3, block_size=2)
    ),
}


def chance(messages: Sequence[Message]) -> random.Random:
    """A die that falls alike whenever the same is asked."""
    said = "\0".join(message.content for message in messages)
    return random.Random(hashlib.sha256(said.encode()).digest())


def moody(world: SimpleNamespace, messages: Sequence[Message]) -> Any:
    """An optimizer that helps, harms, misplaces, babbles and repeats itself, depending on every word it is shown."""
    die = chance(messages)
    if die.random() < 0.35:
        return "Let me think about it."
    reply = world.optimizer(messages)
    role = world.get_stage(messages)
    if role == "analyst_lines":
        harm = {"situation": "too sober", "content": world.HARM, "rollouts": [1]}
        passage = {"situation": "wrong title", "op": "replace", "target": "# Skill", "content": "# Rules"}
        better = {"situation": "RULE-1 is missing", "content": "Obey RULE-1, always.", "replaces": "L1"}
        reply["items"] = die.sample([*reply["items"], harm, passage, better], die.randrange(1, 4))
    elif role.startswith("analyst") and '"op"' in messages[0].content:
        extra = [
            world.edit(world.HARM),
            world.edit(f"Be brief, {die.randrange(5)}."),
            world.edit("Nowhere.", "insert_after", target="no such text"),
            world.edit("", "delete", target=f"Obey {world.rule(die.randrange(3))}."),
        ]
        reply["items"] = die.sample([*reply["items"][:1], *extra], die.randrange(3))
    if role == "slow":
        reply["guidance"] = die.choice(["Keep going.", "Obey RULE-1.", world.HARM])
    if role == "budget":
        reply["budget"] = die.randrange(3)
    if role == "meta":
        reply["memory"] = f"Lesson {die.randrange(100)}."
    return reply


class Life:
    """Counts the moments of a process, and ends it at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.moment = 0
        self.last = last

    def passes(self) -> None:
        self.moment += 1
        if self.moment == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A store in a process that may end before or after each write."""

    def __init__(self, run: RunDir, life: Life) -> None:
        self._run, self._life = run, life
        self.get, self.get_record, self.read_scores = run.get, run.get_record, run.read_scores
        self.read_records = run.read_records

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        self._life.passes()
        kept = self._run.keep(key, rollout)
        self._life.passes()
        return kept

    def put(self, key: str, rollout: Rollout) -> None:
        self.keep(key, rollout)

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        self._life.passes()
        kept = self._run.put_record(key, kind, body)
        self._life.passes()
        return kept


async def work(world: SimpleNamespace, path: Path, settings: TrainSettings, life: Life) -> list[Record]:
    async def agent(*asked: Any) -> Message:
        for _ in range(random.randrange(4)):  # what ends first is left to chance, in every process anew
            await asyncio.sleep(0)
        life.passes()
        return world.agent(*asked)

    async def optimizer(messages: Sequence[Message], tools: Any, sampling: Sampling) -> Any:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        life.passes()
        reply = moody(world, world.tag(messages, sampling.stage))
        return reply if isinstance(reply, str) else msgspec.json.encode(reply).decode()

    seen: list[Record] = []
    with RunDir.open(path, {"train": msgspec.to_builtins(settings)}, resume=True) as run:
        async for record in train(
            Runner(world.Env(), store=Mortal(run, life), options=RunOptions(concurrency=3)),
            world.policy(script=agent),
            world.splits(train=6, selection=3, test=3),
            settings,
            optimizer=ScriptedModel(optimizer, name="moody"),
        ):
            life.passes()
            seen.append(record)
    return seen


def timeless(records: Sequence[Record]) -> list[bytes]:
    return [to_json(msgspec.structs.replace(record, seconds={})) for record in records]


def left_behind(path: Path) -> tuple[list[bytes], set[str], set[str]]:
    """What a run directory holds: its records, and the addresses of its calls and rollouts."""
    with RunDir.read(path) as run:
        return timeless(list(read_records(run))), {key for key, _ in run.read_records(CALLS)}, set(run.read_scores())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_killed_comes_to_the_same_end(world: SimpleNamespace, tmp_path: Path, variant: str):
    settings = VARIANTS[variant]
    life = Life()
    whole = timeless(asyncio.run(work(world, tmp_path / "whole", settings, life)))
    kept = left_behind(tmp_path / "whole")
    assert kept[0] == whole
    points = random.Random(variant)
    ended = 0
    for number in range(KILLS // len(VARIANTS) + 1):
        path = tmp_path / str(number)
        for _ in range(points.choice([1, 1, 2])):
            last = points.randrange(1, life.moment)
            ended += is_killed(lambda path=path, last=last: asyncio.run(work(world, path, settings, Life(last))))
        assert timeless(asyncio.run(work(world, path, settings, Life()))) == whole
        assert left_behind(path) == kept
    assert ended >= KILLS // len(VARIANTS)


async def test_the_runs_that_are_killed_are_worth_it(world: SimpleNamespace, tmp_path: Path):
    """Between them they go through every kind of decision and event."""
    actions: set[str] = set()
    events: set[str] = set()
    for variant, settings in VARIANTS.items():
        records = await work(world, tmp_path / variant, settings, Life())
        actions |= {record.action for record in records if isinstance(record, Step)}
        events |= {event.stage for record in records if isinstance(record, Step) for event in record.events}
        assert isinstance(records[-1], Summary)
    assert {"accept_new_best", "reject", "skip_no_updates", *LEDGER_ACTIONS} <= actions
    assert {"analyst", "merge"} <= events


async def test_a_finished_run_is_resumed_without_a_single_call(world: SimpleNamespace, tmp_path: Path):
    first = await work(world, tmp_path / "run", SETTINGS, Life())
    life = Life()
    again = await work(world, tmp_path / "run", SETTINGS, life)
    assert again == first  # to the last bit, timings included: nothing was done again
    assert life.moment == len(again)


async def test_a_changed_setting_is_refused_with_the_difference(world: SimpleNamespace, tmp_path: Path):
    await work(world, tmp_path / "run", SETTINGS, Life())
    changed = msgspec.structs.replace(SETTINGS, edit_budget=4)
    with pytest.raises(StoreError, match=r"train\.edit_budget: 3 → \(not set\)"):  # 4 is the default
        await work(world, tmp_path / "run", changed, Life())
