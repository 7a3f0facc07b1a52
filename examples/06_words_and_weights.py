"""Train the words of a policy, then its weights, with and without these words, from one store: what was each worth?

The policy is the tiny one (`pip install 'ludus-train[rl]'`), the environment `parcels`. Words first: a proposer of this
example notes which desk was right for which color, and the shipping rule says whether the notes help the policy as it
is. Then GRPO trains the weights twice, from the same first weights and with the same number of rollouts: without notes,
and while the policy reads them. So the notes have a second chance, because weights can learn to use them. The sealed
test split is used at the end only, for all arms. Takes about five minutes on two cores.
    python examples/06_words_and_weights.py [RUN-DIRECTORY]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from ludus.batch import Batch, evaluate
from ludus.config.secrets import find_weights_folder
from ludus.envs.parcels import Parcels
from ludus.models import Model
from ludus.policy import Limits, Policy
from ludus.reflact.gate import Gate
from ludus.reflact.items import credit_item
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Reflection, Step, Summary
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.rl.grpo_settings import GrpoSettings
from ludus.rl.loop import RlRun, run_rl
from ludus.rl.settings import RlSettings
from ludus.rl.torch_trainer import open_trainer
from ludus.runner import Runner, RunOptions
from ludus.skill import Edit, Skill
from ludus.store import RunDir
from ludus.types import Rollout, Sampling

ENV = Parcels(seed=7)
OPTIONS = RunOptions(concurrency=96)
REPLICATES = 4
"""Rollouts of each test task."""
STEPS = 50
"""Updates of each training of weights."""


class DeskNotes(Proposer):
    """Notes the desk of each color for which a rollout was right: "- red: north"."""

    name = "desk-notes"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        found: dict[str, list[str]] = {}
        async for rollout in rollouts:
            calls = [call.name for turn in rollout.turns for call in turn.completion.message.calls]
            note = f"- {rollout.task.kind}: {calls[0]}" if calls else ""
            if rollout.score is not None and rollout.score.passed and note not in view.skill.text:
                found.setdefault(note, []).append(rollout.task.id)
        edits = tuple(credit_item(Edit("append", note), "success", tasks) for note, tasks in found.items())
        tasks = tuple(task for tasks in found.values() for task in tasks)
        return (Reflection("success", tasks, edits),) if edits else ()


class Words(NamedTuple):
    """What the training of the skill came to."""

    shipped: Skill
    """Empty if no note helped with certainty."""
    notes: Skill
    """All that was noted and accepted on the way."""


async def train_words(policy: Policy, runner: Runner) -> Words:
    splits = Splits.from_tasks(*(tuple(ENV.tasks(split)) for split in ("train", "validation", "test")))
    settings = TrainSettings(
        recipe="reflact",
        epochs=1,
        batch_size=48,
        edit_budget=8,
        gate=Gate(enabled=False),  # every note is kept: the shipping rule decides in the end
        slow=SlowUpdate(enabled=False),
        memory=False,
        test=False,
    )
    words = Words(Skill(""), Skill(""))
    async for record in train(runner, policy, splits, settings, proposer=DeskNotes()):
        if isinstance(record, Step):
            print(f"words, step {record.number}: {record.action}")
        if isinstance(record, Summary):
            words = Words(record.best.skill, record.final.skill)
            print(f"words: {record.claim.sentence if record.claim else ''}")
    return words


async def train_weights(policy: Policy, runner: Runner, out: Path, name: str) -> Model:
    """The policy's model after training its weights under its skill."""
    settings = GrpoSettings(learning_rate=1e-3, max_gradient=0.5, kl=0.05, threads=1, slots=96, context=256, seed=0)
    trainer = open_trainer(settings, find_weights_folder(), tell=print)
    run = RlRun(
        policy=policy,
        trainer=trainer,
        settings=RlSettings(
            steps=STEPS, groups=12, group_size=16, scale="std", eval_every=0, checkpoint_every=STEPS, checkpoints=1
        ),
        tasks=tuple(ENV.tasks("train")),
        held_out=(),
        runner=runner,
        checkpoints=out / "checkpoints" / name,
    )
    async for record in run_rl(run):
        if record.step % 10 == 0 and record.reward is not None:
            print(f"weights, {name}, step {record.step}: reward {record.reward:.3f}")
    return await trainer.get_model(run.name_version(trainer.version))


async def main(out: Path) -> None:
    trainer = open_trainer(GrpoSettings(threads=1, slots=96, context=256), find_weights_folder(), tell=print)
    first = await trainer.get_model(trainer.name)
    policy = Policy(first, sampling=Sampling(max_tokens=20), limits=Limits(turns=3))
    with RunDir.open(out, {"example": "words and weights"}, resume=True) as store:
        runner = Runner(ENV, store=store, options=OPTIONS)
        words = await train_words(policy, runner)
        print(f"\nthe notes:\n{words.notes.text}\nshipped: {words.shipped.text or 'nothing'}\n")
        noted = replace(policy, skill=words.notes)
        alone = await train_weights(policy, runner, out, "without notes")
        together = await train_weights(noted, runner, out, "with notes")
        print("\non the test split:")
        await measure("first weights", policy, runner)
        await measure("first weights, with the notes", noted, runner)
        await measure("weights trained without notes", policy.use_model(alone), runner)
        await measure("weights trained with the notes, and the notes", noted.use_model(together), runner)
        await measure("weights trained with the notes, without them", policy.use_model(together), runner)
        for model in (first, alone, together):
            await model.close()


async def measure(name: str, policy: Policy, runner: Runner) -> None:
    """Print how an arm does on the sealed test split."""
    batch = Batch(tuple(ENV.tasks("test")), policy, group_size=REPLICATES)
    overall = (await evaluate(batch, runner)).overall
    band = f" [{overall.interval.low:.3f}, {overall.interval.high:.3f}]" if overall.interval else ""
    print(f"  {name}: {overall.mean:.3f}{band} of {overall.tasks} tasks")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp(prefix="ludus-words-and-weights-"))))
