"""One rollout: its turns in pages, long texts in pieces, tokens in columns, and what the agent left.

A reply is bounded whatever a rollout holds: a page has so many turns and so many characters, and each text names itself
(`ref`), so that the rest of it can be read from any place. The record itself is decoded once and kept for the next
request (`RolloutShelf`), as far as memory allows.
"""

import math
import shlex
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from ludus.errors import ConfigError, LudusError, StoreError
from ludus.images import FOLDER as IMAGES
from ludus.outcome_facts import OutcomeFacts
from ludus.rl.advantages import compute_advantages
from ludus.rl.trainer_logprobs import read_trainer_logprobs
from ludus.store import RunDir, decode_rollout
from ludus.types import Message, Rollout, ToolResult, Turn
from ludus.view.facts import RunFacts
from ludus.view.markup import LONGEST, render_code, render_json, render_markdown, show_hidden
from ludus.view.model import (
    LeftFile,
    PhaseShare,
    RolloutBranch,
    RolloutDetail,
    ShownCall,
    ShownFailure,
    ShownImage,
    ShownMessage,
    ShownScore,
    ShownTurn,
    TextPart,
    TextPiece,
    TokenPage,
    TurnPage,
    WaterfallSpan,
)
from ludus.view.paging import Parameters, get_section
from ludus.view.rollout_pages import ListPlace, find_place, make_card

TURNS, MOST_TURNS = 20, 100
RESULT = 8_000
"""Characters of a result, or of arguments, that a page shows at first."""
PAGE = 400_000
"""Characters of one page of turns, all texts together."""
PIECE = 200_000
"""Characters of one piece of a text."""
TOKENS, MOST_TOKENS = 1_000, 4_000
MOST_CALLS, MOST_FILES, MOST_GROUP, MOST_SPANS = 100, 500, 64, 250
SHELF_BYTES = 96_000_000
"""The records that are kept for the next request, in bytes as they are stored."""


class RolloutShelf:
    """Rollouts that were decoded last."""

    def __init__(self, most: int = SHELF_BYTES) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[tuple[str, int, int, float | None], tuple[Rollout, int]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, facts: RunFacts, row: OutcomeFacts) -> Rollout:
        """The rollout of a row. One that was judged or run again since is another one."""
        place = (str(facts.directory.path), row.id, row.size, row.score)
        with self._lock:
            if (found := self._kept.get(place)) is not None:
                self._kept.move_to_end(place)
                return found[0]
        rollout, size = read_rollout(facts.directory, row.id)
        with self._lock:
            if place not in self._kept and size <= self._most:
                self._kept[place] = (rollout, size)
                self._size += size
            while self._size > self._most:
                self._size -= self._kept.popitem(last=False)[1][1]
        return rollout


def read_rollout(directory: RunDir, id: int) -> tuple[Rollout, int]:
    """A rollout and the size of its record."""
    body = directory.read_body(id)
    if body is None:
        raise StoreError(f"{directory.path}: there is no rollout {id}")
    try:
        return decode_rollout(body), len(body)
    except (ValueError, TypeError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"{directory.path}: rollout {id} cannot be read ({error})") from error


# ---- texts --------------------------------------------------------------------------------------------------------


class _Room:
    """How many characters of a page are left."""

    def __init__(self, characters: int = PAGE) -> None:
        self.left = characters

    def take(self, wanted: int) -> int:
        taken = min(wanted, self.left)
        self.left -= taken
        return taken


def _make_part(text: str, form: str, ref: str, room: _Room, most: int = LONGEST) -> TextPart:
    """The beginning of a text as a page shows it."""
    length = room.take(min(len(text), most))
    shown, html, cut = text[:length], "", length < len(text)
    if form == "markdown":
        html = render_markdown(shown)
    elif form == "json" and not cut:
        shown, html = render_json(shown)
    elif form not in ("text", "json"):
        html = render_code(shown, form)
    return TextPart(text=show_hidden(shown), html=html, form=form, size=len(text), cut=cut, ref=ref)


