"""Command-line agents among the skills of a catalogue: a small stand-in with every fault there is, and real ones."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.test_harness import AGENTS, TINY, real
from tests.test_catalogue import write_skill

from ludus.catalogue import SkillCard, make_catalogue
from ludus.cli import main
from ludus.envs.triggers import TriggerEnv, TriggerQuery, list_loaded, make_task
from ludus.errors import ModelError
from ludus.harness import Harness, HarnessAgent
from ludus.harness.known import MINI_SWE_AGENT
from ludus.models import Model
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.profiles import open_pool
from ludus.skill import Skill, SkillFile
from ludus.triggers.trigger_agent import (
    TriggerAgent,
    find_marked,
    make_packages,
    mark_skills,
    read_cards,
    write_cards,
)
from ludus.types import Message, Rollout, Sampling, StopReason, ToolSpec

LISTING = TINY.files["~/tiny.py"].replace(
    "[open(path).read() for path in",
    "['- ' + open(path).read().split('---')[1].strip() + f' (file: {path})\\n' for path in",
)
"""The stand-in, which gives its model the front matter of each skill, not the body."""
LISTER = msgspec.structs.replace(TINY, name="lister", files={"~/tiny.py": LISTING})
CATALOGUE = make_catalogue([SkillCard("forms", "Fills forms."), SkillCard("sheets", "Sums sheets.\nAnd columns.")])
PACKAGES = {
    "forms": Skill(
        "---\nname: forms\ndescription: An older one.\n---\n\nRead references/a.md first.\n",
        (SkillFile("references/a.md", "Fields have names.\n"),),
    ),
    "sheets": Skill("---\nname: sheets\ndescription: Sums.\n---\n\nAdd it up.\n"),
}
QUERY = TriggerQuery(id="q", text="Fill this form.", right="forms")


async def ask(
    harness: Harness, model: Model, query: TriggerQuery = QUERY, *, turns: int = 4, folder: str = "", **limits: Any
) -> Rollout:
    """One rollout of a query with the catalogue in the agent's slot."""
    agent = TriggerAgent(HarnessAgent(harness), PACKAGES, turns)
    policy = Policy(
        model,
        skill=write_cards(CATALOGUE),
        agent=agent,
        limits=Limits(rollout_seconds=90, **limits),
        skill_folder=folder,
    )
    async with asyncio.timeout(300), open_pool("bwrap") as pool:
        job = Job(make_task(query, CATALOGUE.names, placed=True), policy, seed=5)
        return await run(job, Runner(TriggerEnv(shown=False), pool))


def read(name: str, command: str = "cat") -> Message:
    return call("bash", command=f"{command} ~/.tiny/skills/{name}/SKILL.md")


@pytest.fixture
def slots(bwrap_problem: str) -> None:
    if bwrap_problem:
        pytest.skip(bwrap_problem)
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no python3 in the slot")


# ---- the stand-in ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("slots")
async def test_reading_a_document_is_a_load_and_ends_the_rollout():
    model = ScriptedModel([read("forms")])  # a second call would be an error
    rollout = await ask(LISTER, model)
    assert rollout.failure is None and rollout.score is not None and rollout.score.passed
    assert (list_loaded(rollout), rollout.stop, len(rollout.turns)) == (("forms",), StopReason.SUBMITTED, 1)
    told = rollout.opening[0].content
    assert "Fills forms." in told and "An older one." not in told, "the descriptions are those of the catalogue"
    assert "And columns." in told and "Add it up." not in told
    assert rollout.opening[1].content == "Fill this form.", "the query is the prompt, and nothing else"


@pytest.mark.usefixtures("slots")
@pytest.mark.parametrize(
    ("replies", "loaded", "passed"),
    [
        ([say("I am using the forms skill.")], (), False),  # what it says does not count
        ([call("bash", command="ls ~/.tiny/skills"), say("Done.")], (), False),
        ([call("bash", command="head -4 ~/.tiny/skills/*/SKILL.md"), say("Done.")], (), False),  # front matter only
        ([call("bash", command="cat ~/.tiny/skills/*/SKILL.md")], ("forms", "sheets"), False),
        ([call("bash", command="tail -2 ~/.tiny/skills/forms/SKILL.md")], ("forms",), True),
        ([call("bash", command="grep -c . ~/.tiny/skills/forms/SKILL.md"), say("Done.")], (), False),  # not shown
    ],
)
async def test_only_a_document_that_the_model_got_is_loaded(replies, loaded, passed):
    rollout = await ask(LISTER, ScriptedModel(replies))
    assert (list_loaded(rollout), rollout.score and rollout.score.passed) == (loaded, passed), rollout.failure


