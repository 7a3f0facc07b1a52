"""Tasksets of verifiers 0.4: a stand-in of its calls here. The package itself: test_v1_tasksets_live.py."""

import json
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from compat.tests.verifiers_kit import roll, roll_all

from ludus.batch import load_tasks
from ludus.compat.verifiers_env import VerifiersEnv
from ludus.compat.verifiers_env.v1_tasksets import (
    MOST_TASKS,
    TasksetRelease,
    TraceRoute,
    describe_settings,
    list_added,
    merge_settings,
)
from ludus.errors import ConfigError, ModelError
from ludus.gateway.service import Gateway
from ludus.http_client import Client
from ludus.models.scripted import ScriptedModel
from ludus.skill import Skill
from ludus.types import Message


class StandInData(SimpleNamespace):
    """Data of a task, with the methods of a pydantic model that are used."""

    def model_dump(self, *, exclude: set[str], **_: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None and name not in exclude}

    @property
    def prompt_text(self) -> str:
        return self.prompt or ""


class StandInTask(SimpleNamespace):
    NEEDS_CONTAINER = False

    def with_data(self, **changes: Any) -> "StandInTask":
        return StandInTask(data=StandInData(**vars(self.data) | changes))


class StandInTaskset:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.bounded = options.get("count", 1) is not None

    def select(self, config: dict[str, Any]) -> "StandInTaskset":
        return StandInTaskset({**self.options, "count": config.get("limit", self.options.get("count", 1))})

    def __iter__(self) -> Iterator[StandInTask]:
        number = 0
        while self.options.get("count") is None or number < self.options["count"]:
            own = {"idx": number, "id": None, "image": self.options.get("image"), "answer": str(number + 2)}
            prompt = f"{number} + 2 ({self.options.get('split', 'all')})?"
            yield StandInTask(data=StandInData(prompt=prompt, system_prompt="Be exact.", **own))
            number += 1


class StandInEnvironment:
    """An environment with a trained role and one that is not: each asks the model once, as the package does."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.taskset = StandInTaskset(config.taskset)
        self.served = 0

    @asynccontextmanager
    async def serving(self) -> Any:
        self.served += 1
        if self.config.taskset.get("servers") == "broken":
            raise RuntimeError("no port")
        yield

    async def run_episode(self, task: StandInTask, context: Any, *, on_trace: Any) -> Any:
        data, traces = task.data, []
        for role in ("agent", "user"):
            runtime = SimpleNamespace(runtime=self.config.agent.runtime)
            agent = SimpleNamespace(name=role, trainable=role == "agent", config=runtime)
            trace = SimpleNamespace(id=f"{id(context)}-{role}", agent=agent, metrics={"words": 1.0}, is_truncated=False)
            on_trace(trace)
            prompt = [{"role": "user", "content": data.prompt if role == "agent" else "Play the user."}]
            system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
            reply = await ask(context, trace.id, [*system, *prompt])
            failed = [SimpleNamespace(type="ProviderError", message=reply)] if reply.startswith("{") else []
            trace.errors = failed
            trace.ok = not failed
            trace.stop_condition = "agent_completed"
            trace.rewards = {"exact": SimpleNamespace(score=float(reply == data.answer), weight=1.0)}
            traces.append(trace)
        return SimpleNamespace(traces=traces, ok=all(trace.ok for trace in traces), errors=[])


async def ask(context: Any, trace: str, messages: Sequence[Any]) -> str:
    async with Client() as http:
        headers = (*context.client.headers.items(), ("X-Session-ID", trace), ("Authorization", "Bearer EMPTY"))
        body = json.dumps({"model": context.model, "messages": messages}).encode()
        reply = await http.request("POST", context.client.base_url + "/chat/completions", headers, body)
    text = reply.body.decode()
    return json.loads(text)["choices"][0]["message"]["content"] if reply.status == 200 else text


class StandInConfig(SimpleNamespace):
    def model_copy(self, *, update: dict[str, Any]) -> "StandInConfig":
        return StandInConfig(**vars(self) | update)

    def agent_harnesses(self) -> dict[str, Any]:
        return {"agent": SimpleNamespace(id=self.harness)}


def resolve_env_config(settings: dict[str, Any]) -> StandInConfig:
    if settings["taskset"]["id"] == "absent":
        raise ModuleNotFoundError("taskset 'absent' not found")
    given = settings.pop("agent", {})
    role = StandInConfig(
        runtime=SimpleNamespace(type=given.get("runtime", {}).get("type", "prime")),
        model=given.get("model"),
        client=given.get("client"),
    )
    unknown = set(settings) - {"taskset"}
    if unknown:
        raise StandInRefusal([{"loc": (*unknown,), "msg": "Extra inputs are not permitted"}])
    return StandInConfig(agent=role, harness=given.get("harness", {}).get("id", "null"), taskset=settings["taskset"])


class StandInRefusal(ValueError):
    def errors(self, **_: Any) -> list[dict[str, Any]]:
        return self.args[0]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the package that are used."""

    def keep(**fields: Any) -> SimpleNamespace:
        return SimpleNamespace(**fields)

    programs = {
        "null": SimpleNamespace(EXECUTES_CODE=False, NEEDS_CONTAINER=False),
        "bash": SimpleNamespace(EXECUTES_CODE=True, NEEDS_CONTAINER=False),
    }
    modules: dict[str, dict[str, Any]] = {
        "verifiers": {"__version__": "0.4.0"},
        "verifiers.v1": {
            "SelectConfig": SimpleNamespace(model_validate=dict),
            "EvalClientConfig": keep,
            "ModelContext": keep,
            "RetryConfig": keep,
            "SubprocessConfig": lambda: SimpleNamespace(type="subprocess"),
            "UserMessage": lambda content: ("user", content),
            "AssistantMessage": lambda content: ("assistant", content),
        },
        "verifiers.v1.configs.agent": {"agent_config_fields": lambda config: {"agent": config.agent}},
        "verifiers.v1.configs.client": {"EvalClientConfig": keep, "resolve_api_key": lambda config: "EMPTY"},
        "verifiers.v1.utils.loaders": {
            "resolve_env_config": resolve_env_config,
            "load_environment": StandInEnvironment,
            "task_type": lambda id: StandInTask,
            "harness_class": programs.__getitem__,
        },
    }
    for name, values in modules.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def add(messages: Sequence[Message], tools: object, sampling: object) -> str:
    return str(int(messages[-1].content[0]) + 2) if messages[-1].content[0].isdigit() else "I am the user."