_LANGUAGES = {
    ".py": "python",
    ".js": "javascript",
    ".ts": "typescript",
    ".sh": "bash",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".html": "html",
    ".css": "css",
    ".sql": "sql",
    ".c": "c",
    ".h": "c",
    ".cpp": "cpp",
    ".rs": "rust",
    ".go": "go",
    ".java": "java",
    ".rb": "ruby",
    ".md": "markdown",
    ".diff": "diff",
    ".patch": "diff",
    ".xml": "xml",
}


def _guess_form(text: str, path: str = "") -> str:
    """The form of a tool's result or of a file."""
    if form := _LANGUAGES.get(PurePosixPath(path).suffix.lower(), ""):
        return form
    head = text[:200].lstrip()
    if head.startswith(("{", "[")) and text[-200:].rstrip().endswith(("}", "]")):
        return "json"
    return "diff" if head.startswith(("--- a/", "diff --git ")) else "text"


def find_text(directory: RunDir, rollout: Rollout, ref: str) -> tuple[str, str]:
    """The whole text with a name, and its form. Raises `ConfigError` if there is none."""
    kind, *rest = ref.split(".")
    try:
        match kind, rest:
            case "prompt", []:
                return rollout.task.prompt, "markdown"
            case "feedback", [] if rollout.score is not None:
                return rollout.score.feedback, "markdown"
            case "opening", [number]:
                return rollout.opening[_read_number(number)].content, "markdown"
            case "turn", [number, *place]:
                return _find_in_turn(rollout.turns[_read_number(number, 1) - 1], place)
            case "file", [number]:
                return _find_file(directory, rollout, _read_number(number))
            case _:
                raise IndexError
    except IndexError:
        raise ConfigError(f"ref: this rollout has no text '{ref[:60]}'") from None


def _read_number(text: str, lowest: int = 0) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < lowest:
        raise IndexError
    return int(text)


def _find_in_turn(turn: Turn, place: Sequence[str]) -> tuple[str, str]:
    message = turn.completion.message
    match place:
        case ["text"]:
            return message.content, "markdown"
        case ["reasoning"]:
            return message.reasoning.text if message.reasoning else "", "markdown"
        case ["arguments", number]:
            return _list_calls(turn)[_read_number(number)][0].arguments, "json"
        case ["result", number]:
            result = _list_calls(turn)[_read_number(number)][1]
            return (result.content, _guess_form(result.content)) if result else ("", "text")
        case ["notice", number]:
            return turn.notices[_read_number(number)].content, "markdown"
        case _:
            raise IndexError


def _find_file(directory: RunDir, rollout: Rollout, number: int) -> tuple[str, str]:
    entry = directory.read_files(rollout.files).entries[number] if rollout.files else None
    if entry is None or entry.data is None:
        raise IndexError
    return entry.data.decode(errors="replace"), _guess_form("", entry.path)


def read_piece(directory: RunDir, rollout: Rollout, given: Parameters) -> TextPiece:
    """A piece of a long text."""
    ref = given.get("ref")
    text, form = find_text(directory, rollout, ref)
    start = given.get_whole("start", 0, 0, len(text))
    end = min(given.get_whole("end", start + PIECE, start, len(text)), start + PIECE, len(text))
    shown, html = text[start:end], ""
    if (start, end) == (0, len(text)) and len(shown) <= LONGEST:
        part = _make_part(text, form, ref, _Room())
        return TextPiece(ref=ref, start=0, end=end, size=end, text=part.text, html=part.html, form=form)
    return TextPiece(ref=ref, start=start, end=end, size=len(text), text=show_hidden(shown), html=html, form=form)


# ---- turns --------------------------------------------------------------------------------------------------------


def list_turns(rollout: Rollout, run: str, given: Parameters, *, first: int = 0) -> TurnPage:
    """A page of turns."""
    total = len(rollout.turns)
    first = given.get_whole("first", first or 1, 1, max(1, total))
    limit = given.get_whole("limit", TURNS, 1, MOST_TURNS)
    room, starts = _Room(), _list_starts(rollout)
    turns: list[ShownTurn] = []
    for number in range(first, min(first + limit, total + 1)):
        turns.append(_show_turn(rollout.turns[number - 1], number, run, room, starts[number - 1]))
        if not room.left:
            break
    after = first + len(turns)
    return TurnPage(turns=tuple(turns), total=total, first=first, next=after if after <= total else 0)


