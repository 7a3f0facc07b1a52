"""Skills in slots: where they lie, and what is recorded of them. The witnesses are the slot and the conversation."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Agent, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.skill import DOCUMENT, Skill, SkillFile
from ludus.skill_library import make_library, make_package
from ludus.skill_use import PlacedSkill, decide_use, starts_script
from ludus.tools import Tool, tool
from ludus.types import Call, Message, Rollout, Score, SkillUse, Task

SKILL = Skill(
    "---\nname: unit-work\ndescription: Converts units of length. Use it for inches.\n---\n\n"
    "# Units\n\nAlways convert inches to centimetres first.\nThe factors are in references/units.md.\n",
    (
        SkillFile("references/other.md", "A text that no task ever needs at all.\n"),
        SkillFile("references/units.md", "One inch has 2.54 centimetres, exactly.\nOne foot has 12 inches, exactly.\n"),
        SkillFile("scripts/convert.sh", "#!/bin/sh\necho $(( $1 * 254 ))\n", b"", True),
    ),
)
TASK = Task(id="t", prompt="How long is it?", answer="")


class Shell(Env, frozen=True):
    """An environment whose only tool is the slot's shell."""

    name: ClassVar[str] = "shell"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()

    def tasks(self, split: str) -> Iterator[Task]:
        yield TASK

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        assert box is not None

        @tool
        async def shell(command: str) -> str:
            return (await box.exec(command)).text

        return [shell]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        left = await box.exec("find /workspace $TMPDIR ~ -path '*unit-work*' 2>/dev/null; ls -A")
        return Score.of(1.0, left.text)


async def act(backend: str, *commands: str, skill: Skill | None = SKILL, **fields: Any) -> Rollout:
    """Let the loop run commands, in a slot with the skill."""
    script = [*(call("shell", command=command) for command in commands), say("Done.")]
    options: dict[str, Any] = {"skill_as": "listed", **fields}
    policy = Policy(ScriptedModel(script), skill=skill, **options)
    async with open_pool(backend) as pool:
        return await run(Job(TASK, policy), Runner(Shell(), pool, options=RunOptions(retries=0)))


async def use(backend: str, *commands: str, **fields: Any) -> SkillUse:
    rollout = await act(backend, *commands, **fields)
    assert rollout.failure is None, rollout.failure
    assert rollout.skill_use is not None
    if backend == "local" and rollout.skill_use.unseen:
        pytest.skip(rollout.skill_use.unseen)
    return rollout.skill_use


FOLDER = "${TMPDIR:-/tmp}/skills/unit-work"


async def test_the_loop_s_agent_is_told_name_and_description_and_nothing_else(backend: str):
    rollout = await act(backend)
    system = rollout.opening[0].content
    assert "- unit-work: Converts units of length. Use it for inches. (file: /tmp/skills/unit-work/SKILL.md)" in system
    assert "centimetres first" not in system


async def test_a_skill_that_nobody_reads_is_not_loaded(backend: str):
    found = await use(backend, f"ls -lR {FOLDER}; stat {FOLDER}/*; find {FOLDER} -name '*.md'")
    assert found == SkillUse(loaded=False)


async def test_files_that_are_read_and_scripts_that_are_run_are_recorded(backend: str):
    found = await use(backend, f"cat {FOLDER}/SKILL.md", f"cd {FOLDER}; cat references/units.md; scripts/convert.sh 3")
    assert found == SkillUse(
        loaded=True,
        opened=("SKILL.md", "references/units.md", "scripts/convert.sh"),
        shown=("SKILL.md", "references/units.md"),
        run=("scripts/convert.sh",),
    )


async def test_a_script_that_is_only_looked_at_was_not_run(backend: str):
    found = await use(backend, f"cat {FOLDER}/scripts/convert.sh > /dev/null")
    assert found == SkillUse(loaded=False, opened=("scripts/convert.sh",))


async def test_what_is_read_without_being_shown_is_opened(backend: str):
    found = await use(backend, f"grep -q inches {FOLDER}/SKILL.md")
    assert found == SkillUse(loaded=True, opened=("SKILL.md",))


@pytest.mark.parametrize(
    "command",
    [
        "touch -a -t 199901010000 SKILL.md",
        "echo more >> SKILL.md",
        "rm SKILL.md",
        "cp SKILL.md x; mv x SKILL.md",
        "rm SKILL.md; ln -s /etc/hostname SKILL.md",
        "rm SKILL.md; mkfifo SKILL.md",
        "cd ..; mv unit-work other; ln -s other unit-work; touch other/SKILL.md",
        "cd ..; rm -rf unit-work; echo x > unit-work",
    ],
)
async def test_an_agent_that_hides_its_reading_makes_it_unknown_and_never_no(bwrap: str, command: str):
    found = await use(bwrap, f"cd {FOLDER}; cat SKILL.md > /dev/null; {command}")
    assert found.loaded is None
    assert DOCUMENT in found.changed and DOCUMENT not in found.opened


