"""`ludus runs`: the runs of a folder: what each is, how it goes, and its score.

A run says what it is in its `run.json`. Runs of 0.1 have none: their kind is guessed from their settings, and how they
ended is not known.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ludus.arguments import Arguments, make_argument
from ludus.batch import SUMMARY
from ludus.command import JSON, Command
from ludus.command.terminal import format_duration, format_number, make_console, make_table, make_text
from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.run_info import ONE_POLICY, find_kind, read_info, read_state
from ludus.store import CONFIG, RunDir

DEPTH = 3
"""How many folders deep runs are looked for: `evaluate --models` puts several into one folder."""


class RunsArguments(Arguments):
    folder: str


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the list."""

    run: str
    kind: str
    state: str
    """running, finished, drained, failed or killed; empty for a run of 0.1."""
    message: str = ""
    env: str = ""
    model: str = ""
    rollouts: int = 0
    scored: int = 0
    planned: int = 0
    """How many rollouts it has when it is complete; 0: not known."""
    mean: float | None = None
    """Of all scored rollouts; of runs with one policy only."""
    score: float | None = None
    """The number that says most about the run: the mean, or what training has reached."""
    measure: str = ""
    """What `score` is: mean, test, selection, held out or reward."""
    suspects: int = 0
    """Rollouts whose verdict the agent may have changed, of runs with a summary."""
    mean_without_suspects: float | None = None
    started: float = 0.0
    ended: float = 0.0
    version: str = ""
    parent: str = ""


def run(arguments: RunsArguments) -> int:
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name one that has runs, as in: ludus runs DIR")
    rows = sorted((read_row(path, folder) for path in find_runs(folder)), key=lambda row: row.started)
    if arguments.json:
        print(to_json(rows).decode())
    elif not rows:
        print(f"{folder}: no runs yet. For example: ludus evaluate gsm8k --out {folder}/first")
    else:
        _print_rows(rows)
    return 0


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories in a folder. A run has no runs within it."""
    if (folder / CONFIG).is_file():
        yield folder
    elif depth:
        for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            yield from find_runs(path, depth - 1)


def read_row(path: Path, folder: Path) -> RunRow:
    """What is known of a run without reading its rollouts. A run that cannot be read says why."""
    name = str(path) if path == folder else str(path.relative_to(folder))
    try:
        with RunDir.read(path) as directory:
            info, kind = read_info(path), find_kind(directory)
            rollouts, scored, mean = directory.measure_scores()
            mean = mean if kind in ONE_POLICY else None
            reached = RunScore(mean, "mean") if mean is not None else _find_reached(directory, kind)
            env, model = _name_parts(directory.config)
    except StoreError as error:
        return RunRow(run=name, kind="", state="failed", message=str(error))
    row = RunRow(
        run=name,
        kind=kind,
        state="",
        rollouts=rollouts,
        scored=scored,
        mean=mean,
        score=reached.value,
        measure=reached.measure if reached.value is not None else "",
        **_read_suspects(path),
        started=(path / CONFIG).stat().st_mtime,
        env=env,
        model=model,
    )
    if info is None:
        return row
    return msgspec.structs.replace(
        row,
        state=read_state(info),
        message=info.message,
        started=info.started,
        ended=info.ended,
        version=info.version,
        parent=info.parent,
        planned=info.planned,
    )


class RunScore(NamedTuple):
    """What a run has reached, and what that number is."""

    value: float | None
    measure: str = ""


def _find_reached(directory: RunDir, kind: str) -> RunScore:
    """What a training run has reached so far."""
    if kind == "train":
        from ludus.reflact.training_tables import find_reached_score  # only training needs these modules

        return RunScore(*find_reached_score(directory))
    if kind == "rl":
        from ludus.rl.rl_tables import find_reached_reward

        return RunScore(*find_reached_reward(directory))
    if kind == "headroom":
        from ludus.reflact.headroom_table import read_headroom

        return RunScore((read_headroom(directory.path) or {}).get("score"), "selection")
    return RunScore(None)


class _OverallFile(Struct, frozen=True):
    suspects: int = 0
    mean_without_suspects: float | None = None


class _SummaryFile(Struct, frozen=True):
    overall: _OverallFile = _OverallFile()


def _read_suspects(path: Path) -> dict[str, Any]:
    """What the summary of a batch says about suspects; nothing if there is none."""
    try:
        found = msgspec.json.decode((path / SUMMARY).read_bytes(), type=_SummaryFile).overall
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return {}
    return msgspec.structs.asdict(found)


def _name_parts(recorded: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the environment and of the model."""
    env: dict[str, Any] = recorded.get("env") or {}
    model: dict[str, Any] = recorded.get("model") or recorded.get("trainer") or {}
    return str(env.get("name", "")), str(model.get("name") or model.get("type") or "")


def _print_rows(rows: list[RunRow]) -> None:
    console, now = make_console(), time.time()
    names = ("run", "kind", "state", "env", "model", "rollouts", "score", "age")
    table = make_table(*names, whole=(1, 2, 7))
    for row in rows:
        cells = (row.run, row.kind, row.state or "(0.1)", row.env, row.model, _format_rollouts(row))
        age = format_duration(max(0.0, now - row.started))
        table.add_row(*(make_text(cell) for cell in cells), make_text(_format_score(row)), age)
    console.print(table)
    for row in rows:
        if row.suspects:
            without = "none" if row.mean_without_suspects is None else format_number(row.mean_without_suspects)
            words = f"{row.run}: {row.suspects} rollouts are suspect; mean {without} without them"
            console.print(make_text(words, "magenta"), soft_wrap=True)
        if row.message:
            console.print(make_text(f"{row.run}: {row.message}", "dim"), soft_wrap=True)


def _format_rollouts(row: RunRow) -> str:
    counted = f"{row.rollouts} of {row.planned}" if row.rollouts < row.planned else str(row.rollouts)
    return counted if row.scored == row.rollouts else f"{counted}, {row.scored} scored"


def _format_score(row: RunRow) -> str:
    if row.score is None:
        return ""
    return format_number(row.score) + ("" if row.measure == "mean" else f" {row.measure}")


COMMAND = Command(
    run,
    "ludus runs                  # those in ./runs\nludus runs /data/runs --json",
    (make_argument("folder", metavar="DIR", nargs="?", default="runs", help="a folder of runs; default: runs"), JSON),
    RunsArguments,
)
