"""Settings that a command does not use."""

from pathlib import Path

import pytest
from tests.cli_kit import Ludus, script_flags, write_sums

from ludus.cli.commands import COMMANDS
from ludus.cli.unused_sections import is_used
from ludus.config import Config, to_yaml
from ludus.config.tree import SECTIONS

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


@pytest.mark.parametrize("listing", COMMANDS, ids=lambda each: each.name)
def test_a_command_that_takes_settings_says_which_ones(listing):
    command = listing.load()
    assert bool(command.uses) == command.takes_settings
    assert {path.partition(".")[0] for path in command.uses} <= SECTIONS.keys()


def test_every_section_is_used_by_a_command():
    used = frozenset[str]().union(*(listing.load().uses for listing in COMMANDS))
    assert [name for name in SECTIONS if not is_used(name, used)] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "sums.py", "--serve.steps", "3"], "has no effect on `ludus evaluate`: it is for serve"),
        (["evaluate", "sums.py", "--budget.rollouts", "3"], "it is for train, audit-skill, headroom, review"),
        (["process", "sums.py", "--train.epochs", "3"], "it is for train, audit-skill, headroom, review"),
        (["train", "sums.py", "--rl.steps", "3"], "it is for headroom, rl"),
        (["headroom", "sums.py", "--tracking.use", "x"], "it is for evaluate, process, batch, train, sleep, serve, rl"),
        (["rl", "sums.py", "--model.name", "x"], "--model.name has no effect on `ludus rl`"),
        (["validate", "sums.py", "--model.name", "x"], "--model.name has no effect on `ludus validate`"),
        (["api", "--serve.steps", "3"], "--serve.steps has no effect on `ludus api`"),
    ],
)  # fmt: skip
def test_a_flag_without_effect_is_refused(ludus: Ludus, words: list[str], message: str):
    refused = ludus(*words)
    assert refused.code == 2
    assert message in refused.err


def test_what_a_file_has_for_other_commands_is_named(ludus: Ludus):
    sections = ["optimizer: {name: x}", "budget: {calls: 9, rollouts: 3}", "serve: {steps: null}", "api:"]
    Path("shared.yaml").write_text("\n".join(sections))
    done = ludus("evaluate", "sums.py", *script_flags(), "--config", "shared.yaml", "--out", "run", "--quiet")
    assert done.code == 0
    assert "shared.yaml: `ludus evaluate` does not use optimizer, budget.rollouts\n" in done.err


def test_a_file_with_all_defaults_is_taken_without_a_word(ludus: Ludus):
    tree = to_yaml(Config()).replace("type: embedded", 'type: scripted\n  script: "models.py:right"')
    lines = [line for line in tree.splitlines() if line.strip().partition(":")[0] not in ("weights", "threads")]
    Path("all.yaml").write_text("\n".join(lines[: lines.index("model:")] + lines[lines.index("sampling:") :]))
    done = ludus("evaluate", "sums.py", "--config", "all.yaml", *script_flags(), "--out", "run", "--quiet")
    assert (done.code, done.err) == (0, "")


def test_a_judge_is_refused_where_none_is_asked(ludus: Ludus):
    refused = ludus("evaluate", "sums.py", *script_flags(), "--judge.name", "j", "--judge.base_url", "http://h/v1")
    assert refused.code == 2
    assert "--judge.name has no effect: no model judges the rollouts of sums" in refused.err


def test_print_config_puts_settings_for_any_command_together(ludus: Ludus):
    printed = ludus("evaluate", "sums.py", "--train.epochs", "3", "--print-config")
    assert printed.code == 0 and "epochs: 3" in printed.out
