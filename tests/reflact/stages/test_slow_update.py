"""The slow update: pairs of rollouts, their categories, and the text that the optimizer reads."""

from types import SimpleNamespace

import msgspec
from tests.reflact_kit import ScriptedView, make_result, make_waiting_runner

from ludus.reflact.proposers import View
from ludus.reflact.stages.slow_update import (
    Pair,
    categorize,
    compare_skills,
    count_categories,
    describe_pairs,
    filter_pairs,
    pair_rollouts,
)
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.skill import Skill


def test_pairs_are_categorized_and_tasks_that_were_not_judged_are_left_out():
    before = [
        make_result("a", True),
        make_result("b", False),
        make_result("c", True),
        make_result("d", False),
        make_result("e", None),
    ]
    after = [
        make_result("a", True),
        make_result("b", True),
        make_result("c", False),
        make_result("d", False),
        make_result("e", True),
    ]
    pairs = pair_rollouts(before, after, None)
    assert count_categories(pairs) == {"regressed": 1, "persistent_fail": 1, "improved": 1, "stable_success": 1}
    assert [p.current.task.id for p in filter_pairs(pairs, "changed")] == ["b", "c"]
    assert [p.current.task.id for p in filter_pairs(pairs, "unchanged")] == ["a", "d"]
    assert filter_pairs(pairs, "mixed") == pairs
    assert categorize(True, False) == "regressed"


def test_partial_credit_is_a_failure_in_comparisons_too():
    """SkillOpt counts any score above 0 as a pass."""
    (pair,) = pair_rollouts([make_result("a", False, soft=0.9)], [make_result("a", False, soft=0.1)], None)
    assert pair.category == "persistent_fail"
    (pair,) = pair_rollouts([make_result("a", False, soft=0.9)], [make_result("a", False, soft=0.1)], 0.5)
    assert pair.category == "regressed"


def test_the_comparison_shows_regressions_first_and_stays_within_the_budget(world: SimpleNamespace):
    pairs = [
        Pair("stable_success", make_result("s", True), make_result("s", True)),
        Pair("regressed", make_result("r", True), make_result("r", False, feedback="broke")),
    ]
    text = describe_pairs(ScriptedView(world).view, pairs)
    assert text.startswith("2 tasks.")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert [title.split(":")[0] for title in titles] == [
        "## Regressed",
        "## Failed both times",
        "## Improved",
        "## Succeeded both times",
    ]
    assert text.count("(none)") == 2
    assert "With the skill of the last epoch: passed" in text
    assert "broke" in text
    asked = msgspec.structs.replace(make_result("l", False).task, prompt="p" * 500_000)
    long = msgspec.structs.replace(make_result("l", False, feedback="f" * 500_000), task=asked)
    more = describe_pairs(
        ScriptedView(world, trajectory_tokens=1000).view, [*pairs, Pair("persistent_fail", long, long)]
    )
    assert len(more) < 8_000
    assert "broke" in more and "characters left out" in more


async def test_both_skills_of_the_slow_update_are_rolled_out_together(world: SimpleNamespace):
    settings = TrainSettings(slow=SlowUpdate(samples=4))
    view = View(settings, Skill("Obey RULE-1."), 2, 4, "", "", "", None)

    pairs = await compare_skills(make_waiting_runner(world, 8), view, Skill("Obey RULE-0."), world.tasks("train", 6))
    assert len(pairs) == 4
