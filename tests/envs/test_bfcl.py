"""BFCL with the data and checkers of bfcl-eval (make test-envs)."""

import importlib.util
import os

import pytest
from tests.build import make_rollout, make_turn

from ludus.env_checks import validate
from ludus.envs.bfcl import Bfcl, list_calls, make_call_tool, make_name, translate_schema
from ludus.errors import ConfigError
from ludus.models.scripted import Reply, ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Score, StopReason

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed (make test-envs)"
)


async def score(category: str, reply: Reply) -> Score:
    env = Bfcl(categories=(category,))
    rollout = await run(Job(next(iter(env.tasks("test"))), Policy(ScriptedModel([reply, "Done."]))), Runner(env))
    assert rollout.score is not None
    return rollout.score


def test_schemas_and_names():
    schema = {
        "type": "dict",
        "properties": {"x": {"type": "float"}, "type": {"type": "tuple", "items": {"type": "any"}}},
    }
    assert translate_schema(schema) == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "type": {"type": "array", "items": {"type": "string"}}},
    }
    assert make_name("math.factorial") == "math_factorial"
    made = make_call_tool({"name": "a.b", "description": "d", "parameters": schema})
    assert made.ends_episode and made.spec.name == "a_b"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[{"name": "f", "arguments": {"a": 1}}]', [{"f": {"a": 1}}]),
        ("[1]", []),
        ("I cannot.", []),
    ],
)
def test_calls_that_are_written_as_text(text: str, calls: list[object]):
    assert list_calls(make_rollout(1.0, make_turn(text))) == calls


@needs_package
async def test_scores():
    assert (await score("simple_python", call("calculate_triangle_area", base=10, height=5))).passed
    assert not (await score("simple_python", call("calculate_triangle_area", base=10, height=6))).passed
    assert not (await score("simple_python", call("no_such_function", base=10))).passed
    assert not (await score("simple_python", "It is 25.")).passed
    assert (await score("irrelevance", "None of them fits.")).passed
    task = next(iter(Bfcl(categories=("irrelevance",)).tasks("test")))
    assert not (await score("irrelevance", call(make_name(task.answer["functions"][0]["name"]), base=1))).passed


@needs_package
async def test_a_call_ends_the_rollout():
    env = Bfcl(categories=("simple_python",))
    task = next(iter(env.tasks("test")))
    reply = call("calculate_triangle_area", base=10, height=5)
    rollout = await run(Job(task, Policy(ScriptedModel([reply]))), Runner(env))
    assert rollout.stop is StopReason.SUBMITTED


@needs_package
@pytest.mark.skipif(not os.environ.get("LUDUS_TEST_ENVS"), reason="all tasks: make test-envs")
async def test_every_task_is_valid():
    env = Bfcl()
    tasks = list(env.tasks("test"))
    assert len(tasks) == 3487
    assert (await validate(Runner(env), "test", tasks)).ok


def test_what_is_missing_or_unknown_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.envs.bfcl.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps bfcl-eval"):
        list(Bfcl().tasks("test"))
