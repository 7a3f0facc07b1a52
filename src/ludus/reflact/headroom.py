"""Is training worth it? What can be measured before it starts. Pure.

The initial skill is measured twice on the selection split, with different seeds: an A/A run. Only chance differs. So
the differences between the two runs are the noise of every later comparison, and the smallest gain that this split can
show follows from it: in one comparison, as the gate of the recipe `reflact` makes it, or in shipping, which runs the
split several times (`ludus.reflact.shipping_power`). Then the agent does some train tasks with the reference answer in
its instructions. No skill can do better than that, so it bounds the gain from above. `assess` puts this into numbers,
and `advise` into one sentence. All scores are those of the gate's metric: with graded scores, partial credit counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ludus.reflact.gate import METRICS, Gate, Mark, Measure, format_result, mean, project, project_mark
from ludus.reflact.shipping_power import (
    SelectionFacts,
    count_tasks_needed,
    estimate_luck,
    find_smallest_gain,
)
from ludus.reflact.train_settings import ShippingSettings
from ludus.skill import Skill
from ludus.stats import Interval, compare_pairs, compute_interval
from ludus.types import Rollout, Task

Outlook = Literal["promising", "no_room", "too_noisy", "out_of_reach"]

POWER = 1 + 0.8416 / 1.96
"""A gain as large as the half width of the 95 % interval is found in half of the cases. This factor makes it 80 %."""
ENOUGH = 0.05
"""The gain in question when the advice is how many tasks are needed."""
SHOWN = 2_000
"""The longest reference that is used as a hint, in characters."""


class Headroom(Struct, frozen=True, kw_only=True):
    """What was measured before training."""

    tasks: int
    """Selection tasks with a score in both runs."""
    rollouts: int
    failed: int
    """Rollouts without a score."""
    score: float
    """The share of rollouts that passed, in both runs together; by another metric, the mean score."""
    interval: Interval | None
    difference: float
    """Between the two runs of the same skill."""
    changed: float
    """The share of tasks with another result in the second run."""
    noise: float
    """Two measurements of the same skill on this split differ by less than this in 95 % of cases."""
    smallest_effect: float | None
    """The smallest true gain that is shown on this split in 80 % of cases; None: none that there is room for."""
    tasks_needed: int | None
    """For which that would be 5 points: the number of selection rollouts in one comparison, or with `passes` that of
    selection tasks. None: more than anyone has."""
    hinted: float | None = None
    """The share of rollouts with the reference as a hint that passed; None without hints."""
    unhinted: float | None = None
    """The share of the same train tasks that passed without a hint."""
    hints: int = 0
    """The number of tasks with a hint."""
    metric: str = "hard"
    """What counts as a score: `hard` (passed), `soft` (score) or `mixed`."""
    passes: int = 0
    """How often shipping runs the split, where that shows the gain; 0: one comparison shows it."""

    @property
    def room(self) -> float:
        """The largest gain that a skill could bring."""
        return compute_room(self.score, self.hinted, self.unhinted)


def compute_room(score: float, hinted: float | None, unhinted: float | None) -> float:
    most = 1.0 if hinted is None else max(hinted, unhinted or 0.0)
    return max(0.0, most - score)


def list_hinted(tasks: Sequence[Task], most: int) -> list[Task]:
    """The first tasks whose reference is a text that can be given as a hint."""
    return [task for task in tasks if isinstance(task.answer, str) and 0 < len(task.answer.strip()) <= SHOWN][:most]


def add_hint(skill: Skill, task: Task) -> Skill:
    """The skill with the reference of one task in it. Only for the upper bound: such rollouts are never trained on."""
    hint = f"The expected result of the task that follows is known. It is:\n\n{task.answer}\n"
    return skill.change_text(f"{skill.text.rstrip()}\n\n{hint}".lstrip())


def assess(
    first: Measure,
    second: Measure,
    hinted: Sequence[Rollout] = (),
    unhinted: Sequence[Rollout] = (),
    gate: Gate = Gate(metric="hard"),
    shipping: ShippingSettings | None = None,
    passes: int = 0,
) -> Headroom | None:
    """The numbers of an A/A run and of rollouts with hints, by the gate's metric; None if no task has a score in both
    runs. `shipping`: if that shows the gain, with so many passes; else one comparison does."""
    shared = sorted(first.marks.keys() & second.marks.keys())
    one, other = ([project_mark(gate, run.marks[task]) for task in shared] for run in (first, second))
    differences = [a - b for a, b in zip(one, other, strict=True)]
    paired = compare_pairs(differences)
    if paired is None:
        return None
    together = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
    noise = (paired.interval.high - paired.interval.low) / 2
    rollouts = _count(first.marks) + _count(second.marks)
    score, hint, plain = math.fsum(together) / len(together), _compute_mean(gate, hinted), _compute_mean(gate, unhinted)
    smallest: float | None = noise * POWER
    needed: int | None = math.ceil(rollouts / 2 * (smallest / ENOUGH) ** 2)
    if shipping is not None:
        facts = SelectionFacts(estimate_luck(differences), compute_room(score, hint, plain), shipping.certainty)
        smallest = find_smallest_gain(facts, len(shared), passes)
        needed = count_tasks_needed(facts, ENOUGH, shipping)
    return Headroom(
        tasks=paired.tasks,
        rollouts=rollouts + first.failed + second.failed,
        failed=first.failed + second.failed,
        score=score,
        interval=compute_interval(together),
        difference=paired.difference,
        changed=(paired.wins + paired.losses) / paired.tasks,
        noise=noise,
        smallest_effect=smallest,
        tasks_needed=needed,
        hinted=hint,
        unhinted=plain,
        hints=sum(rollout.score is not None for rollout in hinted),
        metric=gate.metric,
        passes=passes if shipping is not None else 0,
    )


def _count(marks: Mapping[str, Mark]) -> int:
    return sum(mark.rollouts for mark in marks.values())


def _compute_mean(gate: Gate, rollouts: Sequence[Rollout]) -> float | None:
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    return mean([project(gate, float(score.passed), score.soft) for score in scores])


def describe_result(metric: str, score: float) -> str:
    """A mean score in words."""
    name = "passes" if metric == "hard" else f"has a {METRICS[metric]} of"
    return f"{name} {format_result(score, metric)}"


def judge_outlook(found: Headroom) -> Outlook:
    """Whether training is worth it."""
    if found.hinted is not None and found.hinted < found.score + found.noise and found.hinted < 0.5:
        return "out_of_reach"
    if found.room < ENOUGH or (not found.passes and found.room < found.noise / 2):
        return "no_room"
    return "too_noisy" if found.smallest_effect is None or found.smallest_effect > found.room else "promising"


def explain_words(found: Headroom) -> str:
    """Why the training of a skill is worth it, or not, as a part of a sentence."""
    room = f"{100 * found.room:.0f}"
    match judge_outlook(found):
        case "out_of_reach":
            return "knowledge in the instructions hardly helps this agent"
        case "no_room":
            return f"a skill has at most {room} points left"
        case "too_noisy":
            return f"a skill could bring up to {room} points, but this selection split could not show them"
        case "promising":
            return f"a skill could bring up to {room} points"


def advise(found: Headroom) -> str:
    """One sentence on whether training is worth it."""
    score, room = describe_result(found.metric, found.score), f"{100 * found.room:.0f}"
    match judge_outlook(found):
        case "out_of_reach":
            return (
                "Not yet: even with the expected result in its instructions the agent only "
                f"{describe_result(found.metric, found.hinted or 0.0)}, so something other than knowledge is missing; "
                "read the transcripts (answer form, tools, limits) or use a stronger model."
            )
        case "no_room":
            return f"Hardly worth it: the agent {score} already, and at most {room} points are left to gain."
        case "too_noisy":
            return f"Not with this selection split: {_explain_noise(found, room)}."
        case "promising":
            return (
                f"Worth it: the agent {score}, up to {room} points could be gained, and "
                f"{'shipping' if found.passes else 'one comparison'} on {count_tasks(found)} shows gains of "
                f"{100 * (found.smallest_effect or 0.0):.0f} points or more."
            )


def count_tasks(found: Headroom) -> str:
    return f"{found.tasks} selection task{'' if found.tasks == 1 else 's'}"


def _explain_noise(found: Headroom, room: str) -> str:
    """Why this split cannot show what there is to gain, and what could."""
    if found.passes:
        needed = f" (about {found.tasks_needed} show 5 points)" if found.tasks_needed else ""
        return f"{count_tasks(found)} cannot show the {room} points that are there to gain; use more tasks{needed}"
    return (
        f"it shows gains of {100 * (found.smallest_effect or 0.0):.0f} points or more, and at most {room} are there to "
        f"gain; use about {found.tasks_needed} selection rollouts (more tasks first, then train.selection_replicates) "
        "to see 5 points"
    )
