"""Summaries against values worked out by hand, and what must hold for any groups."""

import math
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_group, make_rollout, make_task, make_turn

from ludus.encoding import to_json
from ludus.stats import (
    Interval,
    PassAt,
    ScoreCell,
    Spread,
    ToolUse,
    compare_pairs,
    compute_adjusted_interval,
    compute_interval,
    compute_spread,
    compute_t_quantile,
    compute_win_probability,
    describe_failures,
    describe_loads,
    estimate_pass_at,
    explain_failed_share,
    make_failure_ledger,
    summarize,
    warn_of_exclusions,
)
from ludus.types import Call, Failure, Group, Rollout, Score, SkillUse, ToolResult, Usage


def make_run(score: float | None, *, turns: int = 1, seconds: float = 1.0, errors: int = 0) -> Rollout:
    """A rollout with two tool calls in its first turn and the same usage in every turn."""
    call = Call("c", "terminal", "{}")
    results = [ToolResult(call, "x", error="bad" if n < errors else "") for n in range(2)]
    taken = [make_turn("", *(results if n == 0 else ()), usage=Usage(10, 5, 2, 0.1)) for n in range(turns)]
    return make_rollout(score, *taken, seconds=seconds)


def group(*scores: float | None, kind: str = "", size: int | None = None) -> Group:
    return make_group(*map(make_run, scores), task=make_task(kind=kind), size=size)


@pytest.mark.parametrize(
    ("k", "scored", "passed", "value"),
    [
        (1, 4, 0, 0.0),
        (1, 4, 1, 0.25),
        (1, 4, 4, 1.0),
        (2, 4, 1, 0.5),
        (2, 4, 2, 1 - 1 / 6),
        (2, 4, 3, 1.0),
        (4, 4, 1, 1.0),
        (4, 8, 1, 0.5),
        (10, 100, 5, 0.4162476),
    ],
)
def test_pass_at_k(k: int, scored: int, passed: int, value: float):
    assert estimate_pass_at(k, scored, passed) == pytest.approx(value, abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 30), st.data())
def test_pass_at_k_is_the_product_form(scored: int, data: st.DataObject):
    passed, k = data.draw(st.integers(0, scored)), data.draw(st.integers(1, scored))
    product = math.prod(1 - k / i for i in range(scored - passed + 1, scored + 1)) if scored - passed >= k else 0.0
    assert estimate_pass_at(k, scored, passed) == pytest.approx(1 - product)


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (9, 2.2622), (10, 2.2281), (15, 2.1314), (30, 2.0423), (60, 2.0003), (120, 1.9799), (10**6, 1.96)],
)
def test_quantiles_of_students_t(freedom: int, value: float):
    assert compute_t_quantile(freedom) == pytest.approx(value, abs=2e-4)


def test_the_mean_is_over_tasks_and_so_is_its_interval():
    # Task means 1, 0.5 and 0: sd 0.5, standard error 0.28868, t with two degrees of freedom 4.3027.
    marks = summarize([group(1, 1, 1, 1), group(1, 0), group(0)]).overall
    assert (marks.tasks, marks.rollouts, marks.scored) == (3, 7, 7)
    assert marks.mean == 0.5
    assert marks.interval == Interval(0.0, 1.0)
    assert compute_interval([1, 0.5, 0], -9, 9) == Interval(
        pytest.approx(0.5 - 1.24210, abs=1e-4), pytest.approx(1.7421, abs=1e-4)
    )


def test_the_interval_of_many_tasks():
    # 60 of 100 pass: sd 0.49237, standard error 0.049237, t with 99 degrees of freedom 1.98422.
    marks = summarize([group(1)] * 60 + [group(0)] * 40).overall
    assert marks.interval == Interval(pytest.approx(0.50230, abs=1e-4), pytest.approx(0.69770, abs=1e-4))


def test_tasks_that_all_agree_prove_only_so_much():
    assert compute_interval([0.0] * 64) == Interval(0.0, pytest.approx(0.05663, abs=1e-4))
    assert compute_interval([1.0] * 4) == Interval(pytest.approx(0.51011, abs=1e-4), 1.0)
    assert compute_interval([0.5] * 4) == Interval(0.5, 0.5)


def test_a_failure_is_counted_and_is_not_a_zero():
    summary = summarize([group(1, None), group(None, None), group(0, size=2)])
    assert summary.overall.mean == 0.5
    assert (summary.overall.rollouts, summary.overall.scored, summary.partial) == (5, 2, 3)
    assert summary.failed == {"sandbox": 3}
    assert summary.stops == {"failed": 3, "finished": 2}
    assert summary.overall.pass_at == (PassAt(1, 0.5, 2),)