def list_phases(rollout: Rollout) -> Mapping[str, float]:
    """How long a rollout was in each phase; empty if the record does not tell."""
    nothing: dict[str, float] = {}
    return rollout.times.phases if rollout.times else nothing


def _list_starts(rollout: Rollout) -> list[float]:
    """When each turn began, seconds after the begin: after the phases before the first turn, one after the other."""
    phases = list_phases(rollout)
    now, starts = float(phases.get("slot", 0.0) + phases.get("setup", 0.0)), list[float]()
    for turn in rollout.turns:
        starts.append(now)
        now += turn.seconds
    return starts


def _list_calls(turn: Turn) -> list[tuple[Any, ToolResult | None]]:
    """The calls of a turn with their results; then results of calls that the message does not have."""
    results = list(turn.results)
    by_id = {result.call.id: result for result in results}
    calls = turn.completion.message.calls
    if len(calls) == len(results) and [call.id for call in calls] == [result.call.id for result in results]:
        return [(result.call, result) for result in results]
    found: list[tuple[Any, ToolResult | None]] = [(call, by_id.get(call.id)) for call in calls]
    known = {call.id for call in calls}
    return [*found, *((result.call, result) for result in results if result.call.id not in known)]


def _show_turn(turn: Turn, number: int, run: str, room: _Room, start: float) -> ShownTurn:
    reply, ref = turn.completion, f"turn.{number}"
    message, tokens = reply.message, reply.tokens
    every = _list_calls(turn)
    tools = min(turn.seconds, sum(result.seconds for result in turn.results)) if turn.seconds else 0.0
    notices = [_show_message(notice, f"{ref}.notice.{n}", run, room) for n, notice in enumerate(turn.notices)]
    if len(every) > MOST_CALLS:
        words = f"{len(every) - MOST_CALLS} further calls of this turn are not listed; its JSON has them."
        notices.insert(0, ShownMessage(role="ludus", text=TextPart(text=words, size=len(words))))
    reasoning = message.reasoning
    return ShownTurn(
        number=number,
        reasoning=_make_part(reasoning.text, "markdown", f"{ref}.reasoning", room) if reasoning else None,
        text=_make_part(message.content, "markdown", f"{ref}.text", room),
        calls=tuple(_show_call(*pair, f"{ref}", n, run, room) for n, pair in enumerate(every[:MOST_CALLS])),
        notices=tuple(notices),
        images=_show_images([image.url for image in message.images], run),
        finish=reply.finish.value,
        stop=turn.stop.value if turn.stop else "",
        model=reply.model,
        usage=reply.usage,
        seconds=turn.seconds,
        start=start,
        model_seconds=max(0.0, turn.seconds - tools),
        tool_seconds=tools,
        guided=reply.guided,
        branch=None if reply.splice is None else (reply.splice.turn + 1 if reply.splice.kept else 0),
        sampled=sum(tokens.sampled) if tokens else 0,
        ids=len(tokens) if tokens else 0,
    )


def _show_call(call: Any, result: ToolResult | None, turn: str, place: int, run: str, room: _Room) -> ShownCall:
    arguments = _make_part(call.arguments, "json", f"{turn}.arguments.{place}", room, RESULT)
    answer = None
    if result is not None:
        form = _guess_form(result.content, _find_path(call.arguments))
        answer = _make_part(result.content, form, f"{turn}.result.{place}", room, RESULT)
    return ShownCall(
        id=show_hidden(call.id[:200]),
        name=show_hidden(call.name[:200]),
        arguments=arguments,
        result=answer,
        error=show_hidden(result.error[:2000]) if result else "",
        seconds=result.seconds if result else 0.0,
        spilled=show_hidden(result.spilled) if result else "",
        images=_show_images(result.images if result else (), run),
    )


class _PathArgument(msgspec.Struct):
    path: str = ""


