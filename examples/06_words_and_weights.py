"""Train the skill of a policy, then its weights under that skill, on one environment and from one store.

The policy is the tiny one (`pip install 'ludus-train[rl]'`), the environment `parcels`. The skill is trained without a
model: a proposer of this example notes which desk was right for which color. Then GRPO trains the weights while the
policy acts with that skill. The sealed test split is used at the end only: it says what the words and the weights were
worth, each alone and together. Takes about five minutes on two cores.
    python examples/06_words_and_weights.py [RUN-DIRECTORY]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from ludus.batch import Batch, evaluate
from ludus.config.secrets import find_weights_folder
from ludus.envs.parcels import Parcels
from ludus.models import Model
from ludus.policy import Limits, Policy
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


async def train_skill(policy: Policy, runner: Runner) -> Skill:
    splits = Splits.from_tasks(*(tuple(ENV.tasks(split)) for split in ("train", "validation", "test")))
    settings = TrainSettings(
        recipe="reflact",
        epochs=1,
        batch_size=48,
        edit_budget=6,
        slow=SlowUpdate(enabled=False),
        memory=False,
        test=False,
    )
    skill = Skill("")
    async for record in train(runner, policy, splits, settings, proposer=DeskNotes()):
        if isinstance(record, Step):
            print(f"skill, step {record.number}: {record.action}")
        if isinstance(record, Summary):
            skill = record.best.skill
    return skill


async def main(out: Path) -> None:
    settings = GrpoSettings(learning_rate=1e-3, max_gradient=0.5, slots=96, context=256, seed=0)
    trainer = open_trainer(settings, find_weights_folder(), tell=print)
    first = await trainer.get_model(trainer.name)
    policy = Policy(first, sampling=Sampling(max_tokens=20), limits=Limits(turns=3))
    with RunDir.open(out, {"example": "words and weights"}, resume=True) as store:
        runner = Runner(ENV, store=store, options=OPTIONS)
        skill = await train_skill(policy, runner)
        print(f"\nthe skill:\n{skill.text or '(empty: no note raised the score)'}\n")
        run = RlRun(
            policy=replace(policy, skill=skill),
            trainer=trainer,
            settings=RlSettings(steps=60, groups=24, group_size=8, eval_every=0, checkpoint_every=10),
            tasks=tuple(ENV.tasks("train")),
            held_out=(),
            runner=runner,
            checkpoints=out / "checkpoints",
        )
        async for record in run_rl(run):
            if record.step % 5 == 0 and record.reward is not None:
                print(f"weights, step {record.step}: reward {record.reward:.3f}")
        trained = await trainer.get_model(run.name_version(trainer.version))
        await report(policy, first, trained, skill, runner)
        await first.close()
        await trained.close()


async def report(policy: Policy, first: Model, trained: Model, skill: Skill, runner: Runner) -> None:
    """Measure the four combinations on the sealed test split."""
    print("\non the test split:")
    for weights, model in (("first weights", first), ("trained weights", trained)):
        for words, used in (("without the skill", None), ("with the skill", skill)):
            acting = replace(policy, model=model, skill=used)
            batch = Batch(tuple(ENV.tasks("test")), acting, group_size=REPLICATES)
            overall = (await evaluate(batch, runner)).overall
            band = f" [{overall.interval.low:.3f}, {overall.interval.high:.3f}]" if overall.interval else ""
            print(f"  {weights}, {words}: {overall.mean:.3f}{band} of {overall.tasks} tasks")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp(prefix="ludus-words-and-weights-"))))