def test_the_mean_if_every_exclusion_were_0_is_beside_the_mean():
    summary = summarize([group(1, None, kind="a"), group(None, None, kind="b"), group(1, 1, size=4, kind="b")])
    assert (summary.overall.mean, summary.overall.mean_with_zeros, summary.overall.excluded) == (1.0, 0.5, 3)
    assert summary.kinds["a"].mean_with_zeros == 0.5
    assert summary.kinds["b"].mean_with_zeros == 0.5


def test_a_summary_without_exclusions_has_the_form_of_earlier_versions():
    summary = summarize([group(1, 0)])
    assert (summary.overall.mean_with_zeros, summary.overall.excluded) == (None, 0)
    assert b"mean_with_zeros" not in to_json(summary)
    assert b'"mean_with_zeros":0.0' in to_json(summarize([group(0, None)]))


@pytest.mark.parametrize(
    ("excluded", "rollouts", "share"), [(0, 0, ""), (0, 9, ""), (2, 100, ""), (3, 100, "3.0 %"), (1, 1, "100.0 %")]
)
def test_more_than_two_percent_without_a_score_are_a_warning(excluded: int, rollouts: int, share: str):
    warning = warn_of_exclusions(excluded, rollouts)
    assert bool(warning) is bool(share)
    assert not share or f"{excluded} of {rollouts} rollouts ({share}) have no score" in warning


@pytest.mark.parametrize("groups", [[], [group(None, None)], [group(size=2)]])
def test_nothing_scored_has_no_mean(groups: list[Group]):
    summary = summarize(groups)
    assert summary.overall.mean is None
    assert summary.overall.interval is None
    assert summary.overall.pass_at == ()


def test_one_task_has_no_interval():
    marks = summarize([group(1, 0, 0, 1)]).overall
    assert marks.mean == 0.5
    assert marks.interval is None


def test_pass_at_k_leaves_out_tasks_with_fewer_rollouts():
    marks = summarize([group(1, 0, 0, 0), group(0, 0, None, None), group(1, None, None, None)]).overall
    assert marks.pass_at == (
        PassAt(1, pytest.approx((0.25 + 0 + 1) / 3), 3),
        PassAt(2, 0.25, 2),
        PassAt(4, 1.0, 1),
    )


def test_kinds_have_numbers_of_their_own_when_there_are_several():
    assert summarize([group(1, kind="a")]).kinds == {}
    kinds = summarize([group(1, kind="b"), group(0, kind="a"), group(1, kind="a")]).kinds
    assert list(kinds) == ["a", "b"]
    assert kinds["a"].mean == 0.5
    assert kinds["b"].tasks == 1


def test_tools_tokens_money_turns_and_time_add_up():
    rollouts = (make_run(1, turns=1, seconds=2, errors=1), make_run(0, turns=3, seconds=4), make_run(None, seconds=9))
    summary = summarize([make_group(*rollouts)])
    assert summary.tools == (ToolUse("terminal", 6, 1),)
    assert summary.tool_errors == 1
    assert summary.usage == Usage(50, 25, 10, 0.5)
    assert summary.turns == Spread(5, pytest.approx(5 / 3), 1, 3, 3)
    assert summary.seconds == Spread(15, 5, 4, 9, 9)


def test_spread_of_nothing():
    assert compute_spread([]) is None
    assert compute_spread([3.0]) == Spread(3, 3, 3, 3, 3)


scores = st.one_of(st.none(), st.floats(-2, 2), st.sampled_from([0.0, 1.0]))
many_groups = st.lists(
    st.builds(
        lambda scores, kind: group(*scores, kind=kind), st.lists(scores, max_size=6), st.sampled_from(["", "a", "b"])
    ),
    max_size=8,
)


@settings(deadline=None)
@given(many_groups, st.randoms())
def test_order_does_not_matter(groups: list[Group], random):
    shuffled = [make_group(*shuffle(g.rollouts, random), task=g.task, size=g.size) for g in groups]
    assert summarize(shuffle(shuffled, random)) == summarize(groups)


def shuffle(values: Sequence, random) -> list:
    return random.sample(values, len(values))


@settings(deadline=None)
@given(many_groups)
def test_numbers_stay_within_their_bounds(groups: list[Group]):
    summary = summarize(groups)
    values = [r.score.value for g in groups for r in g.rollouts if r.score]
    for marks in (summary.overall, *summary.kinds.values()):
        assert marks.scored <= marks.rollouts
        if marks.mean is not None:
            assert min(values) - 1e-9 <= marks.mean <= max(values) + 1e-9
        if marks.interval is not None and marks.mean is not None:
            assert marks.interval.low <= marks.mean + 1e-9
            assert marks.mean <= marks.interval.high + 1e-9
        assert (marks.mean_with_zeros is None) is (marks.excluded == 0)
        if marks.mean is not None and marks.mean_with_zeros is not None and min(values) >= 0:
            assert 0.0 <= marks.mean_with_zeros <= max(values) + 1e-9
        estimates = [p.value for p in marks.pass_at]
        assert all(-1e-9 <= value <= 1 + 1e-9 for value in estimates)
    assert summary.overall.rollouts == sum(len(g.rollouts) for g in groups)
    assert summary.overall.scored + sum(summary.failed.values()) == summary.overall.rollouts
    assert sum(summary.stops.values()) == summary.overall.rollouts


