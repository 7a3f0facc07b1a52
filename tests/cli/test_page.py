"""`ludus show RUN --page`: a page of trajectories for every kind of run, in any state."""

import json
from pathlib import Path

import pytest
from tests.build import make_rollout, make_task
from tests.cli_kit import Ludus, script_flags, train_words, write_rules, write_sums

from ludus.run_info import keep_info, note_planned, open_info, read_info, write_info
from ludus.store import RunDir

RECORD = {"env": {"name": "sums.py"}, "model": {"type": "scripted"}}


def read_rows(page: Path) -> list[dict]:
    """The rows of groups in a page."""
    lines = page.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"schema"')]


def test_a_run_that_goes_on_says_how_far_it_is_and_has_a_page(ludus: Ludus, folder: Path):
    with RunDir.open(folder / "run", RECORD) as directory:
        open_info(directory, "evaluate")
        note_planned(directory, 4)
        for number in range(3):
            directory.put(f"key-{number}", make_rollout(1.0, "4", task=make_task(f"sum-{number}")))
        shown = ludus("show", "run")
        assert shown.code == 0 and shown.out.startswith("running, 3 of 4 rollouts\n")
        assert json.loads(ludus("show", "run", "--json").out)["state"] == "running, 3 of 4 rollouts"
        assert "3 of 4" in ludus("runs", ".").out
        done = ludus("show", "run", "--page")
    assert done.code == 0 and done.out.strip() == (folder / "run/trajectories.html").resolve().as_uri()
    page = folder / "run/trajectories.html"
    assert [row["task"]["id"] for row in read_rows(page)] == ["sum-0", "sum-1", "sum-2"]
    assert "running, 3 of 4 rollouts" in page.read_text() and [*folder.glob("run/.*.tmp")] == []


def test_a_killed_run_has_a_page(ludus: Ludus, folder: Path):
    with RunDir.open(folder / "run", RECORD) as directory:
        open_info(directory, "process")
        directory.put("key", make_rollout(1.0))
        info = read_info(folder / "run")
        assert info is not None
        write_info(directory, type(info)(kind="process", host=info.host, pid=2**22 + 1, born="1", planned=9))
    assert "killed, 1 of 9 rollouts" in ludus("show", "run").out
    assert ludus("show", "run", "--page").code == 0 and len(read_rows(folder / "run/trajectories.html")) == 1


@pytest.mark.parametrize("kind", ["gateway", "rl", "serve", "headroom"])
def test_every_kind_has_a_page(ludus: Ludus, folder: Path, kind: str):
    with RunDir.open(folder / "run", RECORD) as directory, keep_info(directory, kind):
        directory.put("key", make_rollout(1.0, "a reply"))
    done = ludus("show", "run", "--page", "--json")
    assert done.code == 0 and Path(json.loads(done.out)["page"]).name == "trajectories.html"
    (row,) = read_rows(folder / "run/trajectories.html")
    assert row.get("part") == ("m" if kind in ("rl", "headroom") else None)


def test_a_training_run_without_an_end_has_a_page(ludus: Ludus, folder: Path):
    write_rules(folder)
    assert ludus(*train_words("--out", "run", "--quiet", "--budget.calls", "20")).code == 3
    (folder / "run/trajectories.html").unlink()
    assert ludus("show", "run", "--page").code == 0
    assert "drained, " in ludus("show", "run").out
    assert {row["part"] for row in read_rows(folder / "run/trajectories.html")} >= {"baseline"}


def test_a_rescored_run_has_a_page(ludus: Ludus, folder: Path):
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "runs/a", *script_flags())
    assert ludus("rescore", "runs/a", "--out", "runs/b").code == 0
    assert ludus("show", "runs/b", "--page").code == 0 and len(read_rows(folder / "runs/b/trajectories.html")) == 4


def test_a_page_is_of_all_rollouts(ludus: Ludus, folder: Path):
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "run", *script_flags())
    done = ludus("show", "run", "sum-1", "--page")
    assert done.code == 2 and "--page shows every rollout" in done.err
