"""Controls of Harbor tasks: what is changed, and which rewards are evidence."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ludus.envs.harbor_controls import find_evidence, make_failing_tests, make_known_script, read_tests
from ludus.envs.task_folders import TaskFolder, read_task_folder

CHECK = b"import json, sys\n\nsys.exit(0)\n"
TESTS = {"test.sh": b"cd /app\npython3 check.py && grep -q x y\n", "check.py": CHECK, "data.json": b"{}"}


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    files = {"task.toml": b"[agent]\n", "instruction.md": b"Do it.", "environment/Dockerfile": b"FROM x\n"}
    for name, data in {**files, **{f"tests/{name}": data for name, data in TESTS.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return read_task_folder(tmp_path)


def test_files_that_can_fail_do(folder: TaskFolder):
    assert read_tests(folder.tests) == TESTS
    made = make_failing_tests({**TESTS, "more.sh": b"true\n", "test_a.py": b"def test_a():\n    assert 1\n"})
    assert made is not None
    assert (made["test.sh"], made["data.json"]) == (TESTS["test.sh"], b"{}")
    assert made["check.py"].startswith(b"import json, sys\nraise SystemExit(")
    assert made["more.sh"].startswith(b"#!/bin/bash\nexit ")
    assert b"assert not (1)" in made["test_a.py"]
    assert make_failing_tests({"test.sh": b"true\n", "data.json": b""}) is None


def test_a_known_script_loads_what_the_tests_load():
    script = make_known_script(TESTS, "0.1234")
    assert "cd /app" in script
    assert "import json" in script
    assert "grep -c" in script
    assert "sqlite3" not in script


async def run_controls(folder: TaskFolder, answer: str, known: str = "") -> tuple[str, ...]:
    """The evidence if the script's reward is `answer`; `known`: that of the known script, empty for the right one."""

    async def run(tests: Mapping[str, bytes]) -> str:
        script = tests["test.sh"].decode()
        if script == TESTS["test.sh"].decode():
            return answer
        return known or script.partition("reward=")[2].partition("\n")[0]

    return await find_evidence(folder, 1.0, run)


async def test_rewards_that_are_evidence(folder: TaskFolder):
    assert await run_controls(folder, "0\n") == ()
    assert await run_controls(folder, "") == ()
    assert await run_controls(folder, "0.5") == ()
    assert await run_controls(folder, "1") == ("tests that must fail are paid 1",)
    [words] = await run_controls(folder, "0", known="1\n")
    assert words.endswith("is paid 1")
