"""`ludus export`: print the training data of a run, as Atropos JSONL or in the form of another trainer.

Rows for RL are made of the exact ids that were sampled. With `--retokenize` they are made from text, for supervised
fine-tuning. Conversations (`--format openai`, `sharegpt`, `preference`) are made of messages.

In Atropos' format a line has the rows of one group, and says where they come from: split, stage, policy and skill. In
other formats a line is mostly one row, which says the same. Of a training run only the train split is printed. Rows of
the selection split, and of the test split, which measures the gain, would spoil what they measure if they were trained
on. So they are printed only if `--splits` names them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ludus.batch import group_outcomes, read_places
from ludus.cli.acting_envs import redirect_prints
from ludus.cli.command import PARSER, RUN, Arguments, Command, make_argument
from ludus.cli.common import NO_SLOT, print_notice
from ludus.cli.run_kind import find_kind
from ludus.cli.session_runs import count_unscored, describe_unscored, group_sessions
from ludus.cli.token_rows import make_vocabulary, print_line
from ludus.config import Config, assemble
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_ledger, build_vision
from ludus.config.build_tools import open_registry
from ludus.config.reading import Layer
from ludus.config.references import load_parser
from ludus.config.tree import CONTENT, SECTIONS
from ludus.env import Env
from ludus.errors import ConfigError, suggest
from ludus.reflact.rollout_origins import SPLITS, Origin, SplitName, read_origins, rebuild_origins
from ludus.reflact.splits import load_splits
from ludus.reflact.training_run import read_parts, read_records
from ludus.rl.atropos_rows import build_columns, build_retokenized_columns, to_fields
from ludus.rl.exporters import ChatExporter, GroupSource, RowExporter, collect_rows, describe_source
from ludus.rl.exporters.chat_data import export_openai, export_preference, export_sharegpt
from ludus.rl.exporters.export_files import write_rows
from ludus.rl.exporters.trainer_rows import (
    export_openrlhf,
    export_prime,
    export_skyrl,
    export_tinker,
    export_trl,
    export_verl,
)
from ludus.rl.row_checks import RowReport, Vocabulary
from ludus.rl.rows import retokenize, unmark_guided
from ludus.rl.worker_settings import BranchPolicy
from ludus.rollout import make_group
from ludus.store import RunDir
from ludus.types import Group, Rollout, Task, ToolSpec, to_json

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
    "preference": export_preference,
}


SKILLOPT = "skillopt"


def run(arguments: ExportArguments) -> int:
    _check_arguments(arguments)
    if arguments.format == SKILLOPT:
        return _write_layout(arguments)
    total = RowReport()
    splits = _read_splits(arguments.splits)
    with RunDir.read(Path(arguments.run)) as directory:
        sessions = find_kind(directory.config) == "gateway"
        groups = _sort_groups(directory, _read_groups(directory, splits))
        if arguments.guided == "keep":
            groups = [each._replace(group=unmark_guided(each.group)) for each in groups]
        rows = _export(arguments, directory, groups, total)
        if arguments.to:
            print_notice(f"{write_rows(Path(arguments.to), rows)} rows in {arguments.to}")
        else:
            for row in rows:
                print_line(to_json(row))
    if arguments.format not in CHAT_FORMATS:
        print_notice(total.summarize())
        if sessions and not total.rows:
            return 1
    return 1 if total.fatal else 0


def _write_layout(arguments: ExportArguments) -> int:
    """Write a training run as the files of a run of SkillOpt."""
    from ludus.compat.skillopt.run_layout import build_layout

    if not arguments.to:
        raise ConfigError("--to: --format skillopt writes a folder of files: name it with --to FOLDER")
    with RunDir.read(Path(arguments.run)) as directory:
        if find_kind(directory.config) != "training":
            raise ConfigError(f"{arguments.run} is not a run of `ludus train`: --format skillopt is for those")
        own = Layer(arguments.run, {"train": {"gate": directory.config["train"].get("gate") or {}}})
        files = list(build_layout(list(read_records(directory)), assemble([own]).train.gate))
    folder = Path(arguments.to)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--to: {folder} is not empty: name a new folder")
    for path, content in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    print_notice(f"{len(files)} files in {folder}")
    return 0


def _check_arguments(arguments: ExportArguments) -> None:
    known = [ATROPOS, *ROW_FORMATS, *CHAT_FORMATS, SKILLOPT]
    if arguments.format not in known:
        raise ConfigError(f"--format: unknown format '{arguments.format}'; {suggest(arguments.format, known)}")
    if (arguments.parser or arguments.template) and not arguments.retokenize:
        raise ConfigError("--parser and --template are for rows made from text: give --retokenize TOKENIZER too")
    if arguments.retokenize and arguments.format != ATROPOS:
        raise ConfigError(f"--retokenize: {arguments.format} has no rows made from text: leave out --format")


def _export(
    arguments: ExportArguments, directory: RunDir, groups: "Iterable[_SourcedGroup]", total: RowReport
) -> Iterator[dict[str, Any]]:
    """The rows of all groups in the format. What the checks find is added to `total`."""
    if (to_chat := CHAT_FORMATS.get(arguments.format)) is not None:
        for group, split, stage in groups:
            yield from to_chat(group, GroupSource(split, stage))
        return
    to_rows = ROW_FORMATS.get(arguments.format)
    encoder = _make_encoder(arguments, directory.config) if arguments.retokenize else None
    for group, split, stage in groups:
        source = GroupSource(split, stage)
        if to_rows is None:
            made, report = build_retokenized_columns(group, *encoder) if encoder else build_columns(group, Vocabulary())
            found = (
                [{"task": group.task.id, **to_fields(made), **describe_source(group, source)}]
                if made is not None
                else []
            )
        else:
            exported, report = collect_rows(group, source, branches=arguments.branches)
            found = to_rows(exported) if exported is not None else ()
        total.groups += 1
        total.merge(report)
        yield from found


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
    if find_kind(directory.config) == "training":
        yield from _read_training_groups(directory, splits or {"train"})
        return
    if find_kind(directory.config) == "headroom":
        raise ConfigError(f"{directory.path} is a headroom run: rollouts with hints are no training data")
    if splits:
        raise ConfigError(f"--splits is for training runs; {directory.path} is not one: leave it out")
    if find_kind(directory.config) == "gateway":
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
        config = _read_recorded(directory.config)
        with redirect_prints(config.env.name):
            splits = load_splits(build_env(config), config.data)
    except ConfigError as error:
        raise ConfigError(f"{why}, and the tasks cannot be divided again: {error}") from error
    if splits.digest != directory.config[CONTENT].get("tasks"):
        raise ConfigError(
            f"{why}, and the tasks have changed since: restore the environment and its data to export the run"
        )
    return rebuild_origins(tasks, splits, read_parts(directory))


def _read_recorded(recorded: Mapping[str, Any]) -> Config:
    return assemble([Layer("the run's settings", {name: recorded[name] for name in SECTIONS if name in recorded})])


# ---- rows from text -----------------------------------------------------------------------------------------------


def _make_encoder(
    arguments: ExportArguments, recorded: Mapping[str, Any]
) -> "tuple[Callable[[Rollout], list[TokenSequence]], Vocabulary]":
    """A function that makes rows from the text of a rollout, with the tools of the run's settings; and the vocabulary
    to check them with."""
    from ludus.tokens.codec import Codec

    parser = load_parser(arguments.parser or "hermes", "--parser")
    codec = Codec.open(arguments.retokenize, parser, template=arguments.template)
    config = _read_recorded(recorded)
    env = build_env(config)
    known = asyncio.run(_list_tools(config))

    def encode(rollout: Rollout) -> "list[TokenSequence]":
        return retokenize(rollout.messages, _find_offered(rollout, known, env), codec)

    return encode, make_vocabulary(codec.tokenizer)


async def _list_tools(config: Config) -> dict[str, ToolSpec]:
    """The tools of all toolsets, by name."""
    async with open_registry(config.tools, build_vision(config, build_ledger(config))) as registry:
        made = [toolset.make(NO_SLOT) for toolset in registry.toolsets if toolset.make]
    return {tool.name: tool.spec for tools in made for tool in tools}


def _find_offered(rollout: Rollout, known: dict[str, ToolSpec], env: Env) -> list[ToolSpec]:
    """The tools that a rollout was offered. Its record has their names; the settings have their descriptions."""
    names = rollout.provenance.tools
    if any(name not in known for name in names):
        known = known | {tool.name: tool.spec for tool in env.tools(rollout.task, NO_SLOT)}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"task '{rollout.task.id}' was offered a tool '{missing[0]}' that the run's settings do not give"
        )
    return [known[name] for name in names]


COMMAND = Command(
    run,
    "ludus export runs/first > rows.jsonl\n"
    "ludus export runs/first --format verl --to rows.parquet\n"
    "ludus export runs/first --format preference --to pairs.jsonl\n"
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
            "openai, sharegpt; for preferences, the best and the worst of each group: preference; of a training run, "
            "the files that scripts of SkillOpt read: skillopt",
        ),
        make_argument(
            "--to",
            metavar="FILE",
            default="",
            help="write a .jsonl or .parquet file, or the folder of skillopt; default: print JSONL",
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
            help="replies drawn under guided decoding (forced calls, JSON schemas): mask their tokens (default), "
            "because their logprobs are not the policy's, or keep them",
        ),
        make_argument(
            "--splits",
            metavar="NAMES",
            default="",
            help="of a training run: which of train, selection and test, separated by commas; default: train, "
            "because a model must not be trained on what measures it",
        ),
        make_argument("--retokenize", metavar="TOKENIZER", default="", help="make rows from text, for fine-tuning"),
        PARSER,
        make_argument("--template", metavar="WHICH", default="", help="a chat template in place of the model's own"),
    ),
    ExportArguments,
)
