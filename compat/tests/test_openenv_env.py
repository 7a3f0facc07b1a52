"""Servers of OpenEnv: a stand-in that speaks its wire here, a server of the package itself where it is installed."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from ludus.cli import main
from ludus.compat.openenv_env import OpenEnvEnv, describe_observation, find_tool_problem, make_specs
from ludus.errors import ConfigError, ModelError
from ludus.models.scripted import Reply, ScriptedModel, call, join_calls, say
from ludus.policy import Limits, Policy
from ludus.rollout import run, run_retrying
from ludus.runner import Job, Runner
from ludus.types import Rollout, StopReason

GUESS = {
    "title": "GuessAction",
    "type": "object",
    "properties": {"number": {"type": "integer"}, "metadata": {"type": "object"}},
    "required": ["number"],
    "additionalProperties": False,
}
CALL = {"type": "object", "properties": {"type": {"const": "call_tool"}, "tool_name": {}, "arguments": {}}}
TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {"n": {}}}}


class Counter:
    """An environment: 0.25 for each good guess, and the third ends the episode."""

    def __init__(self) -> None:
        self.seed = -1
        self.count = 0

    def reset(self, seed: int) -> dict[str, Any]:
        self.seed, self.count = seed, 0
        return {"observation": {"text": f"seed {seed}"}, "reward": None, "done": False}

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if action.get("type") == "call_tool":
            result = {"content": [{"type": "text", "text": f"sum {action['arguments']['n']}"}], "is_error": False}
            observation: dict[str, Any] = {"tool_name": action["tool_name"], "result": result, "error": None}
            return {"observation": observation, "reward": 0.5, "done": True}
        if action["number"] < 0:
            raise ValueError("below zero")
        self.count += 1
        observation = {"text": f"guess {self.count} of seed {self.seed}"}
        return {"observation": observation, "reward": 0.25, "done": self.count == 3}


class StandIn:
    """What the server of openenv-core does with a connection. `fault` is what it does wrong."""

    def __init__(self) -> None:
        self.url = ""
        self.fault = ""
        self.action: dict[str, Any] = GUESS
        self.tools: list[dict[str, Any]] = []
        self.most = 8
        self.open = 0
        self.refused = 0
        self.resets: list[dict[str, Any]] = []

    async def serve_schema(self, _: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        body = json.dumps({"action": self.action, "observation": {}, "state": {}}).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(body))}), body)

    async def serve_session(self, socket: ServerConnection) -> None:
        if self.open >= self.most:
            self.refused += 1
            await socket.send(write_error("CAPACITY_REACHED", "no room"))
            return
        self.open += 1
        counter = Counter()
        try:
            async for text in socket:
                message = json.loads(text)
                if self.fault == "drops" and message["type"] == "step":
                    return
                await socket.send(self.answer(counter, message["type"], message["data"]))
        finally:
            self.open -= 1

    def answer(self, counter: Counter, kind: str, data: dict[str, Any]) -> str:
        if kind == "reset":
            self.resets.append(data)
            if self.fault == "no reset":
                return write_error("EXECUTION_ERROR", "the game is gone")
            extra = len(self.resets) if self.fault == "random" else 0
            return json.dumps({"type": "observation", "data": counter.reset(data["seed"] + extra)})
        if kind == "mcp":
            found: dict[str, Any] = {"result": {"tools": self.tools}} if self.tools else {"error": {"code": -32601}}
            return json.dumps({"type": "mcp", "data": {"jsonrpc": "2.0", "id": data["id"], **found}})
        if "number" not in data and "tool_name" not in data:
            errors = [{"loc": ["number"], "msg": "Field required"}]
            return write_error("VALIDATION_ERROR", "Invalid message", errors=errors)
        try:
            return json.dumps({"type": "observation", "data": counter.step(data)})
        except ValueError as error:
            return write_error("EXECUTION_ERROR", str(error))


def write_error(code: str, message: str, **more: Any) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message, **more}})


@contextmanager
def run_in_thread(start: Callable[[], Any]) -> Generator[Server]:
    """A server in a loop of its own, as `tasks` waits for it in this thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield server

        async def stop() -> None:
            server.close()
            await server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def standin() -> Generator[StandIn]:
    one = StandIn()

    async def start() -> Server:
        return await serve(one.serve_session, "127.0.0.1", 0, process_request=one.serve_schema)

    with run_in_thread(start) as server:
        one.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield one


