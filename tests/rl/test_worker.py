"""The worker: groups to a trajectory server, and what survives faults."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.worker_kit import CoinModel, Coins, Ran, TrajectoryServer, get_directory, make_plan, read_metrics, run_worker

from ludus.batch import Batch, load_tasks
from ludus.control import RunControl
from ludus.errors import BudgetExhausted, ConfigError, ModelError
from ludus.policy import Policy
from ludus.rl.worker import UNSCORED_LIMIT, NothingScored, plan_group
from ludus.rl.worker_journal import WorkerJournal
from ludus.store import RunDir

pytestmark = pytest.mark.usefixtures("kit")


@asynccontextmanager
async def serve_groups(**options):
    """A trajectory server and its address."""
    server = TrajectoryServer(**options)
    async with server.serve() as loop, asyncio.timeout(60):
        yield server, loop.url


# ---- the whole way ------------------------------------------------------------------------------------------------


async def test_groups_arrive_with_tokens_logprobs_sampling_and_version_until_the_trainer_is_done(tmp_path: Path):
    async with serve_groups() as (server, url):
        server, ran = server, await run_worker(make_plan(tmp_path / "run", CoinModel()), url)
    assert ran.report.finished and ran.report.waiting == 0
    assert len(server.batches) >= 4
    assert server.disconnected == [0]
    groups = [group for batch in server.batches for group in batch]
    for group in groups:
        assert len(group["tokens"]) == 4 and len(set(group["scores"])) == 2
        for ids, mask, logprobs, score in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], group["scores"], strict=True
        ):
            assert ids == [1, 2, 3, 10 + int(score), 4]
            assert mask == [-100, -100, -100, 10 + int(score), 4]
            assert logprobs == [1.0, 1.0, 1.0, -0.7, -0.1]
        assert [message["role"] for message in group["messages"][0]] == ["user", "assistant"]
        assert group["generation_params"]["temperature"] == 1.0
        assert group["env_id"] == 0
        assert group["advantages"] is None and group["overrides"] is None
    versions = [group["generation_params"]["policy_version"] for group in groups]
    assert versions == sorted(versions) and versions[-1] > 0
    assert ran.report.verdicts["sent"] == len(server.keys) == len(set(server.keys))
    assert ran.report.verdicts["equal_scores"] > 0  # some groups of four coins are equal


async def test_metrics_have_the_names_of_the_originals(tmp_path: Path):
    async with serve_groups() as (_, url):
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel()), url)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert sum(line["train/items_sent_to_api"] for line in lines) == ran.report.verdicts["sent"]
    assert sum(line["train/items_rejected"] for line in lines) == ran.report.verdicts["equal_scores"]
    first = lines[0]
    assert first["train/completion_lengths"] == 2.0
    assert first["train/tool_error_rate"] == 0.0
    assert "[assistant] yes" in first["train/rollouts"]["rows"][0][0]
    assert first["train_perf/task_duration_mean"] > 0


def test_every_task_has_one_group_in_each_epoch_and_other_rollouts_in_the_next():
    batch = Batch(load_tasks(Coins(), "train"), Policy(CoinModel()), 2)
    plans = [plan_group(batch, number) for number in range(10)]
    first, second = [{jobs[0].task.id for jobs in half} for half in (plans[:5], plans[5:])]
    assert first == second == {f"coin-{n}" for n in range(5)}
    assert [jobs[0].task.id for jobs in plans[:5]] != [jobs[0].task.id for jobs in plans[5:]]
    seeds = [job.seed for jobs in plans for job in jobs]
    assert len(set(seeds)) == len(seeds)
    assert [[job.seed for job in plan_group(batch, number)] for number in range(10)] == [
        [job.seed for job in jobs] for jobs in plans
    ]


async def test_no_group_is_begun_without_a_credit(tmp_path: Path):
    """With a trainer that takes nothing, exactly the allowed number of batches waits at the server."""

    async with serve_groups() as (server, url):
        server.train = False
        control = RunControl()
        model = CoinModel()
        plan = make_plan(tmp_path / "run", model, control, max_batches_offpolicy=2, equal_scores="send")
        running = asyncio.create_task(run_worker(plan, url))
        await server.wait(lambda: len(server.keys) == 4)
        looks = server.looks
        await server.wait(lambda: server.looks > looks + 20)
        control.stop()
        ran = await running
        assert (len(server.keys), model.calls) == (4, 16)  # 2 batches of 8 rows are 4 groups of 4, and none more ran
        assert not ran.report.finished and server.disconnected == [0]


async def test_a_trainer_that_comes_late_is_waited_for(tmp_path: Path):
    async with serve_groups() as (server, url):
        server.started = False
        ran = Ran()
        running = asyncio.create_task(run_worker(make_plan(tmp_path / "run", CoinModel()), url, ran=ran))
        await ran.wait_for("waiting for the trainer")
        server.started = True
        await running
        assert ran.told[0] == "waiting for the trainer: the server has none yet"
        assert ran.report.finished


# ---- faults of the server -----------------------------------------------------------------------------------------


async def test_a_post_is_repeated_under_its_key_until_it_is_accepted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("ludus.rl.worker.FIRST_DELAY", 0.001)

    async with serve_groups(durable=True) as (server, url):

        async def refuse_some(number):
            return {1: (503, "full"), 2: (500, "oops"), 3: (429, "slow down"), 4: "lose"}.get(number)

        server.on_post = refuse_some
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel()), url)
        assert ran.report.finished and ran.report.waiting == 0
        assert len(server.posts) >= len(server.keys) + 3
        assert len(server.keys) == len(set(server.keys)) == ran.report.verdicts["sent"]


async def test_a_group_that_the_server_refuses_is_recorded_with_the_reason(tmp_path: Path):
    async with serve_groups() as (server, url):

        async def refuse_first(number):
            return (422, "scores: not a number") if number == 1 else None

        server.on_post = refuse_first
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel()), url)
        assert ran.report.finished and ran.report.verdicts["refused"] == 1
        assert any("scores: not a number" in told for told in ran.told)


async def test_a_wrong_token_is_an_error_that_names_the_setting(tmp_path: Path):
    async with serve_groups() as (server, url):
        server.token = "secret"
        with pytest.raises(ConfigError, match=r"serve\.token_var: .*401"):
            await run_worker(make_plan(tmp_path / "run", CoinModel()), url, token="other")
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel(), resume=True), url, token="secret")
        assert ran.report.finished


async def test_groups_larger_than_a_batch_are_refused(tmp_path: Path):
    async with serve_groups() as (_, url):
        with pytest.raises(ConfigError, match=r"env\.group_size is 16, but the trainer's batches have 8 rows"):
            await run_worker(make_plan(tmp_path / "run", CoinModel(), size=16), url)


async def test_after_a_restart_of_the_server_the_worker_registers_again(tmp_path: Path):
    async with serve_groups() as (server, url):

        async def restart_once(number):
            if number == 3:
                server.restart()

        server.on_post = restart_once
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel()), url)
        assert ran.report.finished
        assert "the server was restarted or reset: registering again" in ran.told
        assert len(server.envs) == 1  # of the new server
        steps = [line["step"] for line in read_metrics(tmp_path / "run")]
        assert steps == sorted(steps)


async def test_a_server_that_is_away_loses_nothing(tmp_path: Path):
    """It goes away with groups under way, and comes back at the same address with its state."""

    server = TrajectoryServer(durable=True)
    away = asyncio.Event()

    async def leave(number):
        if number == 2:
            away.set()
            return "lose"
        return None

    server.on_post = leave
    ran = Ran()
    async with server.serve() as loop:
        running = asyncio.create_task(run_worker(make_plan(tmp_path / "run", CoinModel()), loop.url, ran=ran))
        await away.wait()
    await ran.wait_for("does not answer")
    async with server.serve(loop.port), asyncio.timeout(60):
        await running
    assert ran.report.finished and ran.report.waiting == 0
    assert len(server.envs) == 1  # a durable server keeps its workers
    assert len(server.keys) == len(set(server.keys)) == ran.report.verdicts["sent"]


# ---- stopping -----------------------------------------------------------------------------------------------------


async def test_a_stopped_worker_finishes_and_sends_what_runs(tmp_path: Path):
    async with serve_groups() as (server, url):
        control, go = RunControl(), asyncio.Event()

        async def wait():
            control.stop()
            await go.wait()

        running = asyncio.create_task(run_worker(make_plan(tmp_path / "run", CoinModel(wait), control), url))
        await control.wait_for_stop()
        go.set()
        ran = await running
        assert not ran.report.finished and ran.report.waiting == 0
        assert sum(ran.report.verdicts.values()) == 4  # the four groups that had begun
        assert len(server.keys) == ran.report.verdicts["sent"]
        assert server.disconnected == [0]


async def test_what_a_dead_server_did_not_take_is_sent_when_the_run_is_resumed(tmp_path: Path):
    async with serve_groups() as (server, url):
        control = RunControl()

        async def fail(number):
            control.stop()
            return 503, "down"

        server.on_post = fail
        ran = await run_worker(make_plan(tmp_path / "run", CoinModel(), control), url)
        assert ran.report.waiting > 0 and server.keys == []
        server.on_post = None
        model = CoinModel()
        again = await run_worker(make_plan(tmp_path / "run", model, resume=True), url)
        assert again.report.finished and again.report.waiting == 0
        assert len(server.keys) == len(set(server.keys)) == again.report.verdicts["sent"]
        with RunDir.read(tmp_path / "run") as run:
            outcomes = len(run.read_scores())
            records = [json.loads(body) for _, body in run.read_records("serve_begin")]
        assert len({record["number"] for record in records}) == len(records)
        assert model.calls == outcomes - 16  # the 16 rollouts of the first four groups are not run again


async def test_a_spent_budget_drains_and_is_raised(tmp_path: Path):
    async with serve_groups(num_steps=100) as (server, url):
        model = CoinModel()

        async def spend():
            if model.calls > 30:
                raise BudgetExhausted("tokens are spent")

        model.before = spend
        ran = Ran()
        with pytest.raises(BudgetExhausted):
            await run_worker(make_plan(tmp_path / "run", model), url, ran=ran)
        assert server.disconnected == [0]
        with RunDir.open(tmp_path / "run", {}, resume=True) as run:
            sent = WorkerJournal(run).count_verdicts()["sent"]
        assert sent == len(server.keys)


async def test_a_worker_whose_rollouts_all_fail_stops(tmp_path: Path):
    async with serve_groups() as (server, url):

        async def break_down():
            raise ModelError("the engine is gone", retryable=False)

        with pytest.raises(NothingScored, match=f"the last {UNSCORED_LIMIT} groups.*the engine is gone"):
            await run_worker(make_plan(tmp_path / "run", CoinModel(break_down)), url)
        assert server.keys == []


# ---- evaluations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handling", ["stop", "limit", "none"])
async def test_an_evaluation_runs_when_a_step_is_crossed(tmp_path: Path, handling):
    async with serve_groups() as (_, url):
        plan = make_plan(tmp_path / "run", CoinModel(), eval_every=1, eval_handling=handling, max_batches_offpolicy=1)
        assert (await run_worker(plan, url)).report.finished
    evals = [line for line in read_metrics(tmp_path / "run") if "eval/reward" in line]
    assert evals and all(line["eval/rollouts"] == 2.0 for line in evals)


async def test_with_stop_no_group_is_begun_during_an_evaluation(tmp_path: Path):
    async with serve_groups() as (server, url):
        model, go = CoinModel(), asyncio.Event()
        plan = make_plan(tmp_path / "run", model, eval_every=1, max_batches_offpolicy=1)

        def begun():
            return list(get_directory(plan).read_records("serve_begin"))

        async def hold():
            if get_directory(plan).get_record("serve/eval/1"):
                await go.wait()

        model.before = hold
        running = asyncio.create_task(run_worker(plan, url))
        await server.wait(lambda: server.step >= 1)
        looks = server.looks
        await server.wait(lambda: server.looks > looks + 2)
        count, looks = len(begun()), server.looks
        await server.wait(lambda: server.looks > looks + 20)
        assert get_directory(plan).get_record("serve/eval/1") and not get_directory(plan).get_record(
            "serve/evaluated/1"
        )
        assert len(begun()) == count
        go.set()
        assert (await running).report.finished


async def test_an_evaluation_that_was_interrupted_is_done_when_the_run_is_resumed(tmp_path: Path):
    async with serve_groups() as (server, url):
        model, control = CoinModel(), RunControl()
        plan = make_plan(tmp_path / "run", model, control, eval_every=1, max_batches_offpolicy=1)
        cancelled = asyncio.Event()

        async def hold():
            if get_directory(plan).get_record("serve/eval/1"):
                cancelled.set()
                await asyncio.Event().wait()

        model.before = hold
        running = asyncio.create_task(run_worker(plan, url))
        await cancelled.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert server.disconnected == [0]
        again = await run_worker(
            make_plan(tmp_path / "run", CoinModel(), resume=True, eval_every=1, max_batches_offpolicy=1), url
        )
        assert again.report.finished
        assert next(line["step"] for line in read_metrics(tmp_path / "run") if "eval/reward" in line) == 1