@pytest.mark.parametrize(
    "command",
    [
        "stat() { echo '1|1|1|./SKILL.md'; }; find() { stat; }; cd() { :; }; export -f stat find cd",
        "alias find=true; PATH=/nowhere; exec 1>&-",
        "trap 'echo forged' DEBUG EXIT; set -e; false",
        "(sleep 1000 &) ; while :; do :; done &",
    ],
)
async def test_the_shell_that_an_agent_leaves_is_not_asked(bwrap: str, command: str):
    found = await use(bwrap, f"cat {FOLDER}/SKILL.md > /dev/null; {command}")
    assert (found.loaded, found.opened, found.changed) == (True, ("SKILL.md",), ())


async def test_verify_sees_nothing_of_the_skill(backend: str):
    assert (await act(backend, f"echo x > {FOLDER}/new")).score == Score.of(1.0, "")


@pytest.mark.parametrize(
    "folder", ["~/.claude/skills", "~/.agents/skills", "/workspace/.claude/skills", "/tmp/a b", "~/it's/here/"]
)
async def test_the_folder_is_the_user_s_to_choose(backend: str, folder: str):
    place = folder.rstrip("/") + "/unit-work/SKILL.md"
    rollout = await act(backend, "true", skill_folder=folder)
    assert f"(file: {place})" in rollout.opening[0].content
    assert rollout.skill_use is not None
    assert rollout.score is not None
    assert "unit-work" not in rollout.score.feedback


