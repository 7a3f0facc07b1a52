"""Train the words of a policy, its weights, or both, from one store: what was each worth, and did `headroom` say so?

The policy is the tiny one (`pip install 'ludus-train[rl]'`), the environment `parcels`: which desk is right for which
color. What `ludus headroom` would say comes first, before anything is trained. Then four arms:

    words                a proposer of this example notes which desk was right; the shipping rule decides
    weights              GRPO, without notes
    words, then weights  GRPO for fewer steps, while the policy reads the notes
    both, same rollouts  the weights of the second arm, with notes that are read from its stored rollouts

The sealed test split is used at the end only: every arm on the same tasks, so that differences are paired. Takes about
five minutes on two cores; after a stop, the same command with the same directory goes on.
    python examples/06_words_and_weights.py [RUN-DIRECTORY]
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import NamedTuple

from ludus.batch import Batch, evaluate, read_groups
from ludus.config.secrets import find_weights_folder
from ludus.envs.parcels import Parcels
from ludus.models import Model
from ludus.policy import Limits, Policy
from ludus.reflact.gate import Gate
from ludus.reflact.headroom import assess, explain_words, judge_outlook
from ludus.reflact.headroom_command import tally_tasks
from ludus.reflact.items import credit_item
from ludus.reflact.measure import make_measure
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Reflection, Step, Summary, count_rollouts
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import ShippingSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.weights_outlook import Advice, RlPlanSizes, advise_weights, choose_advice, foresee_weights
from ludus.rl.grpo_settings import GrpoSettings
from ludus.rl.loop import RlRun, run_rl
from ludus.rl.settings import RlSettings
from ludus.rl.torch_trainer import open_trainer
from ludus.runner import Runner, RunOptions
from ludus.skill import Edit, Skill
from ludus.stats import compare_pairs, compute_interval
from ludus.store import RunDir
from ludus.types import Group, Rollout, Sampling

ENV = Parcels(seed=7)
SETTINGS = GrpoSettings(learning_rate=1e-3, max_gradient=0.5, kl=0.05, threads=1, slots=96, context=256, seed=0)
STEPS, LATER_STEPS, GROUPS, GROUP_SIZE = 15, 6, 12, 16
"""Updates of the weights alone, updates after the words, and the rollouts of each."""
REPLICATES = 4
"""Rollouts of each task where an arm is measured."""


class Arm(NamedTuple):
    """A policy on the sealed test split."""

    name: str
    spent: int
    """The rollouts that it took to make it."""
    means: Mapping[str, float]
    """The mean score of each task."""


# ---- words ----------------------------------------------------------------------------------------------------------


def find_note(rollout: Rollout) -> str:
    """What a rollout teaches, such as "- red: north"; empty if it did not pass."""
    calls = [call.name for turn in rollout.turns for call in turn.completion.message.calls]
    passed = rollout.score is not None and rollout.score.passed
    return f"- {rollout.task.kind}: {calls[0]}" if passed and calls else ""


class DeskNotes(Proposer):
    """Notes the desk of each color for which a rollout was right."""

    name = "desk-notes"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        found: dict[str, list[str]] = {}
        async for rollout in rollouts:
            note = find_note(rollout)
            if note and note not in view.skill.text:
                found.setdefault(note, []).append(rollout.task.id)
        edits = tuple(credit_item(Edit("append", note), "success", tasks) for note, tasks in found.items())
        tasks = tuple(task for tasks in found.values() for task in tasks)
        return (Reflection("success", tasks, edits),) if edits else ()


class Words(NamedTuple):
    """What the training of a skill came to."""

    shipped: Skill
    """Empty if no note helped with certainty."""
    rollouts: int


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
    words = Words(Skill(""), 0)
    async for record in train(runner, policy, splits, settings, proposer=DeskNotes()):
        if isinstance(record, Step):
            print(f"words, step {record.number}: {record.action}")
        if isinstance(record, Summary):
            words = Words(record.best.skill, count_rollouts(record.spent))
    return words


# ---- weights --------------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """Weights after training."""

    model: Model
    versions: Set[str]
    """The names of the versions that sampled its rollouts."""


async def train_weights(policy: Policy, runner: Runner, out: Path, name: str, steps: int) -> Trained:
    """The policy's model after training its weights under its skill."""
    trainer = open_trainer(SETTINGS, find_weights_folder(), tell=print)
    run = RlRun(
        policy=policy,
        trainer=trainer,
        settings=RlSettings(
            steps=steps,
            groups=GROUPS,
            group_size=GROUP_SIZE,
            scale="std",
            eval_every=0,
            checkpoint_every=steps,
            checkpoints=1,
        ),
        tasks=tuple(ENV.tasks("train")),
        held_out=(),
        runner=runner,
        checkpoints=out / "checkpoints" / name,
    )
    async for record in run_rl(run):
        if record.step % 5 == 0 and record.reward is not None:
            print(f"{name}, step {record.step}: reward {record.reward:.3f}")
    model = await trainer.get_model(run.name_version(trainer.version))
    return Trained(model, {run.name_version(version) for version in range(STEPS)})


