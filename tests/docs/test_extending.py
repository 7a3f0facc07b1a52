"""Every example of docs/extending.md runs as the page says."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.worker_kit import COINS, TrajectoryServer, serve_in_thread

from ludus.config.references import SEAMS

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))
COMMANDS = re.findall(r"```sh\n(.*?)\n```", PAGE, re.S)
ORDER = ["env", "model", "tool", "backend", "parser", "agent", "proposer", "rule", "tracker", "source"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user")
    for name, code in FILES.items():
        (path / name).write_text(code)
    return path


def run_example(folder: Path, number: int, more: str = "") -> str:
    """Run the command of an example. Returns its output."""
    command = COMMANDS[number].replace("ludus ", f"{Path(sys.executable).with_name('ludus')} ") + more
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_an_example_of_each_seam():
    assert list(FILES) == [f"my_{name}.py" for name in ORDER]
    assert len(COMMANDS) == len(SEAMS) == len(ORDER)
    table = re.findall(r"^\| \[.*?\n", PAGE, re.M)
    for seam in SEAMS:
        (row,) = [row for row in table if f"`{seam.group}`" in row]
        assert f"`{seam.setting}`" in row


def test_an_environment(folder: Path):
    assert "5" in run_example(folder, 0)


def test_a_model(folder: Path):
    overall = json.loads(run_example(folder, 1, " --json --out model-run"))["summary"]["overall"]
    assert overall["rollouts"] == 3
    assert overall["mean"] == pytest.approx(2 / 3)


def test_a_tool(folder: Path):
    run_example(folder, 2, " --out tool-run")
    for line in (folder / "tool-run" / "samples.jsonl").read_text().splitlines():
        provenance = json.loads(line)["provenance"]
        assert (provenance["toolsets"], provenance["tools"]) == (["my_tool.py:double"], ["double"])


def test_a_sandbox_backend(folder: Path):
    assert run_example(folder, 3) == "good morning"


def test_a_parser(folder: Path):
    reply = json.loads(run_example(folder, 4))
    assert reply["content"] == "Sure."
    assert reply["tool_calls"] == [{"name": "add", "arguments": {"a": 1}}]


def test_an_agent(folder: Path, bwrap_problem: str):
    if bwrap_problem:
        pytest.skip(bwrap_problem)
    assert json.loads(run_example(folder, 5, " --json --out agent-run"))["summary"]["overall"]["mean"] == 1.0


def test_a_proposer(folder: Path):
    report = json.loads(run_example(folder, 6, " --json --out proposer-run"))
    assert report["status"] == "completed"
    assert "Think twice." in (folder / "proposer-run" / "steps.jsonl").read_text()


def test_a_gate_rule(folder: Path):
    assert json.loads(run_example(folder, 7, " --json --out rule-run"))["status"] == "completed"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of an installed package with all files of the page, and what it registers."""
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    package, metadata = tmp_path / "my_package", tmp_path / "my_package-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    for name, code in FILES.items():
        (package / name).write_text(code)
    (package / "__init__.py").touch()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    groups = tomllib.loads(toml)["project"]["entry-points"]
    entries = [f"[{group}]\n{name} = {place}\n" for group, names in groups.items() for name, place in names.items()]
    (metadata / "entry_points.txt").write_text("".join(entries))
    return tmp_path


def test_a_source(package: Path):
    command = COMMANDS[9].replace("ludus ", f"PYTHONPATH={package} {Path(sys.executable).with_name('ludus')} ")
    done = subprocess.run(f"{command} --json", shell=True, cwd=package, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["overall"]["rollouts"] == 2


def test_a_package_registers_its_classes(package: Path):
    (package / "settings.yaml").write_text("env: {name: doubling, size: 2}\nmodel: {type: calculator}\n")
    commands = [
        "evaluate doubling --model.type calculator --json --out a",
        "process --config settings.yaml --json --out b",
        "envs",
    ]
    ludus = f"PYTHONPATH={package} {Path(sys.executable).with_name('ludus')}"
    printed: list[str] = []
    for command in commands:
        done = subprocess.run(
            f"{ludus} {command}", shell=True, cwd=package, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert json.loads(printed[0])["summary"]["overall"]["mean"] == 1.0
    assert len((package / "b" / "groups.jsonl").read_text().splitlines()) == 2
    assert "installed: doubling" in printed[2]


def test_a_tracker(folder: Path):
    """Beside a trajectory server, and with a model that answers with exact tokens."""
    (folder / "coins.py").write_text(f"import sys\n\nsys.path.append({str(Path(__file__).parents[2])!r})\n{COINS}")
    with serve_in_thread(TrajectoryServer(num_steps=2)) as url:
        flags = f" --server {url} --model.type coins.py:Counted --serve.equal_scores send --out tracker-run"
        run_example(folder, 8, flags)
    lines = (folder / "tracker-run" / "notebook.txt").read_text().splitlines()
    assert "'train/items_sent_to_api': " in lines[0] and "train/rollouts" not in lines[0]
