"""What a run of a Hermes file leaves: tool errors, the table of rollouts, and the provenance of rollouts."""

from pathlib import Path
from typing import Any

import pytest
from compat.tests.file_kit import flags, read_jsonl, write_files
from tests.cli_kit import Ludus, serve_engine

from ludus.store import RunDir
from ludus.types import Rollout

pytestmark = pytest.mark.usefixtures("bwrap")
ENV = """
from atroposlib.envs.server_handling.server_manager import APIServerConfig
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig


class Records(HermesAgentBaseEnv):
    name = "records"
    env_config_cls = HermesAgentEnvConfig

    @classmethod
    def config_init(cls):
        return HermesAgentEnvConfig(
            enabled_toolsets=["terminal", "web"], group_size=2, total_steps=1, agent_temperature=0.3,
            max_token_length=900,
        ), [APIServerConfig(model_name="m", base_url="http://h/v1")]

    async def setup(self):
        pass

    async def get_next_item(self):
        return {}

    def format_prompt(self, item):
        return "go"

    async def compute_reward(self, item, result, ctx):
        self.kept = self._tool_error_buffer
        return float(len(result.tool_errors))

    async def evaluate(self, *args, **kwargs):
        pass

    async def wandb_log(self, wandb_metrics=None):
        keys = [sorted(each) for each in self._tool_error_buffer[:1]]
        await super().wandb_log({**(wandb_metrics or {}), "train/word": "hello", "train/keys": str(keys)})
"""
AGENTS = """
from ludus.models.scripted import call


def clumsy(messages, tools, sampling):
    turns = sum(message.role == "assistant" for message in messages)
    if turns == 0:
        return call("nonsense", x=1)
    return call("terminal", command="echo fine") if turns == 1 else "done"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, records=ENV)
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def read_rollouts() -> list[Rollout]:
    with RunDir.read(Path("run")) as run:
        return [rollout for _, rollout in run.read_outcomes()]


def process(ludus: Ludus, *words: str) -> Any:
    done = ludus("process", "hermes:records.py", "--out", "run", *words)
    assert done.code == 0, done.err
    return done


def test_tool_errors_are_counted_and_told(ludus: Ludus):
    done = process(ludus, *flags("clumsy"))
    assert "4, 2 errors" in done.out
    metrics, _ = read_jsonl("run/metrics.jsonl")  # the last line counts the groups
    assert (metrics["train/tool_errors_count"], metrics["train/tool_error_rate"]) == (2.0, 0.5)
    first = metrics["train/tool_error_details"].splitlines()[0]
    assert first.startswith('[turn 1] nonsense({"x":1}) -> ') and "nonsense" in first.partition("->")[2]
    assert metrics["train/word"] == "hello"
    assert metrics["train/keys"] == str([["args", "error", "result", "tool", "turn"]])
    assert [[error.tool for error in rollout.tool_errors] for rollout in read_rollouts()] == [["nonsense"]] * 2


def test_provenance_has_tools_and_sampling(ludus: Ludus):
    done = process(ludus, *flags("clumsy"))
    assert "toolset 'search' is left out" in done.err and "toolset 'extract' is left out" in done.err
    for at, rollout in enumerate(read_rollouts()):
        found = rollout.provenance
        assert (found.replicate, found.toolsets, found.skipped) == (at, ("terminal",), ("search", "extract"))
        assert found.tools == ("terminal", "process")
        assert (found.sampling.temperature, found.sampling.max_tokens) == (0.3, 900)


def test_provenance_has_what_a_distribution_drew(ludus: Ludus):
    process(ludus, *flags("clumsy", "--env.distribution", "terminal_web", "--env.disabled_toolsets", "[file]"))
    found = read_rollouts()[0].provenance
    assert (found.toolsets, found.skipped) == (("terminal",), ("file", "web"))


@pytest.mark.parametrize("tokenizer", [".", "no/such-tokenizer"])
def test_the_table_of_rollouts_is_text(ludus: Ludus, tokenizer: str):
    words = ["--model.type", "scripted", "--model.script", "agents.py:clumsy"]
    done = process(ludus, *words, "--env.use_wandb", "true", "--env.tokenizer_name", tokenizer)
    assert "add_rollouts_for_wandb failed" not in done.err
    table = read_jsonl("run/metrics.jsonl")[0]["train/rollouts"]
    text, score = table["rows"][0]
    assert score == 1.0 and text.startswith("[USER]\ngo")
    assert '[TOOL CALL] terminal({"command":"echo fine"})' in text and "[TOOL RESULT] fine" in text


def test_a_skill_is_not_trained_with_sampled_tools(ludus: Ludus):
    done = ludus("train", "hermes:records.py", "--out", "run", *flags("clumsy", "--env.distribution", "science"))
    assert done.code == 2 and "env.distribution" in done.err


def test_an_unknown_parser_is_that_of_hermes(ludus: Ludus, folder: Path):
    with serve_engine(folder) as url:
        words = ["--openai.server_type", "vllm", "--openai.base_url", f"{url}/v1", "--env.tokenizer_name", "."]
        done = process(ludus, *words, "--env.tool_call_parser", "mistrall", "--env.use_wandb", "false")
    assert "env.tool_call_parser: there is no parser 'mistrall'" in done.err
    assert '"parser":"hermes"' in Path("run/config.json").read_text().replace(" ", "")
