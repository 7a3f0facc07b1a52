"""Measure how fast tool calls are parsed, for each format, and compare it with other parsers.

    $ python bench/parsers.py                       Ludus
    $ python bench/parsers.py --peers               also atroposlib (installs it first: about 1 GB, once)
    $ python bench/parsers.py --python PATH         also vLLM, from a Python that has it; `make test-vllm` installs one
    $ python bench/parsers.py --short               less CPU time per figure
    $ python bench/parsers.py --cases FILE          only check agreement with test cases of other implementations

Every system parses the same two texts in each format: a usual reply (a few sentences, two calls) and a long one (100 KB
of prose, one call that writes a file of 100 KB). Ludus also parses both in pieces of four characters, as in a stream. A
figure is valid only if the parsed calls equal the written ones. Figures are CPU time of one thread, from the best of
several rounds. atroposlib has no parsers of its own: it uses those of vLLM and needs vLLM installed.

Not measured: texts of real models, and tokenizing, which costs more than any parser.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CACHE, Check, CommandFailed, describe_machine, find_venv, make_venv, print_verdict, render_table

PEER = ("atroposlib==0.4.0",)
PATIENCE = 20
"""Time limit for one figure of a peer, in seconds."""
MIN_USUAL = 1.0
MIN_LONG = 5.0
"""Minimum MB/s of every format. Any machine of the last ten years reaches it, even when it is busy."""

PROSE = "Let me look at the file first, then run the tests; the error mentions a missing key in the cache. "
CODE = "def total(rows):\n    return sum(row['n'] for row in rows if row.get('n'))  # \"all\" of them\n\n"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "read_file": {"path": {"type": "string"}, "offset": {"type": "integer"}, "limit": {"type": "integer"}},
        "terminal": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
        "write_file": {"path": {"type": "string"}, "content": {"type": "string"}},
    }.items()
]
USUAL = [
    ("read_file", {"path": "src/app/cache.py", "offset": 0, "limit": 200}),
    ("terminal", {"command": "python -m pytest -q tests/test_cache.py 2>&1 | tail -n 20", "timeout": 60}),
]
LONG = [("write_file", {"path": "src/app/totals.py", "content": CODE * 1200})]
KINDS: Mapping[str, tuple[list[tuple[str, Any]], int]] = {"usual": (USUAL, 4), "long": (LONG, 1000)}
"""For each kind of text: its calls, and how often the prose is repeated before them."""

Read = Callable[[str], list[tuple[str, Any]]]
"""A parser: takes a text, returns the names and arguments of its calls."""


@dataclass(frozen=True)
class Sample:
    """A text in one format, and the calls in it."""

    format: str
    kind: str
    text: str
    calls: list[tuple[str, Any]]


def make_samples() -> list[Sample]:
    from ludus.parsers import Parser
    from ludus.parsers.formats import FORMATS
    from ludus.types import Call

    found: list[Sample] = []
    for name in (*FORMATS, "auto"):
        for kind, (calls, prose) in KINDS.items():
            written = [Call(f"call_{n}", tool, json.dumps(given)) for n, (tool, given) in enumerate(calls)]
            found.append(Sample(name, kind, Parser(name).render(written, PROSE * prose), calls))
    return found


# ---- measuring ----------------------------------------------------------------------------------------------------


def measure_speed(read: Read, sample: Sample, seconds: float, rounds: int = 3) -> float | None:
    """Measure a parser. Returns the MB/s of the best round, or None if the parsed calls are wrong."""
    if [(name, given) for name, given in read(sample.text)] != sample.calls:
        return None
    best = 0.0
    for _ in range(rounds):
        count, begin = 0, time.process_time()
        while (spent := time.process_time() - begin) < seconds / rounds:
            read(sample.text)
            count += 1
        best = max(best, count * len(sample.text.encode()) / spent / 1e6)
    return best


def make_reader(name: str, piece: int = 0) -> Read:
    from ludus.parsers import ParsedReply, Parser
    from ludus.parsers.parse_rows import read_tools

    parser, tools = Parser(name), read_tools(TOOLS)

    def read_whole(text: str) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in parser.parse(text, tools).calls]

    def read_pieces(text: str) -> list[tuple[str, Any]]:
        stream = parser.stream(tools)
        events = [event for at in range(0, len(text), piece) for event in stream.feed(text[at : at + piece])]
        reply = ParsedReply.from_events([*events, *stream.finish()])
        return [(call.name, json.loads(call.arguments)) for call in reply.calls]

    return read_pieces if piece else read_whole


def measure_ours(found: Sequence[Sample], seconds: float) -> dict[tuple[str, str, str], float | None]:
    """Measure Ludus. The keys are format, kind, and `whole` or `pieces`."""
    rates: dict[tuple[str, str, str], float | None] = {}
    for sample in found:
        print(f"{sample.format} ({sample.kind}) …", file=sys.stderr)
        rates[sample.format, sample.kind, "whole"] = measure_speed(make_reader(sample.format), sample, seconds)
        rates[sample.format, sample.kind, "pieces"] = measure_speed(
            make_reader(sample.format, piece=4), sample, seconds
        )
    return rates


# ---- peers --------------------------------------------------------------------------------------------------------


def drive_parsers() -> int:
    """Measure the parsers of a peer, in its Python: samples on stdin, MB/s on stdout. Failures have no figure."""
    given = json.load(sys.stdin)
    rates: dict[str, float] = {}
    _load_vllm_parser("hermes")  # the import takes longer than any sample
    signal.signal(signal.SIGALRM, _raise_timeout)
    for format, kind, text, calls in given["samples"]:
        signal.alarm(PATIENCE)
        try:
            sample = Sample(format, kind, text, [(name, arguments) for name, arguments in calls])
            rate = measure_speed(_load_vllm_parser(format), sample, given["seconds"])
        except Exception as error:  # any failure of a peer's parser means that it has no figure
            print(f"{format}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            continue
        if rate:
            rates[f"{format}/{kind}"] = rate
    signal.alarm(0)
    print(json.dumps(rates))
    return 0


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"no result within {PATIENCE} s")


class _Tokenizer:
    """The part of a tokenizer that vLLM's parsers need for a whole text."""

    class _Vocabulary(dict[str, int]):
        def __missing__(self, token: str) -> int:
            return 1

        def get(self, token: str, default: Any = None) -> int:
            return 1

    def get_vocab(self) -> "_Tokenizer._Vocabulary":
        return self._Vocabulary()

    def encode(self, text: str, **_: Any) -> list[int]:
        return [1]

    def decode(self, ids: Any, **_: Any) -> str:
        return ""


