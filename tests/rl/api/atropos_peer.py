"""A real atroposlib environment feeds `ludus api`, and a trainer takes its batches.

    $ PYTHON_WITH_ATROPOSLIB tests/rl/api/atropos_peer.py http://127.0.0.1:8000

The environment is a subclass of atroposlib's `BaseEnv` with all of its own machinery: registration, workers, filters,
compression, retries. It needs no model: its rollouts are fixed ids. The trainer registers, polls and checks each batch.
Run by `scripts/test-atropos`. Exit code 0: every batch was right, FIFO, and counted as one step.
"""

import asyncio
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

import requests
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataItem
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

GROUP, BATCH, STEPS = 4, 8, 6


class CountingEnv(BaseEnv):
    """Item n gives rows that begin with n."""

    name = "counting"
    env_config_cls = BaseEnvConfig

    async def setup(self) -> None:
        self.numbers = itertools.count()
        self.rows = itertools.count()

    async def get_next_item(self) -> int:
        return next(self.numbers)

    async def collect_trajectory(self, item: int) -> tuple[ScoredDataItem, list[int]]:
        row = next(self.rows)
        ids = [item, 7, row % 100, *range(600)]
        return ScoredDataItem(tokens=ids, masks=[-100, -100, *ids[2:]], scores=float(row % 2)), []

    async def evaluate(self, *args: object, **kwargs: object) -> None:
        pass


def make_tokenizer(folder: str) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)


def take_batches(url: str) -> None:
    """Be the trainer: take the batches, and check them."""
    seen: list[int] = []
    deadline = time.monotonic() + 60
    for step in range(STEPS):
        while True:
            batch = requests.get(f"{url}/batch", timeout=10).json()["batch"]
            if batch is not None:
                break
            assert time.monotonic() < deadline, "no batch any more"
            time.sleep(0.05)
        assert sum(len(group["tokens"]) for group in batch) == BATCH, "a batch has another size"
        assert all(len(group) == 14 for group in batch), "a group has not the 14 keys"
        assert all(group["env_id"] == 0 and set(group["scores"]) == {0.0, 1.0} for group in batch)
        for group in batch:
            (item,) = {row[0] for row in group["tokens"]}
            seen.append(item)
        assert requests.get(f"{url}/status", timeout=10).json()["current_step"] == step + 1
    assert len(set(seen)) == len(seen), "a group came twice"


def register(url: str) -> None:
    requests.get(f"{url}/reset_data", timeout=10)
    fields = {"wandb_group": "peer", "wandb_project": "peer", "batch_size": BATCH, "max_token_len": 2048}
    more = {"checkpoint_dir": "", "save_checkpoint_interval": 100, "starting_step": 0, "num_steps": STEPS}
    assert requests.post(f"{url}/register", json=fields | more, timeout=10).status_code == 200
    assert requests.get(f"{url}/batch", timeout=10).json() == {"batch": None}


async def run_env(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(folder)
        os.chdir(folder)
        config = BaseEnvConfig(
            group_size=GROUP,
            batch_size=-1,
            max_num_workers=4,
            tokenizer_name=folder,
            use_wandb=False,
            wandb_name="counting",
            rollout_server_url=url,
            total_steps=STEPS,
            steps_per_eval=100,
            include_messages=False,
            ensure_scores_are_not_same=True,
        )
        server = APIServerConfig(model_name="none", api_key="none", base_url="http://127.0.0.1:9", health_check=False)
        env = CountingEnv(config, [server])
        manager = asyncio.create_task(env.env_manager())
        trainer = asyncio.create_task(asyncio.to_thread(take_batches, url))
        await asyncio.wait([manager, trainer], timeout=60, return_when=asyncio.FIRST_EXCEPTION)
        manager.cancel()
        print("the environment ended with", await asyncio.gather(manager, return_exceptions=True))
        await trainer
    print(f"{Path(__file__).stem}: {STEPS} batches of {BATCH} sequences from a real environment")


if __name__ == "__main__":
    register(sys.argv[1])
    asyncio.run(run_env(sys.argv[1]))
