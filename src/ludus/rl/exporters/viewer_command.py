"""The part of `ludus export` that is for viewers: every rollout of a run, scored or not, in the form of another system.

    --format atif      a trajectory per line, or a folder of `TASK__N/agent/trajectory.json` with the pictures
    --format inspect   one log, `.eval`

Rollouts are read and written one after the other, whatever the number of them.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
from msgspec import Struct

from ludus.config import Config
from ludus.encoding import to_json
from ludus.errors import ConfigError, describe_error
from ludus.reflact.rollout_origins import Origin, read_origins
from ludus.rl.exporters import GroupSource, JsonRow
from ludus.rl.exporters.atif import export_atif
from ludus.rl.exporters.export_files import write_archive, write_rows
from ludus.rl.exporters.inspect_log import LogFacts, LogTally, SampleName, make_header, make_sample, make_summary
from ludus.rl.exporters.tool_list import ToolDefinitions, read_recorded
from ludus.rl.token_rows import print_line
from ludus.run_info import ONE_POLICY, find_kind, read_info, read_state
from ludus.session_runs import number_sessions
from ludus.store import RunDir, make_safe_name
from ludus.types import Rollout, Sampling

ATIF, INSPECT = "atif", "inspect"
VIEWER_FORMATS = (ATIF, INSPECT)
Tell = Callable[[str], None]


class ViewerArguments(Protocol):
    """What is said of an export for viewers."""

    format: str
    to: str
    splits: str


class _Named(Struct, frozen=True):
    """A rollout with a name that no other of its run has."""

    name: SampleName
    rollout: Rollout
    source: GroupSource


def export_for_viewers(directory: RunDir, arguments: ViewerArguments, tell: Tell) -> int:
    """Write all rollouts of a run. Returns the exit code: 1 if there are none."""
    rollouts = _read_named(directory, frozenset(filter(None, arguments.splits.split(","))))
    tools = ToolDefinitions.read(directory)
    if arguments.format == INSPECT:
        written = _write_log(directory, Path(arguments.to), rollouts, tools)
    else:
        written = _write_trajectories(directory, arguments.to, rollouts, tools)
    if not written:
        tell("nothing to export: the run has no rollouts that could be exported")
        return 1
    if arguments.to:
        tell(f"{written} rollout{'s' if written > 1 else ''} in {arguments.to}")
    if words := tools.describe_unknown():
        tell(f"rollouts without them: {words}")
    return 0


def check_viewer_arguments(arguments: Any) -> None:
    """Raise `ConfigError` for arguments that choose or change training data, and for a place that does not fit."""
    unset = {"threshold": None, "best": None, "duplicates": None, "suspects": "zero", "branches": "rows"}
    unset |= {"guided": "mask", "retokenize": "", "parser": "", "template": ""}
    for name, default in unset.items():
        if getattr(arguments, name) != default:
            raise ConfigError(
                f"--{name} is for training data; --format {arguments.format} writes every rollout as it is"
            )
    if arguments.format == INSPECT and Path(arguments.to).suffix != ".eval":
        raise ConfigError("--to: a log of Inspect is one file whose name ends in .eval: --to run.eval")
    if arguments.format == ATIF and Path(arguments.to).suffix not in ("", ".jsonl"):
        raise ConfigError("--to: trajectories are written to a .jsonl file, or to a folder with a file for each")


def _read_named(directory: RunDir, splits: frozenset[str]) -> Iterator[_Named]:
    """The rollouts of a run, in the order in which they ended. Where several policies act on one task, its rollouts are
    counted through."""
    kind, counts = find_kind(directory), Counter[str]()
    origins = read_origins(directory) if kind == "train" else {}
    if splits and kind != "train":
        raise ConfigError(f"--splits is for training runs; {directory.path} is not one: leave it out")
    rollouts = number_sessions(directory) if kind == "gateway" else directory.read_outcomes()
    for key, rollout in rollouts:
        origin: Origin | None = origins.get(key)
        source = GroupSource(origin.split, origin.stage) if origin is not None else GroupSource(rollout.task.split)
        if splits and source.split not in splits:
            continue
        id = rollout.task.id
        counts[id] += 1
        epoch = rollout.provenance.replicate + 1 if kind in ONE_POLICY else counts[id]
        yield _Named(SampleName(id, epoch, key), rollout, source)


# ---- trajectories -------------------------------------------------------------------------------------------------


def _write_trajectories(directory: RunDir, to: str, rollouts: Iterator[_Named], tools: ToolDefinitions) -> int:
    if to and not Path(to).suffix:
        return _write_trials(directory, Path(to), rollouts, tools)
    rows = (_make_trajectory(each, tools, lambda name: str((directory.path / name).resolve())) for each in rollouts)
    if to:
        return write_rows(Path(to), rows)
    written = 0
    for row in rows:
        print_line(to_json(row))
        written += 1
    return written


def _write_trials(directory: RunDir, folder: Path, rollouts: Iterator[_Named], tools: ToolDefinitions) -> int:
    """A folder for each rollout, as Harbor keeps the trials of a job."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--to: {folder} is not empty: name a new folder")
    written = 0
    for each in rollouts:
        place = folder / f"{make_safe_name(each.name.id)}__{each.name.epoch}" / "agent"
        place.mkdir(parents=True)

        def copy_image(name: str, place: Path = place) -> str:
            (place / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(directory.path / name, place / name)
            return name

        row = _make_trajectory(each, tools, copy_image)
        (place / "trajectory.json").write_bytes(msgspec.json.format(to_json(row), indent=2))
        written += 1
    return written


def _make_trajectory(each: _Named, tools: ToolDefinitions, place_image: Callable[[str], str]) -> JsonRow:
    id = f"{each.name.id}#{each.name.epoch}"
    return export_atif(each.rollout, tools.find(each.rollout), each.source, id, place_image)


# ---- a log --------------------------------------------------------------------------------------------------------


def _write_log(directory: RunDir, path: Path, rollouts: Iterator[_Named], tools: ToolDefinitions) -> int:
    tally, facts = LogTally(), _read_facts(directory)
    first = next(rollouts, None)
    if first is None:
        return 0
    with tempfile.TemporaryFile() as summaries:
        write_archive(path, _list_members(directory, first, rollouts, tools, facts, tally, summaries))
    return tally.samples


def _list_members(
    directory: RunDir,
    first: _Named,
    others: Iterator[_Named],
    tools: ToolDefinitions,
    facts: LogFacts,
    tally: LogTally,
    summaries: IO[bytes],
) -> Iterator[tuple[str, bytes | IO[bytes]]]:
    """The samples; then what is known when all are written. Summaries wait in a file, not in memory."""
    each: _Named | None = first
    while each is not None:
        rollout, name = directory.restore_images(each.rollout), each.name
        sample = make_sample(rollout, name, tools.find(rollout), each.source, facts)
        summaries.write(b"," if tally.samples else b"[")
        summaries.write(to_json(make_summary(rollout, name, sample)))
        tally.add(rollout, name)
        yield name.member, to_json(sample)
        each = next(others, None)
    summaries.write(b"]")
    summaries.seek(0)
    yield "summaries.json", summaries
    yield "header.json", to_json(make_header(facts, tally))


def _read_facts(directory: RunDir) -> LogFacts:
    """What a run says of itself. Settings that cannot be read, as of an environment that is gone, are left out."""
    recorded, info = directory.config, read_info(directory.path)
    env, model = recorded.get("env", {}), recorded.get("model", {})
    try:
        config: Config | None = read_recorded(recorded)
        problem = ""
    except Exception as error:  # the environment's file may be gone
        config, problem = None, describe_error(error)
    return LogFacts(
        name=directory.path.resolve().name,
        env=str(env.get("name", "sessions")),
        options=config.options if config is not None else {"problem": problem},
        model=str(model.get("name") or model.get("type") or ""),
        limits=recorded.get("limits", {}),
        sampling=config.sampling if config is not None else Sampling(),
        started=info.started if info is not None else directory.path.stat().st_mtime,
        ended=info.ended if info is not None else 0.0,
        state=read_state(info) if info is not None else "finished",
        message=info.message if info is not None else "",
    )
