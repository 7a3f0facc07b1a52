"""Which skill of a catalogue does the agent load for a request? Each query is a task.

The agent sees the names and descriptions of all skills and has one tool, `load_skill`. Its first load ends the rollout:
what happens after it is not the catalogue's matter. What was loaded is read from the calls that were executed, never
from what the agent says. Where a command-line agent acts, the skills lie in its slot instead
(`ludus triggers --agent.harness NAME`, `ludus.triggers.trigger_agent`). A query names the skill that is right for it,
none (`""`), or skills that would be wrong:

    {"query": "Fill this PDF form for me", "skill": "pdf-forms"}
    {"query": "What is the capital of Peru?", "skill": ""}
    {"query": "Sum column C of the sheet", "not": ["pdf-forms"]}

Files of the form `{"query": …, "should_trigger": true}` are read too, if the catalogue has one skill or the row names
it in `skill`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, field

from ludus.catalogue import Catalogue, read_catalogue, render_catalogue
from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_rows
from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool, tool
from ludus.types import Call, Completion, Message, Rollout, Score, StopReason, Task, ToolResult, Turn

LOAD = "load_skill"
PLACED = "placed"
PROPOSED = "proposed"
"""The source of a query that a model has written."""
TRANSCRIPT = "transcript"
"""The source of a query of a past session. What was loaded then is its answer, whether that was right or not."""
NONE = ""
"""In place of a skill: none is right."""
QUERY_CHARS = 20_000
"""The longest query."""


class QueryRow(Struct, frozen=True):
    """A row of a file of queries."""

    query: str
    skill: str | None = None
    wrong: tuple[str, ...] = field(default=(), name="not")
    should_trigger: bool | None = None
    id: str = ""
    source: str = ""


class TriggerQuery(Struct, frozen=True, kw_only=True):
    """A request, and which skill is right for it."""

    id: str
    text: str
    right: str | None
    """The skill to load; empty: none; None: any but those in `wrong`."""
    wrong: tuple[str, ...] = ()
    source: str = ""
    """Where it is from: empty for the user's own, `proposed`, `transcript`, or a word of the user's."""

    @property
    def is_checked(self) -> bool:
        """Whether a person has said what is right for it. Remove the source of a row that you have checked."""
        return self.source not in (PROPOSED, TRANSCRIPT)

    def judge(self, loaded: Sequence[str]) -> bool:
        """Whether loading exactly these skills is right."""
        if self.right is None:
            return not set(loaded) & set(self.wrong)
        return set(loaded) == ({self.right} if self.right else set[str]())


class TriggerEnv(Env, frozen=True):
    """Which skill of a catalogue an agent loads for a request."""

    name: ClassVar[str] = "triggers"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per query of env.queries",
        licence="that of the queries",
        scored="exactly the right skill is loaded, or none if none is right",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None

    skills: tuple[str, ...] = ()
    """Folders of skills: packages, or folders of packages."""
    queries: str = ""
    """A file of queries."""
    shown: bool = True
    """The catalogue is in the environment's system text. `ludus triggers` gives it in place of a skill instead."""

    def read_catalogue(self) -> Catalogue:
        if not self.skills:
            raise ConfigError(
                "env.skills: name the folders of the skills, such as: ludus triggers skills/ --queries FILE"
            )
        return read_catalogue([Path(path).expanduser() for path in self.skills])

    def read_queries(self) -> list[TriggerQuery]:
        if not self.queries:
            raise ConfigError("env.queries: name a file of queries: rows with `query` and `skill`")
        return read_queries(self.queries, self.read_catalogue())

    def tasks(self, split: str) -> Iterator[Task]:
        names = self.read_catalogue().names
        for query in self.read_queries():
            yield make_task(query, names, split)

    def make_system(self, task: Task) -> str:
        return render_catalogue(self.read_catalogue()).text if self.shown else ""

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return () if is_placed(task) else (make_load_tool(task.details["skills"] if task.details else ()),)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        query, loaded = read_answer(rollout.task), list_loaded(rollout)
        worked = bool(rollout.answer.strip()) or (
            is_placed(rollout.task) and any(turn.results for turn in rollout.turns)
        )
        right = query.judge(loaded) and (bool(loaded) or worked)
        said = ", ".join(loaded) or ("none" if worked else "none, and no answer")
        wanted = query.right or ("none" if query.right == NONE else f"not {', '.join(query.wrong)}")
        return Score.of(float(right), f"loaded: {said}; right: {wanted}")

    async def solve(self, task: Task, box: Sandbox | None) -> Sequence[Turn]:
        query = read_answer(task)
        if not query.right:
            return (Turn(Completion(Message("assistant", "Here is the answer.")), stop=StopReason.FINISHED),)
        call = Call("1", LOAD, f'{{"name": "{query.right}"}}')
        message = Message("assistant", calls=(call,))
        return (Turn(Completion(message), (ToolResult(call, "loaded"),), StopReason.SUBMITTED),)


