"""Groups that cannot be made: what ends the run, and what is one failure."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus
from tests.file_kit import count_calls, flags, read_jsonl, write_files

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
        return {"tokens": [row["tokens"]] * 2, "masks": [row["masks"]] * 2, "scores": [0.0, 1.0]}, []

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
