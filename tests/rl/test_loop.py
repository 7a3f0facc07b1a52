"""The RL loop: it learns, stays on-policy or within its staleness, and continues exactly after a kill."""

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.rl_kit import Letters, TableTrainer, collect, make_run

from ludus.control import RunControl
from ludus.errors import ConfigError
from ludus.rl.loop import check_settings, list_checkpoints, run_rl
from ludus.rl.records import RlStep, encode_step, find_best_step, read_steps
from ludus.rl.settings import RlSettings
from ludus.rl.trainers import TrainingDiverged
from ludus.runner import RunOptions
from ludus.store import MemoryStore, RunDir
from ludus.types import Sampling


def encode(records: list[RlStep]) -> list[bytes]:
    return [encode_step(record) for record in records]


async def test_the_reward_rises_and_held_out_tasks_are_measured():
    held_out = tuple(Letters().tasks("validation"))
    run = make_run(TableTrainer(rate=8.0), steps=30, groups=6, group_size=8, eval_every=10, held_out=held_out)
    records = await collect(run)
    assert [record.step for record in records] == list(range(31))
    rewards = [record.reward or 0.0 for record in records[1:]]
    assert sum(rewards[:3]) / 3 < 0.5 < 0.85 < sum(rewards[-3:]) / 3
    measured = {record.step: record.held_out for record in records if record.held_out}
    assert list(measured) == [0, 10, 20, 30]
    assert measured[0] and measured[30] and (measured[0].mean or 0) < (measured[30].mean or 0)
    assert records[-1].version == run.trainer.version


async def test_on_policy_rows_are_of_the_version_that_learns_from_them():
    trainer = TableTrainer()
    records = await collect(make_run(trainer))
    assert [{row.version for row in rows} for rows in trainer.seen] == [{n} for n in range(len(trainer.seen))]
    assert all(record.stalest == 0 for record in records)


async def test_rollouts_go_on_while_the_trainer_is_busy_within_the_staleness():
    trainer = TableTrainer()
    records = await collect(make_run(trainer, staleness=2, steps=12))
    assert len(records) == 13
    assert 0 < max(record.stalest for record in records) <= 2
    taken = [group.number for record in records for group in record.groups]
    assert len(taken) == len(set(taken))


async def test_every_model_is_closed():
    trainer = TableTrainer()
    await collect(make_run(trainer, staleness=1))
    assert trainer.models and all(model.closed for model in trainer.models)


async def test_a_step_without_rows_keeps_the_version():
    trainer = TableTrainer()
    trainer.logits = {str(number): [50.0 * (number % 4 == letter) for letter in range(4)] for number in range(6)}
    records = await collect(make_run(trainer))
    assert [record.version for record in records] == [0] * 5
    assert trainer.seen == []
    assert {group.dropped for record in records for group in record.groups} == {"equal_scores"}
    assert records[-1].reward == 1.0


async def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_weights(tmp_path: Path):
    trainer = TableTrainer(poison=2)

    with pytest.raises(TrainingDiverged):
        await collect(make_run(trainer, checkpoints=tmp_path))
    assert trainer.version == 2
    again = TableTrainer()
    await again.load(list_checkpoints(tmp_path)[-1])
    assert (again.version, again.logits) == (2, trainer.logits)


