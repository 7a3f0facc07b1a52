"""The result of `ludus headroom` on a terminal."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ludus.cli.output.terminal import format_count, make_console, make_text
from ludus.errors import StoreError

REPORT = "headroom.json"


def print_headroom(found: Mapping[str, Any] | None, out: Path) -> None:
    """Print the numbers and the advice; nothing if there are none yet."""
    if found is None:
        return
    from rich.table import Table

    console = make_console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, words in _list_numbers(found):
        table.add_row(name, make_text(words))
    console.print(table)
    console.print(make_text(f"\n{found['advice']}", "bold"), soft_wrap=True)
    console.print(make_text(f"\n{out}   ludus show {shlex.quote(str(out))} TASK prints a transcript", "dim"))


def show_headroom(path: Path, *, as_json: bool) -> None:
    """Print a headroom run again."""
    try:
        text = (path / REPORT).read_text("utf-8")
    except FileNotFoundError:
        raise StoreError(f"{path}: the run is not finished; ludus headroom --resume --out {path}") from None
    if as_json:
        print(json.dumps({"run": str(path), "headroom": json.loads(text)}))
    else:
        print_headroom(json.loads(text), path)


def _list_numbers(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    band = found["interval"]
    interval = f" [{band['low']:.0%}, {band['high']:.0%}]" if band else ""
    yield "initial skill", f"passes {found['score']:.0%}{interval} of {found['tasks']} selection tasks, in two runs"
    if found["failed"]:
        yield "without a score", f"{found['failed']} of {found['rollouts']} rollouts"
    yield "A/A difference", f"{100 * found['difference']:+.0f} points; {found['changed']:.0%} of the tasks changed"
    yield "noise", f"two runs of the same skill differ by up to {100 * found['noise']:.0f} points (95 %)"
    yield "smallest gain", f"{100 * found['smallest_effect']:.0f} points can be shown by one comparison (80 % power)"
    yield "for 5 points", f"about {found['tasks_needed']} selection rollouts"
    if found["hinted"] is not None:
        tasks = f"{found['hints']} train tasks"
        words = f"{found['hinted']:.0%} of {tasks} with the reference as a hint, {found['unhinted']:.0%} without"
        yield "upper bound", words
    else:
        yield "upper bound", "unknown: no train task has a reference in words, or hints are off"
    cost = found["training"]
    agent, optimizer = cost["agent"], cost["optimizer"]
    calls = f"{agent['calls']} rollouts ({format_count(agent['tokens'])} tokens)"
    yield "a training run", f"{calls}, {optimizer['calls']} replies of the optimizer"
