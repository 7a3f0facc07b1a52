"""swe-smith-oracle: rows, what an agent sees, and agents that attack the tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.envs.repositories import make_repository
from ludus.envs.swe_smith import SweSmithOracle
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.types import Rollout, Task

ROW: dict[str, Any] = {
    "instance_id": "one",
    "repo": "own/pkg",
    "base_commit": "main",
    "problem_statement": "It is 2.",
    "FAIL_TO_PASS": ["test_x.py::test_x"],
    "PASS_TO_PASS": '["test_y.py::test_y"]',
}


def list_tasks(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[Task]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(SweSmithOracle(path=str(path), **options).tasks("train"))


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_rows_become_tasks_without_tests_in_the_prompt(tmp_path: Path):
    (task,) = list_tasks(tmp_path, ROW)
    assert task.answer["ids"] == ["test_x.py::test_x", "test_y.py::test_y"]
    assert list(task.answer["start"]["hidden"]) == ["test_x.py"]
    assert "It is 2." in task.prompt and "test_x" not in task.prompt
    (task,) = list_tasks(tmp_path, ROW | {"text": "More."}, prompt_mode="problem_statement+text")
    assert "More." in task.prompt


def test_rows_are_chosen(tmp_path: Path):
    rows = [ROW | {"instance_id": str(n)} for n in range(6)]
    other = ROW | {"instance_id": "go", "PASS_TO_PASS": ["TestX"]}
    plain = [task.id for task in list_tasks(tmp_path, other, *rows, shuffle=False)]
    assert plain == ["0", "1", "2", "3", "4", "5"]
    sampled = [task.id for task in list_tasks(tmp_path, other, *rows, seed=3, max_items=4)]
    assert len(sampled) == 4 and sampled == [t.id for t in list_tasks(tmp_path, other, *rows, seed=3)][:4] != plain[:4]
    assert len(list_tasks(tmp_path, other, *rows, python_only=False)) == 7


def test_folders_of_mirrors_have_the_repository_s_name(tmp_path: Path):
    (task,) = list_tasks(tmp_path, ROW | {"repo": "swesmith/oauthlib__oauthlib.1fd5253"})
    assert task.answer["start"]["name"] == "oauthlib"


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({**ROW, "repo": " "}, {}, "line 1: repo: it is empty"),
        ({**ROW, "base_commit": ""}, {}, "line 1: base_commit: it is missing"),
        ({**ROW, "FAIL_TO_PASS": []}, {}, "line 1: FAIL_TO_PASS: it is empty"),
        ({**ROW, "PASS_TO_PASS": "[1]"}, {}, "line 1: PASS_TO_PASS: it should be a list"),
        ({**ROW, "FAIL_TO_PASS": ["../x.py::t"]}, {}, r"line 1: FAIL_TO_PASS: '\.\./x\.py' is not a path"),
        (ROW, {"patch_is": "bug"}, "line 1: patch: it is empty"),
        ({k: v for k, v in ROW.items() if k != "FAIL_TO_PASS"}, {}, "line 1: .*FAIL_TO_PASS"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: dict[str, Any], options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list_tasks(tmp_path, row, **options)


def test_wheels_and_a_network_make_pip_install(tmp_path: Path):
    env = SweSmithOracle(wheels="/some/wheels", cache=str(tmp_path))
    (task, *_) = env.tasks("train")
    assert env.slot(task, env.sandbox).caches == (("/some/wheels", "/wheels"),)
    assert env.slot(task, env.sandbox).base == (str(next(iter(env.slot(task, env.sandbox).base))),)


# ---- runs ---------------------------------------------------------------------------------------------------------


async def act(pool: Pool, env: SweSmithOracle, task: Task, *commands: str) -> Rollout:
    turns = [*(call("terminal", command=command) for command in commands), say("Done.")]
    rollout = await run(Job(task, Policy(ScriptedModel(turns))), Runner(env, pool))
    assert rollout.score is not None, rollout.failure
    return rollout


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> SweSmithOracle:
    return SweSmithOracle(cache=str(tmp_path_factory.mktemp("cache")), shuffle=False)


FIX = "cd /workspace/shelf && sed -i 's/late [*] DAILY/(late - FREE_DAYS) * DAILY/' shelf/loans.py"
LOOK = "cd /workspace/shelf; git log --all --oneline | wc -l; ls tests; grep -rl highest_fee . ; ls /repo* /var/cache"


async def test_a_repair_passes_and_the_agent_sees_no_hidden_test(pool: Pool, bundled: SweSmithOracle):
    task = next(iter(bundled.tasks("train")))
    tests = "cd /workspace/shelf && .venv/bin/python -m pytest -q tests && git diff --stat"
    rollout = await act(pool, bundled, task, LOOK, FIX, tests)
    assert rollout.score is not None and rollout.score.passed, rollout.score
    looked, _, tested = (turn.results[0].content for turn in rollout.turns[:3])
    assert looked.startswith("1\n") and "test_catalogue.py" in looked
    assert "test_loans" not in looked and "No such file" in looked
    assert "7 passed" in tested and "shelf/loans.py" in tested and "1 file changed" in tested


ATTACK = r"""
cd /workspace/shelf
mkdir -p tests shelf.egg-info evil.Egg-Info evil-1.DIST-INFO
printf '[pytest11]\nevil = evil\n' | tee {shelf.egg-info,evil.Egg-Info,evil-1.DIST-INFO}/entry_points.txt > /dev/null
printf 'Metadata-Version: 2.1\nName: evil\nVersion: 1\n' | tee evil.Egg-Info/PKG-INFO > evil-1.DIST-INFO/METADATA
printf 'def test_fee(): pass\n' > tests/test_loans.py
printf 'def pytest_runtest_makereport(item, call):\n    if "_must_" not in item.name: call.excinfo = None\n' > evil.py
cp evil.py conftest.py; cp evil.py tests/conftest.py
printf '[pytest]\naddopts = --collect-only -p evil\n' > pytest.ini
printf '[pytest]\naddopts = ["-p", "evil"]\n' | tee pytest.toml > .pytest.toml
printf 'import os\nos._exit(0)\n' | tee .venv/lib/python3*/site-packages/sitecustomize.py sitecustomize.py > /dev/null
printf '#!/bin/sh\nexit 0\n' > .venv/bin/python; chmod +x .venv/bin/python
printf 'raise SystemExit\n' | tee pytest.py json.py > /dev/null
"""


async def test_changed_tests_settings_and_interpreters_do_not_count(pool: Pool, bundled: SweSmithOracle):
    task = next(iter(bundled.tasks("train")))
    score = (await act(pool, bundled, task, ATTACK)).score
    assert score is not None and not score.passed
    assert (score.value, score.soft) == (0.0, pytest.approx(14 / 16)), score
    repaired = (await act(pool, bundled, task, ATTACK, FIX)).score
    assert repaired is not None and repaired.passed, repaired


async def test_a_repository_of_a_folder_with_bugs_as_patches(pool: Pool, tmp_path: Path):
    files = {"src/pkg.py": "VALUE = 2\n", "test_x.py": "import pkg\n\n\ndef test_x():\n    assert pkg.VALUE == 2\n"}
    files["test_y.py"] = "def test_y():\n    pass\n"
    make_repository(tmp_path / "repos" / "own" / "pkg", {"main": files})
    bug = "--- a/src/pkg.py\n+++ b/src/pkg.py\n@@ -1 +1 @@\n-VALUE = 2\n+VALUE = 3\n"
    row = {key: value for key, value in ROW.items() if key != "base_commit"} | {"patch": bug}
    options: dict[str, Any] = {
        "repo_base_url": str(tmp_path / "repos"),
        "cache": str(tmp_path / "cache"),
        "patch_is": "bug",
    }
    (task,) = list_tasks(tmp_path, row, **options)
    env = SweSmithOracle(path=str(tmp_path / "rows.jsonl"), **options)

    await env.prepare(task)
    async with pool.lease(env.slot(task, env.sandbox)) as box:
        assert await box.read("pkg/src/pkg.py") == b"VALUE = 3\n"
        await env.solve(task, box)
        assert await box.read("pkg/src/pkg.py") == b"VALUE = 2\n"
    score = (await act(pool, env, task, "echo 'import os; os._exit(0)' > pkg/src/pkg.py")).score
    assert score is not None and score.soft == 0.0 and "ended before they were through" in score.feedback


async def test_an_absent_commit_is_a_failure_and_no_zero(pool: Pool, tmp_path: Path):
    (task,) = list_tasks(tmp_path, ROW, repo_base_url=str(tmp_path), cache=str(tmp_path / "cache"))
    env = SweSmithOracle(path=str(tmp_path / "rows.jsonl"), repo_base_url=str(tmp_path), cache=str(tmp_path / "cache"))
    rollout = await run(Job(task, Policy(ScriptedModel([say("Done.")]))), Runner(env, pool))
    assert rollout.score is None and rollout.failure is not None and "own/pkg" in rollout.failure.message


def test_the_slot_has_room_for_a_repository():
    assert SweSmithOracle.sandbox is not None and SweSmithOracle.sandbox.disk_mb > SandboxSpec().disk_mb
