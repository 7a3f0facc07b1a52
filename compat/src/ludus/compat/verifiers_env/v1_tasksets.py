"""Tasksets of `verifiers` 0.4 (`verifiers.v1`): `ludus evaluate verifiers:NAME`.

    taskset ──> task ──> Env.run_episode ──> a harness per role ──> the package's own server ──> our gateway ──> model

A taskset is data and rewards. The package puts an environment and its roles around it: who plays, with which program
(`harness`), and where (`runtime`). `env.args` is the block `env` of the package's configuration, and `select` beside
it. All rollouts share one client of the package, which names the trace in each request (`X-Session-ID`): the gateway's
route gives the request to the session of that trace's rollout. Roles that are not trained get a session of their own:
they are charged like the others, but are no part of the rollout.
"""

import asyncio
import importlib
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from ludus.compat.verifiers_env.package_release import (
    KEY_VARIABLE,
    PlayedRollout,
    PlayerModel,
    RolloutOutcome,
    find_model_error,
)
from ludus.compat.verifiers_env.v1_episodes import decide_outcome, needs_place_check, read_episode
from ludus.compat.verifiers_env.v1_runtimes import LOCAL, RoleNeeds, check_runtime, choose_runtime, runs_command
from ludus.encoding import to_json
from ludus.errors import ConfigError, LudusError, SetupError, VerifierError, boundary, describe_error
from ludus.gateway.service import Gateway, Route
from ludus.gateway.session import GatewaySession
from ludus.http_server import Responder
from ludus.types import JsonObject, Message, Task

MOST_TASKS = 10_000
"""How many tasks of an endless taskset are listed at most."""
KEY_HEADER = "X-Ludus-Key"
TRACE_HEADER = "X-Session-ID"


