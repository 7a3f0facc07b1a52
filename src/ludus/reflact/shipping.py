"""Shipping: choose the skill that a run ends with, and make its claim.

What to explore next may be permissive; what is shipped must not be. The score that a skill was chosen for is too high,
because it was chosen. So a few candidates are measured afresh on the selection split, with new seeds, each paired with
the initial skill: same task, same seed. A candidate is shipped if it is better than the initial skill with enough
certainty. Otherwise the initial skill stays. The winner is then run once on the sealed test split, paired with the
initial skill. The difference there, with its interval, is the claim of the run. The decisions are pure functions.

With the rule `best`, the skill with the highest score on the selection split is shipped, whatever that score is worth.
"""

import hashlib
import math
import statistics
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ludus.encoding import canonical, to_json
from ludus.reflact.gate import Gate, Measure, pair_marks
from ludus.reflact.measure import Trial, make_measure, merge_measures
from ludus.reflact.records import Claim, MeasuredSkill, ShipCandidate, Shipment
from ludus.reflact.splits import derive_ship_seed, sample_some
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill
from ludus.stats import Interval, PairedStats, compare_pairs, compute_win_probability
from ludus.store import decode_record

_SURE = 0.99
"""The certainty at which a single candidate is not measured any further."""
TEST_USES = "test_use"
"""The kind of a record in the store that says that the test split was used."""


async def ship(
    run: TrainingRun, initial: Skill, candidates: Sequence[MeasuredSkill], allowance: int | None = None
) -> Shipment:
    """Measure the candidates afresh beside the initial skill and choose one. `allowance`: the most rollouts."""
    settings, gate = run.settings.shipping, run.settings.gate
    seed = derive_ship_seed(run.settings.seed)
    order = sample_some(run.selection, len(run.selection), seed)
    rivals = [each for each in {each.skill: each for each in candidates}.values() if each.skill != initial]
    measures = {skill: Measure(skill.hash) for skill in (initial, *(each.skill for each in rivals))}
    left = list(rivals)
    done = spent = 0
    for number in range(settings.passes if rivals else 0):
        skills = [initial, *(each.skill for each in left)]
        size = len(order) if allowance is None else min(len(order), (allowance - spent) // len(skills))
        if size <= 0:
            break
        slots = [(order[at % len(order)], at // len(order)) for at in range(done, done + size)]
        rollouts = await run.runner.run_trials(
            [Trial(skill, task, seed, replicate) for skill in skills for task, replicate in slots], "ship"
        )
        for place, skill in enumerate(skills):
            part = rollouts[place * size : (place + 1) * size]
            measures[skill] = merge_measures(measures[skill], make_measure(skill, part))
        done, spent = done + size, spent + len(rollouts)
        judged = [judge_candidate(gate, each, measures[each.skill], measures[initial]) for each in left]
        if number == 0:
            left = keep_better_half(left, judged)
        if len(left) == 1 and max(each.certainty for each in judged) >= _SURE:
            break
    results = [judge_candidate(gate, each, measures[each.skill], measures[initial]) for each in rivals]
    finalists = [each for each in results if each.skill in {rival.skill for rival in left}]
    winner = choose_winner(finalists, settings.certainty)
    return Shipment(
        candidates=tuple(results),
        initial=measures[initial],
        shipped=winner.skill.hash if winner else "",
        rollouts=spent,
    )


def ship_best(gate: Gate, initial: MeasuredSkill, best: MeasuredSkill, rollouts: int = 0) -> Shipment:
    """Ship the best skill on the selection split, by the measures that it was chosen for."""
    own, other = (held.measure or Measure(held.skill.hash) for held in (best, initial))
    is_new = best.skill != initial.skill
    return Shipment(
        candidates=(judge_candidate(gate, best, own, other),) if is_new else (),
        initial=other,
        shipped=best.skill.hash if is_new else "",
        rollouts=rollouts,
        fresh=False,
    )


def explain_rule(settings: TrainSettings, tasks: int) -> str:
    """What the rule means for a run with this many selection tasks, if that could surprise; else nothing."""
    shipping = settings.shipping
    if shipping.rule == "best" or compute_win_probability(tasks, 0) >= shipping.certainty:
        return ""
    flags = ("" if settings.recipe == "reflact" else "--recipe reflact ") + "--train.shipping.rule best"
    return (
        f"the initial skill will stay, whatever is learned: with {tasks} selection task{'' if tasks == 1 else 's'} no "
        f"skill can be better with {shipping.certainty:.0%} certainty (train.shipping.certainty). Use more selection "
        f"tasks, or ship the best one on the selection split: {flags}"
    )


def judge_candidate(gate: Gate, candidate: MeasuredSkill, measure: Measure, initial: Measure) -> ShipCandidate:
    """Compare a candidate with the initial skill: one vote per task."""
    paired = compare_pairs(pair_marks(gate, measure, initial))
    return ShipCandidate(
        origin=candidate.origin,
        step=candidate.step,
        skill=candidate.skill,
        measure=measure,
        difference=paired.difference if paired else 0.0,
        better=paired.wins if paired else 0,
        worse=paired.losses if paired else 0,
        certainty=paired.better if paired else 0.5,
    )


def keep_better_half(candidates: Sequence[MeasuredSkill], judged: Sequence[ShipCandidate]) -> list[MeasuredSkill]:
    """The better half of the candidates, by their difference to the initial skill."""
    ranked = sorted(range(len(candidates)), key=lambda place: -judged[place].difference)
    kept = set(ranked[: math.ceil(len(candidates) / 2)])
    return [candidate for place, candidate in enumerate(candidates) if place in kept]


def choose_winner(finalists: Sequence[ShipCandidate], certainty: float) -> ShipCandidate | None:
    """The candidate to ship: the largest difference, if it is certain enough. None: the initial skill stays."""
    best = max(finalists, key=lambda each: each.difference, default=None)
    return best if best is not None and best.difference > 0 and best.certainty >= certainty else None


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


def make_claim(
    skill: Skill, found: PairedStats | None, *, shipped: bool, fresh: bool = True, split: str = "", uses: int = 0
) -> Claim:
    """The claim of a run in one plain sentence, and its numbers. `fresh`: the skill was chosen by fresh measures."""
    return Claim(
        sentence=_write_sentence(shipped, found, uses, fresh),
        gain=False,  # not before it was compared with what the same rollouts bring otherwise
        difference=found.difference if found else None,
        interval=found.interval if found else None,
        tasks=found.tasks if found else 0,
        skill=skill.hash,
        test_split=split,
        test_uses=uses,
    )


def _write_sentence(shipped: bool, found: PairedStats | None, uses: int, fresh: bool) -> str:
    if not shipped and not fresh:
        return "no candidate had a higher score on the selection split; the initial skill stays"
    if not shipped:
        return "no difference that could be told from chance; the initial skill stays"
    if found is None:
        return "a new skill is shipped, but it was not tested: nothing can be claimed"
    words = f"{format_points(found.difference)} points [{format_points(found.interval.low)}, "
    words += f"{format_points(found.interval.high)}] on {found.tasks} test task{'' if found.tasks == 1 else 's'}"
    if found.interval.high < 0:
        words += ": worse than the initial skill"
    elif found.interval.low <= 0:
        words += ": no difference that could be told from chance"
    return words + (f" (test split used {uses} times)" if uses > 1 else "")


def format_points(share: float) -> str:
    """A share as percentage points with its sign."""
    points = round(100 * share)
    return f"{points:+d}" if points else "0"