def guess(*numbers: int) -> Reply:
    return join_calls(*(call("step", number=number) for number in numbers))


def make_policy(*replies: Reply, turns: int = 30) -> Policy:
    return Policy(ScriptedModel(list(replies), "m"), limits=Limits(turns=turns))


async def roll(env: OpenEnvEnv, *replies: Reply, turns: int = 30) -> Rollout:
    job = Job(env.tasks("train")[0], make_policy(*replies, turns=turns), seed=1)
    return await run(job, Runner(env))


def get_results(rollout: Rollout) -> list[str]:
    return [result.content for turn in rollout.turns for result in turn.results]


async def test_an_episode_ends_with_done_and_its_rewards_are_the_score(standin: StandIn):
    env = OpenEnvEnv(url=standin.url, episodes=1, prompt="Guess.", reset={"level": 2}, passing=0.75)
    rollout = await roll(env, guess(1), guess(2), guess(3), say("never said"))
    assert rollout.opening[-1].content == "Guess.\n\nseed 0"
    assert get_results(rollout)[::2] == ["guess 1 of seed 0", "guess 3 of seed 0\n\nThe episode is over."]
    assert rollout.stop is StopReason.SUBMITTED and rollout.provenance.tools == ("step",)
    assert rollout.score is not None and (rollout.score.value, rollout.score.passed) == (0.75, True)
    assert rollout.score.parts == {"steps": 3, "done": 1, "last_reward": 0.25}
    assert standin.resets == [{"level": 2, "seed": 0}] * 2
    assert not any("reward" in text or "0.25" in text for text in get_results(rollout))


async def test_calls_after_the_end_do_nothing_and_the_last_reward_can_be_the_score(standin: StandIn):
    rollout = await roll(OpenEnvEnv(url=standin.url, episodes=1, reward="last"), guess(1, 2, 3, 4))
    assert "the episode is over" in rollout.turns[0].results[3].error
    assert rollout.score is not None and rollout.score.value == 0.25 and rollout.score.parts["steps"] == 3


async def test_what_was_reached_counts_if_the_agent_stops_early(standin: StandIn):
    env = OpenEnvEnv(url=standin.url, episodes=1)
    rollout = await roll(env, guess(1), guess(1), turns=2)
    assert rollout.stop is StopReason.MAX_TURNS and rollout.score is not None and rollout.score.value == 0.5
    idle = await roll(env, say("No."))
    assert idle.score is not None and (idle.score.value, idle.score.feedback) == (0.0, "The episode was not finished.")


def test_tasks_are_seeds_and_splits_have_different_ones(standin: StandIn):
    env = OpenEnvEnv(url=standin.url + "/", episodes=2, seed=5)
    assert [(task.id, task.prompt) for task in env.tasks("train")] == [("episode-0", "seed 5"), ("episode-1", "seed 6")]
    assert [task.prompt for task in env.tasks("test")] == ["seed 200005", "seed 200006"]
    assert env.tasks("other") == []


async def test_rollouts_side_by_side_have_sessions_of_their_own_and_leave_none(standin: StandIn):
    env = OpenEnvEnv(url=standin.url, episodes=2)

    policy = make_policy(guess(1), guess(1), guess(1))
    tasks = [*env.tasks("train"), *env.tasks("train")]
    rollouts = await asyncio.gather(*(run(Job(task, policy), Runner(env)) for task in tasks))
    assert [get_results(one)[1] for one in rollouts] == [f"guess 2 of seed {seed}" for seed in (0, 1, 0, 1)]
    assert [one.score and one.score.value for one in rollouts] == [0.75] * 4


async def test_a_server_with_one_session_is_shared_in_turn(standin: StandIn):
    standin.most = 1
    env = OpenEnvEnv(url=standin.url, episodes=2)

    policy = make_policy(guess(1), guess(1), guess(1))
    result = await asyncio.gather(*(run(Job(task, policy), Runner(env)) for task in env.tasks("train")))
    assert [one.score and one.score.value for one in result] == [0.75] * 2