class TraceRoute:
    """Finds the session of a request by the trace that the package's client names."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(24)
        """Only the client has it: an agent on this machine could guess traces, but not this."""
        self._sessions: dict[str, GatewaySession] = {}

    def __call__(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        get = responder.request.get_header
        session = self._sessions.get(get(TRACE_HEADER.lower().encode()))
        if session is None or not secrets.compare_digest(get(KEY_HEADER.lower().encode()).encode(), self.key.encode()):
            return False
        gateway.serve_session(responder, session, path)
        return True

    @contextmanager
    def open_claims(self) -> "Generator[Callable[[str, GatewaySession], None]]":
        """A function that gives a trace its session. All that were given are taken back at the end."""
        claimed: list[str] = []

        def claim(trace: str, session: GatewaySession) -> None:
            claimed.append(trace)
            self._sessions[trace] = session

        try:
            yield claim
        finally:
            for trace in claimed:
                self._sessions.pop(trace, None)


class ServedTaskset:
    """An environment of the package around its taskset. Its servers start with the first rollout."""

    def __init__(self, environment: Any, select: Mapping[str, Any]) -> None:
        self.environment = environment
        try:
            config = _load("verifiers.v1").SelectConfig.model_validate(dict(select))
            self.taskset = environment.taskset.select(config)
        except ValueError as error:
            raise ConfigError(describe_settings(error, "env.args.select")) from error
        self._serving: _Serving | None = None

    async def start(self) -> None:
        """Start its servers, if they do not run."""
        if self._serving is None:
            self._serving = _Serving(self.environment)
        serving = self._serving
        try:
            await serving.wait_until_ready()
        except Exception:
            if self._serving is serving:  # the next rollout tries again
                self._serving = None
            raise

    async def close(self) -> None:
        if self._serving is not None:
            serving, self._serving = self._serving, None
            await serving.close()


class _Serving:
    """The servers of an environment, in a task of their own: some parts must be closed by the task that opened them."""

    def __init__(self, environment: Any) -> None:
        self._stop = asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(environment))

    async def wait_until_ready(self) -> None:
        """Raises whatever kept the servers from starting."""
        await asyncio.wait([self._ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            await self._task

    async def close(self) -> None:
        """End the servers. An error at their end is of no use to anybody: the rollouts are recorded."""
        if not self._ready.done():
            self._task.cancel()
        self._stop.set()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self, environment: Any) -> None:
        async with environment.serving():
            self._ready.set_result(None)
            await self._stop.wait()


class TasksetRelease:
    """A taskset of release 0.4 with its environment. Implements `VerifiersRelease`. Nothing couples the episodes of a
    task in that release, so each has its reward."""

    judges_groups = False

    def __init__(self, id: str, args: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]]) -> None:
        """
        Raises:
            ConfigError: the taskset is not installed, a setting is wrong, or a runtime cannot be had.
        """
        self._id = id
        self._args = args
        self._splits = splits
        self._route = TraceRoute()
        self.routes: tuple[Route, ...] = (self._route,)
        self._served: dict[str, ServedTaskset] = {}
        self._tasks: dict[tuple[str, str], Any] = {}
        self.open_split("")

    def open_split(self, split: str) -> ServedTaskset:
        """The environment of a split: one for all splits that have no settings of their own."""
        name = split if split in self._splits else ""
        if name not in self._served:
            settings = merge_settings(self._args, self._splits.get(name, {}))
            self._served[name] = make_environment(self._id, settings)
        return self._served[name]

    def load_tasks(self, split: str) -> Iterable[Task]:
        served = self.open_split(split)
        own = split if split in self._splits else ""
        roles = _load("verifiers.v1.configs.agent").agent_config_fields(served.environment.config)
        hosts = [name for name, role in roles.items() if role.runtime.type == LOCAL]
        for number, task in enumerate(served.taskset):
            if number >= MOST_TASKS and not served.taskset.bounded:
                raise ConfigError(
                    f'env.limit: the taskset {self._id} has no end: set it, or "select": {{"limit": 100}} in env.args'
                )
            if task.data.image is not None and hosts:
                raise ConfigError(
                    f"env.args.{hosts[0]}.runtime.type: task {task.data.idx} needs the image {task.data.image}: use "
                    "docker, podman or apptainer"
                )
            made = make_task(task.data, split, own)
            self._tasks[own, made.id] = task
            yield made

    def make_opening(self, task: Task) -> tuple[Message, ...]:
        data = task.answer["data"]
        system = data.get("system_prompt")
        prompt = data.get("prompt")
        messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        spoken = [Message(one["role"], _read_text(one.get("content"))) for one in messages]
        return (*((Message("system", system),) if system else ()), *spoken)

    async def play(self, task: Task, opening: Sequence[Message], player: PlayerModel) -> PlayedRollout:
        gateway, model, sampling, _ = player
        what = f"verifiers {self._id}, task '{task.id}'"
        served = self.open_split(task.answer.get("split", ""))
        with boundary(SetupError, f"{what}: its servers could not be started"):
            await served.start()
        own = gateway.open(model=model, sampling=sampling, name=task.id)
        others = gateway.open(model=model, sampling=sampling, name=f"{task.id}: other roles")
        try:
            with self._route.open_claims() as claim, boundary(VerifierError, what):

                def claim_trace(trace: Any) -> None:
                    claim(trace.id, own if trace.agent.trainable else others)

                live = self._prepare_task(task, opening)
                context = self._make_context(gateway, model.name)
                episode = await served.environment.run_episode(live, context, on_trace=claim_trace)
        finally:
            record = await gateway.close(own, grace=0.0)
            others_record = await gateway.close(others, grace=0.0)
        facts = read_episode(episode, len(record.exchanges), context_over=record.stop == "context")
        if needs_place_check(facts):
            places = [trace.agent.config.runtime for trace in episode.traces if trace.agent.trainable]
            works = [await runs_command(place) for place in places]
            facts = msgspec.structs.replace(facts, place_works=all(works))
        error = find_model_error(record) or find_model_error(others_record)
        return PlayedRollout(record, error or decide_outcome(facts))

    async def score(self, names: Sequence[str]) -> Sequence[RolloutOutcome | LudusError]:
        raise VerifierError(f"rollouts of the taskset {self._id} have their rewards", retryable=False)

    async def close(self) -> None:
        for served in self._served.values():
            await served.close()

    def _make_context(self, gateway: Gateway, model: str) -> Any:
        v1 = _load("verifiers.v1")
        headers = {KEY_HEADER: self._route.key}
        client = v1.EvalClientConfig(base_url=f"{gateway.url}/v1", api_key_var=KEY_VARIABLE, headers=headers)
        return v1.ModelContext(model=model, client=client)

    def _prepare_task(self, task: Task, opening: Sequence[Message]) -> Any:
        """The task with the opening as its prompt: the skill is in the system text."""
        own = task.answer.get("split", "")
        if (own, task.id) not in self._tasks:
            list(self.load_tasks(own or task.split))
        live = self._tasks.get((own, task.id))
        if live is None:
            raise SetupError(f"the taskset {self._id} has no task '{task.id}'", retryable=False)
        system = "\n\n".join(message.content for message in opening if message.role == "system")
        before = list_added(opening, self.make_opening(task))
        changes: JsonObject = {"system_prompt": system or None}
        if before:
            changes["prompt"] = [*map(_write_message, before), *_list_prompt(live.data.prompt)]
        return live.with_data(**changes)


# ---- settings -----------------------------------------------------------------------------------------------------


def merge_settings(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `base` with those of `over`, which win; mappings are merged."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge_settings(cast("Mapping[str, Any]", below), cast("Mapping[str, Any]", value))
        else:
            merged[name] = value
    return merged


def make_environment(id: str, args: Mapping[str, Any]) -> ServedTaskset:
    """The environment of a taskset with these settings.

    Raises:
        ConfigError: it cannot be made.
    """
    settings = {name: value for name, value in args.items() if name != "select"}
    taskset: Any = settings.get("taskset", {})
    if not isinstance(taskset, Mapping) or "id" in taskset:
        raise ConfigError("env.args.taskset: the options of the taskset, without its id, which is in verifiers:NAME")
    loaders = _load("verifiers.v1.utils.loaders")
    try:
        config = loaders.resolve_env_config({**settings, "taskset": {**taskset, "id": id}})
        config = _place_roles(id, args, config)
        return ServedTaskset(loaders.load_environment(config), args.get("select") or {})
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id: {id} cannot be loaded: {error}") from None
    except Exception as error:  # foreign code: a taskset, an environment, a harness
        raise ConfigError(describe_settings(error, "env.args")) from error


def _place_roles(id: str, args: Mapping[str, Any], config: Any) -> Any:
    """The configuration with the runtimes of the roles. Their own retries are off: a rollout is run again by us."""
    v1 = _load("verifiers.v1")
    loaders = _load("verifiers.v1.utils.loaders")
    roles = _load("verifiers.v1.configs.agent").agent_config_fields(config)
    in_container = loaders.task_type(id).NEEDS_CONTAINER
    has_key = _has_cloud_key()
    changes: JsonObject = {}
    for role, spec in roles.items():
        given = args.get(role)
        if spec.model is not None and spec.client is None:
            raise ConfigError(
                f"env.args.{role}.model: a model of its own needs an endpoint of its own: set env.args.{role}.client"
            )
        harness = config.agent_harnesses()[role]
        program = loaders.harness_class(harness.id)
        needs = RoleNeeds(
            role=role,
            runtime=spec.runtime.type,
            chosen=isinstance(given, Mapping) and "runtime" in given,
            harness=harness.id,
            runs_code=program.EXECUTES_CODE,
            needs_container=program.NEEDS_CONTAINER or in_container,
        )
        kind = choose_runtime(needs)
        check_runtime(role, kind, has_key=has_key)
        runtime = spec.runtime if kind == spec.runtime.type else v1.SubprocessConfig()
        changes[role] = spec.model_copy(update={"runtime": runtime, "retries": v1.RetryConfig()})
    return config.model_copy(update=changes)


def _has_cloud_key() -> bool:
    """Whether the package finds a key of Prime's cloud."""
    client = _load("verifiers.v1.configs.client")
    return client.resolve_api_key(client.EvalClientConfig()) != "EMPTY"


