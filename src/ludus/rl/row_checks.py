"""Checks rows before a trainer learns from them.

Every row is checked by itself and every group as a whole. Findings have a level. *Fatal*: training on it would be
wrong, and Ludus never exports it. *Warning*: somebody should look. *Info*: good to know. `check_rows` is for our own
sequences. `check_groups` and `check_lines` are for groups in Atropos' JSON (`ludus check FILE`) from any source:
there, -100 in the masks means "not trained" and 1.0 among the logprobs means "none". Lines that `ludus process` wrote
are such groups with more fields. A line whose rollouts were run in chat mode has no ids and is refused as RL data.

| level | code | what it says |
|---|---|---|
| fatal | `shape` | it is not a group, or a field is missing or of another type |
| fatal | `chat` | the rollouts were run in chat mode: the sampled ids are not known |
| fatal | `lengths` | columns of one row differ in length |
| fatal | `count` | a group does not have one score, mask, … for every row |
| fatal | `empty` | a row has no ids, a group no rows, a file no groups |
| fatal | `vocabulary` | an id is negative or beyond the vocabulary |
| fatal | `mask` | a mask holds another id than the row does |
| fatal | `logprob_missing` | a trained id has no logprob |
| fatal | `logprob_infinite` | a logprob is not a finite number |
| fatal | `logprob_positive` | a logprob is above 0: a probability above 1 |
| fatal | `dummy` | the ids are 0, 1, 2, …: a placeholder, not tokens |
| fatal | `score` | a score is not a finite number |
| fatal | `echo` | the engine counted another prompt than the record has |
| warning | `left_out` | all rows of the group were left out when it was written: they had fatal findings |
| warning | `no_logprobs` | the row has no logprobs: no importance weights can be computed |
| warning | `untrained` | nothing in the row is trained |
| warning | `no_prompt` | the very first id is trained: was the prompt masked? |
| warning | `constant` | all logprobs are the same: are they placeholders? |
| warning | `doubled_end` | an end-of-turn token twice in a row |
| warning | `doubled_start` | the first id twice in a row: a second begin-of-text token? |
| info | `prompt_logprob` | an id that is not trained has a logprob |
| info | `drift` | encoding the row's text would give other ids: it was right to capture them |
| info | `unscored` | none of the group's rollouts has a score, so it has no rows |
| info | `equal_scores` | all scores of a group are equal: it gives no gradient |
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from msgspec import Struct

from ludus.rl.rows import build_rows as rows_of
from ludus.tokens.sequences import TokenSequence
from ludus.types import Rollout

Level = Literal["fatal", "warning", "info"]

NOT_TRAINED = -100
NO_LOGPROB = 1.0
ROUNDING = 1e-4
"""A logprob of up to this is a rounding error, and counts as 0."""
MAX_ID = 2**31
"""Ids are below this in every vocabulary: trainers keep them in 32 bits."""
MANY_EQUAL = 16
"""This many equal logprobs, or ids in order, are not a coincidence."""


class RowFinding(Struct, frozen=True, omit_defaults=True):
    """A finding about a row or a group."""

    level: Level
    code: str
    message: str
    group: int | None = None
    """Counted from 1, as lines of a file are."""
    row: int | None = None
    """Counted from 1 within its group."""

    def __str__(self) -> str:
        places = [f"{name} {value}" for name, value in (("group", self.group), ("row", self.row)) if value is not None]
        return f"{self.level}: {', '.join(places)}{': ' if places else ''}{self.message} [{self.code}]"


@dataclass(frozen=True)
class Vocabulary:
    """What is known about the ids. None or empty: not known."""

    size: int | None = None
    stop_ids: frozenset[int] = frozenset()
    """Ids that end a turn."""
    reencode: Callable[[Sequence[int]], Sequence[int]] | None = None
    """Decodes ids and encodes the text again."""


@dataclass(frozen=True)
class Row:
    """One sequence, independent of any file format."""

    ids: Sequence[int]
    trained: Sequence[bool]
    logprobs: Sequence[float | None] | None
    """None: the row has no logprobs."""


@dataclass
class RowReport:
    """Findings, and the counts of what was checked."""

    groups: int = 0
    rows: int = 0
    tokens: int = 0
    trained: int = 0
    drifted: int = 0
    """Rows whose text encodes to other ids. Only counted with a tokenizer."""
    findings: list[RowFinding] = field(default_factory=list[RowFinding])

    @property
    def fatal(self) -> bool:
        return any(finding.level == "fatal" for finding in self.findings)

    @property
    def drift_rate(self) -> float:
        return self.drifted / self.rows if self.rows else 0.0

    def summarize(self) -> str:
        """One line."""
        levels = Counter(finding.level for finding in self.findings)
        counted = ", ".join(f"{levels[level]} {level}" for level in ("fatal", "warning", "info"))
        return f"{self.groups} groups, {self.rows} rows, {self.tokens} tokens, {self.trained} trained: {counted}"

    def merge(self, other: "RowReport") -> None:
        """Add the counts and findings of other rows."""
        self.rows += other.rows
        self.tokens += other.tokens
        self.trained += other.trained
        self.drifted += other.drifted
        self.findings += other.findings

    def add_row(self, row: Row, vocabulary: Vocabulary, group: int | None, number: int) -> bool:
        """Check a row and count it. Returns whether it may be used."""
        found = list(check_row(row, vocabulary))
        self.rows += 1
        self.tokens += len(row.ids)
        self.trained += sum(row.trained)
        self.drifted += any(code == "drift" for _, code, _ in found)
        self.findings += [RowFinding(level, code, message, group, number) for level, code, message in found]
        return all(level != "fatal" for level, _, _ in found)


# ---- our own rows -------------------------------------------------------------------------------------------------


def check_rows(
    rows: Iterable[TokenSequence], vocabulary: Vocabulary = Vocabulary(), *, exact: bool = True
) -> tuple[list[TokenSequence], RowReport]:
    """Check rows. Returns those that may be trained on, and a report on all. Rows that are not `exact` were made from
    text and have no logprobs."""
    report = RowReport(groups=1)
    good: list[TokenSequence] = []
    for number, row in enumerate(rows, 1):
        tokens = row.tokens
        if report.add_row(
            Row(tokens.ids, tokens.sampled, tokens.logprobs if exact else None), vocabulary, None, number
        ):
            good.append(row)
    return good, report


def check_rollout(rollout: Rollout, vocabulary: Vocabulary = Vocabulary()) -> tuple[list[TokenSequence], RowReport]:
    """Check the rows of a rollout. Returns those that may be trained on, and a report.

    Raises:
        NotExact: it was run in chat mode.
    """
    rows = rows_of(rollout)
    good, report = check_rows(rows, vocabulary)
    wrong = list(_check_prompt_lengths(rollout))
    report.findings += wrong
    return ([] if wrong else good), report


def _check_prompt_lengths(rollout: Rollout) -> Iterator[RowFinding]:
    """The prompt of each completion in the record must be as long as the engine counted."""
    ends: list[int] = []
    for index, turn in enumerate(rollout.turns):
        completion = turn.completion
        tokens, splice = completion.tokens, completion.splice
        if tokens is None:
            continue
        start = splice.kept if splice is not None else (ends[-1] if ends else 0)
        ends.append(start + len(tokens))
        recorded = start + len(tokens) - sum(tokens.sampled)
        counted = completion.usage.prompt_tokens
        if counted and counted != recorded:
            message = f"turn {index + 1}: the engine counted a prompt of {counted} ids, the record has {recorded}"
            yield RowFinding("fatal", "echo", message)


# ---- Atropos groups -----------------------------------------------------------------------------------------------

_PER_ROW = ("masks", "inference_logprobs", "advantages", "ref_logprobs", "distill_token_ids", "distill_logprobs")
"""Columns that are aligned with `tokens`, where they are given."""


def check_groups(groups: Iterable[Any], vocabulary: Vocabulary = Vocabulary()) -> RowReport:
    """Check groups in Atropos' form, one JSON object each."""
    return _check_numbered(enumerate(groups, 1), vocabulary)