@pytest.mark.usefixtures("package")
def test_rollouts_side_by_side_have_their_own_records_and_other_roles_are_left_out():
    env = VerifiersEnv(id="sums", args={"taskset": {"count": 3}})
    rollouts = roll_all(env, add, skill="Think first.", size=2)
    assert [rollout.task.id for rollout in rollouts] == ["0", "0", "1", "1", "2", "2"]
    for rollout in rollouts:
        assert rollout.score is not None and rollout.score.passed
        assert rollout.score.parts == {"words": 1.0, "exact": 1.0}
        (turn,) = rollout.turns
        assert (turn.completion.message.content, turn.stop) == (rollout.task.answer["data"]["answer"], "finished")
        assert [message.role for message in rollout.opening] == ["system", "user"]
        assert rollout.opening[0].content == "Think first.\n\nBe exact."
        assert rollout.opening[1].content == rollout.task.prompt


@pytest.mark.usefixtures("package")
def test_a_model_that_fails_is_no_zero():
    def fail(*_: object) -> str:
        raise ModelError("no server", retryable=False)

    (rollout,) = roll_all(VerifiersEnv(id="sums"), fail)
    assert rollout.failure is not None and (rollout.failure.boundary, rollout.failure.retryable) == ("model", False)


@pytest.mark.usefixtures("package")
def test_servers_start_once_and_those_that_do_not_start_are_a_failure():
    env = VerifiersEnv(id="sums", args={"taskset": {"count": 2}})
    for times in (1, 2):  # a run after the first one starts them again
        assert all(rollout.score is not None for rollout in roll_all(env, add))
        assert isinstance(env.live, TasksetRelease) and env.live.open_split("").environment.served == times
    (rollout,) = roll_all(VerifiersEnv(id="sums", args={"taskset": {"servers": "broken"}}), add)
    assert rollout.failure is not None and rollout.failure.boundary == "setup"
    assert "its servers could not be started: RuntimeError: no port" in rollout.failure.message


