"""The comparison of runs on a terminal."""

import io

from rich.console import Console
from tests.build import make_group, make_task
from tests.cli_kit import print_to_text

from ludus.batch.comparison_table import print_comparison
from ludus.comparison import ComparedRun, PairComparison, RunComparison, compare_runs
from ludus.stats import Interval
from ludus.types import Usage


def make_comparison(dollars: float) -> RunComparison:
    run = ComparedRun(
        name="one",
        model="[small]",
        mean=0.5,
        interval=Interval(0.25, 0.75),
        tasks=9,
        rollouts=18,
        excluded=1,
        usage=Usage(20_000, 400, 0, dollars),
        median_seconds=90.0,
    )
    pair = PairComparison(
        first="one",
        second="two",
        tasks=9,
        difference=-0.125,
        interval=Interval(-0.2, -0.05),
        won=1,
        lost=4,
        tied=4,
        changed=2,
        usage_first=Usage(300, 0, 0, dollars),
        usage_second=Usage(100, 0, 0, dollars / 2),
    )
    return RunComparison((run,), (pair,))


def test_a_line_for_each_run_and_for_each_pair():
    text = print_to_text(print_comparison, make_comparison(dollars=0.5))
    assert "[small]" in text and "[0.25, 0.75]" in text and "1 of 18 rollouts have no score" in text
    assert "$0.5000" in text and "1.5 min" in text
    assert "-0.125" in text and "[-0.2, -0.05]" in text and "2.00×" in text
    assert "one, two: 2 tasks of the same id ask something else: not compared" in text


def test_without_prices_cost_is_in_tokens():
    text = print_to_text(print_comparison, make_comparison(dollars=0.0))
    assert "20.4k tokens" in text and "3.00× tokens" in text


def test_names_that_do_not_fit_80_columns_are_letters_in_the_table_of_pairs():
    names = ["a-run-with-a-very-long-name", "another-run-with-a-long-name"]
    groups = [make_group(float(n > 1), task=make_task(f"task-{n}")) for n in range(8)]
    others = [make_group(0.0, task=make_task(f"task-{n}")) for n in range(8)]
    comparison = compare_runs(dict(zip(names, (groups, others), strict=True)))
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_comparison(comparison, console)
    text = console.file.getvalue()  # pyright: ignore
    tables = text.partition("\n\na-run")[0].splitlines()
    assert all(len(line) <= 80 for line in tables) and "…" not in text
    assert any(line.split()[:3] == ["A", "B", "+0.750"] for line in tables)
    assert "a-run-with-a-very-long-name won: task-2 (1 : 0)" in text
    assert text.rstrip().endswith("on 8 tasks: 6 won, 0 lost, 2 tied.")
