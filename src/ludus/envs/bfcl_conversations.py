"""The multi-turn tasks of the Berkeley Function Calling Leaderboard, with the data, classes and checkers of the package
`bfcl-eval`.

A task is a conversation: the user makes a request, the agent calls functions that change a scene (files, orders, a
car) until it replies without a call, and the user makes the next request. After each request the scene must be as the
right calls leave it, and the agent must have seen what they return. In `multi_turn_miss_func` a function appears only
after the request that needs it; in `multi_turn_miss_param` the user tells a detail only in the next message.

The scenes and the checks run in scoring processes (`ludus.envs.bfcl_scenes`). Install the package as for `bfcl`, and
`mpmath`, which its calculator needs. Give agents enough turns: `--limits.turns 150` is the most that the leaderboard
allows for a task of seven requests.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import msgspec

from ludus.env import Env, EnvFacts, FollowUp
from ludus.envs import bfcl_scenes
from ludus.envs.bfcl import find_data, join_texts, read_lines, read_rows, translate_schema
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool
from ludus.types import Call, Completion, Finish, JsonObject, Message, Rollout, Score, Task, ToolSpec, Turn
from ludus.verify.scoring_process import run_scorer

CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
MOST_STEPS = 20
"""The number of replies with calls that a request may take."""
MORE_FUNCTIONS = "There are more functions now. Please try it again with them."
"""What the user says when a function appears."""
_DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""The files that describe the functions of each class."""

SceneCall = tuple[str, JsonObject]
"""The name of a function, and its arguments."""


class BfclConversations(Env, frozen=True):
    """Conversations with stateful functions of the Berkeley leaderboard (BFCL v4, multi-turn)."""

    name: ClassVar[str] = "bfcl-multi-turn"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="800 test, in 4 categories",
        licence="Apache-2.0 (bfcl-eval)",
        runs="the agent's calls and the checks in scoring processes",
        scored="the checkers of bfcl-eval on the scene after each request; soft: the share of requests",
        extra="none: pip install mpmath, pip install --no-deps bfcl-eval",
        speed="1.9 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None

    categories: tuple[str, ...] = ()
    """Categories of tasks, such as `multi_turn_base`; empty: all."""

    def tasks(self, split: str) -> Iterator[Task]:
        find_data()  # without the package, its absence is the first error
        if find_spec("mpmath") is None:
            raise ConfigError("env.name: the scenes of bfcl-multi-turn need mpmath: pip install mpmath")
        for category, row, gold in read_rows(self.categories, CATEGORIES, split):
            requests = [join_texts(request) for request in row["question"]]
            scene = {
                "id": row["id"],
                "classes": row["involved_classes"],
                "config": row["initial_config"],
                "long_context": category == "multi_turn_long_context",
            }
            answer = {
                "scene": scene,
                "requests": [request or MORE_FUNCTIONS for request in requests],
                "late": row.get("missed_function", {}),
                "gold": gold,
            }
            yield Task(id=row["id"], prompt=requests[0], split=split, kind=category, answer=answer)

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return make_scene_tools(task, 0, [])

    async def follow_up(self, task: Task, turns: Sequence[Turn], box: Sandbox | None) -> FollowUp | None:
        at = sum(bool(turn.notices) for turn in turns) + 1
        if at >= len(task.answer["requests"]):
            return None
        if str(at) not in task.answer["late"]:
            return FollowUp(task.answer["requests"][at])
        calls = [call for request in split_requests(turns) for step in request for call in step]
        return FollowUp(task.answer["requests"][at], make_scene_tools(task, at, calls))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        gold: list[list[str]] = rollout.task.answer["gold"]
        requests = split_requests(rollout.turns)
        if any(len(steps) > MOST_STEPS for steps in requests):
            return Score.of(0.0, f"A request took more than {MOST_STEPS} replies with calls.")
        steps = [*requests, *([] for _ in range(len(gold) - len(requests)))]
        check = f"{bfcl_scenes.__name__}:{bfcl_scenes.check_conversation.__name__}"
        done, problem = await run_scorer(check, rollout.task.answer["scene"], steps, gold)
        if len(requests) < len(gold) and not problem:
            problem = f"The conversation ended after {len(requests)} of {len(gold)} requests."
        soft = min(done, len(requests)) / len(gold)
        return Score(float(not problem), not problem, soft, problem or "Every request was done.")

    async def solve(self, task: Task, box: Sandbox | None) -> Sequence[Turn]:
        requests: list[str] = task.answer["requests"]
        parameters = {each["name"]: list(each["parameters"]["properties"]) for each in _list_functions(task)}
        turns: list[Turn] = []
        for at, calls in enumerate(task.answer["gold"]):
            named = [bfcl_scenes.name_arguments(call, parameters[call.partition("(")[0].strip()]) for call in calls]
            turns += [_make_step(named)] if named else []
            notices = (Message("user", requests[at + 1]),) if at + 1 < len(requests) else ()
            turns.append(Turn(Completion(Message("assistant", "Done.")), notices=notices))
        return turns


# ---- calls --------------------------------------------------------------------------------------------------------


def make_scene_tools(task: Task, request: int, before: Sequence[SceneCall]) -> list[Tool]:
    """The functions that there are at a request, as tools. They share the scene: the calls that have been made."""
    hidden = {name for at, names in task.answer["late"].items() if int(at) > request for name in names}
    calls = list(before)
    return [_make_tool(each, task, calls) for each in _list_functions(task) if each["name"] not in hidden]


def split_requests(turns: Sequence[Turn]) -> list[list[list[SceneCall]]]:
    """The calls that were run: for each of the user's requests, those of each reply."""
    requests: list[list[list[SceneCall]]] = [[]]
    for turn in turns:
        ran = [result.call for result in turn.results if not result.error]
        calls = ran if turn.results else turn.completion.message.calls
        if calls:
            requests[-1].append([(call.name, msgspec.json.decode(call.arguments or "{}")) for call in calls])
        if turn.notices:
            requests.append([])
    return requests


def _make_tool(function: JsonObject, task: Task, calls: list[SceneCall]) -> Tool:
    name: str = function["name"]

    async def run(arguments: JsonObject) -> str:
        check = f"{bfcl_scenes.__name__}:{bfcl_scenes.run_last_call.__name__}"
        result: str = await run_scorer(check, task.answer["scene"], [*calls, (name, arguments)])
        calls.append((name, arguments))  # a call that took too long was not made
        return result

    return Tool(ToolSpec(name, function["description"], translate_schema(function["parameters"])), run)


def _make_step(calls: Sequence[SceneCall]) -> Turn:
    """A reply with calls."""
    written = tuple(Call(f"call_{at}", name, json.dumps(arguments)) for at, (name, arguments) in enumerate(calls))
    return Turn(Completion(Message("assistant", calls=written), Finish.CALLS))


def _list_functions(task: Task) -> list[JsonObject]:
    folder = find_data() / "multi_turn_func_doc"
    return [each for name in task.answer["scene"]["classes"] for each in _read_docs(folder / f"{_DOCS[name]}.json")]


@cache
def _read_docs(file: Path) -> list[JsonObject]:
    return list(read_lines(file))
