"""Who acts: what a policy is made of, what a scene keeps, and what an agent has without saying it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.build import make_task, make_turn

from ludus.errors import ModelError
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Agent, AgentResult, Limits, Policy, Scene, seed_sampling
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill
from ludus.types import Exit, Message, Sampling, StopReason, Turn


def make_policy(**fields: Any) -> Policy:
    return Policy(ScriptedModel([say("x")], name="m"), **fields)


class Someone(Agent):
    """An agent in this process."""

    name = "someone"

    async def act(self, scene: Scene) -> StopReason:
        return StopReason.FINISHED


class Trained(Someone):
    """One that brings its model, and has a version."""

    name = "trained"
    brings_model = True
    identity = ("trained", 2)
    label = "trained@2"
    skills = "~/.trained/skills"


# ---- the policy ---------------------------------------------------------------------------------------------------


def test_policies_that_act_differently_have_different_fingerprints():
    base = Policy(ScriptedModel([say("x")], name="m"))
    others = [
        Policy(ScriptedModel([say("x")], name="n")),
        Policy(base.model, skill=Skill("be brief")),
        Policy(base.model, sampling=Sampling(temperature=0.5)),
        Policy(base.model, limits=Limits(turns=3)),
        Policy(base.model, system="hello"),
        Policy(base.model, toolsets=("file",)),
        Policy(base.model, skill=Skill("be brief"), skill_as="file"),
    ]
    prints = [p.fingerprint for p in (base, *others)]
    assert len(set(prints)) == len(prints)
    assert Policy(ScriptedModel([say("y")], name="m")).fingerprint == base.fingerprint


def test_a_policy_with_another_skill_has_the_fingerprint_of_one_that_was_made_with_it():
    base = make_policy(skill=Skill("one"), system="hello", examples_as="turns")
    other = base.use_skill(Skill("two"))
    assert other == replace(base, skill=Skill("two"))
    assert other.fingerprint == replace(base, skill=Skill("two")).fingerprint != base.fingerprint
    assert other.use_skill(Skill("one")).fingerprint == base.fingerprint


def test_system_text_is_environment_then_policy_then_skill():
    policy = Policy(ScriptedModel([]), skill=Skill("the skill"), system="the policy")
    assert policy.build_system_text("the env") == "the env\n\nthe policy\n\nthe skill"
    assert Policy(ScriptedModel([])).build_system_text("") == ""


def test_limits_refuse_unknown_keys():
    with pytest.raises(msgspec.ValidationError, match="turnz"):
        msgspec.convert({"turnz": 3}, Limits)


def test_a_skill_without_a_head_gets_one_in_its_file():
    path, skill = make_policy(skill=Skill("Answer yes."), skill_as="file").skill_file or ("", Skill(""))
    assert path == "/tmp/skills/task-skill/SKILL.md"
    assert skill.front is not None and skill.body == "Answer yes."
    assert make_policy(skill=Skill(""), skill_as="file").build_system_text("") == ""


def test_the_agent_that_acts_is_part_of_the_fingerprint_where_it_says_so():
    base, other = make_policy(), make_policy(agent=Trained())
    assert (other.model_name, other.agent_name) == ("trained", "trained")
    assert other.fingerprint != base.fingerprint
    assert (make_policy(agent=Someone()).model_name, make_policy(agent=Someone()).agent_name) == ("m", "someone")
    assert make_policy().agent_name == ""


def test_toolsets_that_were_left_out_of_a_draw_do_not_change_the_fingerprint():
    assert replace(make_policy(), skipped=("browser",)).fingerprint == make_policy().fingerprint


def test_the_skill_is_where_the_agent_looks_for_it():
    path, _ = make_policy(skill=Skill("x"), skill_as="file", agent=Trained()).skill_file or ("", None)
    assert path == "~/.trained/skills/task-skill/SKILL.md"


def test_every_turn_has_a_seed_of_its_own_and_none_stays_none():
    sampling = Sampling(temperature=0.5, seed=3)
    seeds = [seed_sampling(sampling, 5, turn).seed for turn in (1, 2, 3)]
    assert len(set(seeds)) == 3 and seeds[0] == 3 + 5 + 1_000_003
    assert seed_sampling(sampling, None) is sampling
    assert seed_sampling(Sampling(seed=2**31 - 1), 2**31 - 1).seed in range(2**31)


# ---- agents and scenes --------------------------------------------------------------------------------------------


async def test_an_agent_has_to_say_its_name_and_to_act_and_nothing_else():
    agent, spec = Someone(), SandboxSpec()
    assert not (agent.needs_slot or agent.brings_model or agent.skills or agent.label or agent.identity)
    assert agent.extend_spec(spec) is spec
    assert agent.use_stage("test") is agent and agent.use_model(ScriptedModel(["x"])) is agent
    await agent.close()
    with pytest.raises(NotImplementedError):
        _ = Agent().name
    with pytest.raises(NotImplementedError):
        await Agent().act(make_scene())


def make_scene(**fields: Any) -> Scene:
    return Scene(make_task(), make_policy(), (Message("user", "do it"),), **fields)


def test_a_scene_keeps_what_an_agent_did_and_passes_each_turn_on():
    seen: list[Turn] = []
    scene, turns = make_scene(on_turn=seen.append), (make_turn("a"), make_turn("b"))
    opening = (Message("system", "Mine."),)
    result = AgentResult(opening, ("bash",), turns, StopReason.CRASHED, Exit(3, "oh"), None, {"n": 1})
    assert scene.keep(result) is StopReason.CRASHED
    assert (tuple(scene.turns), tuple(seen)) == (turns, turns)
    assert (scene.opening, scene.tools, scene.exit, scene.details) == (opening, ("bash",), Exit(3, "oh"), {"n": 1})


def test_a_scene_keeps_what_an_agent_did_before_it_failed():
    scene = make_scene()
    before = scene.opening
    with pytest.raises(ModelError, match="down"):
        scene.keep(AgentResult((), (), (make_turn("a"),), StopReason.FAILED, None, ModelError("down")))
    assert (len(scene.turns), scene.opening) == (1, before)