def describe_settings(error: Exception, field: str) -> str:
    """What is wrong with settings: a line for each one that pydantic names, or the error itself."""
    listing = getattr(error, "errors", None)
    if not callable(listing):
        return f"{field}: {describe_error(error)}"
    found = cast("list[JsonObject]", listing(include_url=False, include_context=False))
    return "\n".join(f"{'.'.join(map(str, (field, *one['loc'])))}: {one['msg']}" for one in found)


# ---- tasks --------------------------------------------------------------------------------------------------------


def make_task(data: Any, split: str, own: str) -> Task:
    """A task of a taskset. `own`: its split, if that has settings of its own."""
    kept = msgspec.json.decode(to_json(data.model_dump(mode="json", exclude_none=True, exclude={"idx"})))
    answer = {"data": kept, **({"split": own} if own else {})}
    number = f"{own}-{data.idx}" if own else str(data.idx)
    return Task(id=data.id or number, prompt=data.prompt_text, split=split, answer=answer)


def list_added(opening: Sequence[Message], own: Sequence[Message]) -> list[Message]:
    """The messages that an opening has before the task's own: worked examples of the skill."""
    spoken = [message for message in opening if message.role != "system"]
    return spoken[: len(spoken) - sum(message.role != "system" for message in own)]


def _list_prompt(prompt: Any) -> list[Any]:
    if prompt is None:
        raise SetupError(
            "agent.examples_as turns: the task has no prompt that they could be put before", retryable=False
        )
    return [_load("verifiers.v1").UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)


def _write_message(message: Message) -> Any:
    v1 = _load("verifiers.v1")
    kind = v1.AssistantMessage if message.role == "assistant" else v1.UserMessage
    return kind(content=message.content)


def _read_text(content: Any) -> str:
    """The text of a message of the package, whose content may be a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text") or "") for part in content if part.get("type") == "text")


def _load(module: str) -> Any:
    return importlib.import_module(module)
