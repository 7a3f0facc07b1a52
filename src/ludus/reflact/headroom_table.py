"""The result of `ludus headroom` on a terminal."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ludus.command.terminal import count_things, format_count, make_console, make_facts_table, make_text
from ludus.errors import StoreError
from ludus.reflact.gate import format_result
from ludus.reflact.headroom import describe_result

REPORT = "headroom.json"
_LIMITS = (
    "RL: estimated from few rollouts of each task, as if pass rates had a beta distribution; it needs weights that you "
    "can train. What is within reach is not promised."
)


def print_headroom(found: Mapping[str, Any] | None, out: Path) -> None:
    """Print the numbers and the advice; nothing if there are none yet."""
    if found is None:
        return
    console = make_console()
    table = make_facts_table()
    for name, words in _list_numbers(found):
        table.add_row(name, make_text(words))
    console.print(table)
    console.print(make_text(f"\n{found['advice']}", "bold"), soft_wrap=True)
    if found.get("choice_advice"):  # reports of earlier versions have none
        console.print(make_text(f"\n{found['choice_advice']}", "bold"), soft_wrap=True)
        console.print(make_text(f"{_LIMITS}", "dim"), soft_wrap=True)
    console.print(make_text(f"\n{out}   ludus show {shlex.quote(str(out))} TASK prints a transcript", "dim"))


def show_headroom(path: Path, state: str = "", *, as_json: bool) -> None:
    """Print a headroom run again. `state`: how it goes, if it is not finished."""
    found = read_headroom(path)
    if found is None:
        now = f"not finished ({state})" if state else "not finished"
        raise StoreError(f"{path}: the run is {now}; ludus headroom --resume --out {path}")
    if as_json:
        print(json.dumps({"run": str(path), "headroom": found}))
    else:
        print_headroom(found, path)


def read_headroom(path: Path) -> dict[str, Any] | None:
    """The report of a headroom run; None if it is not finished."""
    try:
        return json.loads((path / REPORT).read_text("utf-8"))
    except FileNotFoundError:
        return None


def _list_numbers(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    band = found["interval"]
    metric = found.get("metric", "hard")  # reports of earlier versions are about passed tasks
    interval = f" [{format_result(band['low'], metric)}, {format_result(band['high'], metric)}]" if band else ""
    of = "of" if metric == "hard" else "on"
    tasks = count_things(found["tasks"], "selection task")
    result = f"{describe_result(metric, found['score'])}{interval} {of} {tasks}"
    yield "initial skill", f"{result}, in two runs"
    if found["failed"]:
        yield "without a score", f"{found['failed']} of {found['rollouts']} rollouts"
    yield "A/A difference", f"{100 * found['difference']:+.0f} points; {found['changed']:.0%} of the tasks changed"
    yield "noise", f"two runs of the same skill differ by up to {100 * found['noise']:.0f} points (95 %)"
    yield "smallest gain", _describe_smallest(found)
    unit = "tasks" if found.get("passes") else "rollouts"
    needed = found["tasks_needed"]
    yield "for 5 points", f"about {needed} selection {unit}" if needed else "more selection tasks than anyone has"
    if found["hinted"] is not None:
        tasks = count_things(found["hints"], "train task")
        hinted, unhinted = format_result(found["hinted"], metric), format_result(found["unhinted"], metric)
        words = f"{hinted} {of} {tasks} with the reference as a hint, {unhinted} without"
        yield "upper bound", words
    else:
        yield "upper bound", "unknown: no train task has a reference in words, or hints are off"
    cost = found["training"]
    agent, optimizer = cost["agent"], cost["optimizer"]
    calls = f"{agent['calls']} rollouts ({format_count(agent['tokens'])} tokens)"
    yield "a training run", f"{calls}, {optimizer['calls']} replies of the optimizer"
    if weights := found.get("weights"):
        groups = f"{weights['groups']} groups of {weights['group_size']}"
        yield (
            "within reach of RL",
            f"{weights['reach']:.0%}: tasks that a group of {weights['group_size']} passes at times"
            + (f"; {weights['success_at']:.2f} counts as passed" if weights.get("success_at") is not None else ""),
        )
        yield "groups with spread", f"{weights['spread']:.0%}; RL learns nothing from the others"
        tokens = f"{format_count(weights['tokens'])} tokens"
        each = f"{format_count(weights['update_tokens'])} of them learned from in an update"
        yield "an RL run", f"{weights['rollouts']} rollouts ({weights['steps']} × {groups}), {tokens}, {each}"


def _describe_smallest(found: Mapping[str, Any]) -> str:
    smallest, passes = found["smallest_effect"], found.get("passes", 0)
    if smallest is None:
        return "none that there is room for can be shown by shipping"
    points = f"{100 * smallest:.0f} points can be shown by"
    return f"{points} shipping (80 % power, {passes} passes)" if passes else f"{points} one comparison (80 % power)"