def make_load_tool(names: Sequence[str]) -> Tool:
    """The tool with which an agent loads a skill. A wrong name is an error that the agent sees."""

    @tool(ends_episode=True)
    async def load_skill(name: Annotated[str, Meta(description="The name of the skill, as it is listed")]) -> str:
        """Load a skill: its instructions are then read before the request is worked on."""
        if name not in names:
            raise ValueError(f"there is no skill {name!r}; {suggest(name, list(names))}")
        return f"The skill {name} is loaded."

    return load_skill


def make_task(query: TriggerQuery, names: Sequence[str], split: str = "train", *, placed: bool = False) -> Task:
    """The task of a query with a catalogue of these skills. `placed`: they lie in the slot of the agent."""
    return Task(
        id=query.id,
        prompt=query.text,
        split=split,
        kind=query.right or "(none)",
        answer={"right": query.right, "wrong": list(query.wrong), **({"source": query.source} if query.source else {})},
        details={"skills": list(names), **({PLACED: True} if placed else {})},
    )


def is_placed(task: Task) -> bool:
    """Whether the skills lie in the slot of a command-line agent."""
    return bool(task.details and task.details.get(PLACED))


def read_answer(task: Task) -> TriggerQuery:
    answer: Mapping[str, Any] = task.answer
    wrong, source = tuple(answer["wrong"]), answer.get("source", "")
    return TriggerQuery(id=task.id, text=task.prompt, right=answer["right"], wrong=wrong, source=source)


def list_loaded(rollout: Rollout) -> tuple[str, ...]:
    """The skills that were loaded, from the calls that were executed without an error; with skills in the slot, from
    what was seen of the agent's requests."""
    if is_placed(rollout.task):
        return tuple(rollout.details["loaded"]) if rollout.details else ()
    found = (
        name
        for turn in rollout.turns
        for result in turn.results
        if result.call.name == LOAD and not result.error and (name := _read_name(result.call))
    )
    return tuple(dict.fromkeys(found))


def _read_name(call: Call) -> str:
    import msgspec

    try:
        return str(msgspec.json.decode(call.arguments, type=dict[str, Any]).get("name", ""))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return ""


# ---- files of queries -----------------------------------------------------------------------------------------------


def read_queries(path: str, catalogue: Catalogue) -> list[TriggerQuery]:
    """The queries of a file: JSONL, JSON, CSV or Parquet.

    Raises:
        ConfigError: a row is wrong. The message names the file, the row and the field.
    """
    try:
        rows = load_rows(path, QueryRow, "", texts=["query"])
        _check_rows(rows)
        named = give_ids(rows, ["id"], lambda row, number: _hash(row.item))
        return [_make_query(id, row, catalogue) for id, row in named]
    except ConfigError as error:  # data sets of other environments are in `env.path`
        raise ConfigError(str(error).replace("env.path:", "env.queries:", 1)) from None


def _check_rows(rows: Sequence[DataRow[QueryRow]]) -> None:
    """Raise `ConfigError` for a query that is there twice, or that nobody would type."""
    places: dict[str, str] = {}
    for row in rows:
        text = " ".join(row.item.query.split())
        if len(text) > QUERY_CHARS:
            raise row.refuse(f"query: it has {len(text):,} characters; at most {QUERY_CHARS:,} are allowed")
        if not row.item.id and text in places:
            raise row.refuse(f"query: it is the same as that of {places[text]}: keep one of them")
        places.setdefault(text, row.place)


def _hash(row: QueryRow) -> str:
    return f"q{hashlib.sha256(row.query.strip().encode(errors='surrogatepass')).hexdigest()[:10]}"


def _make_query(id: str, row: DataRow[QueryRow], catalogue: Catalogue) -> TriggerQuery:
    item = row.item
    for name in (item.skill, *item.wrong):
        if name and name not in catalogue.names:
            raise row.refuse(
                f"skill: there is no skill {name!r} in the catalogue; {suggest(name, list(catalogue.names))}"
            )
    right, wrong = item.skill, item.wrong
    if item.should_trigger is not None:
        only = item.skill or (catalogue.names[0] if len(catalogue.names) == 1 else "")
        if not only:
            raise row.refuse("should_trigger: the catalogue has several skills, so the row must name one in `skill`")
        right, wrong = (only, ()) if item.should_trigger else (None, (only,))
    if right is None and not wrong:
        raise row.refuse('skill: name the skill that is right, "" if none is, or those that are wrong in `not`')
    if right is not None and wrong:
        raise row.refuse("not: a query with a right skill needs no wrong ones: every other one is wrong")
    return TriggerQuery(id=id, text=item.query, right=right, wrong=wrong, source=item.source)
