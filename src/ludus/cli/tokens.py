"""`ludus parse`, `ludus check`, `ludus export`, and the rows of `ludus process`: text to calls, rows to train on.

Each reads and writes line by line, so the size of a file is bounded by the disk and not by memory. What is wrong with
the input is told with the line that it is in.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from ludus.cli import Arguments
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.batch import More
    from ludus.config import Config
    from ludus.env import Env
    from ludus.models import Model
    from ludus.rl.row_checks import Report, Vocabulary
    from ludus.tokens.sequences import TokenSequence
    from ludus.tokens.tokenizer import Tokenizer
    from ludus.types import Group, Rollout, ToolSpec

SHOWN = 20
"""Findings of one kind that are printed; the rest are counted."""


def run(arguments: Arguments) -> int:
    match arguments.command:
        case "parse":
            return _parse(arguments)
        case "check":
            return _check(arguments)
        case _:
            return _export(arguments)


def _print(line: bytes) -> None:
    """A line of output, the same in every locale."""
    sys.stdout.buffer.write(line + b"\n")


# ---- parse --------------------------------------------------------------------------------------------------------


def _parse(arguments: Arguments) -> int:
    from ludus.parsers import Parser, names
    from ludus.parsers.parse_rows import parse_rows, parse_text

    if arguments.parser:
        Parser(arguments.parser)  # before stdin is waited for
    elif not arguments.jsonl:
        raise ConfigError(f"--parser: which format? One of {', '.join(names())}")
    tools = _read_json(arguments.tools, "--tools") if arguments.tools else None
    if not arguments.jsonl:
        _print(parse_text(_text(sys.stdin.buffer.read(), "stdin"), arguments.parser, tools).encode())
        return 0
    lines = (_text(line, f"line {number}") for number, line in enumerate(sys.stdin.buffer, 1))
    for line in parse_rows(lines, arguments.parser, tools):
        _print(line.encode())
    return 0


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from None


def _read_json(path: str, option: str) -> Any:
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option}: {path} is not JSON: {error}") from None


# ---- check --------------------------------------------------------------------------------------------------------


def _check(arguments: Arguments) -> int:
    from ludus.rl.row_checks import Vocabulary, check_lines

    vocabulary = Vocabulary()
    if arguments.tokenizer:
        from ludus.tokens.tokenizer import load

        vocabulary = vocabulary_of(load(arguments.tokenizer).tokenizer, drift=True)
    with _opened(arguments.file) as lines:
        report = check_lines(lines, vocabulary)
    if arguments.json:
        _print(_machine(report, drift=bool(arguments.tokenizer)))
    else:
        _tell(report, drift=bool(arguments.tokenizer))
    return 1 if report.fatal else 0


def vocabulary_of(tokenizer: "Tokenizer", *, drift: bool = False) -> "Vocabulary":
    """What checks know about ids; with `drift`, also what encoding their text again would give."""
    from ludus.rl.row_checks import Vocabulary

    def again(ids: Iterable[int]) -> list[int]:
        return tokenizer.encode(tokenizer.decode(list(ids)))

    return Vocabulary(tokenizer.size, frozenset(tokenizer.ends), again if drift else None)


def _opened(name: str) -> AbstractContextManager[IO[bytes]]:
    from ludus.batch import GROUPS

    if name == "-":
        return nullcontext(sys.stdin.buffer)
    path = Path(name)
    try:
        return (path / GROUPS if path.is_dir() else path).open("rb")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None


def _tell(report: "Report", *, drift: bool) -> None:
    shown: dict[tuple[str, str], int] = {}
    for finding in report.findings:
        kind = (finding.level, finding.code)
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] <= SHOWN:
            print(finding)
    for (level, code), count in shown.items():
        if count > SHOWN:
            print(f"{level}: {count - SHOWN} more [{code}]")
    print(report.summary() + (f", {report.drift_rate:.1%} of rows drift" if drift else ""))


def _machine(report: "Report", *, drift: bool) -> bytes:
    totals = {name: getattr(report, name) for name in ("groups", "rows", "tokens", "trained")}
    totals |= {"drift_rate": report.drift_rate} if drift else {}
    return msgspec.json.encode({"ok": not report.fatal, **totals, "findings": report.findings})


# ---- process ------------------------------------------------------------------------------------------------------


def training_fields(model: "Model", tell: Callable[[str], None]) -> "More":
    """What a line of `groups.jsonl` has beside the record: Atropos' columns, where every rollout has exact tokens. Rows
    with a fatal finding are left out, and that is said."""
    from ludus.config.token_mode import as_token_model
    from ludus.rl.atropos_rows import as_fields, columns
    from ludus.rl.row_checks import Vocabulary
    from ludus.rl.rows import NotExact

    exact = as_token_model(model)
    vocabulary = vocabulary_of(exact.codec.tokenizer) if exact is not None else Vocabulary()

    def fields(group: "Group") -> Mapping[str, object]:
        try:
            made, report = columns(group, vocabulary)
        except NotExact:
            return {}
        for finding in report.findings:
            if finding.level == "fatal":
                tell(f"task '{group.task.id}': a row was left out: {finding.message} [{finding.code}]")
        return as_fields(made) if made is not None else {}

    return fields


# ---- export -------------------------------------------------------------------------------------------------------


def _export(arguments: Arguments) -> int:
    from ludus.batch import stored_groups
    from ludus.rl.atropos_rows import as_fields, columns, retokenized_columns
    from ludus.rl.row_checks import Report, Vocabulary
    from ludus.store import RunDir
    from ludus.types import to_json

    if (arguments.parser or arguments.template) and not arguments.retokenize:
        raise ConfigError("--parser and --template are for rows made from text: give --retokenize TOKENIZER too")
    total = Report()
    with RunDir.read(Path(arguments.run)) as directory:
        encode = _encoder(arguments, directory.config) if arguments.retokenize else None
        for group in stored_groups(directory, directory.config.get("env", {}).get("group_size", 1)):
            made, report = retokenized_columns(group, *encode) if encode else columns(group, Vocabulary())
            total.groups += 1
            total.take(report)
            if made is not None:
                _print(to_json({"task": group.task.id, **as_fields(made)}))
    print(f"ludus: {total.summary()}", file=sys.stderr)
    return 1 if total.fatal else 0


def _encoder(
    arguments: Arguments, recorded: Mapping[str, Any]
) -> "tuple[Callable[[Rollout], list[TokenSequence]], Vocabulary]":
    """How the rollouts of a run become rows, with the tools that its settings gave them."""
    from ludus.config import assemble
    from ludus.config.build_agent import build_env
    from ludus.config.reading import Layer
    from ludus.config.tree import SECTIONS
    from ludus.rl.rows import retokenized
    from ludus.tokens.codec import Codec

    codec = Codec.open(arguments.retokenize, arguments.parser or "hermes", template=arguments.template)
    config = assemble([Layer("the run's settings", {name: recorded[name] for name in SECTIONS if name in recorded})])
    env = build_env(config)
    known = asyncio.run(_toolset_specs(config))

    def encode(rollout: "Rollout") -> "list[TokenSequence]":
        return retokenized(rollout.messages, _offered(rollout, known, env), codec)

    return encode, vocabulary_of(codec.tokenizer)


_NOWHERE: Any = object()
"""In place of a slot: tools are made here and not run, and none of them looks at its slot before."""


async def _toolset_specs(config: "Config") -> "dict[str, ToolSpec]":
    from ludus.config.build_tools import open_registry

    async with open_registry(config.tools) as registry:
        made = [toolset.make(_NOWHERE) for toolset in registry.toolsets if toolset.make]
    return {tool.name: tool.spec for tools in made for tool in tools}


def _offered(rollout: "Rollout", known: "dict[str, ToolSpec]", env: "Env") -> "list[ToolSpec]":
    """The tools that a rollout was shown: their names are in its record, what they are is in the settings."""
    names = rollout.provenance.tools
    if any(name not in known for name in names):
        known = known | {tool.name: tool.spec for tool in env.tools(rollout.task, _NOWHERE)}
    lost = [name for name in names if name not in known]
    if lost:
        raise ConfigError(f"task '{rollout.task.id}' was shown a tool '{lost[0]}' that its settings no longer give")
    return [known[name] for name in names]