def check_lines(lines: Iterable[bytes], vocabulary: Vocabulary = Vocabulary()) -> RowReport:
    """Check the lines of a file. Groups have the numbers of their lines. Blank lines are skipped."""
    report = _check_numbered(((number, line) for number, line in enumerate(lines, 1) if line.strip()), vocabulary)
    if not report.groups:
        report.findings.append(RowFinding("fatal", "empty", "the file has no groups"))
    return report


def _check_numbered(groups: Iterable[tuple[int, Any]], vocabulary: Vocabulary) -> RowReport:
    report = RowReport()
    for number, group in groups:
        report.groups += 1
        try:
            _check_group(_decode_line(group) if isinstance(group, bytes) else group, number, vocabulary, report)
        except _ShapeError as error:
            report.findings.append(RowFinding("fatal", "shape", str(error), number))
    return report


def _decode_line(line: bytes) -> Any:
    try:
        return json.loads(line)  # accepts NaN too: that is reported for the row
    except (ValueError, RecursionError) as error:
        raise _ShapeError(f"the line is not JSON: {error}") from None


class _ShapeError(Exception):
    """A group does not have the right form."""


def _check_group(group: Any, number: int, vocabulary: Vocabulary, report: RowReport) -> None:
    if not isinstance(group, dict):
        raise _ShapeError(f"a group is a JSON object, not {type(group).__name__}")
    fields = cast(dict[str, Any], group)
    if "rollouts" in fields and fields.get("tokens") is None:
        report.findings.append(_explain_no_rows(fields, number))
        return
    tokens = _require_lists(fields, "tokens")
    masks = _require_lists(fields, "masks")
    logprobs = _require_lists(fields, "inference_logprobs") if fields.get("inference_logprobs") else None
    report.findings += [
        RowFinding(level, code, message, number) for level, code, message in _check_group_fields(fields, len(tokens))
    ]
    for index, ids in enumerate(tokens):
        mask = masks[index] if index < len(masks) else []
        values = logprobs[index] if logprobs is not None and index < len(logprobs) else None
        for level, code, message in _check_columns(fields, index, len(ids)):
            report.findings.append(RowFinding(level, code, message, number, index + 1))
        _check_types(ids, mask, index)
        wrong = [p for p, (m, t) in enumerate(zip(mask, ids, strict=False)) if m not in (NOT_TRAINED, t)]
        if wrong:
            message = f"{len(wrong)} masks hold another id than the row, the first at position {wrong[0]}"
            report.findings.append(RowFinding("fatal", "mask", message, number, index + 1))
        row = Row(ids, [value != NOT_TRAINED for value in mask], _drop_sentinels(values))
        report.add_row(row, vocabulary, number, index + 1)