def _find_path(arguments: str) -> str:
    """The file that a call is about, if it names one."""
    if '"path"' not in arguments[:2000] or len(arguments) > 100_000:
        return ""
    try:
        return msgspec.json.decode(arguments.encode(errors="replace"), type=_PathArgument).path
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return ""


def _show_message(message: Message, ref: str, run: str, room: _Room) -> ShownMessage:
    text = _make_part(message.content, "markdown", ref, room)
    return ShownMessage(role=message.role, text=text, images=_show_images([i.url for i in message.images], run))


def _show_images(urls: Sequence[str], run: str) -> tuple[ShownImage, ...]:
    return tuple(_show_image(url, run) for url in urls[:50])


def _show_image(url: str, run: str) -> ShownImage:
    if url.startswith(f"{IMAGES}/"):
        return ShownImage(f"/api/runs/{quote(run, safe='')}/{IMAGES}/{quote(url.removeprefix(f'{IMAGES}/'), safe='')}")
    return ShownImage("", show_hidden(url[:300]))


# ---- the whole ----------------------------------------------------------------------------------------------------


def describe_rollout(
    facts: RunFacts, row: OutcomeFacts, rollout: Rollout, run: str, given: Parameters
) -> RolloutDetail:
    """Everything but the further turns."""
    room, place, directory = _Room(), _find_place(facts, row, given), facts.directory
    files, note = _list_files(directory, rollout)
    phases = list_phases(rollout)
    score, failure = rollout.score, rollout.failure
    group = facts.list_rows(
        "WHERE task = ? AND split = ? AND policy = ? ORDER BY replicate, id LIMIT ?", _name_group(row)
    )
    advantages = compute_group_advantages(group, directory.config)
    return RolloutDetail(
        run=run,
        row=make_card(row),
        prompt=_make_part(rollout.task.prompt, "markdown", "prompt", room),
        opening=tuple(_show_message(m, f"opening.{n}", run, room) for n, m in enumerate(rollout.opening[:100])),
        page=list_turns(rollout, run, Parameters(), first=given.get_whole("turn", 1, 1)),
        score=None
        if score is None
        else ShownScore(
            value=score.value,
            passed=score.passed,
            soft=score.soft,
            feedback=_make_part(score.feedback, "markdown", "feedback", room),
            parts={show_hidden(name): value for name, value in score.parts.items()},
            suspect=tuple(show_hidden(each[:2000]) for each in score.suspect),
        ),
        failure=None
        if failure is None
        else ShownFailure(failure.boundary, show_hidden(failure.message[:LONGEST]), failure.retryable),
        advantage=advantages.get(row.id),
        group=tuple(map(make_card, group)),
        before=place.before,
        after=place.after,
        place=place.place,
        of=place.of,
        waterfall=tuple(_list_spans(rollout)),
        phases=tuple(PhaseShare(phase, seconds) for phase, seconds in phases.items()),
        branches=_list_branches(rollout),
        files=files,
        files_note=note,
        provenance=msgspec.to_builtins(rollout.provenance),
        facts=_bound_facts(rollout.facts),
        has_tokens=bool(row.exact or row.sampled),
        has_trainer_logprobs=bool(read_trainer_logprobs(directory, rollout)),
        skill=rollout.provenance.skill,
        commands=_list_commands(directory.path, row, rollout),
    )


def _find_place(facts: RunFacts, row: OutcomeFacts, given: Parameters) -> ListPlace:
    """Where a rollout is in its list. `place=no`: nowhere, for those who know it already."""
    return ListPlace(None, None, 0, 0) if given.get("place") == "no" else find_place(facts, row, given)


def _name_group(row: OutcomeFacts) -> tuple[object, ...]:
    return (row.task, row.split, row.policy, MOST_GROUP)


def compute_group_advantages(group: Sequence[OutcomeFacts], config: Mapping[str, Any]) -> dict[int, float]:
    """The advantage of each rollout of a group, by its id."""
    scores = {row.id: row.score for row in group if row.score is not None}
    scale = get_section(config, "rl").get("scale", "none")
    return compute_advantages(scores, "std" if scale == "std" else "none") if scores else {}