@settings(deadline=None)
@given(st.integers(0, 16), st.integers(1, 16))
def test_pass_at_k_grows_with_k(passed: int, scored: int):
    passed = min(passed, scored)
    values = [estimate_pass_at(k, scored, passed) for k in range(1, scored + 1)]
    assert values == sorted(values)


def test_the_most_frequent_failures_are_named():
    rollouts = [make_rollout(None, failure=Failure("model", m)) for m in ("b", "a", "a", "d", "c", "b", "a")]
    assert summarize([make_group(*rollouts)]).reasons == ("a", "b", "c")


# ---- two policies on the same tasks ---------------------------------------------------------------------------------


def test_the_probability_of_more_wins_than_losses():
    assert compute_win_probability(0, 0) == 0.5
    assert compute_win_probability(3, 0) == 1 - 1 / 16
    assert compute_win_probability(2, 1) == 11 / 16
    assert compute_win_probability(5, 2) + compute_win_probability(2, 5) == 1.0


def test_pairs_are_compared_task_by_task():
    paired = compare_pairs([1.0, 1.0, 0.0, -1.0])
    assert paired is not None
    assert (paired.tasks, paired.difference, paired.wins, paired.losses) == (4, 0.25, 2, 1)
    assert paired.interval.low < 0 < paired.interval.high
    assert compare_pairs([]) is None


def test_equal_results_are_not_certainty():
    """Ten ties: the difference is 0, but its interval is not a point. It shrinks with the number of tasks."""
    few, many = compute_adjusted_interval([0.0] * 10), compute_adjusted_interval([0.0] * 100)
    assert few.low == -few.high and few.high > 0.2 > many.high > 0


def test_an_interval_of_differences_covers_the_truth():
    random = Random(1)
    missed = 0
    for _ in range(400):
        wins = [random.choices([1.0, 0.0, -1.0], [0.25, 0.6, 0.15])[0] for _ in range(40)]
        interval = compute_adjusted_interval(wins)
        missed += not interval.low <= 0.1 <= interval.high
    assert missed < 0.07 * 400


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=40))
def test_the_difference_is_in_its_interval(differences: list[float]):
    paired = compare_pairs(differences)
    assert paired is not None
    assert paired.interval.low - 1e-9 <= paired.difference <= paired.interval.high + 1e-9
    assert 0 < paired.better < 1


def test_the_agreement_of_two_judges():
    """By hand: both pass 2, both fail 1, the first alone passes 1. Chance: 3/4 * 2/4 + 1/4 * 2/4 = 1/2."""
    pairs = [(1.0, 1.0), (1.0, 1.0), (0.0, 0.5), (1.0, 0.0)]

    def grade(first: float, second: float) -> Score:
        parts = {"judge": first, "second_judge": second}
        return Score.of(first, parts=parts | {f"{name} passes": float(value >= 1) for name, value in parts.items()})

    rollouts = [msgspec.structs.replace(make_rollout(1.0), score=grade(*pair)) for pair in pairs]
    found = summarize([Group(task=make_task(), rollouts=tuple(rollouts), size=4)]).agreement
    assert found is not None
    assert (found.rollouts, found.same, found.kappa, found.difference) == (4, 0.75, 0.5, 0.375)
    assert summarize([make_group(1.0, 0.0)]).agreement is None


# ---- what was lost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "mean", "lowest", "highest"),
    [
        ([], None, None, None),
        ([(0.0, 0, 4)], None, 0.0, 1.0),
        ([(3.0, 4, 0)], 0.75, 0.75, 0.75),
        ([(3.0, 4, 4)], 0.75, 0.375, 0.875),
        # tasks have the same weight, whatever they lost
        ([(1.0, 1, 3), (0.0, 4, 0)], 0.5, 0.125, 0.5),
        # a task that lost everything is in the bounds, and in no mean
        ([(1.0, 1, 0), (0.0, 0, 4)], 1.0, 0.5, 1.0),
        # nothing has ended for a task
        ([(1.0, 1, 0), (0.0, 0, 0)], 1.0, 1.0, 1.0),
    ],
)
def test_the_bounds_of_a_mean(
    cells: list[tuple[float, int, int]], mean: float | None, lowest: float | None, highest: float | None
):
    failures = make_failure_ledger([ScoreCell(*cell) for cell in cells], {})
    assert (failures.mean, failures.lowest, failures.highest) == (mean, lowest, highest)


