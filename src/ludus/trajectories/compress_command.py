"""`ludus compress`: cut trajectories to a number of tokens (`ludus.trajectories.compression`).

The summary of what is cut is a list of what was done, or written by a model. A row whose summary the model could not
write is left out and counted: no row gets a made-up one. After a kill the same command goes on: summaries that were
written are not asked for again (`ludus.trajectories.summary_journal`).
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, Command
from ludus.command.settings import print_model_hint
from ludus.command.terminal import print_notice
from ludus.config import Config, load
from ludus.config.build_models import build_ledger, build_model
from ludus.encoding import to_json
from ludus.errors import ConfigError, ModelError, ModelUnusable, raise_first
from ludus.models import Model
from ludus.models.token_estimate import estimate_text
from ludus.rl.exporters.export_files import replace_file
from ludus.store import STORE
from ludus.trajectories.compression import (
    MARK,
    NOTICE,
    CompressionRules,
    Conversation,
    CountTokens,
    Cut,
    Part,
    list_contents,
    plan_cut,
    read_conversation,
    replace_middle,
    shorten_text,
    show_parts,
)
from ludus.trajectories.shards import list_shards
from ludus.trajectories.summary_journal import SummaryJournal, make_summary_key
from ludus.types import JsonObject, Message, Sampling

INSTRUCTION = """\
You are given a part of the work of an agent: its replies, its tool calls and their results. Another reader has to go on
without this part. Write down, in plain sentences and without an introduction, what was tried, what was found (keep
names, paths, numbers and error messages exactly), what was changed, and what was still open at the end of the part. Do
not add anything that is not in it. Use at most {tokens} tokens."""


class CompressArguments(Arguments):
    source: str
    to: str
    tokens: int
    tokenizer: str
    summary: Literal["list", "model"]
    summary_tokens: int
    keep_last: int
    over: Literal["keep", "drop"]


Summarize = Callable[[Sequence[Part]], Awaitable[str]]
"""Writes the summary of messages. Raises `ModelError` if it cannot."""


@dataclass
class CompressionReport:
    """What was done."""

    rows: int = 0
    unchanged: int = 0
    compressed: int = 0
    over: int = 0
    """Rows that are too long, because what would have to be cut is protected."""
    without_summary: int = 0
    """Rows that are left out: the model wrote no summary."""
    earlier: int = 0
    """Summaries that were not asked for: the same command had them before it was ended, or another row has them."""
    written: int = 0
    messages_cut: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    """Of the rows that were written."""
    exact: bool = False
    """Whether tokens were counted with a tokenizer."""


def run(arguments: CompressArguments) -> int:
    config = load([Path(path) for path in arguments.config], arguments.flags)
    _check_arguments(arguments)
    files = _find_files(Path(arguments.source))
    count, frame = _make_counter(arguments.tokenizer)
    rules = CompressionRules(
        tokens=arguments.tokens,
        summary_tokens=arguments.summary_tokens,
        keep_last=arguments.keep_last,
        frame=frame,
        marks=count(NOTICE) + count(MARK) + 2 * frame,
    )
    report = CompressionReport(exact=bool(arguments.tokenizer))
    work = Compression(rules, count, report, drop_over=arguments.over == "drop")
    if arguments.summary == "model" and not arguments.json:
        print_model_hint(config)
    asyncio.run(_run(work, files, arguments, config))
    _print_report(report, arguments)
    return 0 if report.written else 1


def _check_arguments(arguments: CompressArguments) -> None:
    given = [path for path, _ in arguments.flags]
    if given and arguments.summary != "model":
        raise ConfigError(f"--{given[0]} has no effect: no model is asked; with one: --summary model")
    if arguments.tokens <= arguments.summary_tokens:
        raise ConfigError(f"--tokens is {arguments.tokens}, and a summary alone may have {arguments.summary_tokens}")
    if arguments.summary_tokens < 1 or arguments.keep_last < 1:
        raise ConfigError("--summary-tokens and --keep-last: use 1 or more")
    if Path(arguments.to).suffix != ".jsonl":
        raise ConfigError(f"{arguments.to} should end in .jsonl")


def _find_files(source: Path) -> list[Path]:
    """The files of rows: the one that is named, or the shards of a run."""
    found = list_shards(source) if (source / STORE).exists() else [source] if source.is_file() else []
    if not found:
        raise ConfigError(f"{source} is neither a JSONL file nor a run of `ludus batch` with shards")
    if wrong := [path for path in found if path.suffix != ".jsonl"]:
        raise ConfigError(
            f"{wrong[0]} is not JSONL: write the shards again with --batch.format jsonl, or export the run"
        )
    return found


def _make_counter(tokenizer: str) -> tuple[CountTokens, int]:
    """What counts tokens, and what a chat template adds to a message."""
    frame = CompressionRules(tokens=0).frame
    if not tokenizer:
        print_notice("tokens are estimated, four characters each; exact counts: --tokenizer NAME")
        return estimate_text, frame
    from ludus.tokens.codec import Codec
    from ludus.tokens.tokenizer import load_tokenizer

    encode = load_tokenizer(tokenizer).tokenizer.encode
    said = [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]
    try:
        text = Codec.open(tokenizer, "hermes").renderer.render_prompt(said, ())
    except ConfigError:
        print_notice(f"{tokenizer} has no chat template: {frame} tokens are added for each message")
        return lambda text: len(encode(text)), frame
    extra = len(encode(text)) - sum(len(encode(message.content)) for message in said)
    return lambda text: len(encode(text)), -(-extra // len(said))


async def _run(work: "Compression", files: Sequence[Path], arguments: CompressArguments, config: Config) -> None:
    async with AsyncExitStack() as stack:
        summarize: Summarize = _list_contents
        journal = SummaryJournal(Path(arguments.to))
        if arguments.summary == "model":
            model = build_model(config.model, build_ledger(config), tell=print_notice)
            stack.push_async_callback(model.close)
            stack.enter_context(journal)
            summarize = _make_summarizer(model, work.rules.summary_tokens, journal, work.report)
        with replace_file(Path(arguments.to)) as path, path.open("wb") as file:
            async for row in work.run(_read_rows(files), summarize, config.run.concurrency):
                file.write(to_json(row) + b"\n")
        journal.remove()


async def _list_contents(parts: Sequence[Part]) -> str:
    return list_contents(parts)


def _make_summarizer(model: Model, tokens: int, journal: SummaryJournal, report: CompressionReport) -> Summarize:
    sampling = Sampling(temperature=0.3, max_tokens=2 * tokens)
    instruction = Message("system", INSTRUCTION.format(tokens=tokens))

    async def summarize(parts: Sequence[Part]) -> str:
        text = show_parts(parts)
        key = make_summary_key(model.name, instruction.content, text)
        known = journal.get(key)
        if known is not None:
            report.earlier += 1
            return known
        done = await model.complete([instruction, Message("user", text)], (), sampling)
        summary = done.message.content.strip()
        if not summary:
            raise ModelError("the summary is empty")
        journal.put(key, summary)
        return summary

    return summarize


def _read_rows(files: Sequence[Path]) -> Iterator[tuple[str, JsonObject]]:
    """The rows of files, each with its place."""
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", _decode(line, f"{path}, line {number}")


def _decode(line: bytes, place: str) -> JsonObject:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"{place}: {error}") from None


@dataclass(frozen=True)
class Compression:
    """Compresses rows, some at a time, and counts what it did."""

    rules: CompressionRules
    count: CountTokens
    report: CompressionReport
    drop_over: bool = False

    async def run(
        self, rows: Iterator[tuple[str, JsonObject]], summarize: Summarize, at_once: int
    ) -> AsyncIterator[JsonObject]:
        """The rows that are written, in their order."""
        while batch := list(itertools.islice(rows, at_once)):
            with raise_first():
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._compress(place, row, summarize)) for place, row in batch]
            for task in tasks:
                if (row := task.result()) is not None:
                    self.report.written += 1
                    yield row

    async def _compress(self, place: str, row: JsonObject, summarize: Summarize) -> JsonObject | None:
        report = self.report
        try:
            before = read_conversation(row, self.count)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
        report.rows += 1
        size, cut = before.count(self.rules), plan_cut(before, self.rules)
        if cut is None or cut.stop == cut.start:
            return self._keep(row, size, is_over=cut is not None)
        try:
            summary = await summarize(before.parts[cut.start : cut.stop])
        except ModelUnusable:
            raise
        except ModelError:
            report.without_summary += 1
            return None
        return self._replace(row, before, cut, summary)

    def _keep(self, row: JsonObject, size: int, *, is_over: bool) -> JsonObject | None:
        self.report.over += is_over
        self.report.unchanged += not is_over
        if is_over and self.drop_over:
            return None
        self.report.tokens_before += size
        self.report.tokens_after += size
        return row

    def _replace(self, row: JsonObject, before: Conversation, cut: Cut, summary: str) -> JsonObject | None:
        report, rules = self.report, self.rules
        made = replace_middle(row, before, cut, shorten_text(summary, self.count, rules.summary_tokens))
        sizes = before.count(rules), read_conversation(made, self.count).count(rules)
        is_over = sizes[1] > rules.tokens
        report.over += is_over
        if is_over and self.drop_over:
            return None
        report.compressed += 1
        report.messages_cut += cut.stop - cut.start
        report.tokens_before += sizes[0]
        report.tokens_after += sizes[1]
        facts = {"tokens_before": sizes[0], "tokens_after": sizes[1], "messages_cut": cut.stop - cut.start}
        return {**made, "compression": facts}


def _print_report(report: CompressionReport, arguments: CompressArguments) -> None:
    if arguments.json:
        print(json.dumps({"to": arguments.to, **asdict(report)}))
        return
    about = "" if report.exact else "about "
    print(f"{report.written} of {report.rows} rows in {arguments.to}")
    print(
        f"  {report.compressed} compressed ({report.messages_cut} messages cut), {report.unchanged} fitted as they were"
    )
    print(f"  {about}{report.tokens_before} tokens before, {about}{report.tokens_after} after")
    if report.over:
        what = "left out" if arguments.over == "drop" else "written all the same; leave them out: --over drop"
        print(f"  {report.over} are longer than {arguments.tokens} tokens, because what is protected is: {what}")
    if report.earlier:
        print(f"  {report.earlier} summaries were there: from the same command before it was ended, or of equal parts")
    if report.without_summary:
        print(f"  {report.without_summary} left out: the model wrote no summary")


COMMAND = Command(
    run,
    "ludus compress runs/batch short.jsonl --tokens 15000                 # the shards of a batch\n"
    "ludus compress rows.jsonl short.jsonl --tokens 15000 --tokenizer Qwen/Qwen3-8B --over drop\n"
    "ludus compress rows.jsonl short.jsonl --tokens 15000 --summary model --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY",
    (
        make_argument(
            "source", metavar="IN", help="a run of ludus batch, or a JSONL file in OpenAI's or ShareGPT's form"
        ),
        make_argument("to", metavar="OUT", help="the JSONL file to write"),
        make_argument("--tokens", type=int, required=True, metavar="N", help="the most tokens of a trajectory"),
        make_argument(
            "--tokenizer",
            metavar="NAME",
            default="",
            help="count exactly, with a tokenizer of the hub or a file (extra: tokens); default: an estimate",
        ),
        make_argument(
            "--summary",
            choices=("list", "model"),
            default="list",
            help="what takes the place of the middle: a list of what was done (default), or a summary by a model",
        ),
        make_argument(
            "--summary-tokens", type=int, default=750, metavar="N", help="the most tokens of it; default: 750"
        ),
        make_argument(
            "--keep-last", type=int, default=4, metavar="N", help="messages at the end that stay, at least; default: 4"
        ),
        make_argument(
            "--over",
            choices=("keep", "drop"),
            default="keep",
            help="rows that are too long although all was cut that may be: write them (default), or leave them out",
        ),
        CONFIG,
        JSON,
    ),
    CompressArguments,
    """\
settings, with --summary model (list them: ludus config):
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --run.concurrency 16 --budget.dollars 2""",
    frozenset({"model", "run.concurrency", "budget.tokens", "budget.dollars", "budget.calls"}),
)
