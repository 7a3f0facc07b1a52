"""`ludus show`: the numbers of a run, the steps of a training run, or one transcript."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from ludus.batch import group_outcomes, make_sample_rows
from ludus.cli.command import JSON, RUN, Arguments, Command, make_argument
from ludus.cli.common import print_notice
from ludus.cli.output import print_groups, print_rollout, print_summary
from ludus.cli.run_kind import find_kind
from ludus.cli.session_runs import count_unscored, describe_unscored, group_sessions
from ludus.config.tree import CONTENT
from ludus.errors import ConfigError, StoreError, suggest
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.types import Group, Rollout, Usage, to_json


class ShowArguments(Arguments):
    run: str
    rollout: str | None
    lines: bool


def run(arguments: ShowArguments) -> int:
    path, wanted = Path(arguments.run), arguments.rollout
    with RunDir.read(path) as directory:
        if find_kind(directory.config) == "headroom" and wanted is None:
            from ludus.cli.output.headroom_table import show_headroom

            show_headroom(path, as_json=arguments.json)
            return 0
        if arguments.lines:
            _show_lines(directory, as_json=arguments.json)
            return 0
        if CONTENT in directory.config and wanted is None:
            from ludus.cli.output.training_tables import show_training_run

            show_training_run(directory, as_json=arguments.json)
            return 0
        if find_kind(directory.config) == "weights" and wanted is None:
            from ludus.cli.output.rl_tables import show_rl_run

            show_rl_run(directory, as_json=arguments.json)
            return 0
        sessions = find_kind(directory.config) == "gateway"
        size = directory.config.get("env", {}).get("group_size", 1)
        groups = group_sessions(directory) if sessions else group_outcomes(directory, size)
    if wanted is not None:
        _show_rollout(find_rollout(groups, wanted), as_json=arguments.json)
    else:
        _show_batch(path, groups, as_json=arguments.json)
        unscored = count_unscored(groups) if sessions else 0
        if unscored:
            print_notice(describe_unscored(path, unscored))
    return 0


def _show_lines(directory: RunDir, *, as_json: bool) -> None:
    if find_kind(directory.config) != "training":
        raise ConfigError(f"--lines: {directory.path} is not a run of `ludus train`: it has no lines")
    from ludus.cli.output.line_list import show_lines
    from ludus.cli.output.training_tables import read_train_settings

    show_lines(directory, read_train_settings(directory), as_json=as_json)


def _show_batch(path: Path, groups: Sequence[Group], *, as_json: bool) -> None:
    summary = summarize(groups)
    if as_json:
        rows = [
            json.loads(to_json(row)) for index, group in enumerate(groups) for row in make_sample_rows(group, index)
        ]
        print(json.dumps({"run": str(path), "summary": json.loads(to_json(summary)), "rollouts": rows}))
        return
    if not groups:
        print(f"{path}: no rollout has ended yet")
        return
    print_summary(summary, spent=_read_usage(path))
    print()
    print_groups(groups)
    print(f"\none transcript: ludus show {shlex.quote(str(path))} TASK (or TASK#2 for its second rollout)")


def _read_usage(path: Path) -> Usage | None:
    """What the run has spent, attempts that were repeated included; None if its ledger cannot be read."""
    from ludus.cli.common import read_spent
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


def find_rollout(groups: Sequence[Group], wanted: str) -> Rollout:
    """The rollout of `task` or `task#N`. The beginning of an id is enough if no other id begins like that."""
    by_id: dict[str, list[Rollout]] = {}
    for group in groups:
        by_id.setdefault(group.task.id, []).extend(group.rollouts)
    for task, number in _read_wanted(wanted):
        near = [task] if task in by_id else [id for id in by_id if id.startswith(task)]
        if len(near) == 1:
            rollouts = by_id[near[0]]
            if number <= len(rollouts):
                return rollouts[number - 1]
            raise ConfigError(f"task '{near[0]}' has {len(rollouts)} rollouts in this run, not {number}")
    if not by_id:
        raise StoreError("no rollout has ended in this run yet")
    raise ConfigError(f"no rollout of a task '{wanted}' in this run; {suggest(wanted, list(by_id))}")


def _read_wanted(wanted: str) -> Iterable[tuple[str, int]]:
    """The possible meanings of `wanted`. An id may contain a #, so the whole text is tried first."""
    yield wanted, 1
    task, mark, number = wanted.rpartition("#")
    if mark and number.isdecimal() and int(number):
        yield task, int(number)


COMMAND = Command(
    run,
    "ludus show runs/first\n"
    "ludus show runs/first greeting.txt      # its first rollout\n"
    "ludus show runs/first greeting.txt#2    # its second\n"
    "ludus show runs/skill --lines           # each line of a trained skill, with the evidence for and against it",
    (
        RUN,
        make_argument("rollout", metavar="ROLLOUT", nargs="?", help="a task id, with #N for its Nth rollout"),
        make_argument(
            "--lines",
            action="store_true",
            help="each line of the skill with its evidence; for training runs with the recipe ledger",
        ),
        JSON,
    ),
    ShowArguments,
)
