"""`ludus transcripts`: the past sessions that files and folders hold. It only looks: no model is asked, nothing is
written, and what it prints is masked."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, Command
from ludus.command.session_paths import name_session_paths
from ludus.command.terminal import count_things, make_console, make_table, make_text, print_notice, shorten_middle
from ludus.encoding import to_json
from ludus.progress import ProgressPace
from ludus.transcripts.claude_code import HEADLESS
from ludus.transcripts.intake import IntakeOptions, IntakeReport, read_sessions
from ludus.transcripts.masking import mask_session, mask_text
from ludus.transcripts.past_session import Counts, Format, PastSession

_SHOWN = 200
"""The most sessions in the table. `--json` has all."""


class TranscriptsArguments(Arguments):
    paths: list[str]
    format: str
    headless: bool


def run(arguments: TranscriptsArguments) -> int:
    format: Any = arguments.format
    options, report = IntakeOptions(format, arguments.headless), IntakeReport()
    masked = Counter[str]()
    rows: list[dict[str, Any]] = []
    for session in _mask_all(name_session_paths(arguments.paths), options, report, masked):
        rows.append(describe_session(session))
    if arguments.json:
        files = [_describe_file(file.path, file.format, file.sessions, file.dropped) for file in report.files]
        dropped = _list_counts(report.dropped)
        print(to_json({"sessions": rows, "files": files, "dropped": dropped, "masked": dict(masked)}).decode())
    else:
        _print_rows(rows)
        _print_counts(rows, report, masked)
    return 0


def _mask_all(
    paths: Sequence[Path], options: IntakeOptions, report: IntakeReport, masked: Counter[str]
) -> Iterator[PastSession]:
    pace = ProgressPace()
    for number, session in enumerate(read_sessions(paths, options, report), 1):
        safe, counts = mask_session(session)
        masked.update(counts)
        if pace.is_due(number, None):
            print_notice(f"{number} sessions from {len(report.files)} files so far")
        yield safe


def describe_session(session: PastSession) -> dict[str, Any]:
    """A masked session in a row, without its messages."""
    return {
        "id": session.id,
        "format": session.format,
        "path": session.path,
        "agent": session.agent,
        "project": session.project,
        "begun": session.begun,
        "ended": session.ended,
        "model": session.model,
        "tokens": session.usage.tokens,
        "messages": len(session.messages),
        "request": session.request[:500],
        "feedback": len(session.feedback),
        "score": None if session.score is None else session.score.value,
        "skills": [
            {"name": skill.name, "path": skill.path, "hash": skill.hash, "seen": list(skill.seen), "used": skill.used}
            for skill in session.skills
        ],
        "files": list(session.files),
        "dropped": dict(session.dropped),
        "masked": dict(session.masked or {}),
    }


def _describe_file(path: str, format: str, sessions: int, dropped: Counts) -> dict[str, Any]:
    return {"path": mask_text(path), "format": format, "sessions": sessions, "dropped": dict(dropped)}


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    console = make_console()
    table = make_table(
        "session", "format", "begun", "messages", "feedback", "skills in use", "request", whole=(0, 1, 2)
    )
    for row in rows[:_SHOWN]:
        used = ", ".join(skill["name"] for skill in row["skills"] if skill["used"])
        begun = "" if row["begun"] is None else f"{datetime.fromtimestamp(row['begun'], UTC):%Y-%m-%d}"
        cells = (shorten_middle(row["id"], 13), row["format"], begun, str(row["messages"]), str(row["feedback"]))
        request = " ".join(row["request"].split())
        table.add_row(*(make_text(cell) for cell in (*cells, used, shorten_middle(request, 60))))
    console.print(table)
    if len(rows) > _SHOWN:
        print(f"… and {len(rows) - _SHOWN} more (all of them: --json)")


def _print_counts(rows: Sequence[dict[str, Any]], report: IntakeReport, masked: Counts) -> None:
    formats = Counter(str(row["format"]) for row in rows)
    found = ", ".join(f"{count} {format}" for format, count in formats.most_common())
    counts = f"{count_things(len(rows), 'session')} from {count_things(len(report.files), 'file')}"
    print(f"{counts}{f': {found}' if found else ''}")
    skills = Counter(skill["name"] for row in rows for skill in row["skills"] if skill["used"])
    if not rows and report.dropped[HEADLESS]:
        print_notice("programs began all of these sessions, and no user speaks in them: --headless reads them")
    for name, counts in (("skills in use", skills), ("left out", report.dropped), ("masked", masked)):
        print_line = ", ".join(f"{kind} {count}" for kind, count in _list_counts(counts).items())
        make_console().print(make_text(f"{name}: {print_line or 'nothing'}"), soft_wrap=True)


def _list_counts(counts: Counts) -> dict[str, int]:
    """The counts, the largest first, without those of nothing."""
    return {kind: count for kind, count in Counter(dict(counts)).most_common() if count}


COMMAND = Command(
    run,
    "ludus transcripts claude-code            # the sessions of Claude Code of this user\n"
    "ludus transcripts exports/ runs/first --json\n"
    "ludus transcripts chats.jsonl --format openai",
    (
        make_argument(
            "paths",
            metavar="PATH",
            nargs="+",
            help="files, folders and run directories; claude-code or codex: the folder where that agent keeps its "
            "sessions. Nothing else is read, and no link is followed",
        ),
        make_argument(
            "--format",
            default="auto",
            choices=("auto", *get_args(Format)),
            help="read only files of this format; default: auto, by the first lines of each file",
        ),
        make_argument(
            "--headless",
            action="store_true",
            help="also sessions of Claude Code and Codex that a program began (claude -p, codex exec)",
        ),
        JSON,
    ),
    TranscriptsArguments,
)
