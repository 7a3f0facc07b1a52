"""The Berkeley Function Calling Leaderboard, single-turn, with the data and the checkers of the package `bfcl-eval`.

`pip install --no-deps bfcl-eval`: its other dependencies are clients of models, which are not needed. The functions of
a task are the agent's tools. The calls of its first reply are checked, and end the rollout; nothing is run. Where no
function fits (`irrelevance`), a reply without a call is right. Agents that cannot call tools may write the calls as
JSON: `[{"name": …, "arguments": {…}}]`. Java and JavaScript are left out, and so are memory and web search. The tasks
with several turns are an environment of their own: `bfcl_conversations`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import msgspec

from ludus.env import Env, EnvFacts
from ludus.envs import bfcl_checks
from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool
from ludus.types import JsonObject, Rollout, Score, Task, ToolSpec
from ludus.verify.scoring_process import run_scorer

CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
MISSING = "env.name: bfcl-eval is not installed: pip install --no-deps bfcl-eval"
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "live_multiple_862-181-3": "the right call has an argument that its function does not take",
        "live_multiple_964-207-0": "the right call lacks an argument that its function requires",
        "live_simple_106-63-0": "no value is right for an argument that is required",
        "live_simple_112-68-0": "no value is right for an argument that is required",
    }
)
"""Tasks that no call can solve."""
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Types of the data that JSON schemas call otherwise."""


class Bfcl(Env, frozen=True):
    """Function calls of the Berkeley leaderboard (BFCL v4, single-turn)."""

    name: ClassVar[str] = "bfcl"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="3,487 test, in 11 categories",
        licence="Apache-2.0 (bfcl-eval)",
        scored="the checkers of bfcl-eval on the first reply's calls",
        extra="none: pip install --no-deps bfcl-eval",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None

    categories: tuple[str, ...] = ()
    """Categories of tasks, such as `simple_python,live_multiple`; empty: all."""

    def tasks(self, split: str) -> Iterator[Task]:
        for category, row, gold in read_rows(self.categories, CATEGORIES, split):
            if row["id"] not in LEFT_OUT:
                yield Task(
                    id=row["id"],
                    prompt=join_texts(row["question"][0]),
                    split=split,
                    kind=category,
                    answer={"functions": row["function"], "gold": gold},
                )

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [make_call_tool(function) for function in task.answer["functions"]]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        task = rollout.task
        calls = list_calls(rollout)
        if calls is None:
            return Score.of(0.0, "The arguments of a call are not a JSON object.")
        if task.kind.endswith("irrelevance"):
            right = not calls and bool(rollout.answer.strip())
            return Score.of(float(right), "No function fits." if not right else "It called nothing, which is right.")
        if task.kind.endswith("relevance"):
            known = {make_name(function["name"]) for function in task.answer["functions"]}
            right = any(name in known for call in calls for name in call)
            return Score.of(float(right), "It called a function." if right else "It called no function that is there.")
        arguments = (task.kind, task.answer["functions"], calls, task.answer["gold"])
        problem = await run_scorer(f"{bfcl_checks.__name__}:check_calls", *arguments)
        return Score.of(float(not problem), problem or "The calls are right.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        if task.kind.endswith("irrelevance"):
            return "None of the functions fits."
        if task.kind.endswith("relevance"):
            return json.dumps([{"name": make_name(task.answer["functions"][0]["name"]), "arguments": {}}])
        return json.dumps([_choose_call(call, task.answer["functions"]) for call in task.answer["gold"]])


def find_data() -> Path:
    """The folder of the data. The package is not imported: it would import clients of models."""
    found = find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(MISSING)
    return Path(found.submodule_search_locations[0]) / "data"


def read_rows(chosen: Sequence[str], known: Sequence[str], split: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The tasks of the chosen categories, or of all that are known: category, row and right calls. They are all in the
    split `test`.

    Raises:
        ConfigError: the package is missing, or a category is not known.
    """
    folder = find_data()
    for name in chosen:
        if name not in known:
            raise ConfigError(f"env.categories: there is no '{name}'; {suggest(name, list(known))}")
    if split != "test":
        return
    for category in chosen or known:
        golds = _read_golds(folder, category)
        for row in read_lines(folder / f"BFCL_v4_{category}.json"):
            yield category, row, golds.get(row["id"])


def join_texts(messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a request, which may be several messages."""
    return "\n\n".join(message["content"] for message in messages)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of the package."""
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ConfigError(f"bfcl-eval: {file}, line {number}: {error}; install the package again") from None


def _read_golds(folder: Path, category: str) -> dict[str, Any]:
    """The right calls of a category by the id of the task."""
    file = folder / "possible_answer" / f"BFCL_v4_{category}.json"
    return {row["id"]: row["ground_truth"] for row in read_lines(file)} if file.exists() else {}


# ---- calls --------------------------------------------------------------------------------------------------------


def make_name(name: str) -> str:
    """The name of a function as APIs for tools allow it."""
    return name.replace(".", "_")


def make_call_tool(function: dict[str, Any]) -> Tool:
    """A tool that runs nothing and ends the rollout."""

    async def run(arguments: JsonObject) -> str:
        return "The call is recorded."

    spec = ToolSpec(make_name(function["name"]), function["description"], translate_schema(function["parameters"]))
    return Tool(spec, run, ends_episode=True)


def translate_schema(schema: Any) -> Any:
    """A schema of the data as a JSON schema."""
    if isinstance(schema, list):
        return [translate_schema(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    changed = {name: translate_schema(value) for name, value in fields.items()}
    if isinstance(kind := fields.get("type"), str):
        changed["type"] = TYPES.get(kind, kind)
    return changed


def list_calls(rollout: Rollout) -> list[JsonObject] | None:
    """The calls of the first reply, or those that it writes as JSON; None if arguments cannot be read."""
    if not rollout.turns:
        return []
    calls = rollout.turns[0].completion.message.calls
    try:
        if calls:
            return [{call.name: msgspec.json.decode(call.arguments or "{}", type=JsonObject)} for call in calls]
        text = rollout.turns[0].completion.message.content.strip()
        if not text.startswith("["):
            return []
        return [{call.name: call.arguments} for call in msgspec.json.decode(text, type=list[_WrittenCall])]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None if calls else []


class _WrittenCall(msgspec.Struct):
    name: str
    arguments: JsonObject


def _choose_call(wanted: dict[str, dict[str, list[Any]]], functions: list[dict[str, Any]]) -> JsonObject:
    """One of the right calls: for each argument the first value that is not empty. An empty one means that the argument
    may be left out, unless it is required."""
    ((name, values),) = wanted.items()
    schema = next(each["parameters"] for each in functions if each["name"] == name)
    picked = {key: _choose_value(each) for key, each in values.items() if key in schema["properties"]}
    chosen = {key: value for key, value in picked.items() if value != "" or key in schema.get("required", ())}
    return {"name": make_name(name), "arguments": chosen}


def _choose_value(allowed: Any) -> Any:
    """The first of the values that are allowed. Values inside objects are lists of what is allowed, too."""
    if not isinstance(allowed, list):
        return allowed
    return _choose_inner(next((item for item in cast("list[Any]", allowed) if item != ""), ""))


def _choose_inner(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: _choose_value(each) for key, each in fields.items() if _choose_value(each) != ""}
    if isinstance(value, list):
        return [_choose_inner(item) for item in cast("list[Any]", value)]
    return value
