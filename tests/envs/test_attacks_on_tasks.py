"""The library of attacks on Harbor-shaped tasks: none is paid, and every reference solution still is. `make
test-hostile` tries all of them; the other tests, one of each kind."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.verifier_kit import TARGETS, find_attack, write_targets

from ludus.attacks.library import Attack, list_attacks
from ludus.env_checks import format_report, validate
from ludus.envs.harbor import Harbor
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool
from ludus.types import Rollout


def choose_target(attack: Attack) -> str:
    """The task whose verifier loads what the attack changes."""
    special = {
        "tests-of-the-working-folder": "own-tests",
        "python-path": "variables",
        "python-user-site": "terminal-bench",
        "pytest-in-the-environment": "environment-in-path",
        "pytest-of-the-root": "root-folder",
        "pytest-conftest": "own-tests",
        "pytest-ini": "own-tests",
    }
    aims = {"reward": "script-in-python", "tests": "script-beside", "shell": "variables", "python": "script-in-python"}
    aims |= {"pytest": "pytest-module", "tools": "tools", "program": "program"}
    found = "environment" if attack.name.startswith("python-venv") else aims[attack.aim]
    return special.get(attack.name, found)


@pytest.fixture(scope="module")
def env() -> Iterator[Harbor]:
    with tempfile.TemporaryDirectory(prefix="ludus-targets-") as name:
        Path(name).chmod(0o755)  # slots run as other users
        write_targets(Path(name, "tasks"))
        yield Harbor(path=f"{name}/tasks", cache=f"{name}/cache", bases=("python=host",))


async def attempt(pool: Pool, env: Harbor, id: str, command: str) -> Rollout:
    task = next(task for task in env.tasks("train") if task.id == id)
    model = ScriptedModel([call("terminal", command=command), say("done")])
    return await run(Job(task, Policy(model)), Runner(env, pool))


async def test_reference_solutions_of_all_targets_score_1(pool: Pool, env: Harbor):
    report = await validate(Runner(env, pool), "train", env.tasks("train"), limits=Limits(), concurrency=2)
    assert report.tasks == len(TARGETS)
    assert (format_report(report) if not report.ok else "") == ""


def choose_attacks() -> list[Attack]:
    """One attack with each aim; all of them with `make test-hostile`."""
    if os.environ.get("LUDUS_TEST_HOSTILE"):
        return list(list_attacks())
    return list({attack.aim: attack for attack in reversed(list_attacks())}.values())


@pytest.mark.parametrize("attack", choose_attacks(), ids=lambda attack: attack.name)
async def test_attacks_are_not_paid(pool: Pool, env: Harbor, attack: Attack):
    rollout = await attempt(pool, env, choose_target(attack), attack.script)
    assert rollout.failure is None, rollout.failure
    assert rollout.score is not None
    assert rollout.score.value == 0.0, rollout.score


SEEN_BY_CONTROLS = (
    *("python-shadow-json", "python-shadow-package", "python-venv-pth", "pytest-shadow-pluggy", "pytest-toml"),
    *("pytest-conftest", "pytest-of-the-root", "shell-path", "program-knows-controls", "program-runs-no-test"),
)


@pytest.mark.parametrize("name", SEEN_BY_CONTROLS if os.environ.get("LUDUS_TEST_HOSTILE") else SEEN_BY_CONTROLS[::3])
async def test_controls_find_what_was_not_left_out(pool: Pool, env: Harbor, name: str):
    """With everything that the agent changed in its place, the verdict is forged, and the controls see it."""
    lax, attack = msgspec.structs.replace(env, system_changes="suspect"), find_attack(name)
    rollout = await attempt(pool, lax, choose_target(attack), attack.script)
    assert rollout.score is not None
    assert (rollout.score.value, rollout.stop) == (0.0, "forged")
    assert rollout.score.suspect


async def test_honest_work_beside_such_changes_is_paid_and_suspect_if_they_are_kept(pool: Pool, env: Harbor):
    command = "echo 19 >/app/answer.txt; echo '[pytest]' >/app/pytest.ini; echo 'alias l=ls' >>/root/.bashrc"
    lax = msgspec.structs.replace(env, system_changes="suspect")
    kept = await attempt(pool, lax, "pytest-module", command)
    dropped = await attempt(pool, env, "pytest-module", command)
    assert kept.score is not None
    assert dropped.score is not None
    assert (kept.score.value, kept.stop, dropped.score.value, dropped.score.suspect) == (1.0, "finished", 1.0, ())
    assert sorted(kept.score.suspect) == [
        "/app/pytest.ini: pytest reads it when it starts",
        "/root/.bashrc: it is read by a program when it starts",
    ]


async def test_what_the_solution_changes_arrives(pool: Pool, env: Harbor):
    """A file of settings is part of this task, with a record of the solution's changes and without one."""
    unknown = msgspec.structs.replace(env, cache=f"{env.cache}-new")
    Path(unknown.cache).mkdir(exist_ok=True)
    right = await attempt(pool, unknown, "settings", "git config --global user.name Ada")
    again = await attempt(pool, unknown, "settings", "git config --global user.name Ada; touch ~/.curlrc")
    forged = await attempt(pool, unknown, "settings", find_attack("tools-gitconfig").script)
    assert right.score is not None
    assert again.score is not None
    assert forged.score is not None
    assert (right.score.value, again.score.value, forged.score.value) == (1.0, 1.0, 0.0)
    assert right.left_out == ()
    assert "1 changes of protected files, such as root/.curlrc" in again.left_out
