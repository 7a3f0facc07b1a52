"""Measuring skills: several of them at once."""

from types import SimpleNamespace

from ludus.skill import Skill
from tests.reflact_kit import make_waiting_runner, run_within_limit


def test_several_skills_are_measured_together(world: SimpleNamespace):
    async def go() -> None:
        runner = make_waiting_runner(world, 6)
        measures = await runner.measure([Skill("a"), Skill("b")], world.tasks("selection", 3), "x", seed=1)
        assert len(measures) == 2

    run_within_limit(go())
