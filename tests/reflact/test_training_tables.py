"""A training run on a terminal."""

import time
from io import StringIO
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    train_words,
    write_rules,
)

from ludus.reflact.gate import Gate
from ludus.reflact.journal import StageProgress
from ludus.reflact.records import Step
from ludus.reflact.training_run import read_records
from ludus.reflact.training_tables import TrainingBar, describe_stage
from ludus.store import RunDir

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_rules(folder)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_where_the_run_is(ludus: Ludus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    ludus(*train_words("--out", "run", "--quiet"))
    with RunDir.read(Path("run")) as run:
        records = list(read_records(run))
    screen = Terminal()
    with TrainingBar(Gate(), steps=4, rollouts=50, file=screen) as bar:
        bar.record(records[0], quiet=True)
        bar(StageProgress(1, 1, "rollout", 1, 3), "")
        bar(StageProgress(1, 1, "analyst", 1, 0), "")
        time.sleep(0.11)
        bar(StageProgress(1, 1, "rollout", 2, 3), "120 tokens, $0.01 of $2.00")
        bar.record(next(record for record in records if isinstance(record, Step)))
    shown = screen.getvalue()
    for words in ("8/50", "step 1/4 rollout 2/3", "best 0", "$0.01 of $2.00", "left", "accept new best"):
        assert words in shown


def test_a_stage_in_words():
    assert describe_stage(StageProgress(1, 2, "rollout", 3, 8), 4) == "step 2/4 rollout 3/8"
    assert describe_stage(StageProgress(0, 0, "baseline", 5, 0), 4) == "baseline 5"


def test_steps_of_the_ledger_show_lines_and_no_gate(ludus: Ludus):
    done = ludus("train", "--config", "lines.yaml", "--out", "run")
    head = next(line for line in done.out.splitlines() if line.startswith("step  epoch"))
    assert head.split() == ["step", "epoch", "decision", "changes", "lines", "working", "alive", "train"]
    gated = ludus(*train_words("--out", "other")).out
    assert "candidate" in gated and "lines working" not in gated


def test_a_run_in_which_all_scores_are_equal_says_that_there_was_nothing_to_learn_from(ludus: Ludus, folder: Path):
    (folder / "deaf.py").write_text("def agent(messages, tools, sampling):\n    return 'no idea'\n")
    done = ludus("train", "--config", "lines.yaml", "--model.script", "deaf.py:agent", "--out", "run")
    assert "every train rollout scores 0: nothing shows what helps" in done.out
    assert "every train rollout scores 0" in ludus("show", "run").out


def test_what_is_wrong_with_replies_and_silence_is_said_while_it_runs_and_at_the_end(ludus: Ludus):
    Path("mute.py").write_text(
        "def reply(messages, tools, sampling):\n    return 'I would rather not.'\n"
        'def name_nothing(messages, tools, sampling):\n    return \'{"rollouts": [], "items": []}\'\n'
    )
    train = ("train", "--config", "lines.yaml", "--train.epochs", "12", "--optimizer.script")
    done = ludus(*train, "mute.py:reply", "--out", "mute")
    assert "1 reply unusable (it holds no JSON object)" in done.err
    assert "\n  warning: after 3 steps the analysts have named no situation" in done.err
    done = ludus(*train, "mute.py:name_nothing", "--out", "nothing")
    assert "warning: the optimizer has named no situation" in done.out and "--replies" in done.out
    assert "has named no situation" in ludus("show", "nothing").out
