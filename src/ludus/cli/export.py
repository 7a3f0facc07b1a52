"""`ludus export`: print the training rows of a run as Atropos JSONL.

Rows are made of the exact ids that were sampled. With `--retokenize` they are made from text, for supervised
fine-tuning.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.batch import group_outcomes
from ludus.cli.command import PARSER, RUN, Arguments, Command, make_argument
from ludus.cli.common import NO_SLOT, print_notice
from ludus.cli.token_rows import make_vocabulary, print_line
from ludus.config import Config, assemble
from ludus.config.build_agent import build_env
from ludus.config.build_tools import open_registry
from ludus.config.reading import Layer
from ludus.config.references import load_parser
from ludus.config.tree import SECTIONS
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.rl.atropos_rows import build_columns, build_retokenized_columns, to_fields
from ludus.rl.row_checks import RowReport, Vocabulary
from ludus.rl.rows import retokenize
from ludus.store import RunDir
from ludus.types import Rollout, ToolSpec, to_json

if TYPE_CHECKING:
    from ludus.tokens.sequences import TokenSequence


class ExportArguments(Arguments):
    run: str
    retokenize: str
    parser: str
    template: str


def run(arguments: ExportArguments) -> int:
    if (arguments.parser or arguments.template) and not arguments.retokenize:
        raise ConfigError("--parser and --template are for rows made from text: give --retokenize TOKENIZER too")
    total = RowReport()
    with RunDir.read(Path(arguments.run)) as directory:
        encoder = _make_encoder(arguments, directory.config) if arguments.retokenize else None
        for group in group_outcomes(directory, directory.config.get("env", {}).get("group_size", 1)):
            made, report = build_retokenized_columns(group, *encoder) if encoder else build_columns(group, Vocabulary())
            total.groups += 1
            total.merge(report)
            if made is not None:
                print_line(to_json({"task": group.task.id, **to_fields(made)}))
    print_notice(total.summarize())
    return 1 if total.fatal else 0


def _make_encoder(
    arguments: ExportArguments, recorded: Mapping[str, Any]
) -> "tuple[Callable[[Rollout], list[TokenSequence]], Vocabulary]":
    """A function that makes rows from the text of a rollout, with the tools of the run's settings; and the vocabulary
    to check them with."""
    from ludus.tokens.codec import Codec

    parser = load_parser(arguments.parser or "hermes", "--parser")
    codec = Codec.open(arguments.retokenize, parser, template=arguments.template)
    config = assemble([Layer("the run's settings", {name: recorded[name] for name in SECTIONS if name in recorded})])
    env = build_env(config)
    known = asyncio.run(_list_tools(config))

    def encode(rollout: Rollout) -> "list[TokenSequence]":
        return retokenize(rollout.messages, _find_offered(rollout, known, env), codec)

    return encode, make_vocabulary(codec.tokenizer)


async def _list_tools(config: Config) -> dict[str, ToolSpec]:
    """The tools of all toolsets, by name."""
    async with open_registry(config.tools) as registry:
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
    "ludus export runs/chat --retokenize Qwen/Qwen3-8B --parser hermes > sft.jsonl   # from text; not for RL",
    (
        RUN,
        make_argument("--retokenize", metavar="TOKENIZER", default="", help="make rows from text, for fine-tuning"),
        PARSER,
        make_argument("--template", metavar="WHICH", default="", help="a chat template in place of the model's own"),
    ),
    ExportArguments,
)
