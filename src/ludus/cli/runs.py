"""`ludus runs`: the runs of a folder: what each is, how it goes, and its score.

A run says what it is in its `run.json`. Runs of 0.1 have none: their kind is guessed from their settings, and how they
ended is not known.
"""

import math
import time
from pathlib import Path
from typing import Any

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, Command
from ludus.command.terminal import format_duration, format_number, make_console, make_table, make_text
from ludus.config.secrets import find_view_folder
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.view.model import RunCard
from ludus.view.run_folder import RunFolder


class RunsArguments(Arguments):
    folder: str


def run(arguments: RunsArguments) -> int:
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name one that has runs, as in: ludus runs DIR")
    rows = list_cards(folder)
    if arguments.json:
        print(to_json([_add_name(card) for card in rows]).decode())
    elif not rows:
        print(f"{folder}: no runs yet. For example: ludus evaluate gsm8k --out {folder}/first")
    else:
        _print_rows(rows)
    return 0


def list_cards(folder: Path) -> list[RunCard]:
    """The runs of a folder, the oldest first."""
    with RunFolder([folder], find_view_folder()) as runs:
        cards = runs.list_cards(wait=math.inf)
    own = [msgspec.structs.replace(card, id=str(folder)) if Path(card.path) == folder else card for card in cards]
    return sorted(own, key=lambda card: card.started)


def _add_name(card: RunCard) -> dict[str, Any]:
    """A card for scripts: `run` is its name, as ever."""
    return {"run": card.id, **msgspec.to_builtins(card)}


def _print_rows(rows: list[RunCard]) -> None:
    console, now = make_console(), time.time()
    names = ("run", "kind", "state", "env", "model", "rollouts", "score", "age")
    table = make_table(*names, whole=(1, 2, 7))
    for row in rows:
        cells = (row.id, row.kind, row.state or "(0.1)", row.env, row.model, _format_rollouts(row))
        age = format_duration(max(0.0, now - row.started))
        table.add_row(*(make_text(cell) for cell in cells), make_text(_format_score(row)), age)
    console.print(table)
    for row in rows:
        if row.suspects:
            without = "none" if row.mean_without_suspects is None else format_number(row.mean_without_suspects)
            words = f"{row.id}: {row.suspects} rollouts are suspect; mean {without} without them"
            console.print(make_text(words, "magenta"), soft_wrap=True)
        if row.message:
            console.print(make_text(f"{row.id}: {row.message}", "dim"), soft_wrap=True)


def _format_rollouts(row: RunCard) -> str:
    counted = f"{row.rollouts} of {row.planned}" if row.rollouts < row.planned else str(row.rollouts)
    return counted if row.scored == row.rollouts else f"{counted}, {row.scored} scored"


def _format_score(row: RunCard) -> str:
    if row.score is None:
        return ""
    return format_number(row.score) + ("" if row.measure == "mean" else f" {row.measure}")


COMMAND = Command(
    run,
    "ludus runs                  # those in ./runs\nludus runs /data/runs --json",
    (make_argument("folder", metavar="DIR", nargs="?", default="runs", help="a folder of runs; default: runs"), JSON),
    RunsArguments,
)
