"""Stand-ins: rollouts that depend on text and seed alone, and a reply to every request of the trainer."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.build import make_task

from ludus.reflact.measure import Trial
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.stand_ins import Assumptions, StandInWorld
from ludus.skill import Skill

PARTS = ("item_document", "item_edit", "item_files", "item_suggestion", "line_pointer", "notes", "origins", "reask")
"""Prompts that are parts of others."""


def make_world(**more: Any) -> StandInWorld:
    return StandInWorld(Skill("Be brief."), 40, **more)


def list_results(world: StandInWorld, text: str, seed: int = 1) -> list[bool]:
    tasks = [make_task(f"task-{number}") for number in range(200)]
    scores = [world.make_rollout(Trial(Skill(text), task, seed)).score for task in tasks]
    return [score is not None and score.passed for score in scores]


def test_the_assumed_share_fails_and_rules_prevent_the_curable_ones():
    for curable in (0.5, 1.0):
        world = make_world(assumed=Assumptions(failing=0.4), curable=curable)
        plain = list_results(world, "Be brief.")
        best = list_results(world, "\n".join(world.write_rule(str(cause)) for cause in range(1, 13)))
        assert sum(plain) / 200 == pytest.approx(0.6, abs=0.1)
        assert sum(best) / 200 == pytest.approx(0.6 + 0.4 * curable, abs=0.1)
        assert all(after for before, after in zip(plain, best, strict=True) if before)
    assert list_results(world, "Be brief.") == plain != list_results(world, "Be brief.", seed=2)


def test_a_rule_that_prevents_nothing_changes_nothing():
    world = make_world()
    assert list_results(world, world.write_rule("x1")) == list_results(world, "")


def test_the_usage_of_a_rollout_grows_with_the_skill():
    world = make_world(assumed=Assumptions(opening_tokens=10, reply_tokens=5))
    usages = [world.make_rollout(Trial(Skill("x" * size), make_task(), 1)).usage for size in (0, 400)]
    assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(10, 5), (110, 5)]


def test_there_is_a_reply_to_every_prompt_of_ludus(world: SimpleNamespace):
    stood_in = make_world()
    for name in Prompts.load().names:
        request = SimpleNamespace(stage=name)
        if name in PARTS:
            with pytest.raises(NotImplementedError, match=name):
                stood_in.answer([SimpleNamespace(content="")], (), request)  # type: ignore[arg-type]
        else:
            messages = world.tag(Prompts.load().render_messages("consolidate", {"notes": "- a", "count": "1"}), name)
            assert stood_in.answer(messages, (), request).usage.completion_tokens == 800  # type: ignore[arg-type]
