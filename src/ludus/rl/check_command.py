"""`ludus check`: check training rows before a trainer uses them.

Groups are read line by line, so a file may be larger than memory.
"""

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.batch import GROUPS
from ludus.command import JSON, Command
from ludus.errors import ConfigError
from ludus.rl.atropos_rows import build_columns
from ludus.rl.row_checks import RowReport, Vocabulary, check_lines
from ludus.rl.token_rows import make_vocabulary, print_line
from ludus.run_info import BATCHES, describe_kind, find_kind
from ludus.session_runs import count_unscored, describe_unscored, group_sessions
from ludus.store import CONFIG, RunDir
from ludus.whole_files import open_regular

SHOWN = 20
"""How many findings of one kind are printed; the others are counted."""


class CheckArguments(Arguments):
    file: str
    tokenizer: str


def run(arguments: CheckArguments) -> int:
    vocabulary = Vocabulary()
    if arguments.tokenizer:
        from ludus.tokens.tokenizer import load_tokenizer

        vocabulary = make_vocabulary(load_tokenizer(arguments.tokenizer).tokenizer, drift=True)
    report = _check_sessions(Path(arguments.file), vocabulary)
    if report is None:
        with _open_lines(arguments.file) as lines:
            report = check_lines(lines, vocabulary)
    if arguments.json:
        print_line(_to_json(report, drift=bool(arguments.tokenizer)))
    else:
        _print_report(report, drift=bool(arguments.tokenizer))
    return 1 if report.fatal else 0


def _check_sessions(path: Path, vocabulary: Vocabulary) -> RowReport | None:
    """The report on the rows of a gateway run, which has no file of rows. None if it is no such run."""
    if not (path / CONFIG).is_file():
        return None
    with RunDir.read(path) as directory:
        if find_kind(directory) != "gateway":
            return None
        groups = group_sessions(directory)
    if not any(group.scored for group in groups):
        raise ConfigError(f"no rows to check: {describe_unscored(path, count_unscored(groups))}")
    total = RowReport()
    for group in groups:
        _, report = build_columns(group, vocabulary)
        total.groups += 1
        total.merge(report)
    return total


def _open_lines(name: str) -> AbstractContextManager[IO[bytes]]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    path = Path(name)
    if path.is_dir() and not (path / GROUPS).exists():
        raise ConfigError(_explain_folder(path))
    try:
        return open_regular(path / GROUPS if path.is_dir() else path)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None


def _explain_folder(folder: Path) -> str:
    """Why a folder without a file of rows cannot be checked."""
    if not (folder / CONFIG).is_file():
        return f"{folder} has no {GROUPS}, and it is not a run directory: name a file of rows"
    with RunDir.read(folder) as directory:
        kind = find_kind(directory)
    what = "an evaluation" if kind in BATCHES else describe_kind(kind)
    more = ". `ludus process` writes them to a file" if kind in BATCHES else ""
    instead = f"check them with ludus export {shlex.quote(str(folder))} | ludus check -{more}"
    return f"{folder} is {what}, which has no file of training rows: {instead}"


def _print_report(report: RowReport, *, drift: bool) -> None:
    counts: dict[tuple[str, str], int] = {}
    for finding in report.findings:
        kind = (finding.level, finding.code)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= SHOWN:
            print(finding)
    for (level, code), count in counts.items():
        if count > SHOWN:
            print(f"{level}: {count - SHOWN} more [{code}]")
    print(report.summarize() + (f", {report.drift_rate:.1%} of rows drift" if drift else ""))


def _to_json(report: RowReport, *, drift: bool) -> bytes:
    totals = {name: getattr(report, name) for name in ("groups", "rows", "tokens", "trained")}
    totals |= {"drift_rate": report.drift_rate} if drift else {}
    return msgspec.json.encode({"ok": not report.fatal, **totals, "findings": report.findings})


COMMAND = Command(
    run,
    "ludus check runs/first\nludus check groups.jsonl --tokenizer Qwen/Qwen3-8B",
    (
        make_argument("file", metavar="FILE", help="a file of JSON lines, a run directory, or - for stdin"),
        make_argument(
            "--tokenizer", metavar="WHICH", default="", help="a tokenizer.json, a folder, a GGUF file or owner/name"
        ),
        JSON,
    ),
    CheckArguments,
)
