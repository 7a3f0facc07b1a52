"""The rows of a group that a file made, as rollouts: so that runs of files are shown, counted and exported like others.

The conversation is the row's `messages` or, if it has none, the text of its ids. The ids are on the record only if the
row has the engine's logprobs: other rows were encoded from text and are no exact ids. The group itself is kept beside
the rollouts as the file returned it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ludus.chat_form import read_messages
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.row_faults import count_rows, find_row_faults, list_rows, read_score
from ludus.types import (
    Completion,
    Failure,
    Message,
    Provenance,
    Rollout,
    Score,
    StopReason,
    Task,
    Tokens,
    ToolResult,
    Turn,
)

NOT_TRAINED = -100
Decode = Callable[[Sequence[int]], str]


def encode_group(group: Any) -> bytes:
    """A group as one line of JSON, with all of its keys. JSON has no NaN and no infinity: they become null."""
    try:
        text = json.dumps(group, default=_convert, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = drop_constants(json.dumps(group, default=_convert, ensure_ascii=False))
    return text.encode("utf-8", "replace")


def drop_constants(text: str | bytes) -> str:
    """A text of JSON with null for NaN and infinities, which Python writes and others cannot read."""
    return json.dumps(json.loads(text, parse_constant=lambda _: None), ensure_ascii=False)


def _convert(value: Any) -> Any:
    """A value that JSON does not have: arrays become lists, sets sorted lists, models dicts, anything else text."""
    for method in ("tolist", "model_dump"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, set | frozenset):
        return sorted(cast(set[Any], value), key=str)
    return str(value)


def list_scores(group: Mapping[str, Any]) -> list[float]:
    """The scores of a group, without those that are no numbers."""
    found = map(read_score, list_rows(group, "scores"))
    return [score for score in found if score is not None]


def make_row_rollouts(
    group: Mapping[str, Any], task: Task, provenance: Provenance, decode: Decode, *, first: int, seconds: float
) -> list[Rollout]:
    """One rollout for each row. `first`: the number of the first one. A row that cannot be used is a failure."""
    faults, scores = find_row_faults(group), list_rows(group, "scores")
    found: list[Rollout] = []
    for index in range(count_rows(group)):
        fault = faults.get(index)
        opening, turns = _make_turns({**group, "inference_logprobs": None} if fault else group, index, decode)
        found.append(
            Rollout(
                task=task,
                provenance=get_scope().describe(provenance, first + index),
                opening=opening,
                turns=turns,
                stop=StopReason.FAILED if fault else StopReason.FINISHED,
                score=None if fault else Score.of(float(scores[index])),
                failure=Failure("verifier", fault, retryable=False) if fault else None,
                seconds=seconds,
            )
        )
    return found


def _make_turns(group: Mapping[str, Any], index: int, decode: Decode) -> tuple[tuple[Message, ...], tuple[Turn, ...]]:
    messages = _read_conversation(group, index, decode)
    starts = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if not starts:
        return tuple(messages), ()
    tokens = _split_tokens(_read_tokens(group, index), len(starts))
    turns: list[Turn] = []
    for number, at in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(messages)
        completion = Completion(messages[at], tokens=tokens[number] if tokens else None)
        results, others = _pair_results(messages[at], messages[at + 1 : end])
        turns.append(Turn(completion, results, notices=others))
    turns[-1] = msgspec.structs.replace(turns[-1], stop=StopReason.FINISHED)
    return tuple(messages[: starts[0]]), tuple(turns)


def _pair_results(reply: Message, after: Sequence[Message]) -> tuple[tuple[ToolResult, ...], tuple[Message, ...]]:
    """The results of a reply's tool calls, and the messages that are none. Results are the first messages after it."""
    calls = {call.id: call for call in reply.calls}
    results: list[ToolResult] = []
    for message in after:
        call = calls.pop(message.call_id, None) if message.role == "tool" else None
        if call is None:
            break
        results.append(ToolResult(call, message.content, get_scope().tool_errors.get((call.id, message.content), "")))
    return tuple(results), tuple(after[len(results) :])


def _read_conversation(group: Mapping[str, Any], index: int, decode: Decode) -> list[Message]:
    rows = list_rows(group, "messages")
    try:
        if index < len(rows) and isinstance(rows[index], list | tuple) and rows[index]:
            return read_messages(rows[index])
    except (ValueError, AttributeError, TypeError):  # messages of a form of the file's own, such as images
        return [Message("assistant", json.dumps(rows[index], default=str))]
    masks = list_rows(group, "masks")[index : index + 1]
    ids: list[int] = group["tokens"][index]
    given = next((at for at, mask in enumerate(masks[0]) if mask != NOT_TRAINED), 0) if len(masks) else 0
    prompt = [Message("user", decode(ids[:given]))] if given else []
    return [*prompt, Message("assistant", decode(ids[given:]))]


def _read_tokens(group: Mapping[str, Any], index: int) -> Tokens | None:
    """The exact ids of a row; None if it has no logprobs, or its columns do not fit."""
    rows = list_rows(group, "inference_logprobs")
    if index >= len(rows) or rows[index] is None or not len(rows[index]):
        return None
    ids, masks, logprobs = group["tokens"][index], group["masks"][index], rows[index]
    if not len(ids) == len(masks) == len(logprobs):
        return None
    sampled = tuple(mask != NOT_TRAINED for mask in masks)
    values = (float(value) if drawn else None for value, drawn in zip(logprobs, sampled, strict=True))
    return Tokens(tuple(map(int, ids)), sampled, tuple(values))


def _split_tokens(tokens: Tokens | None, turns: int) -> list[Tokens] | None:
    """The ids of a row for each of its replies: a reply gets what was given before it, and what was sampled."""
    if tokens is None:
        return None
    following = (*tokens.sampled[1:], False)
    ends = [at for at, (one, next) in enumerate(zip(tokens.sampled, following, strict=True), 1) if one and not next]
    inner = ends[:-1]
    ends = [*inner[len(inner) - min(len(inner), turns - 1) :], len(tokens)]
    starts = [0, *ends[:-1]]
    parts = [
        Tokens(tokens.ids[a:b], tokens.sampled[a:b], tokens.logprobs[a:b]) for a, b in zip(starts, ends, strict=True)
    ]
    return [*[Tokens((), (), ())] * (turns - len(parts)), *parts]
