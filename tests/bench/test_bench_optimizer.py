"""Parts of `bench/optimizer.py` and its worlds. Figures of methods are not asserted."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]  # the benchmarks are scripts, not a package

import optimizer as bench  # noqa: E402
import rule_world as rw  # noqa: E402
import run_rule_worlds as ours  # noqa: E402


def make_world(**changes: object) -> rw.World:
    setting = replace(rw.DEVELOPMENT["easy"], train=20, selection=10, test=40, **changes)  # pyright: ignore[reportArgumentType]
    return rw.World(setting, 7)


def write_skill(*codes: str) -> str:
    return rw.SKILL + "".join(f"- When happening: do it ({code})\n" for code in codes)


@pytest.mark.parametrize(
    ("codes", "changes"),
    [((), {}), (("r00.x1", "r01.b2", "r02.h3", "r03.f1"), {}), (("r00.x1", "r02.h3"), {"ignore": 0.3})],
)
def test_the_true_accuracy_is_that_of_many_rollouts(codes: tuple[str, ...], changes: dict[str, float]) -> None:
    world, text = make_world(**changes), write_skill(*codes)
    rollouts = [
        world.run_agent(text, item, seed).endswith("right") for item in world.items["test"] for seed in range(60)
    ]
    assert fmean(rollouts) == pytest.approx(world.compute_accuracy(text), abs=0.025)


def test_a_rule_works_only_with_its_partner_and_only_if_it_is_read() -> None:
    world = make_world(partners=1.0)
    rule, partner = next(iter(world.partner.items()))
    item = rw.Item("test-0", "K0", (rule,))
    own, both = f"r{rule:02d}.x1", (f"r{rule:02d}.x1", f"r{partner:02d}.x1")
    alone = world.compute_chance(item, world.read_lines(write_skill(own)))
    together = world.compute_chance(item, world.read_lines(write_skill(*both)))
    assert alone == world.compute_chance(item, ()) < together
    assert len(make_world(context=1).read_lines(write_skill(*both))) == 1


def test_an_optimizer_without_repair_only_appends() -> None:
    text = write_skill("r00.h1")
    traces = [rw.Trace("train-1", "K0", (), ("r00.h1",), False)] * 3
    for repair in (True, False):
        world = make_world(repair=repair)
        proposals = world.propose(text, traces, 8, rw.make_random("test"))
        assert [proposal.code for proposal in proposals] == (["r00.h1"] if repair else [])


def test_traces_are_read_back() -> None:
    world = make_world()
    item = world.items["train"][0]
    traces = [world.run_agent(rw.SKILL, item, seed) for seed in range(20)]
    found = rw.read_traces("\n---\n".join(f"[agent] {trace}" for trace in traces))
    assert len(found) == 20 and {trace.passed for trace in found} == {True, False}
    assert all(name in world.number for trace in found for name in trace.trouble)


@pytest.mark.parametrize("variant", ["ledger", "gate-off"])
def test_our_trainer_learns_and_is_deterministic(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rw, "Meter", partial(rw.Meter, budget=400))
    runs = [ours.run(make_world(), variant) for _ in range(2)]
    for run in runs:
        del run["trainer_cpu"]
    assert runs[0] == runs[1]
    assert runs[0]["accuracy"] > make_world().start + 0.1  # pyright: ignore[reportOperatorIssue]


def make_outcome(accuracy: float, half: int, lines: int = 3) -> bench.Outcome:
    curve = ((0, 0.1, 0), (half, 0.6, lines))
    return bench.Outcome(0.1, 0.9, accuracy, lines, 0.2, curve, ((0.1, False), (-0.1, True)), {})


def test_the_targets_are_checked() -> None:
    methods = bench.METHODS

    def make_results(recipe: bench.Outcome, filler: bench.Outcome) -> bench.Results:
        rows = {
            (method.name, place): {seed: make_outcome(0.5, 900) for seed in range(3)}
            for method in methods
            for place in bench.PLACES
        }
        own = {place: filler if place.family == "filler" else recipe for place in bench.PLACES}
        return rows | {(bench.RECIPE, place): dict.fromkeys(range(3), own[place]) for place in bench.PLACES}

    good, _ = bench.make_checks(make_results(make_outcome(0.88, 60), make_outcome(0.1, 1600, 0)), methods)
    assert all(check.passed for check in good)
    bad, _ = bench.make_checks(make_results(make_outcome(0.45, 500), make_outcome(0.05, 1600, 2)), methods)
    assert not any(check.passed for check in bad)
    assert bench.make_checks({}, bench.METHODS)[1] == ["ledger: not run"]
    table = bench.render_place(
        make_results(make_outcome(0.88, 60), make_outcome(0.1, 1600, 0)), bench.PLACES[0], methods
    )
    assert "+0.380 [+0.380, +0.380]" in table and "100%" in table
