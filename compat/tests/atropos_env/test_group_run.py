"""Groups that cannot be made: what ends the run, and what is one failure."""

import json
import sqlite3
from pathlib import Path

import pytest
from compat.tests.file_kit import count_calls, flags, read_jsonl, write_files
from tests.cli_kit import Ludus

MIXED = """
import asyncio, sys
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer


class MixedConfig(BaseEnvConfig):
    habit: str = "exit"
    group_size: int = 2
    total_steps: int = 3
    use_wandb: bool = False
    tokenizer_name: str = "."


class Mixed(BaseEnv):
    name = "mixed"

    @classmethod
    def config_cls(cls):
        return MixedConfig

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        self.iter += 1
        return self.iter

    async def collect_trajectories(self, item):
        if self.config.habit == "exit" and item == 1:
            sys.exit(4)
        if self.config.habit == "managed":
            async with self.server.managed_server(tokenizer=self.tokenizer):
                raise AssertionError
        if self.config.habit == "swallows":
            try:
                async with self.server.managed_server(tokenizer=self.tokenizer):
                    raise AssertionError
            except Exception:
                return None, []
        if self.config.habit == "slow":
            await asyncio.Event().wait()
        talk = [{"role": "user", "content": str(item)}, {"role": "assistant", "content": "a"}]
        row = tokenize_for_trainer(self.tokenizer, talk)
        odd = {"nan": float("nan"), "infinite": float("inf"), "nothing": None, "words": "good"}
        first = odd.get(self.config.habit, 0.0) if item == 2 else 0.0
        return {"tokens": [row["tokens"]] * 2, "masks": [row["masks"]] * 2, "scores": [first, 1.0]}, []

    async def evaluate(self, *args, **kwargs):
        try:
            if self.config.habit == "swallows":
                async with self.server.managed_server(tokenizer=self.tokenizer):
                    raise AssertionError
            await self.server.chat_completion(messages=[{"role": "user", "content": "q"}])
        except Exception:
            pass
        if self.config.habit == "exit":
            sys.exit(4)
        await self.evaluate_log(metrics={"eval/x": 0.0})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, mixed=MIXED)
    return tmp_path


def run(ludus: Ludus, command: str, habit: str, agent: str = "empty", *words: str):
    return ludus(command, "atropos:mixed.py", "--out", "run", "--json", *flags(agent, "--env.habit", habit, *words))


@pytest.mark.parametrize("habit", ["nan", "infinite", "nothing", "words"])
def test_a_score_that_is_no_number_fails_its_rollout_and_the_run_goes_on(ludus: Ludus, habit: str):
    done = run(ludus, "process", habit)
    assert done.code == 0, done.err
    assert len(read_jsonl("run/atropos_groups.jsonl")) == 2
    said = json.loads(done.out)
    assert said["summary"]["overall"]["scored"] == 5 and said["summary"]["failed"] == {"verifier": 1}
    counts = {"kept": 2, "dropped": {"partial": 1}, "failed": 0, "one_at_a_time": [], "not_called": []}
    assert said["groups"] == counts
    assert json.loads(Path("run/summary.json").read_text())["groups"]["dropped"] == {"partial": 1}
    assert read_jsonl("run/metrics.jsonl")[-1]["groups/dropped_partial"] == 1
    assert "item-00001: a group is dropped: 1 of its 2 rows are missing or failed" in done.err
    failed = read_jsonl("run/groups.jsonl")[1]["rollouts"][0]["failure"]
    assert "a score is a finite number" in failed["message"]
    again = ludus("process", "--resume", "--out", "run", "--env.total_steps", "4", "--json")
    assert again.code == 0 and len(read_jsonl("run/atropos_groups.jsonl")) == 3


def test_what_remains_of_a_group_is_kept_if_the_settings_say_so(ludus: Ludus):
    done = run(ludus, "process", "nan", "empty", "--serve.partial", "send")
    assert done.code == 0, done.err
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[0.0, 1.0], [1.0], [0.0, 1.0]]
    assert json.loads(done.out)["groups"]["dropped"] == {}
    assert ludus("process", "--resume", "--out", "run", "--json").code == 0
    assert len(read_jsonl("run/atropos_groups.jsonl")) == 3


def test_a_run_that_an_older_version_left_with_nan_goes_on(ludus: Ludus):
    assert run(ludus, "process", "none").code == 0
    with sqlite3.connect("run/store.sqlite") as db:
        key, body = db.execute("SELECT key, body FROM records WHERE key = 'file/group/1'").fetchone()
        db.execute(
            "UPDATE records SET body = ? WHERE key = ?", (body.replace(b'"scores": [0.0', b'"scores": [NaN'), key)
        )
        assert b"NaN" in db.execute("SELECT body FROM records WHERE key = ?", (key,)).fetchone()[0]
    done = ludus("process", "--resume", "--out", "run", "--env.total_steps", "4", "--json")
    assert done.code == 0, done.err
    assert len(read_jsonl("run/atropos_groups.jsonl")) == 3
    assert json.loads(done.out)["groups"]["dropped"] == {"no_number": 1}


def test_counts_of_groups_are_on_the_screen(ludus: Ludus):
    words = flags("empty", "--env.habit", "nan")
    done = ludus("process", "atropos:mixed.py", "--out", "run", *words)
    assert done.code == 0 and "groups: 2 kept\ngroups dropped: 1 (partial)" in done.out


def test_a_setting_of_serve_that_a_file_cannot_honour_is_refused(ludus: Ludus):
    done = run(ludus, "process", "none", "empty", "--serve.too_long", "cut")
    assert done.code == 2 and "serve.too_long is not for files" in done.err


def test_a_file_that_exits_fails_one_group_and_the_run_goes_on(ludus: Ludus):
    done = run(ludus, "process", "exit")
    assert len(read_jsonl("run/atropos_groups.jsonl")) == 2, done.err
    (failed,) = [row for row in read_jsonl("run/groups.jsonl") if row["rollouts"][0]["failure"]]
    assert "sys.exit(4)" in failed["rollouts"][0]["failure"]["message"]


@pytest.mark.parametrize("habit", ["managed", "swallows"])
def test_settings_with_which_no_group_can_be_made_end_the_run(ludus: Ludus, habit: str):
    done = run(ludus, "process", habit)
    assert done.code == 2 and "managed_server needs exact ids" in done.err and "--openai.server_type" in done.err
    assert count_calls() == 0 and read_jsonl("run/atropos_groups.jsonl") == []


def test_a_group_that_takes_too_long_has_failed(ludus: Ludus):
    done = run(ludus, "process", "slow", "empty", "--env.worker_timeout", "0.05", "--env.total_steps", "1")
    assert done.code == 1, done.err
    (row,) = read_jsonl("run/groups.jsonl")
    assert "env.worker_timeout" in row["rollouts"][0]["failure"]["message"]


def test_rows_without_messages_are_shown_as_question_and_answer(ludus: Ludus):
    assert run(ludus, "process", "none").code == 0
    (rollout, _) = read_jsonl("run/groups.jsonl")[0]["rollouts"]
    assert [message["role"] for message in rollout["messages"]] == ["user", "assistant"]
    group = read_jsonl("run/atropos_groups.jsonl")[0]
    assert [row[0]["role"] for row in group["messages"]] == ["user", "user"]  # as atroposlib fills them in


def test_failures_that_an_evaluation_swallows_are_told(ludus: Ludus):
    done = run(ludus, "evaluate", "none", "broken")
    assert done.code == 0 and "calls of models or slots failed in evaluate()" in done.err
    assert json.loads(done.out)["metrics"] == {"eval/x": 0.0}


@pytest.mark.parametrize(("habit", "words"), [("swallows", "managed_server needs exact ids"), ("exit", "sys.exit(4)")])
def test_an_evaluation_that_cannot_work_is_refused(ludus: Ludus, habit: str, words: str):
    done = run(ludus, "evaluate", habit)
    assert done.code == 2 and words in done.err