async def test_a_model_that_fails_leaves_no_session(standin: StandIn):
    standin.most = 1
    env = OpenEnvEnv(url=standin.url, episodes=1)
    failures = iter([ModelError("overloaded")])

    def reply(messages: Any, tools: Any, sampling: Any) -> Reply:
        if len(messages) > 2 and (error := next(failures, None)):
            raise error
        return guess(1)

    (task,) = env.tasks("train")
    rollout = await asyncio.create_task(run_retrying(Job(task, Policy(ScriptedModel(reply, "m"))), Runner(env)))
    assert rollout.provenance.attempt == 2 and rollout.score is not None and rollout.score.value == 0.75


async def test_the_agent_sees_its_own_mistakes(standin: StandIn):
    env = OpenEnvEnv(url=standin.url, episodes=1)
    rollout = await roll(env, call("step", wrong=1), guess(-1), guess(1), say("Enough."))
    invalid, raised, right = get_results(rollout)
    assert "number: Field required" in invalid and "below zero" in raised and right == "guess 1 of seed 0"
    assert rollout.score is not None and rollout.score.value == 0.25


@pytest.mark.parametrize(("fault", "words"), [("drops", "ConnectionClosed"), ("no reset", "the game is gone")])
async def test_a_server_that_fails_is_no_zero(standin: StandIn, fault: str, words: str):
    env = OpenEnvEnv(url=standin.url, episodes=1)
    (task,) = env.tasks("train")
    standin.fault = fault
    rollout = await run(Job(task, make_policy(guess(1))), Runner(env))
    assert rollout.score is None and rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("tool", True) and words in rollout.failure.message


async def test_an_environment_that_only_raises_is_no_zero(standin: StandIn):
    rollout = await roll(OpenEnvEnv(url=standin.url, episodes=1), guess(-1), say("It is broken."))
    assert rollout.score is None and rollout.failure is not None and "every action" in rollout.failure.message


def test_a_full_server_is_an_error_that_says_what_to_do(standin: StandIn):
    standin.most = 0
    with pytest.raises(ConfigError, match=r"no room.*lower run\.concurrency"):
        OpenEnvEnv(url=standin.url, session_seconds=0.01).tasks("train")
    assert standin.refused


async def test_an_episode_that_begins_differently_is_shown_before_anything_is_done(standin: StandIn):
    standin.fault = "random"
    rollout = await roll(OpenEnvEnv(url=standin.url, episodes=1), guess(1), guess(1), say("Enough."))
    first, second = get_results(rollout)
    assert first.startswith("The episode begins differently") and first.endswith("seed 2")
    assert second == "guess 1 of seed 2"
    assert rollout.score is not None and rollout.score.value == 0.25


async def test_a_recorded_rollout_is_judged_by_its_calls(standin: StandIn):
    env = OpenEnvEnv(url=standin.url, episodes=1)
    rollout = await roll(env, call("step", wrong=1), guess(1), guess(2), say("Enough."))
    read = msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout)
    assert await env.verify(read, None) == rollout.score


async def test_tools_that_the_server_lists_are_the_agents(standin: StandIn):
    standin.tools, standin.action = [TOOL], CALL
    rollout = await roll(OpenEnvEnv(url=standin.url, episodes=1), call("add", n=4))
    assert get_results(rollout) == ["sum 4\n\nThe episode is over."] and rollout.provenance.tools == ("add",)
    assert rollout.score is not None and rollout.score.value == 0.5


def test_which_tools_a_server_has():
    (step,) = make_specs(GUESS, [TOOL])
    assert step["name"] == "step" and set(step["parameters"]["properties"]) == {"number"}
    assert [spec["name"] for spec in make_specs({"properties": {"metadata": {}}}, [TOOL])] == ["add"]


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"echo": "hi"}, "hi"),
        ({"a": 1, "b": None}, '{"a":1,"b":null}'),
        ({}, ""),
        ({"tool_name": "t", "result": {"content": [{"type": "text", "text": "x"}]}}, "x"),
        ({"tool_name": "t", "result": {"content": [{"type": "image"}]}}, '{"content":[{"type":"image"}]}'),
    ],
)
def test_how_observations_are_shown(observation: dict[str, Any], text: str):
    assert describe_observation(observation) == text


