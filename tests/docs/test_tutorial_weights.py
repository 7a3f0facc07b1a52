"""docs/tutorial-weights.md: its settings everywhere, and its commands in order where PyTorch is installed."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import yaml
from tests.cli_kit import Ludus, write_sums
from tests.docs_kit import ROOT, read_blocks, read_commands, read_files

PAGE = (ROOT / "docs" / "tutorial-weights.md").read_text()
COMMANDS = read_commands(PAGE, "sh")
FURTHER = [command for command in read_commands(PAGE, "bash") if not command.startswith("ludus api")]
"""Commands with models and servers of the reader's own."""
TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the files of the page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.yaml").write_text(read_files(PAGE)["weights.yaml"])
    return tmp_path


def test_the_settings_are_those_of_the_demo():
    demo = yaml.safe_load((ROOT / "configs" / "rl-demo.yaml").read_text())
    assert yaml.safe_load(read_files(PAGE)["weights.yaml"]) == demo


def test_the_dry_run_prints_what_the_page_shows(folder: Path, ludus: Ludus):
    (command,) = [command for command in COMMANDS if "--dry-run" in command]
    code, out, err = ludus(*shlex.split(command)[1:])
    assert code == 0, err
    assert read_blocks(PAGE, "")[0].text.strip() in out


@pytest.mark.parametrize("command", FURTHER, ids=[re.sub(r"\s+", " ", command)[:60] for command in FURTHER])
def test_the_settings_of_further_commands_are_valid(command: str, folder: Path, ludus: Ludus):
    write_sums(folder)
    (folder / "sums.py").rename(folder / "my_env.py")
    code, _, err = ludus(*shlex.split(command)[1:], "--print-config")
    assert code == 0, err


@pytest.mark.skipif(not TORCH, reason="the extra 'rl' is not installed: make test-trainers")
def test_a_reader_follows_the_page(folder: Path, ludus: Ludus):
    """With two steps of few rollouts, and a policy that has seen almost nothing."""
    from tests.torch_kit import make_folder

    settings = yaml.safe_load((folder / "weights.yaml").read_text())
    settings["rl"] |= {
        "steps": 2,
        "groups": 2,
        "group_size": 4,
        "eval_every": 2,
        "eval_limit": 4,
        "equal_scores": "send",
    }
    settings["trainer"] |= {"weights": str(make_folder()), "parser": "pythonic", "threads": 1, "kl": 0.1}
    (folder / "weights.yaml").write_text(yaml.safe_dump(settings))
    for command in COMMANDS:
        if command.startswith("ludus ") and "--dry-run" not in command:
            code, out, err = ludus(*shlex.split(command.replace("--rl.steps 60", "--rl.steps 3"))[1:])
            assert code == 0, f"{command}\n{out}\n{err}"
    run = folder / "runs" / "weights"
    named = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", PAGE, re.M)
    for name in re.findall(r"`([\w./]+)`", " ".join(named)):
        assert (run / name).exists() or name == "runs/weights", f"the page names {name}"
    assert (folder / "rows.jsonl").read_text().count("\n") > 0