def _bound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What else is known, as plain values. What is too long is left out, and said."""
    plain: dict[str, Any] = {}
    for name, value in facts.items():
        text = msgspec.json.encode(value, enc_hook=str)
        plain[name] = msgspec.json.decode(text) if len(text) <= LONGEST else f"({len(text):,} bytes: see the JSON)"
    return plain


def _list_commands(path: Path, row: OutcomeFacts, rollout: Rollout) -> dict[str, str]:
    words = {"show": ["show", str(path), row.key], "replay": ["replay", str(path), row.key]}
    if len(rollout.turns) > 1:
        words["fork"] = ["fork", str(path), row.key, "--turn", str(len(rollout.turns) - 1)]
    return {name: shlex.join(["ludus", *each]) for name, each in words.items()}


def _list_files(directory: RunDir, rollout: Rollout) -> tuple[tuple[LeftFile, ...], str]:
    if not rollout.files:
        return (), "No files were kept of this rollout."
    try:
        entries = directory.read_files(rollout.files).entries
    except StoreError as error:
        return (), str(error)
    shown = [
        LeftFile(
            path=show_hidden(entry.path),
            size=len(entry.data or b""),
            mode=f"{entry.mode & 0o7777:o}",
            link=show_hidden(entry.link or ""),
            removed=entry.removed,
            ref=f"file.{number}" if entry.data is not None else "",
        )
        for number, entry in enumerate(entries)
        if not entry.is_folder
    ]
    more = len(shown) - MOST_FILES
    return tuple(shown[:MOST_FILES]), f"{more} further files are not listed." if more > 0 else ""


def _list_branches(rollout: Rollout) -> tuple[RolloutBranch, ...]:
    """Turns in a row, each a line of the history."""
    begins = [(1, 0)]
    for number, turn in enumerate(rollout.turns, 1):
        splice = turn.completion.splice
        if splice is not None and number > 1:
            begins.append((number, splice.turn + 1 if splice.kept else 0))
    if len(begins) == 1 or len(begins) > 500:
        return ()
    ends = [first - 1 for first, _ in begins[1:]] + [len(rollout.turns)]
    return tuple(
        RolloutBranch(first, last, after, _name_branch(n, after))
        for n, ((first, after), last) in enumerate(zip(begins, ends, strict=True))
    )


def _name_branch(number: int, after: int) -> str:
    if not number:
        return "main"
    return f"branch after turn {after}" if after else "a conversation of its own"


_BEFORE, _AFTER = ("slot", "setup"), ("verify", "collect", "judge")


def _list_spans(rollout: Rollout) -> Iterator[WaterfallSpan]:
    """The waterfall. The record has how long each part took; parts are put one after the other."""
    phases, now = list_phases(rollout), 0.0
    for phase in _BEFORE:
        if seconds := phases.get(phase, 0.0):
            yield WaterfallSpan(0, phase, phase, now, seconds)
            now += seconds
    step = max(1, math.ceil(len(rollout.turns) / MOST_SPANS))
    for first in range(0, len(rollout.turns), step):
        turns = rollout.turns[first : first + step]
        yield from _list_turn_spans(turns, first + 1, now)
        now += sum(turn.seconds for turn in turns)
    for phase, seconds in phases.items():
        if phase in _AFTER:
            yield WaterfallSpan(0, phase, phase, now, seconds)
            now += seconds


def _list_turn_spans(turns: Sequence[Turn], number: int, now: float) -> Iterator[WaterfallSpan]:
    """The spans of a turn, or of some turns together where there are very many."""
    label = f"turn {number}" if len(turns) == 1 else f"turns {number} to {number + len(turns) - 1}"
    results = [result for turn in turns for result in turn.results]
    tools = sum(result.seconds for result in results)
    whole = sum(turn.seconds for turn in turns)
    model = max(0.0, whole - tools)
    yield WaterfallSpan(number, "model", label, now, model, exact=len(turns) == 1)
    now += model
    if len(turns) > 1 or len(results) > 20:
        if results:
            yield WaterfallSpan(number, "tool", f"{len(results)} calls", now, tools, exact=False)
        return
    for result in results:
        yield WaterfallSpan(number, "tool", show_hidden(result.call.name[:80]), now, result.seconds, exact=False)
        now += result.seconds


# ---- tokens -------------------------------------------------------------------------------------------------------


class TokenWords:
    """What ids say, by tokenizers that are on this machine. A tokenizer is never fetched."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()

    def find(self, config: Mapping[str, Any], base: Path) -> tuple[Any, str]:
        """The tokenizer of a run, and why there is none."""
        section = get_section(config, "model")
        source = str(section.get("tokenizer") or get_section(config, "trainer").get("weights") or "")
        if not source:
            return None, "The run does not name a tokenizer: ids have no texts."
        places = [Path(source), base / source]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            return None, f"The tokenizer {source} is not on this machine: ids have no texts."
        with self._lock:
            if str(found) not in self._known:
                self._known = {**dict(list(self._known.items())[-3:]), str(found): _load_words(found)}
            return self._known[str(found)]


