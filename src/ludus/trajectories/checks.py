"""Checkers of trajectories: a function of the user's, or the `verify` of an environment.

    --check my_checks.py:is_right      def is_right(answer, row): return answer.strip() == row["answer"]
    --check gsm8k                      the environment's verify, with the row's `answer` as the answer of the task

The parameters of a function are chosen by name: `answer` (the agent's last text), `rollout`, `row` (the row of the
file) and `box` (a slot with the files that the agent left). It returns whether the trajectory is good, a number, or a
`Score`, and may be `async`. If it raises, there is no score: a failure is not a zero.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.config.references import ENV, load_object
from ludus.env import Env
from ludus.env_code import find_class_files
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox
from ludus.types import JsonObject, Rollout, Score

SETTING = "env.check"
PARAMETERS = ("answer", "rollout", "row", "box")


@dataclass(frozen=True)
class Check:
    """A checker, ready to be called."""

    takes: tuple[str, ...]
    function: Callable[..., Any] | None = None
    env: Env | None = None
    files: tuple[Path, ...] = ()
    """The files of its code."""

    @property
    def uses_box(self) -> bool:
        return "box" in self.takes

    async def score(self, rollout: Rollout, row: JsonObject, box: Sandbox | None) -> Score:
        """The verdict on a rollout. Raises whatever the checker raises, and `TypeError` if it returns no verdict."""
        if self.env is not None:
            return await self.env.verify(rollout, box)
        assert self.function is not None
        values: Mapping[str, Any] = {"answer": rollout.answer, "rollout": rollout, "row": row, "box": box}
        found = self.function(**{name: values[name] for name in self.takes})
        return make_score(await found if inspect.isawaitable(found) else found)


def make_score(found: Any) -> Score:
    """What a checker returned, as a score."""
    if isinstance(found, Score):
        return found
    if isinstance(found, bool | int | float):
        return Score.of(float(found))
    raise TypeError(f"the check returns {type(found).__name__}, not a bool, a number or a Score")


def load_check(name: str) -> Check:
    """The checker that a reference or the name of an environment stands for.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    found: Any = load_object(name, SETTING) if ":" in name else ENV.load(name, SETTING)
    if ENV.accepts(found):
        return _use_env(found, name)
    if not callable(found):
        raise ConfigError(f"{SETTING}: {name} is neither a function nor an environment")
    function: Callable[..., Any] = found
    return _use_function(function, name)


def _use_env(kind: type[Env], name: str) -> Check:
    try:
        env = kind()
    except TypeError as error:
        raise ConfigError(f"{SETTING}: {name} cannot be made without options: {error}") from None
    if env.graded:
        raise ConfigError(f"{SETTING}: a model judges the rollouts of {name}: write a function of your own")
    needs = ("box",) if env.sandbox is not None else ()
    return Check(needs, env=env, files=tuple(find_class_files(kind)))


def _use_function(function: Callable[..., Any], name: str) -> Check:
    takes = tuple(inspect.signature(function).parameters)
    unknown = [parameter for parameter in takes if parameter not in PARAMETERS]
    if unknown or not takes:
        wrong = f"the parameter '{unknown[0]}'" if unknown else "no parameter"
        raise ConfigError(f"{SETTING}: {name} has {wrong}; those of a check are some of {', '.join(PARAMETERS)}")
    file = inspect.getsourcefile(inspect.unwrap(function))
    return Check(takes, function, files=(Path(file),) if file else ())


def describe_row(rollout: Rollout) -> JsonObject:
    """The row that a rollout was made of, for checkers: its metadata, and the fields that Ludus reads."""
    task, details = rollout.task, dict(rollout.task.details or {})
    row = {"id": task.id, "prompt": task.prompt, "kind": task.kind, "answer": task.answer, "files": dict(task.files)}
    found: JsonObject = {**details.pop("metadata", {}), **row, **details}
    return msgspec.to_builtins({name: value for name, value in found.items() if value})