def _explain_no_rows(fields: dict[str, Any], number: int) -> RowFinding:
    """Why a line of `groups.jsonl` has no ids."""
    rollouts: Any = fields["rollouts"]
    listed = cast(list[Any], rollouts) if isinstance(rollouts, list) else []
    scored = [cast(dict[str, Any], r) for r in listed if isinstance(r, dict) and cast(Any, r).get("score") is not None]
    if not scored:
        return RowFinding("info", "unscored", "none of its rollouts has a score", number)
    if all(rollout.get("mode") in ("tokens", "empty") for rollout in scored):
        return RowFinding("warning", "left_out", "all of its rows were left out when it was written", number)
    message = (
        "its rollouts were run in chat mode: the sampled ids are not known. Run them in token mode, or make rows "
        "for supervised fine-tuning: ludus export RUN --retokenize TOKENIZER"
    )
    return RowFinding("fatal", "chat", message, number)


def _require_lists(fields: dict[str, Any], name: str) -> list[list[Any]]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(each, list) for each in cast(list[Any], value)):
        raise _ShapeError(f"'{name}' is {'missing' if value is None else 'not a list of lists'}")
    return cast(list[list[Any]], value)


def _check_types(ids: list[Any], mask: list[Any], index: int) -> None:
    for name, values in (("tokens", ids), ("masks", mask)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int):
                raise _ShapeError(f"row {index + 1}: '{name}' holds {_format_value(value)}, which is not an id")


