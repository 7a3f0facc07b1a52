"""`ludus export`: print the training data of a run, as Atropos JSONL or in the form of another trainer.

Rows for RL are made of the exact ids that were sampled. With `--retokenize` they are made from text, for supervised
fine-tuning. Conversations (`--format openai`, `sharegpt`, `trl-sft`, `preference`) are made of messages. Of a batch of
prompts they are those that its filters admit, judged or not. For viewers of other systems (`--format atif`, `inspect`)
every rollout is written, scored or not (`viewer_command`). An export of nothing says why and ends with exit code 1.

In Atropos' format a line has the rows of one group, and says where they come from: split, stage, policy and skill. In
other formats a line is mostly one row, which says the same. Of a training run only the train split is printed. Rows of
the selection split, and of the test split, which measures the gain, would spoil what they measure if they were trained
on. So they are printed only if `--splits` names them.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.batch import group_outcomes, read_places
from ludus.command import PARSER, RUN, Command
from ludus.command.terminal import print_notice
from ludus.config.build_agent import build_env
from ludus.config.references import SOURCE, load_parser
from ludus.config.tree import CONTENT
from ludus.encoding import to_json
from ludus.engine import make_group
from ludus.errors import ConfigError, suggest
from ludus.reflact.rollout_origins import SPLITS, Origin, SplitName, read_origins, rebuild_origins
from ludus.reflact.splits import load_splits
from ludus.reflact.training_run import read_parts
from ludus.rl.atropos_rows import build_columns, build_retokenized_columns, to_fields
from ludus.rl.exporters import ChatExporter, GroupSource, RowExporter, collect_rows, describe_source
from ludus.rl.exporters.chat_data import export_openai, export_preference, export_sharegpt, export_trl_sft
from ludus.rl.exporters.export_files import write_rows
from ludus.rl.exporters.selection import (
    Duplicates,
    ExportRules,
    RolloutSelection,
    describe_selection,
    explain_missing_score,
)
from ludus.rl.exporters.tool_list import ToolDefinitions, read_recorded
from ludus.rl.exporters.trainer_rows import (
    export_openrlhf,
    export_prime,
    export_skyrl,
    export_tinker,
    export_trl,
    export_verl,
)
from ludus.rl.exporters.viewer_command import VIEWER_FORMATS, check_viewer_arguments, export_for_viewers
from ludus.rl.row_checks import RowReport, Vocabulary
from ludus.rl.rows import retokenize, unmark_guided
from ludus.rl.token_rows import make_vocabulary, print_line
from ludus.rl.worker_settings import BranchPolicy
from ludus.run_info import BATCH, find_kind
from ludus.session_runs import count_unscored, describe_unscored, group_sessions
from ludus.sources import EXTRAS, Source, load_source
from ludus.store import RunDir
from ludus.suspects import SuspectPolicy, describe_suspects, is_suspect, weigh_suspects
from ludus.trajectories.filters import TrajectoryFilter
from ludus.types import Group, Rollout, Task

if TYPE_CHECKING:
    from ludus.tokens.sequences import TokenSequence


class ExportArguments(Arguments):
    run: str
    format: str
    to: str
    branches: BranchPolicy
    guided: Literal["mask", "keep"]
    retokenize: str
    parser: str
    template: str
    splits: str
    threshold: float | None
    best: int | None
    duplicates: Duplicates | None
    suspects: SuspectPolicy


class _SourcedGroup(NamedTuple):
    """A group and where it comes from."""

    group: Group
    split: str
    stage: str = ""
    """The stage of a training run; empty for other runs."""


ATROPOS = "atropos"
ROW_FORMATS: Mapping[str, RowExporter] = {
    "trl": export_trl,
    "verl": export_verl,
    "skyrl": export_skyrl,
    "prime-rl": export_prime,
    "openrlhf": export_openrlhf,
    "tinker": export_tinker,
}
CHAT_FORMATS: Mapping[str, ChatExporter] = {
    "openai": export_openai,
    "sharegpt": export_sharegpt,
    "trl-sft": export_trl_sft,
}
PREFERENCE = "preference"
FORMATS = (ATROPOS, *ROW_FORMATS, *CHAT_FORMATS, PREFERENCE, *VIEWER_FORMATS)
"""Those of this package. A source may have another, by its scheme."""


def run(arguments: ExportArguments) -> int:
    if arguments.format not in FORMATS:
        return _write_files(arguments, _find_source(arguments.format))
    if arguments.format in VIEWER_FORMATS:
        check_viewer_arguments(arguments)
        with RunDir.read(Path(arguments.run)) as directory:
            return export_for_viewers(directory, arguments, print_notice)
    _check_arguments(arguments)
    done = _Export()
    splits = _read_splits(arguments.splits)
    with RunDir.read(Path(arguments.run)) as directory:
        groups = _sort_groups(directory, _read_groups(directory, splits))
        if arguments.guided == "keep":
            groups = [each._replace(group=unmark_guided(each.group)) for each in groups]
        for each in groups:
            done.rollouts += len(each.group.rollouts)
        _write(_export(arguments, directory, groups, done), arguments.to, done)
    if done.left_out.total() or not done.written:
        done.notes.append(describe_selection(done.written, done.rollouts, done.left_out))
    for words in done.notes:
        print_notice(words)
    return 1 if done.report.fatal or not done.written else 0


@dataclass
class _Export:
    """What an export has done so far."""

    report: RowReport = field(default_factory=RowReport)
    rollouts: int = 0
    written: int = 0
    """Rows, or lines of groups."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """By the reason."""
    notes: list[str] = field(default_factory=list[str])


def _write(rows: Iterator[dict[str, Any]], to: str, done: _Export) -> None:
    """Write rows to a file or to stdout. Without any, no file is made."""
    first = next(rows, None)
    if first is None:
        return
    rows = itertools.chain([first], rows)
    if to:
        done.written = write_rows(Path(to), rows)
        done.notes.insert(0, f"{done.written} rows in {to}")
        return
    for row in rows:
        print_line(to_json(row))
        done.written += 1


def _find_source(format: str) -> Source:
    """The source whose system has the format."""
    if format not in (known := [*EXTRAS, *SOURCE.list_names()]):
        raise ConfigError(f"--format: unknown format '{format}'; {suggest(format, [*FORMATS, *known])}")
    return load_source(format, f"--format {format}")


def _write_files(arguments: ExportArguments, source: Source) -> int:
    """Write a run as the files of a run of another system."""
    if not arguments.to:
        raise ConfigError(f"--to: --format {arguments.format} writes a folder of files: name it with --to FOLDER")
    folder = Path(arguments.to)
    with RunDir.read(Path(arguments.run)) as directory:
        files = list(source.list_run_files(directory))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--to: {folder} is not empty: name a new folder")
    for path, content in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    print_notice(f"{len(files)} files in {folder}")
    return 0


def _check_arguments(arguments: ExportArguments) -> None:
    if (arguments.parser or arguments.template) and not arguments.retokenize:
        raise ConfigError("--parser and --template are for rows made from text: give --retokenize TOKENIZER too")
    choosing = {"threshold": arguments.threshold, "best": arguments.best, "duplicates": arguments.duplicates}
    given = [name for name, value in choosing.items() if value is not None]
    if given and arguments.format not in CHAT_FORMATS:
        chat = " and ".join(CHAT_FORMATS)
        raise ConfigError(f"--{given[0]} chooses rollouts to imitate, for --format {chat}: leave it out")
    if arguments.best is not None and arguments.best < 1:
        raise ConfigError(f"--best is {arguments.best}: of each group at least 1 rollout is exported")
    if arguments.retokenize and arguments.format != ATROPOS:
        raise ConfigError(f"--retokenize: {arguments.format} has no rows made from text: leave out --format")


def _export(
    arguments: ExportArguments, directory: RunDir, groups: "Sequence[_SourcedGroup]", done: _Export
) -> Iterator[dict[str, Any]]:
    """The rows of all groups in the format."""
    if arguments.format in CHAT_FORMATS:
        is_batch = find_kind(directory) == BATCH
        chosen = _choose_trajectories(directory, groups, done) if is_batch else groups
        return _export_chats(arguments, directory, chosen, done, unjudged=is_batch)
    weighed = [each._replace(group=weigh_suspects(each.group, arguments.suspects)) for each in groups]
    if words := describe_suspects(sum(_count_suspects(each.group) for each in groups), arguments.suspects):
        done.notes.append(words.replace("run.suspects", "--suspects"))
    if arguments.format == PREFERENCE:
        return _export_pairs(ToolDefinitions.read(directory), weighed, done)
    return _export_rows(arguments, directory, weighed, done)


def _choose_trajectories(
    directory: RunDir, groups: "Iterable[_SourcedGroup]", done: _Export
) -> "Iterator[_SourcedGroup]":
    """The groups of a batch of prompts without the trajectories that its own filters drop."""
    chosen = TrajectoryFilter(read_recorded(directory.config).batch)
    for each in groups:
        kept = tuple(rollout for rollout in each.group.rollouts if chosen.admit(rollout))
        yield each._replace(group=msgspec.structs.replace(each.group, rollouts=kept))
    done.left_out.update(chosen.dropped)


def _count_suspects(group: Group) -> int:
    return sum(map(is_suspect, group.rollouts))


def _export_chats(
    arguments: ExportArguments,
    directory: RunDir,
    groups: "Iterable[_SourcedGroup]",
    done: _Export,
    *,
    unjudged: bool = False,
) -> Iterator[dict[str, Any]]:
    """The conversations of rollouts that a model should imitate. Their pictures are in them."""
    tools = ToolDefinitions.read(directory)
    rules = ExportRules(
        threshold=arguments.threshold,
        best=arguments.best,
        duplicates=arguments.duplicates or "keep",
        suspects=arguments.suspects,
        unjudged=unjudged,
    )
    selection, write = RolloutSelection(rules), CHAT_FORMATS[arguments.format]
    for group, split, stage in groups:
        for rollout in selection.choose(group):
            yield write(directory.restore_images(rollout), tools.find(rollout), GroupSource(split, stage))
    done.left_out.update(selection.left_out)
    _note_unknown(tools, done)


def _export_pairs(tools: ToolDefinitions, groups: "Iterable[_SourcedGroup]", done: _Export) -> Iterator[dict[str, Any]]:
    """The best and the worst rollout of each group."""
    for group, split, stage in groups:
        offered = tools.find(group.scored[0]) if group.scored else ()
        pair = export_preference(group, offered, GroupSource(split, stage))
        if isinstance(pair, str):
            done.left_out[pair] += 1
        else:
            yield pair
    _note_unknown(tools, done)


def _note_unknown(tools: ToolDefinitions, done: _Export) -> None:
    if words := tools.describe_unknown():
        done.notes.append(f"rows without them: {words}")


def _export_rows(
    arguments: ExportArguments, directory: RunDir, groups: "Iterable[_SourcedGroup]", done: _Export
) -> Iterator[dict[str, Any]]:
    """Rows of tokens. What the checks find goes to the report."""
    to_rows = ROW_FORMATS.get(arguments.format)
    encoder = _make_encoder(arguments, directory) if arguments.retokenize else None
    for group, split, stage in groups:
        source = GroupSource(split, stage)
        if to_rows is None:
            made, report = build_retokenized_columns(group, *encoder) if encoder else build_columns(group, Vocabulary())
            origin = describe_source(group.rollouts[0], source)
            found = [{"task": group.task.id, **to_fields(made), **origin}] if made is not None else []
        else:
            exported, report = collect_rows(group, source, branches=arguments.branches)
            found = to_rows(exported) if exported is not None else ()
        done.report.groups += 1
        done.report.merge(report)
        done.left_out.update(filter(None, map(_explain_missing_row, group.rollouts)))
        yield from found
    done.notes.append(done.report.summarize())


def _explain_missing_row(rollout: Rollout) -> str:
    """Why a rollout has no row; empty if it has one, or if the report says why."""
    if reason := explain_missing_score(rollout):
        return reason
    return "" if rollout.turns else "without a turn"


# ---- which rows ---------------------------------------------------------------------------------------------------


def _read_splits(words: str) -> frozenset[SplitName]:
    """The splits that `--splits` names; empty if it is not given."""
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names:
        if name not in SPLITS:
            raise ConfigError(f"--splits: unknown split '{name}'; {suggest(name, list(SPLITS))}")
    return frozenset(name for name in SPLITS if name in names)


def _read_groups(directory: RunDir, splits: Collection[SplitName]) -> Iterator[_SourcedGroup]:
    """The groups to print, in the order in which they were begun."""
    if find_kind(directory) == "train":
        yield from _read_training_groups(directory, splits or {"train"})
        return
    if find_kind(directory) == "headroom":
        raise ConfigError(f"{directory.path} is a headroom run: rollouts with hints are no training data")
    if find_kind(directory) == "audit-skill":
        raise ConfigError(f"{directory.path} is an audit-skill run: rollouts without passages are no training data")
    if splits:
        raise ConfigError(f"--splits is for training runs; {directory.path} is not one: leave it out")
    if find_kind(directory) == "gateway":
        yield from _read_session_groups(directory)
        return
    for group in group_outcomes(directory, directory.config.get("env", {}).get("group_size", 1)):
        yield _SourcedGroup(group, group.task.split)


def _read_session_groups(directory: RunDir) -> Iterator[_SourcedGroup]:
    """The sessions of a gateway run, by task. A notice says how many have no score."""
    groups = group_sessions(directory)
    yield from (_SourcedGroup(group, group.task.split) for group in groups)
    if unscored := count_unscored(groups):
        print_notice(describe_unscored(directory.path, unscored))


def _sort_groups(directory: RunDir, groups: Iterable[_SourcedGroup]) -> list[_SourcedGroup]:
    """The groups by split, stage, place of the task in the batch, and policy. So a run that was interrupted and resumed
    is printed like one that was not."""
    places = read_places(directory)

    def rank(sourced: _SourcedGroup) -> tuple[str, str, int, str, str]:
        group = sourced.group
        place = places.get(group.task.id, len(places))
        return sourced.split, sourced.stage, place, group.task.id, group.rollouts[0].provenance.policy

    return sorted(groups, key=rank)


def _read_training_groups(directory: RunDir, splits: Collection[SplitName]) -> Iterator[_SourcedGroup]:
    """The groups of a training run that are in `splits`. A notice says how many rollouts are left out."""
    origins = _find_origins(directory)
    left_out: Counter[str] = Counter()
    members: dict[tuple[str, str, str, str], list[Rollout]] = {}
    for key, rollout in directory.read_outcomes():
        origin = origins[key]
        if origin.split in splits:
            group = (origin.split, origin.stage, rollout.task.id, rollout.provenance.policy)
            members.setdefault(group, []).append(rollout)
        else:
            left_out[origin.split] += 1
    for (split, stage, _, _), rollouts in members.items():
        yield _SourcedGroup(make_group(rollouts[0].task, rollouts, len(rollouts)), split, stage)
    if left_out:
        counts = ", ".join(f"{left_out[split]} of {split}" for split in SPLITS if left_out[split])
        print_notice(f"rollouts of other splits were left out: {counts} (to print them, name their split: --splits)")


def _find_origins(directory: RunDir) -> Mapping[str, Origin]:
    """The origin of every outcome. Raises `ConfigError` if it is neither stored nor can be rebuilt."""
    origins = read_origins(directory)
    if directory.read_scores().keys() <= origins.keys():
        return origins
    tasks = {key: rollout.task for key, rollout in directory.read_outcomes() if key not in origins}
    return {**_rebuild_origins(directory, tasks), **origins}


def _rebuild_origins(directory: RunDir, tasks: Mapping[str, Task]) -> Mapping[str, Origin]:
    """The origins of outcomes of an earlier version, which did not store them. The splits are loaded again."""
    why = f"{directory.path} is a training run of an earlier version, which did not record the split of each rollout"
    try:
        config = read_recorded(directory.config)
        with redirect_stdout(sys.stderr):
            splits = load_splits(build_env(config), config.data)
    except ConfigError as error:
        raise ConfigError(f"{why}, and the tasks cannot be divided again: {error}") from error
    if splits.digest != directory.config[CONTENT].get("tasks"):
        raise ConfigError(
            f"{why}, and the tasks have changed since: restore the environment and its data to export the run"
        )
    return rebuild_origins(tasks, splits, read_parts(directory))


# ---- rows from text -----------------------------------------------------------------------------------------------


def _make_encoder(
    arguments: ExportArguments, directory: RunDir
) -> "tuple[Callable[[Rollout], list[TokenSequence]], Vocabulary]":
    """A function that makes rows from the text of a rollout, with the tools of the run's settings; and the vocabulary
    to check them with."""
    from ludus.tokens.codec import Codec

    parser = load_parser(arguments.parser or "hermes", "--parser")
    codec = Codec.open(arguments.retokenize, parser, template=arguments.template)
    tools = ToolDefinitions.read(directory)

    def encode(rollout: Rollout) -> "list[TokenSequence]":
        offered = tools.find(rollout)
        if tools.unknown:
            raise ConfigError(f"task '{rollout.task.id}': {tools.describe_unknown()}")
        return retokenize(rollout.messages, offered, codec)

    return encode, make_vocabulary(codec.tokenizer)


COMMAND = Command(
    run,
    "ludus export runs/first > rows.jsonl\n"
    "ludus export runs/first --format verl --to rows.parquet\n"
    "ludus export runs/first --format openai --best 1 --duplicates drop --to sft.jsonl     # with tool definitions\n"
    "ludus export runs/first --format preference --to pairs.jsonl\n"
    "ludus export runs/first --format inspect --to logs/first.eval     # then: inspect view --log-dir logs\n"
    "ludus export runs/first --format atif --to trajectories.jsonl     # or a folder, with a file for each\n"
    "ludus export runs/skill --splits train,selection   # of a training run; the default is train\n"
    "ludus export runs/skill --format skillopt --to theirs     # the files of a run of SkillOpt\n"
    "ludus export runs/chat --retokenize Qwen/Qwen3-8B --parser hermes > sft.jsonl   # from text; not for RL",
    (
        RUN,
        make_argument(
            "--format",
            metavar="NAME",
            default=ATROPOS,
            help=f"for RL: {ATROPOS} (default), {', '.join(ROW_FORMATS)}; for fine-tuning, rollouts that passed: "
            "openai, sharegpt, trl-sft; for preferences, the best and the worst of each group: preference; for "
            "viewers, every rollout: atif (Harbor's trajectories), inspect (a log of Inspect); of a training run, the "
            "files of another system, by its scheme: skillopt",
        ),
        make_argument(
            "--to",
            metavar="FILE",
            default="",
            help="write a .jsonl or .parquet file, a .eval log, or a folder of files; default: print JSONL",
        ),
        make_argument(
            "--branches",
            choices=("rows", "longest"),
            default="rows",
            help="of rollouts whose history branched: every row (default), or the one with the most sampled tokens",
        ),
        make_argument(
            "--guided",
            choices=("mask", "keep"),
            default="mask",
            help="replies sampled under guided decoding (forced calls, JSON schemas): mask their tokens (default), "
            "because their logprobs are not the policy's, or keep them",
        ),
        make_argument(
            "--splits",
            metavar="NAMES",
            default="",
            help="of a training run: which of train, selection and test, separated by commas; default: train, "
            "because a model must not be trained on what measures it",
        ),
        make_argument(
            "--threshold",
            metavar="SCORE",
            type=float,
            default=None,
            help="for fine-tuning: rollouts with at least this score; default: those that passed",
        ),
        make_argument(
            "--best",
            metavar="N",
            type=int,
            default=None,
            help="for fine-tuning: of each group at most N rollouts, those with the highest scores; default: all",
        ),
        make_argument(
            "--duplicates",
            choices=("keep", "drop"),
            default=None,
            help="for fine-tuning: conversations that are equal to an earlier one; default: keep",
        ),
        make_argument(
            "--suspects",
            choices=("zero", "keep", "drop"),
            default="zero",
            help="rollouts whose verdict the agent may have changed: count them as failed (default), as they were "
            "scored, or leave them out",
        ),
        make_argument("--retokenize", metavar="TOKENIZER", default="", help="make rows from text, for fine-tuning"),
        PARSER,
        make_argument("--template", metavar="WHICH", default="", help="a chat template in place of the model's own"),
    ),
    ExportArguments,
)