def read_notes(store: RunDir, versions: Set[str]) -> Skill:
    """What the rollouts teach that a training of weights has stored."""
    notes = {
        find_note(rollout)
        for _, rollout in store.read_outcomes()
        if rollout.provenance.model in versions and rollout.task.split == "train" and not rollout.provenance.skill
    }
    return Skill("\n".join(sorted(notes - {""})))


# ---- measuring ------------------------------------------------------------------------------------------------------


async def run_tasks(policy: Policy, runner: Runner, split: str, size: int) -> list[Group]:
    batch = Batch(tuple(ENV.tasks(split)), policy, group_size=size)
    await evaluate(batch, runner)
    return list(read_groups(batch, runner))


async def foresee(policy: Policy, runner: Runner) -> tuple[Advice, str]:
    """What `ludus headroom` says, from two runs of the selection tasks: one word, and its sentence."""
    groups = await run_tasks(policy, runner, "validation", 2)
    first, second = ([group.rollouts[place] for group in groups] for place in (0, 1))
    shipping = ShippingSettings()
    measures = make_measure(Skill(""), first), make_measure(Skill(""), second)
    found = assess(*measures, shipping=shipping, passes=shipping.count_passes(len(groups)))
    tokens = fmean(rollout.usage.tokens for rollout in (*first, *second))
    weights = foresee_weights(tally_tasks([*first, *second]), RlPlanSizes(STEPS, GROUPS, GROUP_SIZE), tokens)
    assert found is not None
    words = judge_outlook(found) == "promising"
    return choose_advice(words, weights), advise_weights(words, explain_words(found), weights)


async def measure(name: str, spent: int, policy: Policy, runner: Runner) -> Arm:
    groups = await run_tasks(policy, runner, "test", REPLICATES)
    scores = {g.task.id: [r.score.value for r in g.rollouts if r.score is not None] for g in groups}
    arm = Arm(name, spent, {task: fmean(values) for task, values in scores.items() if values})
    band = compute_interval(list(arm.means.values()))
    assert band is not None
    print(f"| {name} | {spent:,} | {fmean(arm.means.values()):.3f} [{band.low:.3f}, {band.high:.3f}] |")
    return arm


def compare(better: Arm, other: Arm) -> bool:
    """Print the difference of two arms, task by task. Returns whether the first is better with certainty."""
    paired = compare_pairs([better.means[task] - other.means[task] for task in better.means if task in other.means])
    assert paired is not None
    band = f"[{paired.interval.low:+.3f}, {paired.interval.high:+.3f}]"
    print(f"  {better.name} minus {other.name}: {paired.difference:+.3f} {band}")
    return paired.interval.low > 0


def conclude(nothing: Arm, words: Arm, weights: Arm, in_turn: Arm, both: Arm) -> Advice:
    """Print how the arms differ. Returns which training was worth its rollouts."""
    print("\npaired, by task:")
    words_help = compare(words, nothing)
    weights_help = compare(weights, nothing)
    compare(weights, words)
    more_by_weights = compare(in_turn, words)
    compare(in_turn, weights)
    compare(both, weights)
    if words_help and more_by_weights:
        return "both"
    return "words" if words_help else "weights" if weights_help else "neither"


async def main(out: Path) -> None:
    trainer = open_trainer(SETTINGS, find_weights_folder(), tell=print)
    first = await trainer.get_model(trainer.name)
    policy = Policy(first, sampling=Sampling(max_tokens=20), limits=Limits(turns=3))
    with RunDir.open(out, {"example": "words and weights"}, resume=True) as store:
        runner = Runner(ENV, store=store, options=RunOptions(concurrency=192))
        advice, sentence = await foresee(policy, runner)
        print(f"\nbefore: {sentence}\n")
        notes, words = await train_words(policy, runner)
        print(f"\nshipped:\n{notes.text or 'nothing'}\n")
        alone = await train_weights(policy, runner, out, "weights", STEPS)
        after = await train_weights(replace(policy, skill=notes), runner, out, "words, then weights", LATER_STEPS)
        read = read_notes(store, alone.versions)
        updates = GROUPS * GROUP_SIZE
        print(f"\non the test split, {REPLICATES} rollouts of each task:\n| arm | rollouts | score |\n|---|---:|---|")
        arms = [
            await measure("nothing", 0, policy, runner),
            await measure("words", words, replace(policy, skill=notes), runner),
            await measure("weights", STEPS * updates, policy.use_model(alone.model), runner),
            await measure(
                "words, then weights",
                words + LATER_STEPS * updates,
                replace(policy, skill=notes).use_model(after.model),
                runner,
            ),
            await measure(
                "both, same rollouts", STEPS * updates, replace(policy, skill=read).use_model(alone.model), runner
            ),
        ]
        print(f"\nworth their rollouts: {conclude(*arms)}; said before: {advice}")
        for model in (first, alone.model, after.model):
            await model.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp(prefix="ludus-words-and-weights-"))))
