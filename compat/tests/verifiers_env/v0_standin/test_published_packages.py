"""Environments of verifiers 0.1 that others have published, without their package: as with it, or beside release 0.4.

`make test-verifiers` installs them."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from compat.tests.verifiers_kit import roll_group

from ludus.compat.verifiers_env import VerifiersEnv
from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease
from ludus.compat.verifiers_env.v0_standin.release import StandInRelease
from ludus.types import Rollout

ADVOCACY = "sophistry-bench-sprint"
REPLIES = (
    "I do not know.",
    "<claim>It is so.</claim><citation>the passage</citation>",
    '[CLAIM] The answer is right.\n[CITATION] "He said"\n' * 3,
)


@pytest.fixture(autouse=True)
def fresh_modules() -> Iterator[None]:
    """What a test imports is forgotten at its end."""
    if find_spec("sophistry_bench_sprint") is None:
        pytest.skip("sophistry-bench-sprint is not installed")
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("verifiers", "sophistry_bench_sprint"):
            del sys.modules[name]
    sys.modules.update(before)


def play(release: Any, reply: str) -> tuple[list[Any], Rollout]:
    """The tasks, and a rollout of the first."""
    env = VerifiersEnv(id=ADVOCACY)
    vars(env)["live"] = release
    (rollout,) = roll_group(env, [reply], 1)
    return [(task.id, task.answer) for task in env.tasks("train")], rollout


@pytest.mark.parametrize("reply", REPLIES)
def test_it_runs_as_with_the_package(reply: str):
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    tasks, known = play(EnvironmentRelease(ADVOCACY, {"n_items": 3}), reply)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verifiers", "sophistry_bench_sprint")]:
        del sys.modules[name]
    same_tasks, own = play(StandInRelease(ADVOCACY, {"n_items": 3}), reply)
    assert same_tasks == tasks
    assert own.score is not None and own.score == known.score and own.messages == known.messages


def test_it_runs_beside_a_release_that_has_no_such_environments():
    if find_spec("verifiers") is not None and find_spec("verifiers.rubrics") is not None:
        pytest.skip("verifiers 0.1.14 is installed")
    (rollout,) = roll_group(VerifiersEnv(id=ADVOCACY, args={"n_items": 1}), [REPLIES[2]], 1)
    assert rollout.score is not None and "num_turns" in rollout.score.parts