def test_losses_are_named_by_cause():
    failures = make_failure_ledger(
        [ScoreCell(2.0, 4, 9)], {"setup": 1, "sandbox": 2, "model": 3, "verifier": 1, "node": 1, "bug": 1}, broken=2
    )
    assert failures.causes == {"slot": 3, "server": 3, "bug": 1, "node": 1, "verifier": 1}
    assert (failures.rollouts, failures.lost, failures.broken) == (13, 9, 2)
    assert describe_failures(failures) == (
        "9 of 13 rollouts without a score (server 3, slot 3, bug 1, node 1, verifier 1): "
        "the mean is 0.154 if each is 0, 0.846 if each is 1"
    )
    assert describe_failures(make_failure_ledger([ScoreCell(1.0, 1, 0)], {})) == ""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))))
def test_a_mean_that_lost_nothing_is_between_the_bounds(counts: list[tuple[int, int, int]]):
    """Whatever the lost rollouts would have scored, the mean of all is within the bounds."""
    failures = make_failure_ledger([ScoreCell(float(right), right + wrong, lost) for right, wrong, lost in counts], {})
    for share in (0.0, 0.3, 1.0):
        full = [
            (right + share * lost) / (right + wrong + lost) for right, wrong, lost in counts if right + wrong + lost
        ]
        if full:
            assert failures.lowest is not None and failures.highest is not None
            assert failures.lowest - 1e-9 <= math.fsum(full) / len(full) <= failures.highest + 1e-9


def test_a_summary_has_its_losses():
    groups = [group(1.0, 0.0, None), group(None, None, None)]
    failures = summarize(groups).failures
    assert (failures.rollouts, failures.lost, failures.mean) == (6, 4, 0.5)
    assert (failures.lowest, failures.highest) == (pytest.approx(1 / 6), pytest.approx(5 / 6))


@pytest.mark.parametrize(
    ("ended", "lost", "most", "ends"),
    [(19, 19, 0.1, False), (20, 2, 0.1, False), (20, 3, 0.1, True), (20, 20, 1.0, False), (20, 1, 0.0, True)],
)
def test_the_share_of_failures_that_ends_a_run(ended: int, lost: int, most: float, ends: bool):
    why = explain_failed_share(ended, {"sandbox": lost}, most)
    assert bool(why) is ends
    assert not ends or f"{lost} of {ended} rollouts ended without a score (slot {lost})" in why


# ---- skills in slots ------------------------------------------------------------------------------------------------


def _use(loaded: bool | None, value: float, **files: tuple[str, ...]) -> Rollout:
    rollout = make_group(value).rollouts[0]
    return msgspec.structs.replace(rollout, skill_use=SkillUse(loaded=loaded, **files))


def test_never_loaded_is_told_apart_from_did_not_help_and_unknown_is_neither():
    assert not summarize([make_group(1.0)]).skill_loads
    never = summarize([make_group(_use(False, 0.0), _use(False, 1.0))]).skill_loads
    assert never and describe_loads(never).startswith("0 of 2 rollouts (0 %): it was never loaded")
    unseen = summarize([make_group(_use(False, 0.0), _use(None, 1.0))]).skill_loads
    assert unseen and describe_loads(unseen) == "0 of 2 rollouts (0 %), 1 unknown"
    opened = ("SKILL.md", "references/a.md")
    some = [_use(True, 0.5, opened=opened, shown=opened), _use(True, 0.5, opened=opened, run=("scripts/x",))]
    mixed = summarize([make_group(*some, _use(False, 0.25))]).skill_loads
    assert mixed and (mixed.loaded, mixed.unknown, mixed.files) == (2, 0, {"references/a.md": 2})
    assert mixed.scripts == {"scripts/x": 1}
    assert describe_loads(mixed) == "2 of 3 rollouts (67 %); mean 0.500 where it was loaded, 0.250 where it was not"


def test_quantiles_of_student_s_t_at_other_levels_agree_with_tables():
    for freedom, share, value in ((1, 0.995, 63.657), (4, 0.99, 3.747), (9, 0.9975, 3.690), (30, 0.995, 2.750)):
        assert compute_t_quantile(freedom, share) == pytest.approx(value, abs=1e-3)
    wide, narrow = (compute_interval([0.48, 0.5, 0.52], level=level) for level in (0.99, 0.95))
    assert wide and narrow and wide.low < narrow.low and wide.high > narrow.high
