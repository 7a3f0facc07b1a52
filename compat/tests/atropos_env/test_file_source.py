"""`ludus serve` with a file: its groups reach the trajectory server as they are."""

import json
from pathlib import Path

import pytest
from compat.tests.file_kit import count_calls, flags, read_jsonl, write_files
from tests.cli_kit import Ludus
from tests.worker_kit import TrajectoryServer, serve_in_thread

OWN = """
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup


class OwnGroup(ScoredDataGroup):
    seed: int


class Games(BaseEnv):
    name = "games"

    @classmethod
    def config_init(cls):
        return BaseEnvConfig(group_size=2, total_steps=2, steps_per_eval=2, max_token_length=48, wandb_name="games"), [
            APIServerConfig(model_name="m", base_url="http://127.0.0.1:1/v1")]

    async def setup(self):
        self.iter = 0
        self.saved = []

    async def get_next_item(self):
        self.iter += 1
        return (self.iter, frozenset({("a", "b")}))

    def make(self, seed, scores):
        group = OwnGroup(tokens=[[1, 2, 3]] * 2, masks=[[-100, 2, 3]] * 2, scores=scores)
        group["seed"] = seed
        group["overrides"] = [{"set_advantage_to_zero": True}, {}]
        return group

    async def collect_trajectories(self, item):
        number = item[0]
        if number == 1:
            return None, [(99, frozenset())]
        if number == 3:
            return self.make(3, [float("nan"), 1.0]), []
        if number == 99:  # a list of groups, one of them with equal scores
            return [self.make(99, [0.0, 1.0]), self.make(98, [0.5, 0.5])], []
        return self.make(number, [1.0, 0.0]), []

    def save_checkpoint(self, step, data=None):
        super().save_checkpoint(step, {"iter": self.iter})

    async def evaluate(self, *args, **kwargs):
        await self.evaluate_log({"eval/x": 1.0}, samples=[{"step": self.curr_step}])

    async def wandb_log(self, step):
        await super().wandb_log({**step, "own/value": 2})


if __name__ == "__main__":
    Games.cli()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "atropos_arithmetic_env.py", games=OWN)
    return tmp_path


def serve(ludus: Ludus, server: TrajectoryServer, file: str, *words: str):
    with serve_in_thread(server) as url:
        quick = ["--serve.poll_seconds", "0.01", "--serve.drain_seconds", "0.1", "--out", "run", "--json"]
        return ludus("serve", f"atropos:{file}", "--env.rollout_server_url", url, *quick, *words)


def test_groups_of_a_file_are_sent_until_the_trainer_is_done(ludus: Ludus):
    server = TrajectoryServer(num_steps=2, max_token_len=900)
    done = serve(ludus, server, "atropos_arithmetic_env.py", *flags("half", "--env.total_steps", "-1"))
    assert done.code == 0, done.err
    report = json.loads(done.out)["report"]
    assert report["finished"] and report["verdicts"]["sent"] >= 4
    sent = [group for batch in server.batches for group in batch]
    assert all(sorted(group["scores"]) == [-1.0, -1.0, 1.0, 1.0] for group in sent)
    assert server.envs[0]["desired_name"] == "arithmetic" and server.envs[0]["group_size"] == 4
    assert server.envs[0]["max_token_length"] == 512
    assert count_calls() >= 8


def test_equal_scores_and_long_rows_are_not_sent_but_recorded(ludus: Ludus):
    server = TrajectoryServer(num_steps=2, max_token_len=5, batch_size=4)

    async def stop_after_looks(number: int) -> None:
        raise AssertionError("nothing may be posted")

    server.on_post = stop_after_looks
    done = serve(ludus, server, "atropos_arithmetic_env.py", *flags("half", "--budget.calls", "20"))
    assert done.code == 3, done.err
    said = json.loads(done.out)
    assert said["report"] is None and server.batches == []
    assert said["groups"]["kept"] == 0 and said["groups"]["dropped"]["too_long"] > 1
    assert "env.max_token_length is 512, but the trainer takes rows of fewer than 5 tokens" in done.err
    assert done.err.count("tokens, but the trainer takes fewer than 5") == 1  # at the first group, and once
    assert "1.0" in ludus("show", "run").out or "1" in ludus("show", "run").out


def test_lists_of_groups_own_keys_backlog_evaluation_and_checkpoints(ludus: Ludus):
    server = TrajectoryServer(num_steps=4, batch_size=4)
    done = serve(ludus, server, "games.py", *flags("empty", "--env.total_steps", "4"))
    assert done.code == 0, done.err
    posted = [group for _, groups in server.posts for group in groups]
    seeds = [group["seed"] for group in posted]
    assert 99 in seeds and 98 not in seeds and 1 not in seeds
    assert posted[0]["overrides"] == [{"set_advantage_to_zero": True}, {}]
    assert all(len(group["tokens"]) == 2 for group in posted)
    assert read_jsonl("run/evals/samples.jsonl")[0]["step"] >= 2
    assert any(row.get("own/value") == 2 for row in read_jsonl("run/metrics.jsonl"))


@pytest.mark.parametrize("partial", ["drop", "send"])
def test_what_remains_of_a_group_is_sent_if_the_settings_say_so(ludus: Ludus, partial: str):
    server = TrajectoryServer(num_steps=4, batch_size=4)
    words = flags("empty", "--env.total_steps", "4", "--env.ensure_scores_are_not_same", "False")
    done = serve(ludus, server, "games.py", *words, "--serve.partial", partial)
    assert done.code == 0, done.err
    posted = {group["seed"]: group["scores"] for _, groups in server.posts for group in groups}
    assert posted.get(3) == ([1.0] if partial == "send" else None)
    dropped = json.loads(Path("run/summary.json").read_text())["groups"]["dropped"]
    assert json.loads(done.out)["groups"]["dropped"] == dropped
    assert dropped.get("partial", 0) == (partial == "drop") and dropped["no_group"] == 1
