"""LoRA weights swapped in a real vLLM, for `make test-trainers`: skipped unless LUDUS_TEST_VLLM is the address of a
server with --enable-lora that serves LUDUS_TEST_VLLM_MODEL, and PyTorch is installed."""

import os
import time
from typing import ClassVar

import pytest

from ludus.env import Env
from ludus.errors import ModelUnusable
from ludus.models.scripted import ScriptedModel
from ludus.models.server import ServerSettings
from ludus.policy import Policy
from ludus.rl.vllm_lora import VllmAdapters
from ludus.tokens.codec import Codec
from ludus.types import Message, Sampling, Score, Task

URL = os.environ.get("LUDUS_TEST_VLLM", "")
MODEL = os.environ.get("LUDUS_TEST_VLLM_MODEL", "")
pytestmark = [
    pytest.mark.skipif(not (URL and MODEL), reason="LUDUS_TEST_VLLM names no server: see scripts/test-trainers"),
    pytest.mark.filterwarnings("ignore"),
]
LONG = "Tell me about foxes. " * 40
"""Longer than a block of vLLM's cache of prompts."""


class Vowels(Env, frozen=True):
    """Write vowels. The score is their share, so the rollouts of a group hardly ever have equal scores."""

    name: ClassVar[str] = "vowels"
    sandbox: ClassVar[None] = None

    def tasks(self, split):
        for number in range(4):
            yield Task(id=f"task-{number}", prompt=f"Write {number + 2} words.", split=split)

    async def verify(self, rollout, box):
        answer = rollout.answer.lower()
        return Score.of(sum(letter in "aeiou" for letter in answer) / max(len(answer), 1))


def make_adapters():
    codec = Codec.open(MODEL, "hermes", template="chatml")
    return VllmAdapters(ServerSettings(base_url=URL, name=MODEL), codec)


def write_adapter(net, folder, seed, size):
    """Random LoRA weights, in the net and in a folder."""
    import torch

    from ludus.rl.net_files import save_adapter
    from ludus.rl.policy_net import list_lora

    folder.mkdir()
    torch.manual_seed(seed)
    with torch.no_grad():
        for path in list_lora(net).values():
            path.lora_A.weight.normal_(0, 0.05)
            path.lora_B.weight.normal_(0, size)
    save_adapter(net, folder, base=MODEL, rank=8, alpha=16.0)
    return folder


def score(net, tokens):
    import torch

    with torch.no_grad():
        values, _ = net.score_sampled(torch.tensor([tokens.ids]), torch.tensor([tokens.sampled]))
    return values.tolist()


def compare(net, tokens):
    """The largest difference between the recorded logprobs and those of the net."""
    recorded = [value for value, sampled in zip(tokens.logprobs, tokens.sampled, strict=True) if sampled]
    return max(abs(old - new) for old, new in zip(recorded, score(net, tokens), strict=True))


async def sample(model, seed=1):
    completion = await model.complete([Message("user", LONG)], (), Sampling(max_tokens=12, seed=seed))
    return completion.tokens


async def test_swapped_weights_sample_as_recomputed_and_a_bad_adapter_leaves_the_last_good_one(tmp_path):
    pytest.importorskip("torch")
    from pathlib import Path

    from ludus.rl.net_files import load_net
    from ludus.rl.policy_net import add_lora

    net = load_net(Path(MODEL))
    add_lora(net, 8, 16.0)

    adapters = make_adapters()
    models = []
    try:
        for version in range(3):
            folder = write_adapter(net, tmp_path / str(version), version, 0.02)
            before = time.monotonic()
            models.append(await adapters.load_adapter(folder, version, f"m@{version}"))
            swapped = time.monotonic() - before
            tokens = await sample(models[-1])
            found = compare(net, tokens)
            print(f"swap {version}: {swapped:.3f} s, largest logprob difference {found:.1e}")
            assert found < 1e-3
        bad = tmp_path / "bad"
        bad.mkdir()
        (bad / "adapter_config.json").write_text("{}")
        with pytest.raises(ModelUnusable, match="the adapter was not loaded, the last good weights stay"):
            await adapters.load_adapter(bad, 3, "m@3")
        again = await sample(models[0])  # an older model samples with the weights in use
        assert compare(net, again) < 1e-3
        write_adapter(net, tmp_path / "unused", 9, 0.02)
        print(f"other weights: largest logprob difference {compare(net, again):.1e}")
        assert compare(net, again) > 0.01
    finally:
        for model in models:
            await model.close()
        await adapters.close()
    later = make_adapters()  # the server works on after the adapters and their files are gone
    model = await later.load_adapter(tmp_path / "0", 0, "m@0")
    try:
        await sample(model)
    finally:
        await model.close()
        await later.close()


async def test_a_few_steps_of_the_loop_with_the_weights_swapped_after_each():
    pytest.importorskip("torch")
    from pathlib import Path

    from ludus.rl.grpo_settings import GrpoSettings
    from ludus.rl.loop import RlRun, run_rl
    from ludus.rl.settings import RlSettings
    from ludus.rl.torch_trainer import open_trainer
    from ludus.runner import Runner

    env = Vowels()

    async def main():
        settings = GrpoSettings(weights=MODEL, template="chatml", lora_rank=8, learning_rate=1e-3, threads=2)
        trainer = open_trainer(settings, Path(MODEL), make_sampler=lambda _: make_adapters())
        run = RlRun(
            policy=Policy(ScriptedModel([]), sampling=Sampling(max_tokens=12)),
            trainer=trainer,
            settings=RlSettings(steps=2, groups=2, group_size=4, eval_every=0),
            tasks=tuple(env.tasks("train")),
            held_out=(),
            runner=Runner(env),
        )
        try:
            return [step async for step in run_rl(run) if step.step]
        finally:
            await trainer.close()

    steps = await main()
    assert [step.version for step in steps] == [1, 2]
    for step in steps:  # on-policy: vLLM sampled with the weights that the trainer has
        found = step.metrics
        print(f"reward {step.reward:.3f}, kl {found.kl:.1e}, ratio {found.ratio:.5f}, update {found.seconds:.1f} s")
        assert step.failed == 0 and found.tokens > 0
        assert found.ratio == pytest.approx(1, abs=2e-3)
