"""`ludus show RUN --lines`: each line of a skill, with its situation, the evidence and its history."""

import json
import textwrap
from collections.abc import Iterator, Sequence

from ludus.command.terminal import make_console, make_text
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.report.line_histories import (
    LineHistory,
    RolloutPlace,
    collect_histories,
    describe_event,
    describe_situation,
    describe_worth,
)
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_records
from ludus.store import RunDir

_SHOWN = 8
"""The number of rollouts that are listed. Further ones are only counted; --json has all of them."""
_COLOURS = {"working": "green", "waiting": "yellow", "retired": "red"}


def show_lines(run: RunDir, settings: TrainSettings, *, as_json: bool) -> None:
    """Print the lines of a run, finished or not."""
    if settings.recipe != "ledger":
        raise ConfigError(
            f"--lines: {run.path} has no evidence for single lines; only the recipe `ledger` collects it "
            "(--train.recipe ledger)"
        )
    histories = collect_histories(list(read_records(run)), settings.ledger.tuning)
    if as_json:
        lines = [{**json.loads(to_json(history)), "status": history.status} for history in histories]
        print(json.dumps({"run": str(run.path), "lines": lines}, ensure_ascii=False))
        return
    print_lines(histories)


def print_lines(histories: Sequence[LineHistory]) -> None:
    """Print each line with the evidence for and against it."""
    console = make_console()
    if not histories:
        console.print("no line has been proposed yet")
        return
    for history in histories:
        head = f"{history.line.id}  {history.status}: {describe_worth(history)}"
        console.print(make_text(head, _COLOURS[history.status]), soft_wrap=True)
        for text in _list_facts(history):
            console.print(make_text(text), soft_wrap=True)
        console.print()
    counts = {status: sum(history.status == status for history in histories) for status in _COLOURS}
    console.print(make_text(", ".join(f"{count} {status}" for status, count in counts.items()), "dim"))


def _list_facts(history: LineHistory) -> Iterator[str]:
    line = history.line
    content = line.edit.content.strip() or f"({line.edit.op}) {line.edit.target}".rstrip()
    yield textwrap.indent(content, "    ")
    if line.edit.path:
        yield f"    file       {line.edit.path}"
    if not line.passage:
        yield f"    situation  {line.situation}: {describe_situation(history.situation)}"
        yield f"    for        {list_rollouts(history.evidence_for)}"
        yield f"    against    {list_rollouts(history.evidence_against)}"
    yield f"    suspected  {list_rollouts(history.suspected)}"
    yield f"    rollouts   {history.passed} of {history.rollouts} with it passed"
    if history.events:
        yield "    history    " + f"\n{' ' * 15}".join(map(describe_event, history.events))


def list_rollouts(places: Sequence[RolloutPlace]) -> str:
    """Rollouts by step and task, for `ludus show RUN TASK`."""
    if not places:
        return "nothing"
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return f"{len(places)}: " + ", ".join(f"{place.task} (step {place.step})" for place in places[:_SHOWN]) + more
