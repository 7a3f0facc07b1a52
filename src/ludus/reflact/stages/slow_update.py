"""The long view: the skill of today beside the skill of an epoch ago, on the same tasks.

Both are run on a sample of train tasks with the same seeds, side by side. Each task then improved, regressed, failed
both times or succeeded both times; a task that could not be judged under both says nothing and is left out. From the
comparison the optimizer writes lasting guidance for the agent (the slow update) and, apart from it, a memory for
itself.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.gate import mean
from ludus.reflact.lab import Lab, Trial, succeeded
from ludus.reflact.proposers import View
from ludus.reflact.records import Held, RunState, SlowReport, Unusable
from ludus.reflact.splits import sample, slow_seed
from ludus.reflact.stages.evaluate import evaluate
from ludus.reflact.train_settings import PairPolicy
from ludus.reflact.training_run import Run
from ludus.reflact.transcript import fit, heading, turns_of, verdict
from ludus.skill import Skill, guidance, with_guidance
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


def paired(previous: Sequence[Rollout], current: Sequence[Rollout], success_at: float | None) -> list[Pair]:
    """The tasks that were judged under both skills, in order."""
    return [
        Pair(categorize(succeeded(before, success_at), succeeded(after, success_at)), before, after)
        for before, after in zip(previous, current, strict=True)
        if before.score is not None and after.score is not None
    ]


def categorize(before: bool, after: bool) -> Category:
    if before:
        return "stable_success" if after else "regressed"
    return "improved" if after else "persistent_fail"


def kept(pairs: Sequence[Pair], policy: PairPolicy) -> list[Pair]:
    """The pairs that a policy shows."""
    changed = ("improved", "regressed")
    if policy == "mixed":
        return list(pairs)
    return [pair for pair in pairs if (pair.category in changed) == (policy == "changed")]


async def compare(lab: Lab, view: View, previous: Skill, tasks: Sequence[Task]) -> list[Pair]:
    """The comparison of an epoch. Where only changes are wanted, more tasks are run until there are enough of them."""
    slow, settings = view.settings.slow, view.settings
    seed = slow_seed(settings.seed, view.epoch)
    order = list(sample(tasks, len(tasks), seed))
    pairs: list[Pair] = []
    wanted = slow.samples
    while order and wanted > 0:
        part, order = order[:wanted], order[wanted:]
        rollouts = await lab.roll(
            [Trial(skill, task, seed) for skill in (previous, view.skill) for task in part], "slow"
        )
        pairs += kept(paired(rollouts[: len(part)], rollouts[len(part) :], settings.success_at), slow.pairs)
        wanted = slow.samples - len(pairs) if slow.pairs == "changed" else 0
    return pairs[: slow.samples]


def counted(pairs: Sequence[Pair]) -> dict[str, int]:
    counts = Counter(pair.category for pair in pairs)
    return {category: counts[category] for category in _TITLES}


def share_passed(rollouts: Sequence[Rollout]) -> float | None:
    return mean([float(rollout.score.passed) for rollout in rollouts if rollout.score is not None])


def comparison(view: View, pairs: Sequence[Pair]) -> str:
    """The pairs in words: counts, then category by category, with both transcripts where something can be learned."""
    parts = [_parts(view, pair) for pair in pairs]
    texts = iter(fit([text for part in parts for text in part], view.settings.trajectory_tokens))
    described = ["\n\n".join(next(texts) for _ in part) for part in parts]
    counts = "\n".join(f"- {title}: {counted(pairs)[category]}" for category, title in _TITLES.items())
    sections = [f"{len(pairs)} tasks.\n{counts}"]
    for category, title in _TITLES.items():
        members = [text for pair, text in zip(pairs, described, strict=True) if pair.category == category]
        sections.append(f"## {title}\n\n" + ("\n\n".join(members) or "(none)"))
    return "\n\n".join(sections)


def _parts(view: View, pair: Pair) -> list[str]:
    """A pair in words: the task, and both transcripts where there is something to learn from them."""
    task = pair.current.task
    if pair.category == "stable_success":
        return [f"### {task.id}\nTask: {task.prompt.strip()}"]
    sides = (("With the skill of the last epoch", pair.previous), ("With the skill of today", pair.current))
    told = [f"{title}: {verdict(rollout)}\n" + "\n".join(turns_of(rollout)) for title, rollout in sides]
    return [heading(pair.current, reference=view.settings.show_reference), *told]


async def write_guidance(view: View, previous: Skill, pairs: Sequence[Pair]) -> SlowReply | Unusable:
    """Ask for guidance that lasts."""
    return await view.asked().ask(
        "slow",
        {
            "previous": previous.text.strip() or "(empty)",
            "skill": view.skill.text.strip() or "(empty)",
            "guidance": guidance(view.skill) or "None yet.",
            "comparison": comparison(view, pairs),
            "count": str(len(pairs)),
        },
        SlowReply,
        stage="slow",
        place=str(view.epoch),
        otherwise="the guidance stayed as it was",
        check=lambda reply: "" if reply.guidance.strip() else "its guidance is empty",
    )


async def settle_guidance(run: Run, state: RunState, reply: SlowReply) -> tuple[RunState, SlowReport]:
    """Put guidance into the current skill: through the gate, or by force and then unmeasured."""
    candidate = with_guidance(state.current.skill, reply.guidance)
    origin = f"slow_update_epoch_{state.epoch:02d}"
    said = SlowReport(
        action="force_accept", reasoning=reply.reasoning, guidance=reply.guidance.strip(), candidate=candidate
    )
    if not run.settings.slow.gated:
        if candidate != state.current.skill:
            state = replace(state, current=Held(candidate, origin, state.step))
        return state, said
    gate = replace(run.settings.gate, enabled=True)
    judged = await evaluate(run, state, candidate, origin, state.step, gate)
    action = judged.verdict.decision.value if judged.verdict else said.action
    return judged.state, replace(said, action=action, measure=judged.measure, verdict=judged.verdict)