def _format_value(value: Any) -> str:
    """A value as JSON, shortened. Lists and objects, which may be deep, are only named."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:80]


def _drop_sentinels(values: list[Any] | None) -> list[float | None] | None:
    if values is None:
        return None
    return [None if value is None or value == NO_LOGPROB else _to_number(value) for value in values]


def _to_number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


RawFinding = tuple[Level, str, str]


def _check_group_fields(fields: dict[str, Any], count: int) -> Iterator[RawFinding]:
    scores = fields.get("scores")
    if not isinstance(scores, list):
        raise _ShapeError(f"'scores' is {'missing' if scores is None else 'not a list'}")
    numbers = cast(list[Any], scores)
    if len(numbers) != count:
        yield "fatal", "count", f"{len(numbers)} scores for {count} rows"
    if count == 0:
        yield "fatal", "empty", "the group has no rows"
    if odd := [value for value in numbers if not math.isfinite(_to_number(value))]:
        yield "fatal", "score", f"a score is {_format_value(odd[0])}"
    elif len(numbers) > 1 and len(set(numbers)) == 1:
        yield "info", "equal_scores", f"all {len(numbers)} scores are {numbers[0]}"
    for name in (*_PER_ROW, "messages", "overrides"):
        value = fields.get(name)  # Atropos writes [] for a missing field
        if value not in (None, []) and (not isinstance(value, list) or len(cast(list[Any], value)) != count):
            yield "fatal", "count", f"'{name}' does not have one entry for each of {count} rows"


def _check_columns(fields: dict[str, Any], index: int, length: int) -> Iterator[RawFinding]:
    for name in _PER_ROW:
        column = fields.get(name)
        if not isinstance(column, list) or index >= len(cast(list[Any], column)):
            continue
        values: Any = cast(list[Any], column)[index]
        if not isinstance(values, list) or len(cast(list[Any], values)) != length:
            yield "fatal", "lengths", f"'{name}' is not as long as the {length} ids"


# ---- one row ------------------------------------------------------------------------------------------------------


def check_row(row: Row, vocabulary: Vocabulary) -> Iterator[RawFinding]:
    """Yield the findings about a row."""
    if not row.ids:
        yield "fatal", "empty", "the row has no ids"
        return
    if len(row.trained) != len(row.ids) or (row.logprobs is not None and len(row.logprobs) != len(row.ids)):
        yield "fatal", "lengths", "ids, mask and logprobs differ in length"
        return
    yield from _check_ids(row, vocabulary)
    yield from _check_mask(row)
    yield from _check_logprobs(row)


def _check_ids(row: Row, vocabulary: Vocabulary) -> Iterator[RawFinding]:
    ids = row.ids
    size = MAX_ID if vocabulary.size is None else vocabulary.size
    outside = [n for n in ids if not 0 <= n < size]
    if outside:
        beyond = "any vocabulary" if vocabulary.size is None else f"the vocabulary of {size}"
        yield "fatal", "vocabulary", f"{len(outside)} ids are outside {beyond}, such as {outside[0]}"
    if len(ids) >= MANY_EQUAL and all(number == place for place, number in enumerate(ids)):
        yield "fatal", "dummy", "the ids are 0, 1, 2, …: a placeholder"
    doubled = next((p for p in range(1, len(ids)) if ids[p] == ids[p - 1] and ids[p] in vocabulary.stop_ids), None)
    if doubled is not None:
        yield "warning", "doubled_end", f"the stop token {ids[doubled]} is repeated at position {doubled}"
    if len(ids) > 1 and ids[0] == ids[1] and not row.trained[0]:
        yield "warning", "doubled_start", f"the row begins with {ids[0]} twice"
    if vocabulary.reencode is not None and not outside and list(vocabulary.reencode(ids)) != list(ids):
        yield "info", "drift", "encoding the text again would give other ids"


def _check_mask(row: Row) -> Iterator[RawFinding]:
    if not any(row.trained):
        yield "warning", "untrained", "nothing in the row is trained"
    elif row.trained[0]:
        yield "warning", "no_prompt", "the very first id is trained; was the prompt masked?"


def _check_logprobs(row: Row) -> Iterator[RawFinding]:
    if row.logprobs is None:
        yield "warning", "no_logprobs", "the row has no logprobs"
        return
    pairs = list(zip(row.trained, row.logprobs, strict=True))
    chosen = [value for trained, value in pairs if trained]
    missing = sum(value is None for value in chosen)
    known = [value for value in chosen if value is not None]
    if missing:
        yield "fatal", "logprob_missing", f"{missing} trained ids have no logprob"
    if infinite := [value for _, value in pairs if value is not None and not math.isfinite(value)]:
        yield "fatal", "logprob_infinite", f"{len(infinite)} logprobs are not finite, such as {infinite[0]}"
    if positive := [value for _, value in pairs if value is not None and value > ROUNDING]:
        yield "fatal", "logprob_positive", f"{len(positive)} logprobs are above 0, such as {positive[0]}"
    if len(known) >= MANY_EQUAL and len(set(known)) == 1:
        yield "warning", "constant", f"all {len(known)} logprobs are {known[0]}"
    if given := sum(value is not None for trained, value in pairs if not trained):
        yield "info", "prompt_logprob", f"{given} ids that are not trained have a logprob"
