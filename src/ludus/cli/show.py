"""`ludus show`: the numbers of a run, the steps of a training run, or one transcript."""

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.batch import group_outcomes, make_sample_rows
from ludus.batch.run_tables import print_groups, print_summary
from ludus.command import JSON, RUN, Command
from ludus.command.rollout_choice import choose_rollout
from ludus.command.rollout_text import print_rollout
from ludus.command.terminal import make_printable, print_notice
from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.run_events import EVENTS, RunEvent, read_events
from ludus.run_info import describe_state, find_kind, read_info, read_spent
from ludus.session_runs import count_unscored, describe_unscored, group_sessions
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.types import Group, Rollout, Usage


class ShowArguments(Arguments):
    run: str
    rollout: str | None
    lines: bool
    replies: bool


def run(arguments: ShowArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        if arguments.lines:
            _show_lines(directory, as_json=arguments.json)
            return 0
        if arguments.replies:
            _show_replies(directory, as_json=arguments.json)
            return 0
        kind, state = find_kind(directory), describe_state(read_info(path), directory.measure_scores()[0])
        events = list(read_events(directory))
        if arguments.rollout is None and (show := _SHOW.get(kind)) is not None:
            show(directory, state, as_json=arguments.json)
            _print_events(events, as_json=arguments.json)
            return 0
        if arguments.rollout is not None:
            _show_rollout(choose_rollout(directory, arguments.rollout)[1], as_json=arguments.json)
            return 0
        groups = list_groups(directory)
    _show_batch(path, groups, state, events, as_json=arguments.json)
    unscored = count_unscored(groups) if kind == "gateway" else 0
    if unscored:
        print_notice(describe_unscored(path, unscored))
    return 0


def list_groups(directory: RunDir) -> list[Group]:
    """The rollouts of a run in groups, in the order in which the groups were begun."""
    if find_kind(directory) == "gateway":
        return group_sessions(directory)
    return group_outcomes(directory, directory.config.get("env", {}).get("group_size", 1))


def _show_audit(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.reflact.audit_table import show_audit

    show_audit(directory.path, state, as_json=as_json)


def _show_headroom(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.reflact.headroom_table import show_headroom

    show_headroom(directory.path, state, as_json=as_json)


def _show_training(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.reflact.training_tables import show_training_run

    _print_state(state, as_json=as_json)
    show_training_run(directory, as_json=as_json)


def _show_rl(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.rl.rl_tables import show_rl_run

    _print_state(state, as_json=as_json)
    show_rl_run(directory, as_json=as_json)


def _show_prompts(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.trajectories.batch_table import show_batch_run

    _print_state(state, as_json=as_json)
    show_batch_run(directory.path, as_json=as_json)


def _show_triggers(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.triggers.trigger_table import show_triggers

    show_triggers(directory.path, state, as_json=as_json)


def _show_library(directory: RunDir, state: str, *, as_json: bool) -> None:
    from ludus.library.library_table import show_library

    show_library(directory.path, state, as_json=as_json)


_SHOW = {
    "library": _show_library,
    "audit-skill": _show_audit,
    "triggers": _show_triggers,
    "batch": _show_prompts,
    "headroom": _show_headroom,
    "train": _show_training,
    "rl": _show_rl,
}
"""Kinds of runs that are shown in their own way."""


def _print_state(state: str, *, as_json: bool) -> None:
    """Say how a run goes that is not finished; in JSON, on stderr."""
    if state and as_json:
        print_notice(state)
    elif state:
        print(f"{state}\n")


def _show_lines(directory: RunDir, *, as_json: bool) -> None:
    if find_kind(directory) != "train":
        raise ConfigError(f"--lines: {directory.path} is not a run of `ludus train`: it has no lines")
    from ludus.reflact.line_list import show_lines
    from ludus.view.training import read_train_settings

    show_lines(directory, read_train_settings(directory), as_json=as_json)


def _show_replies(directory: RunDir, *, as_json: bool) -> None:
    if find_kind(directory) != "train":
        raise ConfigError(f"--replies: {directory.path} is not a run of `ludus train`: no optimizer was asked")
    from ludus.reflact.reply_list import show_replies

    show_replies(directory, as_json=as_json)


EVENTS_SHOWN = 10


def _print_events(events: Sequence[RunEvent], *, as_json: bool) -> None:
    """Print what happened to a run last: for people, as its outcomes do not show it."""
    if not events or as_json:
        return
    print()
    if len(events) > EVENTS_SHOWN:
        print(f"… {len(events) - EVENTS_SHOWN} earlier events are in {EVENTS}")
    for event in events[-EVENTS_SHOWN:]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
        print(make_printable(f"{at}  {event.text}" + (f" ({event.who})" if event.who else "")))


def _show_batch(path: Path, groups: Sequence[Group], state: str, events: Sequence[RunEvent], *, as_json: bool) -> None:
    summary = summarize(groups)
    if as_json:
        rows = [
            json.loads(to_json(row)) for index, group in enumerate(groups) for row in make_sample_rows(group, index)
        ]
        facts = {
            "run": str(path),
            "state": state,
            "summary": json.loads(to_json(summary)),
            "events": json.loads(to_json(events)),
        }
        print(json.dumps({**facts, "rollouts": rows}))
        return
    _print_state(state, as_json=False)
    if not groups:
        print(f"{path}: no rollout has ended yet")
        _print_events(events, as_json=False)
        return
    print_summary(summary, spent=_read_usage(path))
    print()
    print_groups(groups)
    _print_events(events, as_json=False)
    print(f"\none transcript: ludus show {shlex.quote(str(path))} TASK (or TASK#2 for its second rollout)")


def _read_usage(path: Path) -> Usage | None:
    """What the run has spent, attempts that were repeated included; None if its ledger cannot be read."""
    from ludus.models.ledger import Totals

    try:
        return sum(read_spent(path).values(), Totals()).usage
    except StoreError:
        return None


def _show_rollout(rollout: Rollout, *, as_json: bool) -> None:
    if not as_json:
        print_rollout(rollout)
        return
    (row,) = make_sample_rows(Group(task=rollout.task, rollouts=(rollout,), size=1))
    print(to_json(row).decode())


COMMAND = Command(
    run,
    "ludus show runs/first\n"
    "ludus show runs/first greeting.txt      # its first rollout\n"
    "ludus show runs/first greeting.txt#2    # its second\n"
    "ludus view runs/first                   # the same in a browser, also while the run goes on\n"
    "ludus show runs/skill --lines           # each line of a trained skill, with the evidence for and against it\n"
    "ludus show runs/skill --replies         # what the optimizer replied",
    (
        RUN,
        make_argument(
            "rollout",
            metavar="ROLLOUT",
            nargs="?",
            help="a task id, with #N for its Nth rollout, or the beginning of its key",
        ),
        make_argument(
            "--lines",
            action="store_true",
            help="each line of the skill with its evidence; for training runs with the recipe ledger",
        ),
        make_argument("--replies", action="store_true", help="the last replies of the optimizer of a training run"),
        JSON,
    ),
    ShowArguments,
)
