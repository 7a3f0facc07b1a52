"""The slow update: compare the current skill with the skill of an epoch ago, on the same tasks.

Both skills are run on a sample of train tasks with the same seeds, in parallel. Each task then improved, regressed,
failed both times or succeeded both times. A task without a score under both skills is left out. From the comparison the
optimizer writes lasting guidance for the agent (the slow update) and, separately, a memory for itself.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.gate import mean
from ludus.reflact.measure import SkillRunner, Trial, is_success
from ludus.reflact.proposers import View
from ludus.reflact.records import MeasuredSkill, RunState, SlowReport, UnusableReply
from ludus.reflact.splits import derive_slow_seed, sample_some
from ludus.reflact.stages.evaluate import evaluate
from ludus.reflact.train_settings import PairPolicy
from ludus.reflact.training_run import TrainingRun
from ludus.reflact.transcript import describe_verdict, fit_texts, render_heading, render_turns
from ludus.skill import Skill, read_guidance, render_whole, set_guidance
from ludus.types import Rollout, Task

Category = Literal["regressed", "persistent_fail", "improved", "stable_success"]

_TITLES: dict[Category, str] = {
    "regressed": "Regressed: succeeded before, fails now (look at these first)",
    "persistent_fail": "Failed both times",
    "improved": "Improved: failed before, succeeds now",
    "stable_success": "Succeeded both times",
}


class Pair(Struct, frozen=True):
    """One task under both skills."""

    category: Category
    previous: Rollout
    current: Rollout


class SlowReply(Struct, frozen=True):
    guidance: str
    reasoning: str = ""


def pair_rollouts(previous: Sequence[Rollout], current: Sequence[Rollout], success_at: float | None) -> list[Pair]:
    """The tasks with a score under both skills, in order."""
    return [
        Pair(categorize(is_success(before, success_at), is_success(after, success_at)), before, after)
        for before, after in zip(previous, current, strict=True)
        if before.score is not None and after.score is not None
    ]


def categorize(before: bool, after: bool) -> Category:
    if before:
        return "stable_success" if after else "regressed"
    return "improved" if after else "persistent_fail"


def filter_pairs(pairs: Sequence[Pair], policy: PairPolicy) -> list[Pair]:
    """The pairs that the policy shows to the optimizer."""
    changed = ("improved", "regressed")
    if policy == "mixed":
        return list(pairs)
    return [pair for pair in pairs if (pair.category in changed) == (policy == "changed")]


async def compare_skills(runner: SkillRunner, view: View, previous: Skill, tasks: Sequence[Task]) -> list[Pair]:
    """Run both skills and pair their rollouts. The policy `changed` runs more tasks until it has enough pairs."""
    slow, settings = view.settings.slow, view.settings
    seed = derive_slow_seed(settings.seed, view.epoch)
    order = list(sample_some(tasks, len(tasks), seed))
    pairs: list[Pair] = []
    wanted = slow.samples
    while order and wanted > 0:
        part, order = order[:wanted], order[wanted:]
        rollouts = await runner.run_trials(
            [Trial(skill, task, seed) for skill in (previous, view.skill) for task in part], "slow"
        )
        pairs += filter_pairs(
            pair_rollouts(rollouts[: len(part)], rollouts[len(part) :], settings.success_at), slow.pairs
        )
        wanted = slow.samples - len(pairs) if slow.pairs == "changed" else 0
    return pairs[: slow.samples]


def count_categories(pairs: Sequence[Pair]) -> dict[str, int]:
    counts = Counter(pair.category for pair in pairs)
    return {category: counts[category] for category in _TITLES}


def compute_pass_rate(rollouts: Sequence[Rollout]) -> float | None:
    return mean([float(rollout.score.passed) for rollout in rollouts if rollout.score is not None])


def describe_pairs(view: View, pairs: Sequence[Pair]) -> str:
    """The pairs as text: counts, then each category, with both transcripts unless both succeeded."""
    parts = [_describe_pair(view, pair) for pair in pairs]
    texts = iter(fit_texts([text for part in parts for text in part], view.settings.trajectory_tokens))
    blocks = ["\n\n".join(next(texts) for _ in part) for part in parts]
    counts = "\n".join(f"- {title}: {count_categories(pairs)[category]}" for category, title in _TITLES.items())
    sections = [f"{len(pairs)} tasks.\n{counts}"]
    for category, title in _TITLES.items():
        members = [text for pair, text in zip(pairs, blocks, strict=True) if pair.category == category]
        sections.append(f"## {title}\n\n" + ("\n\n".join(members) or "(none)"))
    return "\n\n".join(sections)


def _describe_pair(view: View, pair: Pair) -> list[str]:
    """A pair as text: the task, and both transcripts unless both succeeded."""
    task = pair.current.task
    if pair.category == "stable_success":
        return [f"### {task.id}\nTask: {task.prompt.strip()}"]
    sides = (("With the skill of the last epoch", pair.previous), ("With the skill of today", pair.current))
    transcripts = [
        f"{title}: {describe_verdict(rollout)}\n" + "\n".join(render_turns(rollout)) for title, rollout in sides
    ]
    return [render_heading(pair.current, reference=view.settings.show_reference), *transcripts]


async def write_guidance(view: View, previous: Skill, pairs: Sequence[Pair]) -> SlowReply | UnusableReply:
    """Ask the optimizer for lasting guidance."""
    return await view.require_optimizer().ask(
        "slow",
        {
            "previous": previous.text.strip() or "(empty)",
            "skill": render_whole(view.skill).strip() or "(empty)",
            "guidance": read_guidance(view.skill) or "None yet.",
            "comparison": describe_pairs(view, pairs),
            "count": str(len(pairs)),
        },
        SlowReply,
        stage="slow",
        place=str(view.epoch),
        otherwise="the guidance stayed as it was",
        check=lambda reply: "" if reply.guidance.strip() else "its guidance is empty",
    )


async def apply_guidance(run: TrainingRun, state: RunState, reply: SlowReply) -> tuple[RunState, SlowReport]:
    """Put guidance into the current skill: if it passes the gate, or always and then unmeasured (`slow.gated`)."""
    candidate = set_guidance(state.current.skill, reply.guidance)
    origin = f"slow_update_epoch_{state.epoch:02d}"
    report = SlowReport(
        action="force_accept", reasoning=reply.reasoning, guidance=reply.guidance.strip(), candidate=candidate
    )
    if fault := run.guard.find_fault(state.current.skill, reply.guidance):
        return state, SlowReport(action=f"refused_{fault.kind}", reasoning=fault.describe())
    if not run.settings.slow.gated:
        if candidate != state.current.skill:
            state = replace(state, current=MeasuredSkill(candidate, origin, state.step))
        return state, report
    gate = replace(run.settings.gate, enabled=True)
    judgement = await evaluate(run, state, candidate, origin, state.step, gate)
    action = judgement.verdict.decision.value if judgement.verdict else report.action
    return judgement.state, replace(report, action=action, measure=judgement.measure, verdict=judgement.verdict)
