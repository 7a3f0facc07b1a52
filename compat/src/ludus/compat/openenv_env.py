"""Servers of OpenEnv (openenv-core 0.3) as environments: `ludus evaluate openenv:http://127.0.0.1:8000`.

A task is an episode: a seed, and what the server shows after `reset` with it. The agent acts with the normal loop. Its
tools are those that the server lists (MCP), or one tool `step` whose parameters are the server's action schema. Every
rollout has a WebSocket session of its own, to which the server gives an environment of its own; the session begins with
the first call. It ends with the episode, with the verdict, or with the task that ran the rollout, whichever is first.

Rewards are kept beside the session and never shown to the agent. A server that cannot be reached, hangs, refuses or
breaks a session is a failure of the world. An action that it rejects is the agent's mistake, which the agent sees.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast
from urllib.parse import urlsplit

import msgspec

from ludus.encoding import to_json
from ludus.env import Env, EnvFacts
from ludus.errors import ConfigError, ToolBroken, VerifierError, describe_error
from ludus.http_client import Client, HttpError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import BadArguments, Tool
from ludus.types import Count, JsonObject, Positive, Rollout, Score, Task, ToolSpec, Whole

SPLITS = ("train", "validation", "test")
SPLIT_SEEDS = 100_000
"""The distance between the seeds of two splits."""
LARGEST = 100 * 2**20
"""The largest message in bytes. Observations can contain pictures."""
PAUSE = 0.2
"""Seconds between two attempts to get a session of a server that has none left."""
MCP_ACTIONS = ("call_tool", "list_tools")


class ServerFailed(Exception):
    """The server cannot be reached, hangs, or breaks the session."""


class ActionRejected(Exception):
    """The server did not carry out an action, and the session goes on."""

    def __init__(self, message: str, *, invalid: bool) -> None:
        super().__init__(message)
        self.invalid = invalid
        """The action does not fit the schema. Otherwise the environment raised an exception."""


class WireReply(msgspec.Struct, frozen=True):
    """A message of the server."""

    type: str
    data: JsonObject


class OpenEnvStep(msgspec.Struct, frozen=True):
    """What the server answers to `reset` and to an action."""

    observation: JsonObject
    reward: bool | float | None = None
    done: bool = False


# ---- the wire -----------------------------------------------------------------------------------------------------


class OpenEnvSession:
    """One WebSocket connection: an environment of its own on the server."""

    def __init__(self, url: str, seconds: float, session_seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._session_seconds = session_seconds
        self._socket: Any = None

    async def begin(self, reset: JsonObject) -> OpenEnvStep:
        """Connect and start an episode. Waits for a session if the server has none left.

        Raises:
            ServerFailed: there is no session or no episode.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._session_seconds
        while True:
            await self._connect()
            reply = await self.ask("reset", reset)
            if reply.type != "error":
                return _read_step(reply)
            await self.close()
            problem = reply.data
            if problem.get("code") != "CAPACITY_REACHED":
                raise ServerFailed(f"reset failed: {_describe_problem(problem)}")
            if clock() >= end:
                raise ServerFailed(
                    f"the server has no session left ({_describe_problem(problem)}): lower run.concurrency, or raise "
                    "max_concurrent_envs of the server or env.session_seconds"
                )
            await asyncio.sleep(PAUSE)

    async def step(self, action: JsonObject) -> OpenEnvStep:
        """Carry out an action.

        Raises:
            ActionRejected: it was not carried out.
            ServerFailed: the session is broken.
        """
        reply = await self.ask("step", action)
        if reply.type != "error":
            return _read_step(reply)
        problem = reply.data
        code = problem.get("code")
        if code in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
            raise ActionRejected(_describe_problem(problem), invalid=code == "VALIDATION_ERROR")
        raise ServerFailed(_describe_problem(problem))

    async def list_tools(self) -> list[JsonObject]:
        """The MCP tools of the environment; none if it has none."""
        reply = await self.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        result = cast("JsonObject | None", reply.data.get("result"))
        return list((result or {}).get("tools") or ())

    async def ask(self, kind: str, data: JsonObject) -> WireReply:
        """Send a message and wait for its reply."""
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(self._seconds):
                with suppress(ConnectionClosed):  # the reason may have come before
                    await self._socket.send(to_json({"type": kind, "data": data}).decode())
                return msgspec.json.decode(await self._socket.recv(), type=WireReply)
        except TimeoutError:
            raise ServerFailed(f"no reply to {kind} within {self._seconds:g} s (env.seconds)") from None
        except Exception as error:  # the library raises its own, the system's and decoding errors
            raise ServerFailed(f"{kind}: {describe_error(error)}") from error

    async def close(self) -> None:
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close()

    def abort(self) -> None:
        """Close without a farewell, where nothing can be awaited."""
        if self._socket is not None:
            socket, self._socket = self._socket, None
            socket.transport.abort()

    async def _connect(self) -> None:
        connect = _load_connect()
        where = urlsplit(self._url)
        address = where._replace(scheme="wss" if where.scheme == "https" else "ws").geturl() + "/ws"
        proxy = None if where.hostname in ("127.0.0.1", "localhost", "::1") else True
        try:
            self._socket = await connect(address, open_timeout=self._seconds, max_size=LARGEST, proxy=proxy)
        except Exception as error:  # see `ask`
            raise ServerFailed(f"{address}: {describe_error(error)}") from error