def _load_words(path: Path) -> tuple[Any, str]:
    from ludus.tokens.tokenizer import load_tokenizer

    try:
        return load_tokenizer(path).tokenizer, ""
    except LudusError as error:
        return None, str(error)


def list_tokens(
    rollout: Rollout,
    config: Mapping[str, Any],
    words: TokenWords,
    base: Path,
    given: Parameters,
    advantage: float | None,
    trainer: Sequence[float] = (),
) -> TokenPage:
    """A page of the ids of a rollout, turn after turn; with `turn`, from the first id of that turn on. `trainer`: the
    logprobs of its sampled ids by the trainer, if they are known."""
    spans = [(n, turn.completion.tokens) for n, turn in enumerate(rollout.turns, 1) if turn.completion.tokens]
    total = sum(len(tokens) for _, tokens in spans)
    if not total:
        raise ConfigError("tokens: this rollout has none: it was not sampled in token mode (model.mode token)")
    begin = sum(len(tokens) for n, tokens in spans if n < given.get_whole("turn", 0))
    start = given.get_whole("start", begin, 0, total)
    end = min(total, start + given.get_whole("limit", TOKENS, 1, MOST_TOKENS))
    ids, sampled, logprobs, turns, at = list[int](), list[bool](), list[float | None](), list[int](), 0
    by_trainer = _place_logprobs([was for _, tokens in spans for was in tokens.sampled], trainer)
    for number, tokens in spans:
        low, high = max(0, start - at), min(len(tokens), end - at)
        if low < high:
            ids += tokens.ids[low:high]
            sampled += tokens.sampled[low:high]
            logprobs += tokens.logprobs[low:high]
            turns += [number] * (high - low)
        at += len(tokens)
    tokenizer, note = words.find(config, base)
    texts = tuple(show_hidden(tokenizer.decode([id])) for id in ids) if tokenizer is not None else ()
    return TokenPage(
        start=start,
        total=total,
        next=end if end < total else 0,
        ids=tuple(ids),
        texts=texts,
        sampled=tuple(sampled),
        logprobs=tuple(logprobs),
        trainer_logprobs=by_trainer[start:end],
        turns=tuple(turns),
        advantage=advantage,
        note=note,
    )


def _place_logprobs(sampled: Sequence[bool], logprobs: Sequence[float]) -> tuple[float | None, ...]:
    """The logprobs of sampled ids at the places of all ids; empty if they are not known, or not of these ids."""
    if not logprobs or sum(sampled) != len(logprobs):
        return ()
    rest = iter(logprobs)
    return tuple(next(rest) if was else None for was in sampled)


def find_advantage(facts: RunFacts, row: OutcomeFacts) -> float | None:
    """How much better than its group a rollout was."""
    group = facts.list_rows(
        "WHERE task = ? AND split = ? AND policy = ? ORDER BY replicate, id LIMIT ?", _name_group(row)
    )
    return compute_group_advantages(group, facts.directory.config).get(row.id)
