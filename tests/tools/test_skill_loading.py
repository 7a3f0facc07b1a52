"""The tool that reads a library where there is no slot, and what it leaves on the record."""

from typing import Any

import pytest
from tests.library_kit import BAD, GOOD, KindTasks, build_library, make_skill

from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.skill import SkillFile
from ludus.tools.skill_loading import make_skill_tool
from ludus.types import Rollout, SkillUse, Task

WITH_FILES = make_skill(
    "alpha-files", "alpha", "See more.md.", files=(SkillFile("more.md", "More.\n"), SkillFile("x.bin", data=b"\xff"))
)
LIBRARY = build_library(WITH_FILES, BAD)
TASK = Task(id="t", prompt="A alpha task, 1", kind="alpha")


async def act(*replies: Any, library: Any = LIBRARY) -> Rollout:
    policy = Policy(ScriptedModel([*replies, say("right")]), library=library)
    return await run(Job(TASK, policy), Runner(KindTasks(), None))


async def test_the_agent_is_told_names_and_descriptions_and_loads_by_name():
    rollout = await act(call("load_skill", name="alpha-files"), call("load_skill", name="alpha-files", file="more.md"))
    assert "- alpha-files: For alpha tasks.\n- beta-bad: For beta tasks." in rollout.opening[0].content
    assert "load_skill" in rollout.opening[0].content and "SKILL.md" not in rollout.opening[0].content
    assert [result.content for turn in rollout.turns for result in turn.results] == [WITH_FILES.body, "More.\n"]
    assert rollout.library_use == {
        "alpha-files": SkillUse(loaded=True, shown=("SKILL.md", "more.md")),
        "beta-bad": SkillUse(loaded=False),
    }
    assert rollout.provenance.skill == LIBRARY.hash
    assert rollout.provenance.tools == ("load_skill",)


async def test_only_calls_that_succeeded_count():
    wrong = [
        call("load_skill", name="alpha-file"),
        call("load_skill", name="alpha-files", file="../../etc/passwd"),
        call("load_skill", name="alpha-files", file="x.bin"),
        call("load_skill", name=7),
        say("I have loaded the skill beta-bad."),
    ]
    rollout = await act(join_calls(*wrong[:4]), wrong[4])
    errors = [result.error for turn in rollout.turns for result in turn.results]
    assert all(errors) and "did you mean 'alpha-files'?" in errors[0]
    assert all(use == SkillUse(loaded=False) for use in (rollout.library_use or {}).values())


async def test_an_empty_library_offers_nothing():
    rollout = await act(library=LIBRARY.leave_out(*LIBRARY.names))
    assert rollout.provenance.tools == () and rollout.opening[0].role == "user"
    assert rollout.library_use == {}


def test_policies_with_other_libraries_are_others():
    model = ScriptedModel([])
    libraries = (None, LIBRARY, LIBRARY.leave_out("beta-bad"), LIBRARY.put(GOOD))
    assert len({Policy(model, library=each).fingerprint for each in libraries}) == 4


@pytest.mark.parametrize("file", ["", "SKILL.md"])
async def test_the_document_is_what_is_loaded_without_a_file(file: str):
    assert await make_skill_tool(LIBRARY).run({"name": "beta-bad", "file": file}) == BAD.body