async def test_files_of_the_task_are_not_overwritten(backend: str):
    class Has(Shell, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            await box.write("/workspace/.claude/skills/unit-work/SKILL.md", b"the task's own")

    policy = Policy(ScriptedModel(["x"]), skill=SKILL, skill_as="listed", skill_folder="/workspace/.claude/skills")
    async with open_pool(backend) as pool:
        rollout = await run(Job(TASK, policy), Runner(Has(), pool, options=RunOptions(retries=0)))
    assert rollout.failure is not None
    assert "choose another agent.skill_folder" in rollout.failure.message


async def test_modes_and_bytes_arrive_as_they_are(backend: str):
    data = SkillFile("assets/it's a $(name).bin", "", bytes(range(256)))
    skill = SKILL.put_file(data)
    check = f"cd {FOLDER}; test -x scripts/convert.sh && sha256sum < assets/*.bin; cat SKILL.md"
    rollout = await act(backend, check, skill=skill)
    import hashlib

    assert rollout.turns[0].results[0].content == f"{hashlib.sha256(data.content).hexdigest()}  -\n{skill.text}"


async def test_a_slot_that_breaks_leaves_the_use_unknown(bwrap: str):
    placed = PlacedSkill("/tmp/skills/unit-work", SKILL, dict.fromkeys(SKILL.paths, "1 x"))
    found = decide_use(placed, Policy(ScriptedModel([]), skill_as="listed"), {}, "the slot is gone", [], [])
    assert found == SkillUse(unseen="the slot is gone")


# ---- what the slot and the conversation say together ----------------------------------------------------------------


class Lists(Agent):
    """An agent that reads all documents when it starts."""

    @property
    def name(self) -> str:
        return "lists"

    @property
    def skills(self) -> str:
        return "~/.claude/skills"


MARKS = dict.fromkeys(SKILL.paths, "1 x")
BODY = Message("tool", SKILL.body, call_id="1")
NUMBERED = Message("tool", "\n".join(f"{n:6}\t{line}" for n, line in enumerate(SKILL.body.splitlines())))
ESCAPED = Message("user", '{"output": "' + SKILL.body.replace("\n", "\\n") + '"}')


@pytest.mark.parametrize("got", [BODY, NUMBERED, ESCAPED])
def test_an_agent_that_opens_all_documents_has_loaded_one_that_its_model_got(got: Message):
    policy = Policy(ScriptedModel([]), skill=SKILL, skill_as="listed", agent=Lists())
    stats = dict.fromkeys(SKILL.paths, (2000000000, "1 x"))
    placed = PlacedSkill("/x", SKILL, MARKS)
    assert decide_use(placed, policy, stats, "", [], []).loaded is False
    assert decide_use(placed, policy, stats, "", [], [got]).loaded is True
    assert decide_use(placed, policy, {}, "no access times", [], [got]).loaded is True


def test_what_the_model_says_itself_is_no_evidence():
    policy = Policy(ScriptedModel([]), skill=SKILL, skill_as="listed")
    placed = PlacedSkill("/x", SKILL, MARKS, "no access times")
    lied = Message("assistant", SKILL.text, (Call("1", "shell", '{"command": "cat SKILL.md"}'),))
    assert decide_use(placed, policy, {}, "no access times", [], [lied]) == SkillUse(unseen="no access times")


def test_a_document_without_telling_lines_is_unknown_to_the_conversation():
    skill = Skill("---\nname: a\ndescription: b\n---\n\nShort.\n")
    policy = Policy(ScriptedModel([]), skill=skill, skill_as="listed", agent=Lists())
    assert decide_use(PlacedSkill("/x", skill, {}), policy, {}, "", [], []).loaded is None


def test_both_means_that_it_was_given():
    policy = Policy(ScriptedModel([]), skill=SKILL, skill_as="both")
    assert decide_use(PlacedSkill("/x", SKILL, {}), policy, {}, "", [], []).loaded is True


STARTS = [
    "scripts/c.py 3",
    "./scripts/c.py",
    "cd /x && python3 scripts/c.py --fast | head",
    "X=1 timeout 5 python3.11 -u '/tmp/skills/a/scripts/c.py'",
    "out=$(/tmp/skills/a/scripts/c.py 1)",
    "bash -c 'scripts/c.py 1'",
    "uv run scripts/c.py",
    ". scripts/c.py",
    "for i in 1 2; do python scripts/c.py $i; done",
]
LOOKS = [
    "cat scripts/c.py",
    "sed -n 1,9p scripts/c.py",
    "grep x scripts/c.py",
    "ls scripts/c.py; true",
    "cp c.py x",
    "",
]


@pytest.mark.parametrize(
    ("command", "starts"), [*zip(STARTS, itertools.repeat(True)), *zip(LOOKS, itertools.repeat(False))]
)
def test_commands_that_start_a_script(command: str, starts: bool):
    assert starts_script(command, "scripts/c.py") is starts


# ---- a library ------------------------------------------------------------------------------------------------------

OTHER = Skill(
    "---\nname: cloud-work\ndescription: Names clouds.\n---\n\n"
    "# Clouds\n\nAlways convert inches to centimetres first.\nA cirrus cloud is thin and high.\n"
)
LIBRARY = make_library([make_package(SKILL), make_package(OTHER)])
ALL = "${TMPDIR:-/tmp}/skills"


async def use_library(backend: str, *commands: str, **fields: Any) -> Mapping[str, SkillUse]:
    rollout = await act(backend, *commands, skill=None, library=LIBRARY, skill_as="text", **fields)
    assert rollout.failure is None, rollout.failure
    assert rollout.library_use is not None and rollout.skill_use is None
    if backend == "local" and any(use.unseen for use in rollout.library_use.values()):
        pytest.skip("no access times")
    return rollout.library_use


async def test_all_packages_lie_in_the_slot_and_each_has_its_own_record(backend: str):
    rollout = await act(backend, skill=None, library=LIBRARY, skill_as="text")
    system = rollout.opening[0].content
    assert "- cloud-work: Names clouds. (file: /tmp/skills/cloud-work/SKILL.md)\n- unit-work: Converts" in system
    found = await use_library(backend, f"cat {ALL}/unit-work/SKILL.md; cat {ALL}/unit-work/references/units.md")
    read = ("SKILL.md", "references/units.md")
    assert found == {"cloud-work": SkillUse(loaded=False), "unit-work": SkillUse(True, read, read)}


async def test_a_line_that_two_packages_have_shows_neither(bwrap: str):
    found = await use_library(bwrap, "echo 'Always convert inches to centimetres first.'")
    assert found == {"cloud-work": SkillUse(loaded=False), "unit-work": SkillUse(loaded=False)}


async def test_an_agent_that_removes_other_skills_changes_nothing_but_its_own_record(bwrap: str):
    found = await use_library(bwrap, f"cat {ALL}/cloud-work/SKILL.md; rm -rf {ALL}/unit-work")
    assert found["cloud-work"].loaded is True
    assert found["unit-work"].loaded is None and DOCUMENT in found["unit-work"].changed
    again = await use_library(bwrap, f"ls {ALL}/unit-work")
    assert again["unit-work"] == SkillUse(loaded=False), "the next slot has it"


async def test_a_link_in_place_of_a_package_is_a_change(bwrap: str):
    found = await use_library(bwrap, f"cd {ALL}; mv unit-work old; ln -s old unit-work; cat unit-work/SKILL.md")
    assert DOCUMENT in found["unit-work"].changed


async def test_a_folder_that_the_task_has_is_not_replaced_for_any_package(bwrap: str):
    class Has(Shell, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            await box.exec(f"mkdir -p {ALL}/unit-work")

    policy = Policy(ScriptedModel([say("x")]), library=LIBRARY)
    async with open_pool(bwrap) as pool:
        rollout = await run(Job(TASK, policy), Runner(Has(), pool, options=RunOptions(retries=0)))
    assert rollout.failure is not None and "unit-work already" in rollout.failure.message