@pytest.mark.usefixtures("slots")
async def test_a_load_in_the_last_turn_is_seen_and_work_without_a_load_is_none():
    other = call("bash", command="true")
    rollout = await ask(LISTER, ScriptedModel([other, read("forms")]), turns=2)
    assert (list_loaded(rollout), len(rollout.turns)) == (("forms",), 2)
    none = msgspec.structs.replace(QUERY, right="")
    rollout = await ask(LISTER, ScriptedModel([other, other]), none, turns=2)
    assert (rollout.stop, rollout.score and rollout.score.passed) == (StopReason.MAX_TURNS, True)


@pytest.mark.usefixtures("slots")
async def test_an_agent_that_gives_all_documents_to_its_model_has_loaded_all():
    rollout = await ask(TINY, ScriptedModel([]))
    assert rollout.failure is None
    assert (list_loaded(rollout), rollout.score and rollout.score.passed) == (("forms", "sheets"), False)


@pytest.mark.usefixtures("slots")
async def test_an_agent_without_a_folder_is_told_of_the_skills():
    plain = msgspec.structs.replace(LISTER, skills="")
    model = ScriptedModel([call("bash", command="cat /tmp/skills/sheets/SKILL.md")])
    rollout = await ask(plain, model)
    assert list_loaded(rollout) == ("sheets",)
    told = rollout.opening[1].content
    assert "- sheets: Sums sheets. And columns. (file: /tmp/skills/sheets/SKILL.md)" in told
    assert told.endswith("Fill this form.")


@pytest.mark.usefixtures("slots")
async def test_another_folder_is_honoured():
    model = ScriptedModel([call("bash", command="cat /tmp/mine/forms/references/a.md /tmp/mine/forms/SKILL.md")])
    rollout = await ask(LISTER, model, folder="/tmp/mine")
    assert list_loaded(rollout) == ("forms",)
    assert "(file: /tmp/mine/forms/SKILL.md)" in rollout.opening[1].content


@pytest.mark.usefixtures("slots")
async def test_failures_of_the_world_are_no_decisions():
    broken = ScriptedModel(lambda *_: (_ for _ in ()).throw(ModelError("the server is gone")))
    rollout = await ask(LISTER, broken)
    assert rollout.score is None and rollout.failure is not None
    silent = msgspec.structs.replace(LISTER, command="true")
    rollout = await ask(silent, ScriptedModel([]))
    assert rollout.score is None and rollout.failure is not None and "never asked" in rollout.failure.message


@pytest.mark.usefixtures("slots")
async def test_the_budget_of_the_run_is_told_apart_from_the_end_of_a_rollout():
    from ludus.errors import BudgetExhausted

    spent = MeteredModel(ScriptedModel([read("forms")]), Ledger(Budget(calls=0)), "agent")
    with pytest.raises(BudgetExhausted, match="budget of the run"):
        await ask(LISTER, spent)


# ---- what is pure ---------------------------------------------------------------------------------------------------


def test_the_catalogue_comes_back_as_it_was():
    assert read_cards(write_cards(CATALOGUE)) == CATALOGUE


def test_packages_have_the_descriptions_of_the_catalogue_and_controls_have_packages():
    bigger = CATALOGUE.add(SkillCard("made-up", 'Says: "yes" # no\n---\nname: other'))
    found = make_packages(bigger, PACKAGES)
    fronts = {name: skill.front for name, skill in found.items()}
    assert {name: (front.name, front.description) for name, front in fronts.items() if front} == {
        card.name: (card.name, card.description) for card in bigger.cards
    }
    assert found["forms"].files == PACKAGES["forms"].files


def test_a_mark_is_behind_the_front_matter_and_the_document_stays_as_it_was():
    marks = {"m1": "forms", "m2": "sheets"}
    marked = mark_skills(PACKAGES, marks)
    for mark, name in marks.items():
        assert marked[name].front == PACKAGES[name].front
        assert marked[name].text.count(mark) == 2
        assert PACKAGES[name].body.strip() in marked[name].body
    assert find_marked([Message("tool", marked["forms"].text)], marks) == {"forms"}
    assert find_marked([Message("assistant", "m1 m2")], marks) == set(), "the model's own words are no evidence"


def test_packages_and_turns_are_part_of_the_policy():
    def fingerprint(packages: dict[str, Skill], turns: int) -> str:
        agent = TriggerAgent(HarnessAgent(TINY), packages, turns)
        return Policy(ScriptedModel([]), agent=agent).fingerprint

    prints = {fingerprint(PACKAGES, 4), fingerprint(PACKAGES, 5), fingerprint({"forms": PACKAGES["forms"]}, 4)}
    assert len(prints) == 3 and fingerprint(dict(reversed(PACKAGES.items())), 4) in prints


# ---- the command ----------------------------------------------------------------------------------------------------

