"""`ludus compare`: runs of evaluate or process, each with each, on the tasks that they share."""

import os
from collections.abc import Sequence
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.batch import group_outcomes
from ludus.batch.comparison_table import print_comparison
from ludus.command import JSON, Command
from ludus.command.terminal import print_notice
from ludus.comparison import RunComparison, compare_runs
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.run_info import ONE_POLICY, find_kind
from ludus.session_runs import group_sessions
from ludus.store import RunDir
from ludus.types import Group


class CompareArguments(Arguments):
    runs: list[str]


def run(arguments: CompareArguments) -> int:
    return print_compared([Path(path) for path in arguments.runs], as_json=arguments.json)


def print_compared(paths: Sequence[Path], *, as_json: bool) -> int:
    """Print the comparison of runs. Returns the exit code: 1 if two of them share no task."""
    comparison = compare_directories(paths)
    if as_json:
        print(to_json(comparison).decode())
    else:
        print_comparison(comparison)
    apart = [pair for pair in comparison.pairs if not pair.tasks]
    for pair in apart:
        print_notice(pair.verdict)
    return 1 if apart else 0


def compare_directories(paths: Sequence[Path]) -> RunComparison:
    """Compare run directories. Their names are the parts of their paths that differ."""
    unique = list(dict.fromkeys(paths))
    if len(unique) < 2:
        raise ConfigError("a comparison needs two runs or more, as in: ludus compare runs/first runs/second")
    return compare_runs(dict(zip(_name_runs(unique), map(_read_groups, unique), strict=True)))


def _name_runs(paths: Sequence[Path]) -> list[str]:
    """Short names: the paths below the folder that they have in common."""
    words = [str(path) for path in paths]
    common = os.path.commonpath([path.absolute() for path in paths])
    names = [os.path.relpath(path.absolute(), common) for path in paths]
    return words if "." in names or len(set(names)) < len(names) else names


def _read_groups(path: Path) -> list[Group]:
    with RunDir.read(path) as directory:
        kind = find_kind(directory)
        if kind not in ONE_POLICY:
            raise ConfigError(
                f"{path} has rollouts of several policies: evaluate the one that you mean, and compare that run"
            )
        size = directory.config.get("env", {}).get("group_size", 1)
        groups = group_sessions(directory) if kind == "gateway" else group_outcomes(directory, size)
    if len({(group.task.split, group.task.id) for group in groups}) < len(groups):
        raise ConfigError(f"{path} has several policies for one task: compare runs with one policy each")
    if not groups:
        raise ConfigError(f"{path}: no rollout has ended there yet")
    return groups


COMMAND = Command(
    run,
    "ludus compare runs/small runs/large\nludus compare runs/models/*",
    (make_argument("runs", metavar="RUN", nargs="+", help="run directories, finished or not"), JSON),
    CompareArguments,
)
