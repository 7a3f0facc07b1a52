"""Shipping: choose the skill that a run ends with, and make its claim.

What to explore next may be permissive; what is shipped must not be. The score that a skill was chosen for is too high,
because it was chosen. So a few candidates are measured afresh on the selection split, with new seeds, each paired with
the initial skill: same task, same seed. They are measured until it is clear which is better or the rollouts for it are
spent, and weaker ones are dropped on the way. A candidate is shipped if it is surely better there, and likely better on
other tasks (`ludus.reflact.paired_evidence`). Otherwise the initial skill stays. The winner is then run once on the
sealed test split, paired with the initial skill. The difference there, with its interval, is the claim of the run. The
decisions are pure functions.

With the rule `best`, the skill with the highest score on the selection split is shipped, whatever that score is worth.
"""

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ludus.encoding import canonical, to_json
from ludus.reflact.gate import METRICS, Gate, Measure, pair_marks, project, resolve_metric
from ludus.reflact.measure import Trial, make_measure, merge_measures
from ludus.reflact.paired_evidence import FEWEST_TASKS, compute_certainty, compute_transfer
from ludus.reflact.records import Claim, MeasuredSkill, ShipCandidate, Shipment
from ludus.reflact.splits import FEW_TESTS, derive_ship_seed, sample_some
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill
from ludus.stats import Interval, PairedStats
from ludus.store import decode_record
from ludus.types import Rollout, Task

_SURE, _IN_VAIN = 0.999, 0.02
"""The certainties at which a single candidate is not measured any further."""
_LIKELY = 0.8
"""How likely other tasks must gain, too. Luck is held down by the certainty. This decides by the expected value: a text
that surely helps some of the selection tasks, and hurts few, is worth more on other tasks than it risks."""
_HALVING = (1, 2, 4)
"""The passes after which the weaker half of the candidates is dropped."""
TEST_USES = "test_use"
"""The kind of a record in the store that says that the test split was used."""

Pairs = Mapping[str, Sequence[float]]
"""For each task, the differences of paired rollouts: same task, same seed."""


class _Series:
    """The fresh rollouts of one text: what each task and replicate has scored."""

    def __init__(self, skill: Skill) -> None:
        self.measure = Measure(skill.hash)
        self.values: dict[tuple[str, int], float] = {}

    def add(self, gate: Gate, skill: Skill, slots: Sequence[tuple[Task, int]], rollouts: Sequence[Rollout]) -> None:
        self.measure = merge_measures(self.measure, make_measure(skill, rollouts))
        for (task, replicate), rollout in zip(slots, rollouts, strict=True):
            if rollout.score is not None:
                self.values[task.id, replicate] = project(gate, float(rollout.score.passed), rollout.score.soft)

    def pair(self, other: "_Series") -> Pairs:
        """The differences to another text. A pair with a rollout that failed says nothing."""
        found: dict[str, list[float]] = {}
        for (task, replicate), value in self.values.items():
            if (task, replicate) in other.values:
                found.setdefault(task, []).append(value - other.values[task, replicate])
        return found


