"""Training over Tinker's client against a real SkyRL server, for `make test-trainers`: skipped unless LUDUS_TEST_TINKER
is the address of one that serves the policy in LUDUS_TEST_POLICY."""

import os

import pytest
from tests.rl.trainer_kit import POLICY, FirstDesk

from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.loop import RlRun, run_rl
from ludus.rl.settings import RlSettings
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.tinker_trainer import TinkerTrainer
from ludus.runner import Runner
from ludus.tokens.codec import Codec
from ludus.types import Sampling

URL = os.environ.get("LUDUS_TEST_TINKER", "")
pytestmark = [
    pytest.mark.skipif(not (URL and POLICY), reason="LUDUS_TEST_TINKER names no server: see scripts/test-trainers"),
    pytest.mark.filterwarnings("ignore"),
]


def make_trainer(**settings):
    fields = {
        "base_model": POLICY,
        "base_url": URL,
        "lora_rank": 8,
        "learning_rate": 1e-3,
        "timeout": 600.0,
        **settings,
    }
    return TinkerTrainer(TinkerSettings(**fields), Codec.open(POLICY, "pythonic"))


class Kept:
    """A trainer that keeps the rows of its updates."""

    def __init__(self, trainer):
        self._trainer = trainer
        self.rows = []

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    async def update(self, rows):
        self.rows.append(list(rows))
        return await self._trainer.update(rows)


async def test_the_loop_trains_over_tinker_and_a_saved_state_continues_exactly(tmp_path):
    env = FirstDesk()

    async def main():
        trainer, other = Kept(make_trainer()), make_trainer(seed=7)
        run = RlRun(
            policy=Policy(ScriptedModel([]), sampling=Sampling(max_tokens=16)),
            trainer=trainer,
            settings=RlSettings(steps=2, groups=2, group_size=8, eval_every=0),
            tasks=tuple(env.tasks("train"))[:4],
            held_out=(),
            runner=Runner(env),
        )
        try:
            steps = [step async for step in run_rl(run) if step.step]
            await trainer.save(tmp_path)
            await other.load(tmp_path)
            again = [await each.update(trainer.rows[0]) for each in (trainer, other)]
        finally:
            await trainer.close()
            await other.close()
        return steps, again

    steps, again = await main()
    assert [step.version for step in steps] == [1, 2]
    for step in steps:  # on-policy: the service computes the same logprobs for training as it did for sampling
        found = step.metrics
        print(f"reward {step.reward:.3f}, kl {found.kl:.1e}, largest ratio {found.ratio:.6f}, {found.seconds:.1f} s")
        assert step.failed == 0 and found.tokens > 0
        assert found.ratio == pytest.approx(1, abs=1e-3)
        assert found.kl == pytest.approx(0, abs=1e-6)
    stale = again[0].metrics  # rows of the first version, after two updates: the ratios differ from 1
    print(f"old rows: kl {stale.kl:.1e}, largest ratio {stale.ratio:.3f}")
    assert stale.kl > 1e-5
    assert (again[0].version, again[1].version) == (3, 3)
    for name in ("loss", "kl", "entropy", "gradient"):
        assert getattr(again[1].metrics, name) == pytest.approx(getattr(stale, name), rel=1e-4, abs=1e-7), name


async def test_a_model_that_the_server_does_not_have():
    with pytest.raises(ConfigError, match=r"trainer\.base_model: the service does not have 'somebody/else'. It has: "):
        trainer = make_trainer(base_model="somebody/else")
        try:
            await trainer.get_model("x")
        finally:
            await trainer.close()
