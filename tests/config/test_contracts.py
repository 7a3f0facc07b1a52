"""What a class of the user lacks is found when it is loaded, with the setting and the fix."""

import functools
from pathlib import Path
from typing import Any

import pytest
from tests.config_kit import find_problem, write_text

from ludus.config.build_training import build_rule
from ludus.config.contracts import check_model, check_rule
from ludus.config.references import GATE, HARNESS, MODEL, PROPOSER, SANDBOX, Seam, load_env_class
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError
from ludus.reflact.gate import Gate, judge
from ludus.reflact.train_settings import TrainSettings

ENV = """
import functools
from collections.abc import Awaitable
from ludus.env import Env
from ludus.types import Score

def log(method):
    @functools.wraps(method)
    def call(*arguments):
        return method(*arguments)
    return call

class Mine(Env, frozen=True):
    name = "mine"
    def tasks(self, split): return ()
    async def verify(self, rollout, box): return Score.of(1.0)
    async def setup(self, task, box): pass
    async def solve(self, task, box): return ""
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("async def verify", "async def verfy", "Mine in '{}' does not define verify(rollout, box)"),
        ("def tasks", "def task", "Mine in '{}' does not define tasks(split)"),
        ("async def verify", "def verify", "Mine in '{}': verify must be written as `async def`"),
        ("async def setup", "def setup", "Mine in '{}': setup must be written as `async def`"),
        ("async def solve", "def solve", "Mine in '{}': solve must be written as `async def`"),
    ],
)
def test_an_environment_that_is_incomplete_is_refused_when_it_is_loaded(
    tmp_path: Path, old: str, new: str, message: str
):
    path = write_text(tmp_path, ENV.replace(old, new), "mine.py")
    assert find_problem(env__name=str(path)) == f"env.name: {message.format(path)}"


@pytest.mark.parametrize(
    "verify",
    [
        "@log\n    async def verify(self, rollout, box): return Score.of(1.0)",
        "def verify(self, rollout, box) -> Awaitable[Score]: return self.judge(rollout)",
        "def verify(self, rollout, box) -> 'Awaitable[Score]': return self.judge(rollout)",
        "verify = functools.partialmethod(lambda self, *rest: None)",
        "verify = lambda self, rollout, box: self.judge(rollout)",
    ],
)
def test_a_verify_that_may_return_an_awaitable_is_accepted(tmp_path: Path, verify: str):
    text = ENV.replace("async def verify(self, rollout, box): return Score.of(1.0)", verify)
    assert load_env_class(str(write_text(tmp_path, text, "wrapped.py"))).name == "mine"


def test_the_environments_of_ludus_are_complete():
    for name in BUILTIN:
        assert issubclass(load_env_class(name), Env)


# ---- gate rules -----------------------------------------------------------------------------------------------------

RULES = """
import functools
from ludus.reflact.gate import judge

def few(gate, candidate): pass
def many(gate, candidate, current, best, extra): pass
async def later(gate, candidate, current, best): pass
class NeedsArg:
    def __init__(self, x): pass
    def __call__(self, gate, candidate, current, best): return judge(gate, candidate, current, best)
class Later:
    async def __call__(self, gate, candidate, current, best): pass
class Short:
    def __call__(self, gate): pass
class Keeps:
    def __init__(self, margin=0.1): self.margin = margin
    def __call__(self, gate, candidate, current, best): return judge(gate, candidate, current, best)
def strict(margin, gate, candidate, current, best): return judge(gate, candidate, current, best)
partial = functools.partial(strict, 0.1)
ready = Keeps(0.2)
def rest(*contenders): return judge(*contenders)
cached = functools.lru_cache(rest)
"""


def load_rule(folder: Path, name: str) -> Any:
    write_text(folder, RULES, "rules.py")
    return build_rule(TrainSettings(gate=Gate(rule=f"{folder / 'rules.py'}:{name}")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("few", "is called with (gate, candidate, current, best), but its parameters do not fit: too many positional"),
        ("many", "do not fit: missing a required argument: 'extra'"),
        ("strict", "do not fit: missing a required argument: 'best'"),
        ("later", "must be written as `def`: a gate rule is not asynchronous"),
        ("Later", "must be written as `def`: a gate rule is not asynchronous"),
        ("Short", "do not fit: too many positional arguments"),
        ("NeedsArg", "must be constructible without arguments, but needs 'x'"),
    ],
)
def test_a_gate_rule_that_cannot_be_called_is_refused_when_it_is_loaded(tmp_path: Path, name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load_rule(tmp_path, name)
    assert str(caught.value).startswith(f"train.gate.rule: {name} in ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["Keeps", "partial", "ready", "rest", "cached"])
def test_functions_partials_classes_and_instances_are_gate_rules(tmp_path: Path, name: str):
    assert callable(load_rule(tmp_path, name))


def test_the_built_in_rule_and_aliases_of_types():
    assert check_rule(judge, "it") == check_rule(functools.partial(judge), "it") == ""
    assert not GATE.accepts(dict[str, int])
    assert not GATE.accepts("text")


# ---- the others -----------------------------------------------------------------------------------------------------

OTHERS = """
from ludus.harness import Harness
from ludus.reflact.proposers import Proposer
from ludus.sandbox.backend import SlotBackend
from ludus.sandbox.remote.fleet import RemoteBackend

class Silent(Proposer):
    name = "silent"
class Plain(Proposer):
    name = "plain"
    def reflect(self, view, batch, rollouts): return ()
class Nameless(Proposer):
    async def reflect(self, view, batch, rollouts): return ()

class SyncModel:
    name = "sync"
    def complete(self, messages, tools, sampling): pass
    async def close(self): pass

class NoParameters(SlotBackend):
    name = "none"
    def __init__(self): pass
    async def create(self, spec): pass
class NoName(SlotBackend):
    async def create(self, spec): pass
class NoCreate(SlotBackend):
    name = "nothing"
class SyncCreate(SlotBackend):
    name = "sync"
    def create(self, spec): pass
class NoLaunch(RemoteBackend):
    name = "far"

EMPTY = Harness(name="empty", command=" ")
"""


@pytest.mark.parametrize(
    ("seam", "name", "message"),
    [
        (PROPOSER, "Silent", "does not define reflect(view, batch, rollouts)"),
        (PROPOSER, "Plain", ": reflect must be written as `async def`"),
        (PROPOSER, "Nameless", "has no name; add: name"),
        (MODEL, "SyncModel", ": complete must be written as `async def`"),
        (SANDBOX, "NoParameters", "is made with (settings, secrets), but the parameters of its __init__ do not fit"),
        (SANDBOX, "NoName", 'has no name; add: name = "my-backend"'),
        (SANDBOX, "NoCreate", "does not define create(spec)"),
        (SANDBOX, "SyncCreate", ": create must be written as `async def`"),
        (SANDBOX, "NoLaunch", "does not define get_kind(spec) and launch(spec)"),
        (HARNESS, "EMPTY", "has no command; add what starts the agent"),
    ],
)
def test_what_is_incomplete_is_refused_when_it_is_loaded(tmp_path: Path, seam: Seam, name: str, message: str):
    path = write_text(tmp_path, OTHERS, "others.py")
    with pytest.raises(ConfigError) as caught:
        seam.load(f"{path}:{name}")
    label = "Harness" if name == "EMPTY" else name
    assert str(caught.value).startswith(f"{seam.setting}: {label} in '{path}:{name}'")
    assert message in str(caught.value)


def test_a_model_whose_methods_are_not_python_functions_is_accepted():
    class Made:
        complete = close = functools.partial(print)

    assert check_model(Made, "it") == ""