def test_failures_of_mcp_tools():
    failed = {"tool_name": "t", "result": None, "error": {"error_type": "timeout", "message": "late"}}
    assert find_tool_problem(failed) == {"error_type": "timeout", "message": "late"}
    assert find_tool_problem({"tool_name": "t", "result": {"is_error": True, "content": []}})
    assert not find_tool_problem({"text": "x"})


@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:1", "Is a server of OpenEnv running"), ("localhost:8000", "no address")]
)
def test_a_wrong_address_is_an_error_of_the_setting(url: str, words: str):
    with pytest.raises(ConfigError, match=rf"env\.url: .*{words}"):
        OpenEnvEnv(url=url).tasks("train")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    with pytest.raises(ConfigError, match=r"ludus-train\[openenv\]"):
        OpenEnvEnv(url="http://127.0.0.1:1").tasks("train")


def test_a_server_is_evaluated_from_the_command_line(
    standin: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "script.py"
    script.write_text("from ludus.models.scripted import call\nREPLIES = [call('step', number=1)] * 3\n")
    options = ["--model.type", "scripted", "--model.script", f"{script}:REPLIES", "--env.episodes", "2"]
    out = tmp_path / "run"
    assert main(["evaluate", f"openenv:{standin.url}", *options, "--env.passing", "0.5", "--out", str(out)]) == 0
    assert capsys.readouterr().out.split()[:3] == ["mean", "score", "0.75"]


# ---- the package itself -------------------------------------------------------------------------------------------


@contextmanager
def run_real(environment: Any, action: Any, observation: Any) -> Generator[str]:
    """A server of openenv-core on loopback."""
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    app = create_fastapi_app(environment, action, observation, max_concurrent_envs=4)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        listening.listen()  # from here on, connections wait until it serves them
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


async def test_a_server_of_the_package_itself():
    pytest.importorskip("openenv.core", reason="openenv-core is not installed")
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Guess(Action):
        number: int

    class Shown(Observation):
        text: str

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.counter = Counter()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return Shown(**self.counter.reset(seed or 0)["observation"])

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            result = self.counter.step({"number": action.number})
            return Shown(**result["observation"], reward=result["reward"], done=result["done"])

        @property
        def state(self) -> Any:
            return State()

    with run_real(Game, Guess, Shown) as url:
        env = OpenEnvEnv(url=url, episodes=2)
        tasks = env.tasks("train")

        async def main() -> list[Rollout]:
            policy = make_policy(call("step", wrong=1), guess(-1), guess(1), guess(2), guess(3))
            return await asyncio.gather(*(run(Job(task, policy), Runner(env)) for task in tasks))

        for seed, rollout in enumerate(await main()):
            results = get_results(rollout)
            assert "Field required" in results[0] and "below zero" in results[1]
            assert results[2] == f"guess 1 of seed {seed}" and rollout.stop is StopReason.SUBMITTED
            assert rollout.score is not None and rollout.score.value == 0.75


async def test_mcp_tools_of_a_server_of_the_package_itself():
    pytest.importorskip("openenv.core", reason="openenv-core is not installed")
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import Observation, State

    class Adder(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            tools = FastMCP("adder")

            @tools.tool
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            super().__init__(tools)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return Observation()

        async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            seen: Any = await super().step_async(action)
            right = seen.error is None and action.arguments.get("a") == 2
            return seen.model_copy(update={"reward": float(right), "done": right})

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            raise NotImplementedError

        @property
        def state(self) -> Any:
            return State()

    with run_real(Adder, CallToolAction, CallToolObservation) as url:
        rollout = await roll(OpenEnvEnv(url=url, episodes=1), call("add", a="x", b=1), call("add", a=2, b=3))
    assert rollout.opening[-1].content == "The episode has begun." and rollout.provenance.tools == ("add",)
    assert rollout.turns[0].results[0].error and get_results(rollout)[1] == "5\n\nThe episode is over."
    assert rollout.score is not None and rollout.score.passed