@pytest.mark.parametrize(
    ("changes", "sampling", "words"),
    [
        ({"group_size": 1}, Sampling(), "rl.group_size"),
        ({}, Sampling(temperature=0.7), "sampling.temperature"),
        ({}, Sampling(top_p=0.9), "sampling.top_p"),
        ({"eval_split": "train"}, Sampling(), "rl.eval_split"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], sampling: Sampling, words: str):
    with pytest.raises(ConfigError, match=words):
        check_settings(msgspec.convert({**changes}, RlSettings), sampling)


def test_versions_of_different_runs_have_different_names_and_version_0_has_not():
    one, other = make_run(seed=1), make_run(seed=2)
    assert one.name_version(0) == other.name_version(0) == "table"
    assert one.name_version(3) != other.name_version(3)
    assert one.name_version(3) == make_run(seed=1, steps=99).name_version(3)


# ---- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("stopped", [1, 2, 4, 5])
async def test_a_run_that_was_stopped_continues_to_the_same_records(tmp_path: Path, stopped: int, every: int):
    whole = await collect(make_run(steps=6))
    store, settings = MemoryStore(), {"checkpoints": tmp_path, "steps": 6, "checkpoint_every": every}
    await collect(make_run(store=store, **settings), most=stopped)
    trainer = TableTrainer()
    assert encode(await collect(make_run(trainer, store=store, **settings))) == encode(whole)
    assert encode(read_steps(store)) == encode(whole)


async def test_a_kill_between_the_checkpoint_and_its_record_loses_nothing(tmp_path: Path):
    store = MemoryStore()
    whole = await collect(make_run(store=store, checkpoints=tmp_path))
    last = next(key for key, (_, body) in store.bodies.items() if b'"step":4' in body)
    del store.bodies[last]
    assert encode(await collect(make_run(store=store, checkpoints=tmp_path))) == encode(whole)


async def test_an_incomplete_checkpoint_is_not_used(tmp_path: Path):
    store = MemoryStore()
    whole = await collect(make_run(store=store, checkpoints=tmp_path))
    (tmp_path / ".draft").mkdir()
    (tmp_path / ".draft" / "table.json").write_text("{")
    shutil.rmtree(list_checkpoints(tmp_path)[-1])
    assert encode(await collect(make_run(store=store, checkpoints=tmp_path))) == encode(whole)


async def test_only_the_last_checkpoints_are_kept(tmp_path: Path):
    await collect(make_run(checkpoints=tmp_path, steps=5))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000004", "step-000005"]


async def test_the_checkpoint_with_the_best_score_is_kept(tmp_path: Path):
    held_out = tuple(Letters().tasks("validation"))
    trainer = TableTrainer(rate=30.0)
    run = make_run(trainer, checkpoints=tmp_path, steps=9, eval_every=1, held_out=held_out)
    records: list[RlStep] = []
    async for record in run_rl(run):
        records.append(record)
        if record.step == 4:
            trainer.rate = -90.0  # from here on it learns the opposite
    best = find_best_step(records)
    assert best is not None and 0 < best.step < 8
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == [f"step-{best.step:06}", "step-000008", "step-000009"]


async def test_a_finished_run_can_be_continued_with_more_steps(tmp_path: Path):
    store = MemoryStore()
    await collect(make_run(store=store, checkpoints=tmp_path, steps=2))
    records = await collect(make_run(store=store, checkpoints=tmp_path, steps=5))
    assert encode(records) == encode(await collect(make_run(steps=5)))


async def test_ctrl_c_finishes_what_runs():
    control = RunControl()
    control.stop()
    records = await collect(make_run(options=RunOptions(concurrency=4, control=control)))
    assert [record.step for record in records] == [0]


def stop_at(last: int, control: RunControl) -> Callable[[Any], Awaitable[None]]:
    """A gate that asks the run to stop when so many replies were asked for."""
    replies = itertools.count(1)

    async def count(_: Any) -> None:
        if next(replies) == last:
            control.stop()

    return count


@pytest.mark.parametrize("every", [1, 2])
async def test_a_run_that_drains_at_any_reply_continues_to_the_same_records(tmp_path: Path, every: int):
    """Also within an evaluation: the mean of those held-out rollouts that had begun is another number."""
    held_out, settings = tuple(Letters().tasks("validation")), {"steps": 2, "groups": 2, "group_size": 3}
    whole = encode(await collect(make_run(held_out=held_out, eval_every=1, **settings)))
    for last in range(1, 6 + 2 * (6 + 6)):
        control, store = RunControl(), MemoryStore()
        settings |= {"checkpoints": tmp_path / str(last), "checkpoint_every": every, "eval_every": 1}
        options = RunOptions(concurrency=2, control=control)
        trainer = TableTrainer(gate=stop_at(last, control))
        drained = make_run(trainer, held_out=held_out, store=store, options=options, **settings)
        assert encode(await collect(drained)) == whole[: len(read_steps(store))]
        assert encode(await collect(make_run(held_out=held_out, store=store, **settings))) == whole


_SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.rl_kit import collect, make_run
from ludus.store import RunDir

out = Path(sys.argv[1])
with RunDir.open(out, {}, resume=True) as run:
    asyncio.run(collect(make_run(store=run, checkpoints=out / "checkpoints", steps=12)))
"""


def start(out: Path) -> "subprocess.Popen[bytes]":
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([".", os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(out)], cwd=root, env={**os.environ, "PYTHONPATH": path})


async def test_kill_9_at_any_moment_leads_to_the_same_records(tmp_path: Path):
    whole = await collect(make_run(steps=12))
    out, sampled, kills = tmp_path / "run", random.Random(0), 0
    while True:
        process = start(out)
        wanted = count_outcomes(out) + sampled.randint(1, 40)
        while process.poll() is None and count_outcomes(out) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode == 0 and kills >= 3
    with RunDir.read(out) as run:
        assert encode(read_steps(run)) == encode(whole)
        assert len(run.read_scores()) == 12 * 3 * 4


def count_outcomes(out: Path) -> int:
    """The rollouts in the store of a run that another process writes."""
    if not (out / "store.sqlite").exists():
        return 0
    try:
        with RunDir.read(out) as run:
            return len(run.read_scores())
    except Exception:  # it is being made
        return 0
