"""The rows of a group that a file made, as rollouts: so that runs of files are shown, counted and exported like others.

The conversation is the row's `messages` or, if it has none, the text of its ids. The ids are on the record only if the
row has the engine's logprobs: other rows were encoded from text and are no exact ids. The group itself is kept beside
the rollouts as the file returned it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ludus.compat.atropos_env.chat_forms import read_messages
from ludus.types import Completion, Message, Provenance, Rollout, Score, StopReason, Task, Tokens, ToolResult, Turn

NOT_TRAINED = -100
Decode = Callable[[Sequence[int]], str]


def encode_group(group: Any) -> bytes:
    """A group as one line of JSON, with all of its keys."""
    return json.dumps(group, default=_convert, ensure_ascii=False).encode("utf-8", "replace")


def _convert(value: Any) -> Any:
    """A value that JSON does not have: arrays become lists, sets sorted lists, models dicts, anything else text."""
    for method in ("tolist", "model_dump"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, set | frozenset):
        return sorted(cast(set[Any], value), key=str)
    return str(value)


def count_rows(group: Mapping[str, Any]) -> int:
    return len(group.get("tokens") or ())


def list_scores(group: Mapping[str, Any]) -> list[float]:
    return [float(score) for score in group.get("scores") or ()]


def make_row_rollouts(
    group: Mapping[str, Any], task: Task, provenance: Provenance, decode: Decode, *, first: int, seconds: float
) -> list[Rollout]:
    """One rollout for each row. `first`: the number of the first one. A score that is no number gives none."""
    found: list[Rollout] = []
    for index, score in enumerate(list_scores(group)):
        if not math.isfinite(score):
            continue
        opening, turns = _make_turns(group, index, decode)
        own = msgspec.structs.replace(provenance, replicate=first + index)
        found.append(
            Rollout(
                task=task,
                provenance=own,
                opening=opening,
                turns=turns,
                stop=StopReason.FINISHED,
                score=Score.of(score),
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
        results.append(ToolResult(call, message.content))
    return tuple(results), tuple(after[len(results) :])


def _read_conversation(group: Mapping[str, Any], index: int, decode: Decode) -> list[Message]:
    rows = group.get("messages") or ()
    try:
        if index < len(rows) and isinstance(rows[index], list | tuple) and rows[index]:
            return read_messages(rows[index])
    except (ValueError, AttributeError, TypeError):  # messages of a form of the file's own, such as images
        return [Message("assistant", json.dumps(rows[index], default=str))]
    every: list[list[int]] = group.get("masks") or []
    masks = every[index : index + 1]
    ids: list[int] = group["tokens"][index]
    given = next((at for at, mask in enumerate(masks[0]) if mask != NOT_TRAINED), 0) if masks else 0
    prompt = [Message("user", decode(ids[:given]))] if given else []
    return [*prompt, Message("assistant", decode(ids[given:]))]


def _read_tokens(group: Mapping[str, Any], index: int) -> Tokens | None:
    """The exact ids of a row; None if it has no logprobs, or its columns do not fit."""
    rows = group.get("inference_logprobs") or ()
    if index >= len(rows) or not rows[index]:
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
