"""What a claim is compared with: the arms that a sceptic would ask for. Pure.

The rollouts of training could have been spent otherwise: as samples of the initial skill for each test task, of which
the verifier chooses the best. That is the arm of equal budget. It needs the verifier where the skill is used, and its
price is paid for each new task again; a skill is paid for once. So the skill's result with one try stays the headline,
and this arm stands beside it. The other arms say whether the skill helps where it was not trained: on tasks of another
family, or with another model. Without the first arm, a difference is not called a gain. All arms are measured by the
metric of the claim: with graded scores the verifier chooses the sample with the best score.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ludus.reflact.gate import METRICS, Gate, Measure, format_result, project, project_mark
from ludus.reflact.records import BestOfArm, Claim, ClaimArms, StageCost, TransferArm, count_rollouts
from ludus.reflact.shipping import compute_claim_interval, format_points
from ludus.stats import compare_pairs, compute_interval
from ludus.types import Rollout

FEWEST_TASKS = 4
"""With fewer test tasks the arm of samples is not measured: its interval would say nothing."""


class ArmPlan(NamedTuple):
    """The arm of samples: how many for each task, and of how many tasks."""

    samples: int
    matched: int
    tasks: int

    @property
    def rollouts(self) -> int:
        return self.samples * self.tasks


def plan_samples(trained: int, tasks: int, best_of: int | None, limit: int | None) -> ArmPlan | None:
    """Plan the arm of samples. `trained`: the rollouts of training and shipping. `tasks`: the test tasks. `limit`: the
    most rollouts of the arm. None: the limit leaves too few tasks."""
    matched = max(2, math.ceil(trained / tasks)) if tasks else 2
    samples = matched if best_of is None else best_of
    used = tasks if limit is None else min(tasks, limit // samples)
    return ArmPlan(samples, matched, used) if used >= min(FEWEST_TASKS, tasks) > 0 else None


def sum_training(spent: Sequence[StageCost]) -> tuple[int, int]:
    """The rollouts of training and shipping, and the tokens of all roles, without the test and the arms."""
    kept = [entry for entry in spent if not is_after_training(entry)]
    return count_rollouts(kept), sum(entry.usage.tokens for entry in kept)


def is_after_training(entry: StageCost) -> bool:
    """Whether a cost is one of the test or of the arms."""
    return entry.role == "agent" and entry.stage in ("test", "best_of", "held_out", "other_model")


def make_best_of(plan: ArmPlan, rollouts: Mapping[str, Sequence[Rollout]], shipped: Measure, gate: Gate) -> BestOfArm:
    """The arm of samples. `rollouts`: the samples of each task. `shipped`: the new skill on the test tasks. `gate`: its
    metric is that of the claim."""
    scores = {task: _list_scores(samples, gate) for task, samples in rollouts.items()}
    whole = {task: found for task, found in scores.items() if len(found) >= plan.samples}
    best = {task: estimate_best_of(plan.samples, found) for task, found in whole.items()}
    shared = [project_mark(gate, shipped.marks[task]) - share for task, share in best.items() if task in shipped.marks]
    lead = compare_pairs(shared, compute_claim_interval)
    return BestOfArm(
        samples=plan.samples,
        matched=plan.matched,
        tasks=len(whole),
        excluded=len(scores) - len(whole),
        passed=_average(list(best.values())),
        interval=compute_interval(list(best.values())),
        pass_at={k: _average_best_of(k, whole.values()) for k in _list_sizes(plan.samples)} if whole else {},
        lead=lead.difference if lead else None,
        lead_interval=lead.interval if lead else None,
        rollouts=sum(len(samples) for samples in rollouts.values()),
        tokens=sum_tokens(each for samples in rollouts.values() for each in samples),
    )


def _list_scores(samples: Sequence[Rollout], gate: Gate) -> list[float]:
    scores = [rollout.score for rollout in samples if rollout.score is not None]
    return [project(gate, float(score.passed), score.soft) for score in scores]


def estimate_best_of(k: int, scores: Sequence[float]) -> float:
    """The mean of the best of k scores, over all ways to choose k of them. Where a score is 0 or 1, this is pass@k."""
    ordered, ways = sorted(scores), math.comb(len(scores), k)
    return math.fsum(score * (math.comb(place, k - 1) / ways) for place, score in enumerate(ordered))


def _average_best_of(k: int, tasks: Iterable[Sequence[float]]) -> float:
    values = [estimate_best_of(k, scores) for scores in tasks]
    return math.fsum(values) / len(values)


def _list_sizes(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return [*(1 << place for place in range(most.bit_length()) if 1 << place < most), most]


def make_transfer(
    what: str, name: str, initial: Measure, shipped: Measure, rollouts: Sequence[Rollout], gate: Gate
) -> TransferArm:
    """Both skills where they were not trained, paired by task."""
    shared = sorted(initial.marks.keys() & shipped.marks.keys())
    old, new = ([project_mark(gate, each.marks[task]) for task in shared] for each in (initial, shipped))
    found = compare_pairs([b - a for a, b in zip(old, new, strict=True)], compute_claim_interval)
    return TransferArm(
        what=what,
        name=name,
        tasks=len(shared),
        initial=_average(old),
        shipped=_average(new),
        difference=found.difference if found else None,
        interval=found.interval if found else None,
        rollouts=len(rollouts),
        tokens=sum_tokens(rollouts),
    )


def _average(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def sum_tokens(rollouts: Iterable[Rollout]) -> int:
    return sum(rollout.usage.tokens for rollout in rollouts)


# ---- in words -------------------------------------------------------------------------------------------------------


def name_gain(claim: Claim, arms: ClaimArms) -> Claim:
    """The claim beside its arms. A difference that can be told from chance is called a gain if the arm of equal budget
    was measured."""
    gain = claim.is_better and arms.best_of is not None and arms.best_of.is_matched
    return replace(claim, gain=gain, sentence=f"a gain of {claim.sentence}" if gain else claim.sentence)


def describe_arms(
    best_of: BestOfArm | None,
    transfers: Sequence[TransferArm],
    trained: int,
    shipped: float | None,
    why: str = "",
    metric: str = "hard",
) -> str:
    """The arms in one plain sentence for each. `trained`: the rollouts of training and shipping. `shipped`: the result
    of the new skill with one try on the test tasks. `why`: why there is no arm of samples. `metric`: that of all."""
    sentences = [_describe_best_of(best_of, trained, shipped, metric) if best_of is not None else why]
    return " ".join([*filter(None, sentences), *map(_describe_transfer, transfers)])


def _describe_best_of(arm: BestOfArm, trained: int, shipped: float | None, metric: str) -> str:
    if arm.passed is None or arm.lead is None or arm.lead_interval is None:
        return f"The initial skill with {arm.samples} tries has no result: no test task has that many scored samples."
    budget = f"At equal budget ({trained} rollouts)" if arm.is_matched else f"With {arm.rollouts} of {trained} rollouts"
    share = "" if shipped is None else f" ({format_result(shipped, metric)})"
    tasks, result = f"{arm.tasks} test task{'' if arm.tasks == 1 else 's'}", format_result(arm.passed, metric)
    done = f"passes {result} of {tasks}" if metric == "hard" else f"has a {METRICS[metric]} of {result} on {tasks}"
    words = (
        f"{budget}, the initial skill {done} with {arm.samples} tries and the verifier choosing; the new skill with "
        f"one try{share} is {describe_lead(arm)}."
    )
    return (
        words if arm.is_matched else f"{words} Equal budget would be {arm.matched} tries, so nothing is called a gain."
    )


def describe_lead(arm: BestOfArm) -> str:
    """The new skill with one try, compared with the samples."""
    assert arm.lead is not None and arm.lead_interval is not None
    low, high = arm.lead_interval.low, arm.lead_interval.high
    side = "better" if arm.lead > 0 else "worse"
    known = "" if low > 0 or high < 0 else ", which could be chance"
    band = f"[{format_points(low)}, {format_points(high)}]"
    points = f"{abs(round(100 * arm.lead))} points {side}" if round(100 * arm.lead) else "equally good"
    return f"{points} {band}{known}"


def _describe_transfer(arm: TransferArm) -> str:
    where = f"On {arm.tasks} held-out tasks ({arm.name})" if arm.what == "tasks" else f"With the model {arm.name}"
    if arm.difference is None or arm.interval is None:
        return f"{where}: no task has a score under both skills."
    band = f"[{format_points(arm.interval.low)}, {format_points(arm.interval.high)}]"
    known = "" if arm.interval.low > 0 or arm.interval.high < 0 else ", no difference that could be told from chance"
    tasks = "" if arm.what == "tasks" else f" on {arm.tasks} test tasks"
    return f"{where}: {format_points(arm.difference)} points {band}{tasks}{known}."
