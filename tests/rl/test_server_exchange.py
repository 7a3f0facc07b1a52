"""RL through a trajectory server: the same rows as without it, and nothing twice after a kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api_kit import serve_api
from tests.rl_kit import TableTrainer, collect, make_run

from ludus.control import RunControl
from ludus.errors import ConfigError
from ludus.rl.atropos_client import AtroposClient
from ludus.rl.loop import RlRun
from ludus.rl.records import encode_step, read_steps
from ludus.rl.server_exchange import ServerExchange, read_rows
from ludus.runner import RunOptions
from ludus.store import MemoryStore
from ludus.types import Rollout

WIRE: dict[str, Any] = {
    "tokens": [[1, 2], [1, 3]],
    "masks": [[-100, 2], [-100, 3]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, -0.5], [1.0, -0.7]],
    "generation_params": {"policy_version": 4, "group": 9},
}


def test_rows_of_a_wire_group():
    first, second = read_rows(WIRE, 0)
    assert (first.advantage, second.advantage, first.version, first.group) == (0.5, -0.5, 4, 9)
    assert first.tokens.sampled == (False, True) and first.tokens.logprobs == (None, -0.5)
    assert [row.advantage for row in read_rows({**WIRE, "advantages": [[0.0, 2.0], [0.0, -3.0]]}, 0)] == [2.0, -3.0]
    assert read_rows({**WIRE, "scores": [1.0, 1.0]}, 0) == []
    assert read_rows({**WIRE, "inference_logprobs": None}, 0) == []
    assert read_rows({**WIRE, "generation_params": None}, 7)[0].group == 7


def connect(run: RlRun, url: str) -> RlRun:
    settings = run.settings
    exchange = ServerExchange(
        AtroposClient(url), "run", groups=settings.groups, group_size=settings.group_size, steps=settings.steps
    )
    return replace(run, exchange=exchange)


async def train(run: RlRun, most: int | None = None) -> list[bytes]:
    assert run.exchange is not None
    try:
        return [encode_step(record) for record in await collect(run, most)]
    finally:
        await run.exchange.close()


def list_trained(trainer: TableTrainer) -> list[list[tuple[Any, float]]]:
    return [sorted((row.tokens.ids, round(row.advantage, 9)) for row in rows) for rows in trainer.seen]


async def test_the_trainer_gets_the_rows_that_it_gets_without_a_server(tmp_path: Path):
    direct, served = TableTrainer(), TableTrainer()
    await collect(make_run(direct, steps=3))
    async with serve_api(tmp_path) as api:
        await train(connect(make_run(served, steps=3), api.url))
    assert list_trained(served) == list_trained(direct)


@pytest.mark.parametrize("stopped", [1, 2, 3])
async def test_a_run_that_was_killed_continues_with_the_same_groups(tmp_path: Path, stopped: int):
    whole = TableTrainer()
    async with serve_api(tmp_path / "a") as api:
        records = await train(connect(make_run(whole, steps=4), api.url))
    store = MemoryStore()
    async with serve_api(tmp_path / "b") as api:
        options = {"store": store, "checkpoints": tmp_path / "checkpoints", "steps": 4}
        first = connect(make_run(TableTrainer(), **options), api.url)
        await collect(first, stopped)  # it is not closed, and its last batch is not acknowledged
        again = connect(make_run(TableTrainer(), **options), api.url)
        assert await train(again) == records
        assert first.exchange is not None
        await first.exchange.close()


async def test_a_batch_that_was_learned_from_but_not_acknowledged_is_passed_over(tmp_path: Path):
    store = MemoryStore()
    async with serve_api(tmp_path / "api") as api:
        options = {"store": store, "checkpoints": tmp_path / "checkpoints"}
        first = connect(make_run(TableTrainer(), steps=1, **options), api.url)
        exchange = first.exchange
        assert exchange is not None

        async def forget() -> None: ...

        exchange.finish_step = forget  # killed after the record and before the acknowledgement
        await train(first)
        trainer = TableTrainer()
        second = connect(make_run(trainer, steps=2, **options), api.url)
        await train(second)
        assert len(trainer.seen) == 1 and {row.group for row in trainer.seen[0]} <= {3, 4, 5}


async def test_a_step_that_a_stop_leaves_without_groups_is_not_recorded(tmp_path: Path):
    control, rollouts = RunControl(), 0

    def stop_at_last(_: Rollout) -> None:
        nonlocal rollouts
        rollouts += 1
        if rollouts == 17:  # a step has 12; none of its groups can be sent, so others are run in their place
            control.stop()

    store, options = MemoryStore(), RunOptions(concurrency=64, control=control)
    async with serve_api(tmp_path) as api:
        run = make_run(store=store, options=options, row_tokens=1, too_long="drop")
        await train(replace(connect(run, api.url), on_rollout=stop_at_last))
    assert [record.step for record in read_steps(store)] == [0]


async def test_a_server_of_another_trainer_is_refused(tmp_path: Path):
    async with serve_api(tmp_path) as api:
        await api.start(batch_size=7)
        with pytest.raises(ConfigError, match="batches of 7 rows"):
            await train(connect(make_run(), api.url))
