"""The environment `triggers`: what was loaded is read from executed calls, and each form of a query is judged."""

import json
from pathlib import Path

import pytest
from tests.test_catalogue import write_skill

from ludus.catalogue import SkillCard, make_catalogue
from ludus.envs.triggers import TriggerEnv, TriggerQuery, list_loaded, make_load_tool, make_task, read_queries
from ludus.errors import ConfigError
from ludus.types import Call, Completion, Message, Provenance, Rollout, StopReason, ToolResult, Turn

CATALOGUE = make_catalogue([SkillCard("forms", "Fills forms."), SkillCard("sheets", "Sums sheets.")])


def make_rollout(query: TriggerQuery, *loaded: str, answer: str = "", error: str = "") -> Rollout:
    calls = tuple(Call(str(n), "load_skill", json.dumps({"name": name})) for n, name in enumerate(loaded))
    results = tuple(ToolResult(call, "done", error) for call in calls)
    turn = Turn(Completion(Message("assistant", answer, calls)), results, StopReason.FINISHED)
    return Rollout(
        task=make_task(query, CATALOGUE.names),
        provenance=Provenance(policy="p", model="m"),
        turns=(turn,),
        stop=StopReason.FINISHED,
    )


FORMS = TriggerQuery(id="q", text="Fill it", right="forms")
NONE = TriggerQuery(id="q", text="Hello", right="")
NOT_FORMS = TriggerQuery(id="q", text="Sum it", right=None, wrong=("forms",))


@pytest.mark.parametrize(
    ("query", "loaded", "answer", "right"),
    [
        (FORMS, ("forms",), "", True),
        (FORMS, ("sheets",), "", False),
        (FORMS, ("forms", "sheets"), "", False),
        (FORMS, (), "I am using the forms skill.", False),  # what it says does not count
        (NONE, (), "Hello!", True),
        (NONE, (), "  ", False),  # no answer at all is no decision
        (NONE, ("forms",), "", False),
        (NOT_FORMS, ("sheets",), "", True),
        (NOT_FORMS, (), "12", True),
        (NOT_FORMS, ("forms",), "", False),
    ],
)
async def test_a_rollout_is_right_if_exactly_the_right_skill_was_loaded(query, loaded, answer, right):
    score = await TriggerEnv().verify(make_rollout(query, *loaded, answer=answer), None)
    assert score.passed is right


def test_a_call_that_failed_has_loaded_nothing():
    assert list_loaded(make_rollout(FORMS, "forms", error="there is no such skill")) == ()


async def test_an_unknown_name_is_an_error_that_the_agent_sees():
    with pytest.raises(ValueError, match="did you mean 'forms'"):
        await make_load_tool(["forms", "sheets"]).run({"name": "form"})


def test_each_form_of_a_row_is_read(tmp_path: Path):
    rows = [
        {"query": "Fill", "skill": "forms"},
        {"query": "Hello", "skill": ""},
        {"query": "Sum", "not": ["forms"]},
        {"query": "Fill two", "skill": "forms", "should_trigger": True, "id": "own"},
        {"query": "Sum two", "skill": "forms", "should_trigger": False},
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_queries(str(tmp_path / "q.jsonl"), CATALOGUE)
    assert [(query.right, query.wrong) for query in found] == [
        ("forms", ()),
        ("", ()),
        (None, ("forms",)),
        ("forms", ()),
        (None, ("forms",)),
    ]
    assert found[3].id == "own" and len({query.id for query in found}) == 5


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"query": "Fill", "skill": "form"}, "did you mean 'forms'"),
        ({"query": "Fill"}, "name the skill that is right"),
        ({"query": " ", "skill": "forms"}, "query: it is empty"),
        ({"query": "Fill", "should_trigger": True}, "several skills"),
        ({"query": "Fill", "skill": "forms", "not": ["sheets"]}, "needs no wrong ones"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path: Path, row, words):
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=f"line 1.*{words}"):
        read_queries(str(tmp_path / "q.jsonl"), CATALOGUE)


async def test_the_reference_is_right_for_every_query(tmp_path: Path):
    write_skill(tmp_path / "skills" / "forms", "forms")
    (tmp_path / "q.jsonl").write_text('{"query": "Fill", "skill": "forms"}\n{"query": "Hello", "skill": ""}\n')
    env = TriggerEnv(skills=(str(tmp_path / "skills"),), queries=str(tmp_path / "q.jsonl"))
    for task in env.tasks("train"):
        turns = await env.solve(task, None)
        done = Rollout(
            task=task, provenance=Provenance(policy="p", model="m"), turns=tuple(turns), stop=StopReason.FINISHED
        )
        assert (await env.verify(done, None)).passed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"query": "Fill  it", "skill": ""}', "line 2: query: it is the same as that of .*line 1: keep one of them"),
        (b'{"query": "' + b"x" * 20_001 + b'", "skill": ""}', "line 2: query: it has 20,001 characters"),
        (b'{"query": "\xff", "skill": ""}', "line 2 is not UTF-8 text"),
    ],
)
def test_a_query_that_nobody_would_ask_twice_or_type_is_refused(tmp_path: Path, line: bytes, words: str):
    path = tmp_path / "queries.jsonl"
    path.write_bytes(b'{"query": "Fill it", "skill": "forms"}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=rf"^env.queries: .*{words}"):
        read_queries(str(path), CATALOGUE)
