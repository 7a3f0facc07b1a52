"""A batch is streamed: neither rows nor rollouts are held."""

import tracemalloc
from pathlib import Path

from tests.trajectories_kit import write_prompts

from ludus.batch import Batch
from ludus.batch_settings import BatchSettings
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.runner import Runner, RunOptions
from ludus.store import RunDir
from ludus.trajectories.prompt_batch import PromptBatch, write_output
from ludus.trajectories.prompt_env import PromptEnv
from ludus.trajectories.prompt_rows import PromptFile

LONG = "x" * 20_000


async def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    """200 prompts and replies of 20 kB each are 8 MB."""
    path = write_prompts(tmp_path, *({"prompt": f"{n} {LONG}"} for n in range(200)))
    policy = Policy(ScriptedModel(lambda messages, tools, sampling: messages[-1].content))
    env = PromptEnv(path=str(path), slots="none")
    tracemalloc.start()
    try:
        batch = PromptBatch(PromptFile.scan(path), Batch((), policy))
        with RunDir.open(tmp_path / "r", {}) as directory:
            runner = Runner(env, store=directory, options=RunOptions(concurrency=8))
            await batch.run(runner, lambda key, rollout: None)
            output = write_output(batch, env, directory, BatchSettings(shard_rows=100), lambda rollout: ())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (output.statistics.written, len(output.shards)) == (200, 2)
    assert peak < 3_000_000
