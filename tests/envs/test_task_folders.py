import json
from pathlib import Path

import pytest

from ludus.envs.task_folders import read_task_folder, read_task_folders
from ludus.errors import ConfigError


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


HARBOR = {
    "task.toml": 'version = "1.0"',
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM debian",
    "tests/test.sh": "true",
}
BENCH = {
    "task.yaml": "instruction: Do it.\nparser_name: pytest\n",
    "Dockerfile": "FROM debian",
    "tests/test_outputs.py": "def test_it(): ...",
}
ENDLESS = {"instruction.md": "Do it.", "Dockerfile": "FROM debian", "test_final_state.py": "def test_it(): ..."}


def test_a_harbor_task(tmp_path: Path):
    toml = """
        schema_version = "1.1"
        [task]
        name = "org/x"
        [metadata]
        category = "games"
        [verifier]
        timeout_sec = 90
        env = { A = "1" }
        [environment]
        build_timeout_sec = 30.5
        memory = "2G"
        storage_mb = 512
        docker_image = "org/x:1"
        unknown = 1
    """
    task = read_task_folder(write_files(tmp_path / "x", HARBOR | {"task.toml": toml, "solution/solve.sh": "true"}))
    assert (task.id, task.form, task.kind, task.image) == ("x", "harbor", "games", "org/x:1")
    assert (task.memory_mb, task.storage_mb, task.test_seconds, task.build_seconds) == (2048, 512, 90.0, 30.5)
    assert task.test_env == {"A": "1"}
    assert task.solution == tmp_path / "x/solution"
    assert task.skip == ""


def test_a_terminal_bench_task(tmp_path: Path):
    task = read_task_folder(write_files(tmp_path / "x", BENCH | {"run-tests.sh": "pytest", "solution.sh": "true"}))
    assert (task.form, task.instruction, task.test_seconds) == ("terminal-bench", "Do it.", 180.0)
    assert task.script == tmp_path / "x/run-tests.sh"
    assert task.test_env == {"TEST_DIR": "/tests"}
    forms = "descriptions:\n  - {key: hard, description: Hard.}\n  - {key: base, description: Base.}\n"
    old = f"{forms}max_test_timeout_sec: 7"
    old_task = read_task_folder(write_files(tmp_path / "y", BENCH | {"task.yaml": old}))
    assert (old_task.instruction, old_task.test_seconds) == ("Base.", 7.0)


def test_an_endless_task(tmp_path: Path):
    task = read_task_folder(write_files(tmp_path / "x", ENDLESS))
    assert (task.form, task.instruction, task.build) == ("endless", "Do it.", tmp_path / "x")
    files = {"task.json": json.dumps({"description": "D", "truth": "T"}), "tests/test_final_state.py": "x = 1"}
    other = read_task_folder(write_files(tmp_path / "y", files | {"environment/Dockerfile": "FROM debian"}))
    assert (other.instruction, other.tests) == ("D", tmp_path / "y/tests/test_final_state.py")


@pytest.mark.parametrize(
    ("files", "name", "text", "words"),
    [
        (HARBOR, "instruction.md", None, "instruction.md is missing"),
        (HARBOR, "instruction.md", " ", "instruction.md is empty"),
        (HARBOR, "tests/test.sh", None, "tests/test.sh is missing"),
        (HARBOR, "environment/Dockerfile", None, "environment/Dockerfile is missing (or environment.docker_image"),
        (HARBOR, "task.toml", "[verifier", "task.toml is not TOML"),
        (HARBOR, "task.toml", "[verifier]\ntimeout_sec = 'x'", "task.toml: verifier.timeout_sec: Expected `float`"),
        (HARBOR, "task.toml", "[verifier]\ntimeout_sec = -1", "task.toml: verifier.timeout_sec: Expected"),
        (HARBOR, "task.toml", "[environment]\nmemory = 'much'", "task.toml: environment.memory is 'much'"),
        (BENCH, "task.yaml", "difficulty: easy", "task.yaml: instruction is missing"),
        (BENCH, "task.yaml", "instruction: [", "task.yaml is not YAML"),
        (BENCH, "task.yaml", "instruction: 3", "task.yaml: instruction: Expected `str`"),
        (BENCH, "Dockerfile", None, "docker-compose.yaml is missing (or a Dockerfile)"),
        (BENCH, "tests/test_outputs.py", None, "neither tests nor run-tests.sh"),
        (ENDLESS, "instruction.md", None, "instruction.md is missing"),
        (ENDLESS, "Dockerfile", None, "container.def is missing (or a Dockerfile)"),
    ],
)
def test_wrong_folders_are_errors_with_file_and_field(
    tmp_path: Path, files: dict[str, str], name: str, text: str | None, words: str
):
    folder = write_files(tmp_path / "x", {n: t for n, t in (files | {name: text}).items() if t is not None})
    with pytest.raises(ConfigError) as caught:
        read_task_folder(folder)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("files", "name", "text", "reason"),
    [
        (HARBOR, "task.toml", "[[steps]]\nname = 'a'", "it has several steps"),
        (HARBOR, "environment/docker-compose.yaml", "services: {}", "it needs docker compose"),
        (HARBOR, "task.toml", "[environment]\ngpus = 1", "it needs a GPU"),
        (HARBOR, "task.toml", "[verifier]\nenv = {K = '${KEY}'}", "it needs the variable K of the driver"),
        (BENCH, "docker-compose.yaml", "services: {a: {}, b: {}}", "it needs 2 containers (docker compose)"),
        (BENCH, "docker-compose.yaml", "services: {client: {build: .}}", ""),
        (BENCH, "task.yaml", "instruction: x\nparser_name: swebench", "its tests report in the form 'swebench'"),
    ],
)
def test_tasks_that_cannot_be_run_have_a_reason(
    tmp_path: Path, files: dict[str, str], name: str, text: str, reason: str
):
    skip = read_task_folder(write_files(tmp_path / "x", files | {name: text})).skip
    assert skip.startswith(reason)
    assert bool(skip) is bool(reason)


def test_folders_are_found_at_any_depth(tmp_path: Path):
    write_files(tmp_path / "a/one", HARBOR)
    write_files(tmp_path / "b/c/two", BENCH)
    write_files(tmp_path / ".git/three", ENDLESS)
    assert [task.id for task in read_task_folders(tmp_path)] == ["one", "two"]
    assert [task.id for task in read_task_folders(tmp_path / "a/one")] == ["one"]


def test_two_tasks_of_one_name_no_task_and_no_folder(tmp_path: Path):
    write_files(tmp_path / "a/one", HARBOR)
    write_files(tmp_path / "b/one", HARBOR)
    with pytest.raises(ConfigError, match="are both named 'one'"):
        read_task_folders(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no task"):
        read_task_folders(tmp_path / "empty")
    with pytest.raises(ConfigError, match="there is no folder"):
        read_task_folders(tmp_path / "nothing")


def test_a_changed_test_is_another_task(tmp_path: Path):
    task = read_task_folder(write_files(tmp_path / "x", HARBOR))
    before = task.hash_files()
    assert task.hash_files() == before
    (tmp_path / "x/tests/data.txt").write_text("new")
    assert task.hash_files() != before
