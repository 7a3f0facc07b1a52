"""Conversations for supervised fine-tuning and for preferences: ShareGPT, OpenAI's chat format, and TRL's pairs.

They are made of messages, so rollouts of chat mode are welcome. For fine-tuning, rollouts that passed are exported; a
model should not imitate the others. A pair is the best and the worst rollout of a group: the conversation before the
first reply is the prompt, and what followed is chosen or rejected.
"""

import json
from collections.abc import Iterator
from typing import Any

from ludus.batch import to_chat_message
from ludus.rl.exporters import GroupSource, JsonRow, describe_source
from ludus.types import Call, Group, Message, Rollout

SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def export_openai(group: Group, source: GroupSource) -> Iterator[JsonRow]:
    """One conversation in OpenAI's format for fine-tuning. The arguments of calls are texts of JSON."""
    for rollout in _list_passed(group):
        yield {"messages": [to_chat_message(m) for m in rollout.messages], **_describe(group, source, rollout)}


def export_sharegpt(group: Group, source: GroupSource) -> Iterator[JsonRow]:
    """One conversation in ShareGPT's format, with thinking and calls in tags, as Hermes has them."""
    for rollout in _list_passed(group):
        conversation = [
            {"from": SHAREGPT_ROLES[message.role], "value": _write_sharegpt(message, rollout)}
            for message in rollout.messages
        ]
        yield {"conversations": conversation, **_describe(group, source, rollout)}


def export_preference(group: Group, source: GroupSource) -> Iterator[JsonRow]:
    """One pair of TRL's conversational preference format; none if all scores are equal."""
    ranked = sorted(group.scored, key=_get_score)
    if not ranked or _get_score(ranked[0]) == _get_score(ranked[-1]):
        return
    rejected, chosen = ranked[0], ranked[-1]
    if rejected.opening != chosen.opening:  # a command-line agent chose its own words
        return
    yield {
        "prompt": [_write_trl(message) for message in chosen.opening],
        "chosen": [_write_trl(message) for message in _list_replies(chosen)],
        "rejected": [_write_trl(message) for message in _list_replies(rejected)],
        "chosen_score": _get_score(chosen),
        "rejected_score": _get_score(rejected),
        **describe_source(group, source),
    }


def _list_passed(group: Group) -> list[Rollout]:
    return [rollout for rollout in group.scored if rollout.score is not None and rollout.score.passed]


def _list_replies(rollout: Rollout) -> tuple[Message, ...]:
    return rollout.messages[len(rollout.opening) :]


def _get_score(rollout: Rollout) -> float:
    assert rollout.score is not None
    return rollout.score.value


def _describe(group: Group, source: GroupSource, rollout: Rollout) -> JsonRow:
    described = describe_source(group, source)
    return {"score": _get_score(rollout), **described, "replicate": rollout.provenance.replicate}


def _write_trl(message: Message) -> JsonRow:
    """A message as chat templates read it: the arguments of calls are objects, not texts."""
    chat = to_chat_message(message)
    for call, made in zip(message.calls, chat.get("tool_calls", ()), strict=True):
        made["function"]["arguments"] = _read_arguments(call)
    return chat


def _read_arguments(call: Call) -> Any:
    """The arguments as an object. Those that are not one stay text: the model wrote them so."""
    try:
        found: Any = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return found if isinstance(found, dict) else call.arguments  # pyright: ignore[reportUnknownVariableType]


def _write_sharegpt(message: Message, rollout: Rollout) -> str:
    if message.role == "tool":
        names = {result.call.id: result.call.name for turn in rollout.turns for result in turn.results}
        answer = {"tool_call_id": message.call_id, "name": names.get(message.call_id, ""), "content": message.content}
        return f"<tool_response>\n{json.dumps(answer, ensure_ascii=False)}\n</tool_response>"
    parts: list[str] = []
    if message.reasoning is not None:
        parts.append(f"<think>\n{message.reasoning.text}\n</think>")
    if message.content:
        parts.append(message.content)
    for call in message.calls:
        made = {"name": call.name, "arguments": _read_arguments(call)}
        parts.append(f"<tool_call>\n{json.dumps(made, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)