def _load_vllm_parser(format: str) -> Read:
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError:
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    except ImportError:
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest

    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    known = {"deepseek_v3_1": "deepseek_v31", "granite_20b_fc": "granite-20b-fc"}
    kind = ToolParserManager.get_tool_parser(known.get(format, format))

    def read(text: str) -> list[tuple[str, Any]]:
        try:
            parser = kind(_Tokenizer(), request.tools)
        except TypeError:
            parser = kind(_Tokenizer())
        found = parser.extract_tool_calls(text, request)
        return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]

    return read


def measure_peer(python: Path, found: Sequence[Sample], seconds: float) -> tuple[dict[str, float], str]:
    """Measure a peer. Returns MB/s by `format/kind`, and the reason if there are no figures."""
    given = {"seconds": seconds, "samples": [(s.format, s.kind, s.text, s.calls) for s in found if s.format != "auto"]}
    try:
        done = subprocess.run(
            [str(python), __file__, "--drive"], input=json.dumps(given), capture_output=True, text=True, timeout=1800
        )
    except subprocess.TimeoutExpired:
        return {}, "no result within 1800 s"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode:
        return {}, f"exit {done.returncode}: {last}"
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates, "" if rates else f"no figure ({last})"


# ---- agreement ----------------------------------------------------------------------------------------------------

UNKNOWN = "calls of unknown tools are passed on"
CUT = "calls that are cut off are not run"
TAG = "what is no call keeps its tags"
DIFFERENCES: Mapping[str, str] = {
    "glm45-016": CUT,
    "sgl-qwen3_coder-006": CUT,
    "sgl-glm45-007": UNKNOWN,
    "sgl-glm47-007": UNKNOWN,
    "sgl-hunyuan-010": UNKNOWN,
    "sgl-poolsidev1-012": UNKNOWN,
    "mistral-010": TAG,
    "sgl-mistral-009": TAG,
    "sgl-museglimmer-015": TAG,
    "mistral-009": "words before the list make it text",
    "granite-20b-fc-009": "a list is read as well",
    "qwen3_coder-020": "a tag without its `>` ends at the line",
    "minicpm5-013": "of two equal arguments the last one counts",
    "minimax_m2-009": "without a schema `1` is a number",
}
"""Cases outside the core that Ludus parses differently, and why."""


THOUGHTS_AS_CONTENT = frozenset({"muse_glimmer"})
"""Formats whose source leaves thoughts in the content, because another of its parsers takes them out before."""


def agrees(case: Mapping[str, Any]) -> bool:
    """Whether names and arguments are as expected, and the content too if the source asserts it."""
    from ludus.parsers.parse_rows import parse_rows

    row = json.dumps({"parser": case["parser"], "input": case["input"], "tools": case["tools"]})
    read = json.loads(next(iter(parse_rows([row]))))
    if read["tool_calls"] != [{"name": c["name"], "arguments": c["arguments"]} for c in case["expected_calls"]]:
        return False
    if "content" not in case["asserted_fields"]:
        return True
    content, expected = (read["content"] or "").strip(), (case["expected_content"] or "").strip()
    if case["parser"] in THOUGHTS_AS_CONTENT:
        content = (read.get("reasoning") or "") + content
    return content == expected