def _load_connect() -> Any:
    try:
        from websockets.asyncio.client import connect
    except ImportError:
        raise ConfigError("env: the package websockets is missing: pip install 'ludus-train[openenv]'") from None
    return connect


def _read_step(reply: WireReply) -> OpenEnvStep:
    """Raises `ServerFailed` if the reply is no observation with a finite reward."""
    try:
        step = msgspec.convert(reply.data, OpenEnvStep, strict=False)
    except msgspec.ValidationError as error:
        raise ServerFailed(f"the reply is no observation: {error}") from None
    if step.reward is not None and not math.isfinite(step.reward):
        raise ServerFailed(f"the reward is {step.reward}")
    return step


def _describe_problem(data: JsonObject) -> str:
    words = str(data.get("message") or data.get("code") or "no reason given")
    errors = cast("list[JsonObject]", data.get("errors") or [])
    details = [f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in errors]
    return f"{words} ({'; '.join(details)})" if details else words


# ---- what the agent sees ------------------------------------------------------------------------------------------


def describe_observation(observation: JsonObject) -> str:
    """A lone text as it is, the text of an MCP result, and anything else as JSON."""
    if "tool_name" in observation and "result" in observation:
        return _describe_result(observation["result"])
    values = list(observation.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return to_json(observation).decode() if observation else ""


def _describe_result(result: Any) -> str:
    parts: Any = cast("JsonObject", result).get("content") if isinstance(result, dict) else None
    if isinstance(parts, list):
        known = cast("list[JsonObject]", parts)
        if all(part.get("type") == "text" for part in known):
            return "\n".join(str(part.get("text")) for part in known)
    return result if isinstance(result, str) else to_json(cast("object", result)).decode()


def make_specs(action: JsonObject, listed: Sequence[JsonObject]) -> list[JsonObject]:
    """The tools of a server, from its action schema and the MCP tools that it lists, as `ToolSpec`s in JSON. MCP tools
    are used if the server takes calls of them as actions; only then do they have rewards."""
    properties = cast("JsonObject", action.get("properties") or {})
    kind = cast("JsonObject", properties.get("type") or {})
    calls = not set(properties) - {"metadata"} or kind.get("const") in MCP_ACTIONS
    if listed and calls:
        specs = [
            ToolSpec(one["name"], one.get("description") or "", one.get("input_schema") or one.get("inputSchema") or {})
            for one in listed
        ]
    else:
        shown = {name: schema for name, schema in properties.items() if name != "metadata"}
        words = str(action.get("description") or "").strip()
        parameters = {**action, "type": "object", "properties": shown}
        specs = [ToolSpec("step", f"Carry out an action in the environment. {words}".strip(), parameters)]
    return [msgspec.to_builtins(spec) for spec in specs]


# ---- one rollout --------------------------------------------------------------------------------------------------


@dataclass
class OpenEnvEpisode:
    """The episode of one rollout: its session and the rewards so far."""

    task: Task
    session: OpenEnvSession
    reset: JsonObject
    uses_mcp: bool
    tools: list[Tool] = field(default_factory=list[Tool])
    rewards: list[float] = field(default_factory=list[float])
    """One for each action that was carried out. No reward counts as 0."""
    errors: int = 0
    """Exceptions of the environment."""
    begun: bool = False
    done: bool = False

    async def call(self, name: str, arguments: JsonObject) -> str:
        """Carry out a call of the agent. Returns what it sees.

        Raises:
            ToolBroken: the server failed.
        """
        try:
            return await self._call(name, arguments)
        except ServerFailed as error:
            self.session.abort()
            raise ToolBroken(f"openenv, task '{self.task.id}': {error}") from error

    async def _call(self, name: str, arguments: JsonObject) -> str:
        if self.done:
            raise ValueError("the episode is over")
        if not self.begun:
            first = await self.session.begin(self.reset)
            self.begun = True
            if first.observation != self.task.answer["observation"]:
                return f"The episode begins differently, and nothing was done yet. It shows:\n{describe_step(first)}"
        try:
            step = await self.session.step(self._make_action(name, arguments))
        except ActionRejected as error:
            self.errors += not error.invalid
            raise (BadArguments if error.invalid else ValueError)(str(error)) from None
        return await self._take(step)

    async def _take(self, step: OpenEnvStep) -> str:
        self.rewards.append(float(step.reward or 0.0))
        if step.done:
            self.done = True
            for tool in self.tools:
                tool.ends_episode = True
            await self.session.close()
        if problem := find_tool_problem(step.observation):
            if problem["error_type"] == "transport_error":
                raise ServerFailed(problem["message"])
            if not step.done:
                raise ValueError(problem["message"])
            return problem["message"]
        return describe_step(step)

    def _make_action(self, name: str, arguments: JsonObject) -> JsonObject:
        return {"type": "call_tool", "tool_name": name, "arguments": arguments} if self.uses_mcp else arguments


def describe_step(step: OpenEnvStep) -> str:
    text = describe_observation(step.observation)
    return f"{text}\n\nThe episode is over.".strip() if step.done else text or "Done."


def find_tool_problem(observation: JsonObject) -> dict[str, str]:
    """Why an MCP tool failed; empty if it did not."""
    if "tool_name" not in observation or "result" not in observation:
        return {}
    error, result = observation.get("error"), observation["result"]
    if isinstance(error, dict):
        known = cast("JsonObject", error)
        return {"error_type": str(known.get("error_type")), "message": str(known.get("message"))}
    if isinstance(result, dict) and cast("JsonObject", result).get("is_error"):
        return {"error_type": "execution_error", "message": _describe_result(result)}
    return {}


_episodes: dict[asyncio.Task[Any], OpenEnvEpisode] = {}
"""The episodes of the rollouts that run, by asyncio task: `verify` gets a record, which has no rewards on it. A task
that runs several rollouts runs one after the other."""


def _keep_episode(episode: OpenEnvEpisode) -> None:
    """Keep the episode for `verify`. Ends the session of the rollout before, which may have failed."""
    try:
        running = asyncio.current_task()
    except RuntimeError:  # outside of a rollout only the specs are used
        return
    if running is None:
        return
    if (former := _episodes.get(running)) is not None:
        former.session.abort()
    else:
        running.add_done_callback(_end_episode)
    _episodes[running] = episode


def _end_episode(ended: asyncio.Task[Any]) -> None:
    _episodes.pop(ended).session.abort()


def _find_episode(task: Task) -> OpenEnvEpisode | None:
    """The episode of the rollout of `task` that this asyncio task has just run."""
    running = asyncio.current_task()
    episode = _episodes.get(running) if running is not None else None
    return episode if episode is not None and episode.task is task else None


# ---- the environment ----------------------------------------------------------------------------------------------


class OpenEnvEnv(Env, frozen=True, kw_only=True):
    """Episodes of a server of OpenEnv."""

    name: ClassVar[str] = "openenv"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Act in the environment with the tools until the episode is over."
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="env.episodes per split", runs="on the server, no slot", scored="the server's rewards", extra="openenv"
    )

    url: str
    """The address of the server: `http://127.0.0.1:8000`."""
    episodes: Count = 8
    """How many tasks a split has."""
    seed: Whole = 0
    """The seed of the first episode of the split `train`."""
    reset: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """More arguments of the server's `reset`."""
    prompt: str = ""
    """Text before the first observation, for servers whose observation does not state the task."""
    reward: Literal["sum", "last"] = "sum"
    """The score: the sum of the rewards of an episode, or the last one."""
    passing: float = 1.0
    """The score from which an episode is passed."""
    seconds: Positive = 60.0
    """Time for one reply of the server."""
    session_seconds: Positive = 60.0
    """How long a rollout waits for a session if the server has none left."""

    def tasks(self, split: str) -> list[Task]:
        """Start each episode once, for what it shows.

        Raises:
            ConfigError: the server cannot be used.
        """
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"env.url: {self.url!r} is no address: write http://HOST:PORT (openenv:http://HOST:PORT)")
        if split not in SPLITS:
            return []
        with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
            try:
                return thread.submit(asyncio.run, self._list_tasks(split)).result()
            except ServerFailed as error:
                raise ConfigError(f"env.url: {self.url}: {error}. Is a server of OpenEnv running there?") from error

    async def _list_tasks(self, split: str) -> list[Task]:
        specs: list[JsonObject] = []
        tasks: list[Task] = []
        for number in range(self.episodes):
            session = self._open_session()
            reset = {**self.reset, "seed": self.seed + SPLITS.index(split) * SPLIT_SEEDS + number}
            try:
                first = await session.begin(reset)
                specs = specs or make_specs(await self._read_action_schema(), await session.list_tools())
            finally:
                await session.close()
            shown = describe_observation(first.observation)
            prompt = "\n\n".join(part for part in (self.prompt, shown) if part) or "The episode has begun."
            answer = {"reset": reset, "observation": first.observation, "tools": specs}
            tasks.append(Task(id=f"episode-{number}", prompt=prompt, split=split, answer=answer))
        return tasks

    async def _read_action_schema(self) -> JsonObject:
        address = f"{self._base}/schema"
        try:
            async with Client() as client, asyncio.timeout(self.seconds):
                reply = await client.request("GET", address, (), b"")
        except (HttpError, TimeoutError) as error:
            raise ServerFailed(f"{address}: {describe_error(error)}") from error
        try:
            return msgspec.json.decode(reply.body, type=dict[str, dict[str, Any]])["action"]
        except (msgspec.MsgspecError, KeyError):
            raise ServerFailed(f"{address} answers with status {reply.status} and no action schema") from None

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        episode = self._make_episode(task)
        _keep_episode(episode)
        return episode.tools

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The rewards of the rollout's episode. For a rollout from a record, its calls are carried out again."""
        episode = _find_episode(rollout.task) or await self._replay(rollout)
        await episode.session.close()
        if episode.errors and not episode.rewards:
            raise VerifierError("the server raised an exception for every action: its log says why", retryable=False)
        rewards = episode.rewards or [0.0]
        value = sum(rewards) if self.reward == "sum" else rewards[-1]
        parts = {"steps": len(episode.rewards), "done": episode.done, "last_reward": rewards[-1]}
        feedback = "" if episode.done else "The episode was not finished."
        return Score(value, value >= self.passing, min(1.0, max(0.0, value)), feedback, parts)

    async def _replay(self, rollout: Rollout) -> OpenEnvEpisode:
        episode = self._make_episode(rollout.task)
        names = {tool.name for tool in episode.tools}
        calls = [result.call for turn in rollout.turns for result in turn.results if result.call.name in names]
        for call in calls:
            try:
                await episode.call(call.name, msgspec.json.decode(call.arguments or "{}", type=dict[str, Any]))
            except ToolBroken as error:
                raise VerifierError(str(error)) from error
            except (BadArguments, ValueError):  # the agent saw it
                continue
        return episode

    def _make_episode(self, task: Task) -> OpenEnvEpisode:
        specs = [msgspec.convert(one, ToolSpec) for one in task.answer["tools"]]
        uses_mcp = [spec.name for spec in specs] != ["step"]  # a reserved name among MCP tools
        episode = OpenEnvEpisode(task, self._open_session(), task.answer["reset"], uses_mcp)
        episode.tools.extend(_make_tool(spec, episode, 4 * self.seconds + self.session_seconds) for spec in specs)
        return episode

    def _open_session(self) -> OpenEnvSession:
        return OpenEnvSession(self._base, self.seconds, self.session_seconds)

    @property
    def _base(self) -> str:
        return self.url.rstrip("/")


def _make_tool(spec: ToolSpec, episode: OpenEnvEpisode, seconds: float) -> Tool:
    """A tool with more time than the server has: a server that hangs must not look like the agent's mistake."""

    async def run(arguments: JsonObject) -> str:
        return await episode.call(spec.name, arguments)

    return Tool(spec, run, seconds=seconds)