@pytest.mark.usefixtures("package")
def test_a_split_may_have_settings_of_its_own():
    env = VerifiersEnv(id="sums", args={"taskset": {"count": 2}}, splits={"train": {"taskset": {"split": "easy"}}})
    easy, rest = load_tasks(env, "train"), load_tasks(env, "test")
    assert [(task.id, task.prompt) for task in easy] == [("train-0", "0 + 2 (easy)?"), ("train-1", "1 + 2 (easy)?")]
    assert [(task.id, task.prompt) for task in rest] == [("0", "0 + 2 (all)?"), ("1", "1 + 2 (all)?")]
    assert "idx" not in rest[0].answer["data"]
    chosen = VerifiersEnv(id="sums", args={"select": {"limit": 1}, "taskset": {"count": None}})
    assert len(load_tasks(chosen, "test")) == 1


@pytest.mark.usefixtures("package")
def test_an_endless_taskset_needs_a_limit():
    env = VerifiersEnv(id="sums", args={"taskset": {"count": None}})
    assert len(load_tasks(env, "test", 5)) == 5
    with pytest.raises(ConfigError, match=r"env\.limit: the taskset sums has no end"):
        load_tasks(env, "test")
    assert len(load_tasks(env, "test", MOST_TASKS)) == MOST_TASKS


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("id", "args", "words"),
    [
        ("absent", {}, r"env\.id: absent cannot be loaded"),
        ("sums", {"levle": 2}, r"env\.args\.levle: Extra inputs are not permitted"),
        ("sums", {"taskset": {"id": "other"}}, r"env\.args\.taskset: .*without its id"),
        ("sums", {"agent": {"harness": {"id": "bash"}}}, r'env\.args\.agent\.runtime: the program "bash"'),
        ("sums", {"agent": {"runtime": {"type": "prime"}}}, r"env\.args\.agent\.runtime\.type: prime is a cloud"),
        ("sums", {"agent": {"model": "other"}}, r"env\.args\.agent\.model: .*env\.args\.agent\.client"),
        ("sums", {"taskset": {"image": "debian"}}, r"env\.args\.agent\.runtime\.type: task 0 needs the image debian"),
    ],
)
def test_what_is_wrong_is_named(id: str, args: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        load_tasks(VerifiersEnv(id=id, args=args), "test")


@pytest.mark.usefixtures("package")
def test_a_task_that_the_taskset_has_not_is_a_failure():
    env = VerifiersEnv(id="sums")
    (task,) = env.tasks("test")

    class Other(VerifiersEnv, frozen=True, kw_only=True, dict=True):
        def tasks(self, split: str) -> Any:
            return [type(task)(id="9", prompt="", split=split, answer=task.answer)]

    rollout = roll(Other(id="sums"), "2")
    assert rollout.failure is not None and "has no task '9'" in rollout.failure.message


async def test_the_route_serves_only_traces_that_are_claimed_and_only_with_the_key():
    route = TraceRoute()
    message = [{"role": "user", "content": "hi"}]

    async with Gateway(ScriptedModel(["hello"], "m"), routes=(route,)) as gateway:
        session = gateway.open(name="s")

        def make_context(key: str) -> Any:
            client = SimpleNamespace(headers={"X-Ludus-Key": key}, base_url=f"{gateway.url}/v1")
            return SimpleNamespace(client=client, model="m")

        with route.open_claims() as claim:
            claim("t1", session)
            assert await ask(make_context(route.key), "t1", message) == "hello"
            assert "belongs to no open session" in await ask(make_context("guess"), "t1", message)
            assert "belongs to no open session" in await ask(make_context(route.key), "t2", message)
        assert "belongs to no open session" in await ask(make_context(route.key), "t1", message)
        assert len((await gateway.close(session)).exchanges) == 1


def test_settings_of_a_split_are_put_over_the_others():
    base = {"taskset": {"level": 1, "split": "a"}, "n": 1}
    assert merge_settings(base, {"taskset": {"split": "b"}, "n": 2}) == {"taskset": {"level": 1, "split": "b"}, "n": 2}
    assert base == {"taskset": {"level": 1, "split": "a"}, "n": 1}


def test_an_error_without_fields_is_described_as_it_is():
    assert describe_settings(ValueError("bad range"), "env.args.select") == "env.args.select: ValueError: bad range"


def test_messages_before_the_tasks_own_are_found():
    own = (Message("system", "Be exact."), Message("user", "2 + 2?"))
    examples = (Message("user", "1 + 1?"), Message("assistant", "2"))
    assert list_added((Message("system", Skill("x").text), *examples, *own), own) == list(examples)
    assert list_added(own, own) == []