def render_agreement(cases: Sequence[Mapping[str, Any]]) -> str:
    """Render the table of docs/parsers.md: how many cases agree with their source, and why the others differ."""
    total: Counter[tuple[str, bool]] = Counter()
    same: Counter[tuple[str, bool]] = Counter()
    reasons: dict[str, list[str]] = {}
    for case in cases:
        name, core = case["parser"], bool(case["core"])
        total[name, core] += 1
        if agrees(case):
            same[name, core] += 1
        else:
            reasons.setdefault(name, []).append(DIFFERENCES.get(case["id"], f"{case['id']}: UNEXPLAINED"))
    rows: list[tuple[object, ...]] = [("format", "core", "others", "where we differ")]
    for name in sorted({name for name, _ in total}):
        core, others = (f"{same[name, kind]}/{total[name, kind]}" for kind in (True, False))
        rows.append((name, core, others, "; ".join(dict.fromkeys(reasons.get(name, [])))))
    sums = [
        "/".join(str(sum(n for (_, kind), n in counts.items() if kind is core)) for counts in (same, total))
        for core in (True, False)
    ]
    return render_table([*rows, ("all", *sums, "")])


def check_cases(file: Path) -> int:
    cases = json.loads(file.read_text())["cases"]
    print(render_agreement(cases))
    wrong = [case["id"] for case in cases if not agrees(case) and (case["core"] or case["id"] not in DIFFERENCES)]
    core = sum(bool(case["core"]) for case in cases)
    passed = core - sum(bool(case["core"]) and case["id"] in wrong for case in cases)
    return print_verdict("parsers", [Check("core cases", passed / core * 100, 100, "%", at_least=True)], notes=wrong)


# ---- the report ---------------------------------------------------------------------------------------------------


def render_report(rates: Mapping[tuple[str, str, str], float | None], peers: Mapping[str, Mapping[str, float]]) -> str:
    head = ["format", "usual MB/s", "in pieces", "long MB/s", "in pieces"]
    head += [f"{peer}, {kind}" for peer in peers for kind in KINDS]
    rows: list[list[object]] = [head]
    for name in dict.fromkeys(format for format, _, _ in rates):
        figures = [rates[name, kind, way] for kind in KINDS for way in ("whole", "pieces")]
        others = [rate.get(f"{name}/{kind}") for rate in peers.values() for kind in KINDS]
        rows.append([name, *("" if figure is None else figure for figure in (*figures, *others))])
    return render_table(rows)


def make_checks(rates: Mapping[tuple[str, str, str], float | None]) -> list[Check]:
    wrong = sum(rate is None for rate in rates.values())
    usual = [rate for (_, kind, way), rate in rates.items() if rate and kind == "usual" and way == "whole"]
    long = [rate for (_, kind, way), rate in rates.items() if rate and kind == "long" and way == "whole"]
    return [
        Check("misread", wrong, 0),
        Check("slowest format, usual", min(usual, default=0), MIN_USUAL, "MB/s", at_least=True),
        Check("slowest format, long", min(long, default=0), MIN_LONG, "MB/s", at_least=True),
    ]


def _find_vllm_python() -> Path | None:
    home = CACHE.parent / "vllm"
    return home / "venv" / "bin" / "python" if (home / "ready").exists() else None


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="install atroposlib and measure it")
    parser.add_argument("--python", type=Path, help="a Python that has vLLM, to measure its parsers")
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time per figure (default 0.3)")
    parser.add_argument("--short", action="store_true", help="0.03 seconds per figure")
    parser.add_argument("--cases", type=Path, help="a file of cases: print how many agree with their source")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.drive:
        return drive_parsers()
    if options.cases:
        return check_cases(options.cases)
    if options.short:
        options.seconds = 0.03
    found = make_samples()
    peers: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    pythons = {"atroposlib": find_venv(CACHE / "atroposlib", PEER), "vLLM": options.python or _find_vllm_python()}
    if options.peers and not pythons["atroposlib"]:
        print(f"installing {PEER[0]} …", file=sys.stderr)
        try:
            pythons["atroposlib"] = make_venv(CACHE / "atroposlib", PEER)
        except CommandFailed as error:
            print(error, file=sys.stderr)
            notes.append("atroposlib not installed")
    for name, python in pythons.items():
        if python:
            peers[name], trouble = measure_peer(python, found, options.seconds)
            notes += [f"{name}: {trouble}"] if trouble else []
    rates = measure_ours(found, options.seconds)
    print(describe_machine())
    print(render_report(rates, peers))
    return print_verdict("parsers", make_checks(rates), notes=notes or ([] if peers else ["peers not run"]))


if __name__ == "__main__":
    raise SystemExit(main())
