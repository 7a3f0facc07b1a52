"""Parts of `bench/real.py` and its tasks. Figures of the model are not asserted."""

import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.build import make_rollout

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "real_tasks")]  # the benchmarks are scripts, not a package

import functions  # noqa: E402
import guests  # noqa: E402
import real as bench  # noqa: E402
import shop  # noqa: E402
import tickets  # noqa: E402
from splits import SIZES  # noqa: E402

ENVS = [tickets.Tickets(), guests.Guests(), functions.Functions(), shop.Shop()]


@pytest.mark.parametrize("env", ENVS, ids=lambda env: env.name)
def test_the_splits_are_apart_and_the_same_each_time(env: tickets.Tickets):
    ids = {split: [task.id for task in env.tasks(split)] for split in SIZES}
    assert {split: len(found) for split, found in ids.items()} == SIZES
    every = [id for found in ids.values() for id in found]
    assert len(set(every)) == len(every)
    assert ids == {split: [task.id for task in env.tasks(split)] for split in SIZES}


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT COUNT(*) FROM orders WHERE customer = 'nobody'", "0"),
        ("SELEC", 'Error: near "SELEC": syntax error'),
        ("DELETE FROM orders", "Error: attempt to write a readonly database"),
        ("SELECT * FROM orders WHERE 0", "(no rows)"),
    ],
)
def test_the_shop_answers_queries_and_stays_as_it_is(sql: str, answer: str):
    assert shop.run_query(sql) == answer


def test_a_query_without_end_is_stopped_and_many_rows_are_cut():
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"
    assert shop.run_query(endless) == "Error: interrupted"
    assert shop.run_query("SELECT id FROM orders").endswith("20\n(more rows)")


async def test_one_team_is_named_or_the_answer_is_wrong():
    env = tickets.Tickets()
    task = next(iter(env.tasks("dev")))

    async def score(answer: str) -> float:
        return (await env.verify(make_rollout(0.0, answer, task=task), None)).value

    assert await score(f"{task.answer.capitalize()}.") == 1.0
    assert await score(", ".join(tickets.TEAMS)) == 0.0


def make_result(scores: dict[str, float], skill: str = bench.INITIAL) -> dict[str, object]:
    return {"scores": {task: [score] for task, score in scores.items()}, "skill": skill}


def keep(out: Path, name: str, result: dict[str, object]) -> None:
    (out / name).mkdir(parents=True)
    bench.keep_result(out, out / "kept.jsonl", bench.Cell(*name.split("/")), result)  # type: ignore[arg-type]


def test_one_environment_is_complete_before_the_next_and_all_before_the_next_seed():
    names = [cell.name for cell in bench.list_cells(())]
    arms, envs = len(bench.ARMS), len(bench.ENVS)
    assert len(names) == len(set(names)) == arms * envs * len(bench.SEEDS)
    assert names[:arms] == [f"tickets/1/{arm}" for arm in bench.ARMS]
    assert {name.split("/")[1] for name in names[: arms * envs]} == {"1"}
    assert [cell.name for cell in bench.list_cells(["shop/2/l"])] == ["shop/2/ledger"]


def test_the_report_has_what_was_run_paired_with_the_initial_skill():
    tasks = [f"t{n}" for n in range(20)]
    results = {
        "tickets/1/initial": make_result(dict.fromkeys(tasks, 0.0)),
        "tickets/1/ledger": make_result({task: float(n % 2) for n, task in enumerate(tasks)}, "Other."),
        "shop/1/gepa": make_result(dict.fromkeys(tasks, 1.0)),  # there is nothing to pair it with
    }
    table, sentence = bench.render_report(results)
    assert sentence == f"3 of {len(bench.list_cells(()))} cells were run, 2 of them trainings"
    assert "gepa" not in table
    (row,) = [line for line in table.splitlines() if "ledger" in line]
    assert "50.0%" in row and "+50 points [+" in row and "1 of 1" in row


@pytest.mark.parametrize("lost", ["kept.jsonl", "tickets/1/initial/result.json"])
def test_a_cell_that_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str):
    def serve(*_: object) -> None:
        raise AssertionError("the model was started")

    monkeypatch.setattr(bench, "serve_model", serve)
    keep(tmp_path, "tickets/1/initial", make_result({"a": 1.0}))
    (tmp_path / lost).unlink()
    bench.run_cells([bench.Cell("tickets", 1, "initial")], tmp_path, 10, Namespace(kept=tmp_path / "kept.jsonl"))
    results = bench.read_results(tmp_path, tmp_path / "kept.jsonl")
    assert results["tickets/1/initial"]["scores"] == {"a": [1.0]}


def test_the_results_of_all_sessions_are_read_and_those_of_this_folder_come_first(tmp_path: Path):
    kept = tmp_path / "kept.jsonl"
    for out, score in (("first", 0.0), ("second", 1.0)):
        (tmp_path / out / "tickets/1/initial").mkdir(parents=True)
        bench.keep_result(tmp_path / out, kept, bench.Cell("tickets", 1, "initial"), make_result({"a": score}))
    assert bench.read_results(None, kept)["tickets/1/initial"]["scores"] == {"a": [1.0]}
    assert bench.read_results(tmp_path / "first", kept)["tickets/1/initial"]["scores"] == {"a": [0.0]}


def test_seconds_of_sessions_add_up_also_of_one_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 40.0, 100.0, 107.0, 107.0])
    monkeypatch.setattr(bench, "time", SimpleNamespace(time=lambda: next(times)))
    with pytest.raises(bench.TimeIsUp), bench.count_seconds(tmp_path / "seconds"):
        raise bench.TimeIsUp
    with bench.count_seconds(tmp_path / "seconds") as spent:
        assert spent() == 47


def test_the_committed_results_are_of_cells_that_exist():
    names = {cell.name for cell in bench.list_cells(())}
    results = bench.read_results(None, bench.KEPT)
    assert results.keys() <= names
    assert all(len(result["scores"]) == SIZES["test"] for result in results.values())


def test_only_its_own_part_of_the_page_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr(bench, "PAGE", page)
    page.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    bench.write_page("new")
    assert page.read_text() == f"before\n{bench.BEGIN}\n\nnew\n\n{bench.END}\nafter\n"
    page.write_text("no part")
    with pytest.raises(bench.CommandFailed, match="has no part between"):
        bench.write_page("new")
