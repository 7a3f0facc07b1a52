"""What published files do with the base class."""

import itertools
import json
from pathlib import Path

import pytest
import tests.cli_kit as cli_kit
from compat.tests.file_kit import count_calls, flags, read_jsonl, write_files
from tests.cli_kit import Ludus, serve_engine

HEAD = """
import asyncio, random, sys, wandb
from typing import Dict, List, Optional, Tuple
from pydantic import Field
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, EvalHandlingEnum, ScoredDataGroup
from atroposlib.envs.server_handling.server_baseline import APIServerConfig as AgainConfig
from atroposlib.type_definitions import GameHistory, Item, Message, number
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from atroposlib.utils.tool_call_parser import parse_tool_call
from atroposlib.utils.message_history_utils import ensure_trajectory_token_limit, truncate_thinking

assert AgainConfig is APIServerConfig
"""

SINGLE = (
    HEAD
    + """
class OldConfig(BaseEnvConfig):
    dataset_name: str = Field(default="x", description="Data.")
    temperature: float = 0.3


class Single(BaseEnv):
    name = "single"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.config = args[0]
        self.cleaned = 0

    @classmethod
    def config_init(self):
        config = OldConfig(group_size=2, total_steps=2, batch_size=12, eval_handling=EvalHandlingEnum.LIMIT_TRAIN)
        return config, APIServerConfig(model_name="m", base_url="http://127.0.0.1:1/v1", unknown_key=3)

    async def setup(self):
        await super().setup()
        assert len(self.server.servers) == 1 and self.server.servers[0].config.model_name == "scripted"
        assert self.server_configs[0].model_name
        self.iter = 0

    def get_next_item(self):
        self.iter += 1
        message = frozenset({"role": "user", "content": str(self.iter)}.items())
        return ((message,), self.iter) if self.iter < 9 else None

    async def collect_trajectory(self, item) -> Tuple[Optional[Dict], List[Item]]:
        async with self.server.dedicated_server() as server:
            done = await server.chat_completion(
                messages=[dict(row) for row in item[0]], n=1, max_tokens=9, temperature=self.config.temperature,
                stop=["END"], top_p=0.9, split="train", extra_body={"top_k": 3}, timeout=30)
        choice = done.choices[0]
        assert done.usage.total_tokens >= 0 and choice.model_dump()["message"]["role"] == "assistant"
        row = tokenize_for_trainer(self.tokenizer, [{"role": "user", "content": "a"},
                                                    {"role": "assistant", "content": choice.message.content}], True)
        return {"tokens": row["tokens"], "masks": row["masks"], "scores": float(random.random()),
                "messages": row["messages"], "distill_token_ids": [[1]]}, []

    async def postprocess_histories(self, trajectories):
        return [trajectories, trajectories]

    async def cleanup(self):
        self.cleaned += 1

    def evaluate(self):
        self.eval_metrics = [("eval/x", self.cleaned)]

    async def create_rollout_table(self, wandb_metrics):
        table = wandb.Table(columns=["a", "b"])
        table.add_data("x", 1)
        wandb_metrics["train/table"] = table
        return wandb_metrics

    async def wandb_log(self, metrics, step=None):
        await super().wandb_log({**metrics, "cleaned": self.cleaned})

    @classmethod
    def cli(cls):
        super().cli()


if __name__ == "__main__":
    Single.cli()
"""
)

SWALLOWS = (
    HEAD
    + """
class Swallows(BaseEnv):
    name = "swallows"

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        self.iter += 1
        return self.iter

    async def collect_trajectories(self, item):
        try:
            done = await self.server.chat_completion(messages=[{"role": "user", "content": str(item)}], n=4)
        except Exception:
            return None, []
        return None, []
"""
)

TEXT = (
    HEAD
    + """
class Text(BaseEnv):
    @classmethod
    def config_init(cls):
        return BaseEnvConfig(group_size=2, total_steps=1), [
            APIServerConfig(model_name="toy", base_url="http://h/v1", server_type="sglang")]

    async def setup(self):
        pass

    async def get_next_item(self):
        return "one"

    async def collect_trajectories(self, item):
        plain = await self.server.completion(prompt="Say it:", n=2, max_tokens=20, temperature=0.8)
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            first = await managed.completion(prompt="Say it:", n=1, max_tokens=20)
            text = "Say it:" + first.choices[0].text
            await managed.completion(prompt=text + " And again:", n=2, max_tokens=20)
            nodes = managed.get_state()["nodes"]
        sampled = await self.server.tokens_and_logprobs_completion(prompt="Say it:", n=1, max_tokens=20)
        ids, outs, logprobs, ends = sampled
        assert ids == self.tokenizer.encode("Say it:") and len(outs[0]) == len(logprobs[0]) and ends == ["stop"]
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
        for node, score in zip(nodes, (0.0, 1.0)):
            assert node.full_text.startswith(text) and plain.choices[1].text
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["inference_logprobs"].append(node.logprobs)
            group["scores"].append(score)
        return group, []
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, single=SINGLE, swallows=SWALLOWS, texts=TEXT)
    return tmp_path


def test_habits_of_published_files(ludus: Ludus):
    done = ludus("process", "atropos:single.py", "--out", "run", "--json", *flags("empty", "--env.temperature", "0.5"))
    assert done.code == 0, done.err
    groups = read_jsonl("run/atropos_groups.jsonl")
    assert len(groups) == 4 and groups[0]["distill_token_ids"] == [[[1]], [[1]]]
    recorded = json.loads(Path("run/config.json").read_text())["env"]["settings"]
    assert recorded["temperature"] == 0.5 and recorded["eval_handling"] == "LIMIT_TRAIN"
    metrics = read_jsonl("run/metrics.jsonl")
    assert metrics[-2]["cleaned"] == 2.0 and metrics[-2]["train/table"]["rows"] == [["x", 1]]
    assert ludus("evaluate", "atropos:single.py", "--out", "two", *flags("empty")).code == 0


def test_the_end_of_the_items_is_the_end_of_the_run(ludus: Ludus):
    done = ludus("process", "atropos:single.py", "--out", "run", "--json", *flags("empty", "--env.total_steps", "50"))
    assert done.code == 0 and json.loads(done.out)["summary"]["overall"]["tasks"] == 8


def test_a_failure_that_the_file_swallows_is_no_drop(ludus: Ludus):
    done = ludus("process", "atropos:swallows.py", "--out", "run", "--json", *flags("broken", "--env.total_steps", "2"))
    assert done.code == 1, done.err
    failures = [row["rollouts"][0]["failure"] for row in read_jsonl("run/groups.jsonl")]
    assert [failure["boundary"] for failure in failures] == ["model", "model"]


def test_a_file_that_never_gives_a_group_stops(ludus: Ludus):
    done = ludus("process", "atropos:swallows.py", "--out", "run", "--json", *flags("empty", "--env.total_steps", "2"))
    assert done.code == 1 and "made no group of 100 items" in done.err
    assert count_calls() < 600


def test_text_completions_and_their_nodes(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_kit, "reply", lambda prompt: "it is said")
    with serve_engine(folder) as url:
        words = ["--env.tokenizer_name", ".", "--env.use_wandb", "False", "--openai.base_url", f"{url}/v1"]
        done = ludus("process", "atropos:texts.py", *words, "--out", "run", "--json")
    assert done.code == 0, done.err
    (group,) = read_jsonl("run/atropos_groups.jsonl")
    for ids, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(ids) == len(masks) == len(logprobs)
        runs = sum(a == -100 and b != -100 for a, b in itertools.pairwise(masks))
        assert runs == 2  # the first text is trained on, too