async def ship(
    run: TrainingRun, initial: Skill, candidates: Sequence[MeasuredSkill], gate: Gate, allowance: int | None = None
) -> Shipment:
    """Measure the candidates afresh beside the initial skill and choose one. `allowance`: the most rollouts."""
    settings = run.settings.shipping
    seed = derive_ship_seed(run.settings.seed)
    order = sample_some(run.selection, len(run.selection), seed)
    rivals = [each for each in {each.skill: each for each in candidates}.values() if each.skill != initial]
    rivals = limit_candidates(rivals, len(order), allowance)
    series = {skill: _Series(skill) for skill in (initial, *(each.skill for each in rivals))}
    left = list(rivals)
    done = spent = number = 0
    most = settings.passes or (settings.count_passes(len(order)) if allowance is None else allowance)
    while left and len(order) >= FEWEST_TASKS and number < most:
        skills = [initial, *(each.skill for each in left)]
        size = len(order) if allowance is None else min(len(order), (allowance - spent) // len(skills))
        if size <= 0:
            break
        slots = [(order[at % len(order)], at // len(order)) for at in range(done, done + size)]
        rollouts = await run.runner.run_trials(
            [Trial(skill, task, seed, replicate) for skill in skills for task, replicate in slots], "ship"
        )
        for place, skill in enumerate(skills):
            series[skill].add(gate, skill, slots, rollouts[place * size : (place + 1) * size])
        done, spent, number = done + size, spent + len(rollouts), number + 1
        judged = [_judge(each, series, initial) for each in left]
        if number in _HALVING:
            left = keep_better_half(left, judged)
        if len(left) == 1 and is_clear(max(judged, key=lambda each: each.difference)):
            break
    results = [_judge(each, series, initial) for each in rivals]
    finalists = [each for each in results if each.skill in {rival.skill for rival in left}]
    winner = choose_winner(finalists, raise_bar(settings.certainty, len(rivals)))
    return Shipment(
        candidates=tuple(results),
        initial=series[initial].measure,
        shipped=winner.skill.hash if winner else "",
        rollouts=spent,
        metric=gate.metric,
    )


def _judge(candidate: MeasuredSkill, series: Mapping[Skill, _Series], initial: Skill) -> ShipCandidate:
    own = series[candidate.skill]
    return judge_candidate(candidate, own.measure, own.pair(series[initial]))


def ship_best(gate: Gate, initial: MeasuredSkill, best: MeasuredSkill, rollouts: int = 0) -> Shipment:
    """Ship the best skill on the selection split, by the measures that it was chosen for."""
    own, other = (held.measure or Measure(held.skill.hash) for held in (best, initial))
    is_new = best.skill != initial.skill
    return Shipment(
        candidates=(judge_candidate(best, own, _pair_means(gate, own, other)),) if is_new else (),
        initial=other,
        shipped=best.skill.hash if is_new else "",
        rollouts=rollouts,
        fresh=False,
        metric=resolve_metric(gate).metric,
    )


def _pair_means(gate: Gate, one: Measure, other: Measure) -> Pairs:
    """The differences of means, task by task, for measures that were made at different times."""
    return {str(place): [difference] for place, difference in enumerate(pair_marks(gate, one, other))}


def explain_rule(settings: TrainSettings, tasks: int) -> str:
    """What the rule means for a run with this many selection tasks, if that could surprise; else nothing."""
    shipping = settings.shipping
    if shipping.rule == "best" or (tasks >= FEWEST_TASKS and shipping.certainty < 1.0):
        return ""
    flags = ("" if settings.recipe == "reflact" else "--recipe reflact ") + "--train.shipping.rule best"
    if tasks >= FEWEST_TASKS:
        return (
            "the initial skill will stay, whatever is learned: no measurement is certain enough for "
            f"train.shipping.certainty {shipping.certainty:g}. Set it below 1, for example to 0.95"
        )
    return (
        f"the initial skill will stay, whatever is learned: {tasks} selection task{'' if tasks == 1 else 's'} cannot "
        f"show whether a skill is better on other tasks; at least {FEWEST_TASKS} can. Use more selection tasks, or "
        f"ship the best one on the selection split: {flags}"
    )


def judge_candidate(candidate: MeasuredSkill, measure: Measure, pairs: Pairs) -> ShipCandidate:
    """Compare a candidate with the initial skill. The unit is the task."""
    means = [math.fsum(each) / len(each) for each in pairs.values()]
    return ShipCandidate(
        origin=candidate.origin,
        step=candidate.step,
        skill=candidate.skill,
        measure=measure,
        difference=math.fsum(means) / len(means) if means else 0.0,
        better=sum(value > 0 for value in means),
        worse=sum(value < 0 for value in means),
        certainty=compute_certainty(list(pairs.values())),
        transfer=compute_transfer(list(pairs.values())),
    )


def limit_candidates(rivals: Sequence[MeasuredSkill], tasks: int, allowance: int | None) -> list[MeasuredSkill]:
    """As many candidates as can be halved down to one, which is then run on all tasks once more; and the first one
    anyway. They share most lines, so where rollouts are few, another one takes more from the evidence than the choice
    is worth."""
    if allowance is None:
        return list(rivals)
    fitting = [count for count in range(1, len(rivals) + 1) if _count_rounds(count) * tasks <= allowance]
    return list(rivals[: max(fitting, default=1)])


def _count_rounds(candidates: int) -> int:
    """How many texts are run on all tasks until one of so many candidates is left and run once more, with the initial
    skill each time."""
    rounds = 2
    while candidates > 1:
        rounds += candidates + 1
        candidates = math.ceil(candidates / 2)
    return rounds


def keep_better_half(candidates: Sequence[MeasuredSkill], judged: Sequence[ShipCandidate]) -> list[MeasuredSkill]:
    """The better half of the candidates, by their difference to the initial skill."""
    ranked = sorted(range(len(candidates)), key=lambda place: -judged[place].difference)
    kept = set(ranked[: math.ceil(len(candidates) / 2)])
    return [candidate for place, candidate in enumerate(candidates) if place in kept]


def is_clear(candidate: ShipCandidate) -> bool:
    """Whether further rollouts of a candidate would change nothing: it is surely better, or hardly so."""
    return candidate.certainty <= _IN_VAIN or (candidate.certainty >= _SURE and candidate.transfer >= _LIKELY)


def raise_bar(certainty: float, candidates: int) -> float:
    """The certainty that the best of several candidates needs: one of them is more often lucky than a single one. Each
    further one counts half, because they share lines."""
    return 1.0 - (1.0 - certainty) / (1.0 + 0.5 * max(0, candidates - 1))


def choose_winner(finalists: Sequence[ShipCandidate], certainty: float) -> ShipCandidate | None:
    """The candidate to ship: the largest difference, if it is certain enough. None: the initial skill stays."""
    best = max(finalists, key=lambda each: each.difference, default=None)
    if best is None or best.difference <= 0:
        return None
    return best if best.certainty >= certainty and best.transfer >= _LIKELY else None


# ---- the claim ------------------------------------------------------------------------------------------------------


class _TestUse(Struct, frozen=True):
    """A skill was tested on the test split."""

    split: str
    skill: str


_TEST_USE = msgspec.json.Decoder(_TestUse)


def count_test_uses(run: TrainingRun, shipped: Skill) -> int:
    """Record that a skill is tested. Returns how many skills were tested on this split, this one included."""
    use = _TestUse(run.splits.test.digest, shipped.hash)
    key = hashlib.sha256(canonical((TEST_USES, use))).hexdigest()[:32]
    run.store.put_record(key, TEST_USES, to_json(use))
    own = (decode_record(_TEST_USE, body).skill for _, body in run.store.read_records(TEST_USES))
    return len({*own, *run.tested_before})


def compute_claim_interval(differences: Sequence[float]) -> Interval:
    """The 95 % interval of the mean of paired differences, each from -1 to 1.

    It is that of Bonett and Price for paired shares: one better and one worse task are added, which keeps it honest
    where all tasks agree. For differences between -1 and 1 it uses their squares in the same way.
    """
    size = len(differences) + 2
    middle = math.fsum(differences) / size
    spread = (math.fsum(d * d for d in differences) + 2.0) / size - middle * middle
    reach = statistics.NormalDist().inv_cdf(0.975) * math.sqrt(spread / size)
    average = math.fsum(differences) / len(differences)
    # Both are pulled towards 0 by the added tasks; the mean itself must lie inside.
    low, high = min(middle - reach, average), max(middle + reach, average)
    return Interval(max(-1.0, low), min(1.0, high))


def explain_kept(shipment: Shipment, forged: bool = False) -> str:
    """Why the initial skill stays; empty if another one is shipped. `forged`: canaries have shown that the one that
    would be shipped earns its score in a wrong way."""
    if forged:
        return "the skill that would be shipped passes canary tasks, which no honest answer passes"
    if shipment.shipped:
        return ""
    if not shipment.fresh:
        return "no candidate had a higher score on the selection split"
    if not shipment.candidates:
        return "training ended without a change"
    if not shipment.rollouts:
        return "nothing was measured for shipping: too few selection tasks, or no rollouts were left for it"
    return "no difference that could be told from chance"


def make_claim(
    skill: Skill,
    found: PairedStats | None,
    *,
    kept: str = "",
    split: str = "",
    uses: int = 0,
    metric: str = "hard",
    passed: float | None = None,
) -> Claim:
    """The claim of a run in one plain sentence, and its numbers. `kept`: why the initial skill stays, if it does.
    `metric`: what the difference is about. `passed`: the difference in passed tasks, if that is another one."""
    return Claim(
        sentence=f"{kept}; the initial skill stays" if kept else _write_sentence(found, uses, metric, passed),
        gain=False,  # not before it was compared with what the same rollouts bring otherwise
        difference=found.difference if found else None,
        interval=found.interval if found else None,
        tasks=found.tasks if found else 0,
        skill=skill.hash,
        test_split=split,
        test_uses=uses,
        metric=metric,
        passed=passed,
    )


def _write_sentence(found: PairedStats | None, uses: int, metric: str, passed: float | None) -> str:
    if found is None:
        return "a new skill is shipped, but it was not tested: nothing can be claimed"
    of = "" if metric == "hard" else f" of {METRICS[metric]}"
    few = "only " if found.tasks < FEW_TESTS else ""
    words = f"{format_points(found.difference)} points{of} [{format_points(found.interval.low)}, "
    words += f"{format_points(found.interval.high)}] on {few}{found.tasks} test task{'' if found.tasks == 1 else 's'}"
    words += f" (passed: {format_points(passed)})" if passed else ""
    if found.interval.high < 0:
        words += ": worse than the initial skill"
    elif found.interval.low <= 0:
        words += ": no difference that could be told from chance"
    return words + (f" (test split used {uses} times)" if uses > 1 else "")


def format_points(share: float) -> str:
    """A share as percentage points with its sign."""
    points = round(100 * share)
    return f"{points:+d}" if points else "0"
