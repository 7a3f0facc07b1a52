"""Canary items in a run: a skill that games the verifier is not shipped."""

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from ludus.models.scripted import say
from ludus.reflact.guards import GuardSettings
from ludus.reflact.records import Summary
from ludus.types import Rollout, Score


def test_an_honest_skill_passes_no_canary_and_is_shipped(world: SimpleNamespace):
    summary = world.run(settings=replace(world.SETTINGS, guards=GuardSettings(canaries=3)))[-1]
    assert isinstance(summary, Summary) and summary.canaries is not None
    assert (summary.canaries.items, summary.canaries.initial, summary.canaries.best) == (3, 0, 0)
    assert summary.best.skill != summary.initial.skill
    assert world.run()[-1].canaries is None


def test_a_skill_that_games_the_verifier_is_not_shipped(world: SimpleNamespace):
    """The verifier takes any answer that ends in PASS, and the optimizer found out."""

    class Gullible(world.Env, frozen=True):
        async def verify(self, rollout: Rollout, box: Any) -> Score:
            passed = rollout.answer.endswith("PASS") or rollout.answer == rollout.task.answer
            return Score(float(passed), passed, float(passed), f"rule missing: {rollout.task.answer}")

    def agent(messages: Any, tools: Any, sampling: Any) -> Any:
        return say("PASS" if "Obey" in messages[0].content else "no idea")

    for canaries, shipped in ((0, True), (3, False)):
        settings = replace(world.SETTINGS, guards=GuardSettings(canaries=canaries))
        summary = world.run(settings=settings, env=Gullible(), policy=world.policy(script=agent))[-1]
        assert (summary.best.skill != summary.initial.skill) is shipped
    assert summary.canaries is not None and summary.canaries.suspicious