MODELS = """
import re
from ludus.models.scripted import call, say

def agent(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    asked = set(re.findall("[a-z]{5,}", messages[-1].content.lower()))
    fits = {}
    for text in messages[0].content.split("- name: ")[1:]:
        fits[text.split()[0]] = len(asked & set(re.findall("[a-z]{5,}", text.lower())))
    best = max(fits, key=fits.get)
    return call("bash", command=f"cat ~/.tiny/skills/{best}/SKILL.md") if fits[best] else say("Here is the answer.")

def blind(messages, tools, sampling):
    return call("bash", command="cat ~/.tiny/skills/*/SKILL.md")
"""


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    write_skill(tmp_path / "skills" / "documents", "documents", "Fills documents and invoices.")
    write_skill(tmp_path / "skills" / "columns", "columns", "Totals columns.")
    rows = [
        {"query": "Complete the invoices", "skill": "documents"},
        {"query": "Give me the columns together", "skill": "columns"},
        {"query": "Hello", "skill": ""},
    ]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    agents = {"lister": {name: getattr(LISTER, name) for name in ("command", "env", "files", "skills")}}
    Path("agents.yaml").write_text(json.dumps({"agent": {"harnesses": agents}}))
    return [
        *("triggers", "skills", "--queries", "queries.jsonl", "--json", "--out", "run", "--config", "agents.yaml"),
        *("--agent.harness", "lister", "--model.type", "scripted", "--env.group_size", "2", "--sandbox.warm", "0"),
    ]


@pytest.mark.usefixtures("slots")
def test_the_command_measures_a_command_line_agent_after_its_controls(typed, capsys):
    assert main([*typed, "--model.script", "models.py:agent"]) == 0
    found = json.loads(capsys.readouterr().out)["triggers"]
    assert found["controls"]["problems"] == [] and found["controls"]["winner"] == 1.0
    assert {each["skill"]: (each["recall"], each["precision"]) for each in found["report"]["skills"]} == {
        "columns": (1.0, 1.0),
        "documents": (1.0, 1.0),
    }
    assert found["report"]["accuracy"] == 1.0


@pytest.mark.usefixtures("slots")
def test_the_controls_find_a_command_line_agent_that_reads_everything(typed, capsys):
    assert main([*typed, "--model.script", "models.py:blind"]) == 1
    found = json.loads(capsys.readouterr().out)["triggers"]
    assert found["controls"]["problems"] and found["controls"]["winner"] == found["controls"]["loser"] == 1.0


def test_command_line_agents_on_other_machines_are_refused(typed, capsys):
    assert main([*typed, "--model.script", "models.py:agent", "--engine.type", "ray"]) == 2
    assert "on this machine only" in capsys.readouterr().err


# ---- real agents ----------------------------------------------------------------------------------------------------

Script = Callable[[Sequence[Message], Sequence[ToolSpec], Sampling], Message]


def load_with(harness: Harness, name: str) -> Script:
    """A model that loads a skill as this agent's own rules want it, and goes on for ever if nobody stops it."""
    folder = (harness.skills or "/tmp/skills").replace("~", "$HOME")

    def script(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        names = {tool.name for tool in tools}
        if "Skill" in names:
            return call("Skill", skill=name)
        if "exec_command" in names:
            return call("exec_command", cmd=f"cat {folder}/{name}/SKILL.md")
        if "bash" in names:
            return call("bash", command=f"cat {folder}/{name}/SKILL.md")
        return say("A title.")  # a request beside the work

    return script


@AGENTS
async def test_a_real_agent_lists_the_catalogue_and_its_load_is_seen(harness: Harness):
    rollout = await ask(real(harness), ScriptedModel(load_with(harness, "forms")))
    assert rollout.failure is None, rollout.exit
    assert (list_loaded(rollout), rollout.stop) == (("forms",), StopReason.SUBMITTED)
    assert rollout.score is not None and rollout.score.passed
    seen = "\n".join(message.content for message in (*rollout.opening, *rollout.turns[0].notices))
    assert "Fills forms." in seen and "Sums sheets." in seen, "both are in what its model gets"
    assert "An older one." not in seen and "Add it up." not in seen
    assert "Fill this form." in seen
    assert len(rollout.turns) <= 2, "it is stopped at once"


@AGENTS
async def test_a_real_agent_that_loads_nothing_has_loaded_none(harness: Harness):
    done = ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    reply = call(done[0], **done[1]) if harness is MINI_SWE_AGENT else say("Using the forms skill, it is done.")
    rollout = await ask(real(harness), ScriptedModel(lambda *_: reply), msgspec.structs.replace(QUERY, right=""))
    assert rollout.failure is None, rollout.exit
    assert (list_loaded(rollout), rollout.score and rollout.score.passed) == ((), True)
