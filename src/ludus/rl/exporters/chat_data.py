"""Conversations for supervised fine-tuning and for preferences: ShareGPT, OpenAI's chat format, and TRL's pairs.

They are made of messages, so rollouts of chat mode are welcome. For fine-tuning, rollouts are chosen by `selection`: a
model should not imitate failures. A row has the definitions of the tools that its rollout was offered: without them a
model would learn to call tools that it was not told of. A pair is the best and the worst rollout of a group: the
conversation before the first reply is the prompt, and what followed is chosen or rejected.
"""

import json
from collections.abc import Sequence
from typing import Any

from ludus.chat_form import write_call, write_message, write_tools
from ludus.rl.exporters import GroupSource, JsonRow, describe_source
from ludus.types import Call, Group, Message, Rollout, ToolSpec

SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def export_openai(rollout: Rollout, tools: Sequence[ToolSpec], source: GroupSource) -> JsonRow:
    """One conversation in OpenAI's format for fine-tuning. The arguments of calls are texts of JSON."""
    offered = {"tools": write_tools(tools)} if tools else {}
    return {"messages": [write_message(m) for m in rollout.messages], **offered, **_describe(source, rollout)}


def export_trl_sft(rollout: Rollout, tools: Sequence[ToolSpec], source: GroupSource) -> JsonRow:
    """One conversation as TRL's `SFTTrainer` takes it. The arguments of calls are objects, as chat templates want."""
    offered = {"tools": write_tools(tools)} if tools else {}
    return {"messages": [_write_trl(m) for m in rollout.messages], **offered, **_describe(source, rollout)}


def export_sharegpt(rollout: Rollout, tools: Sequence[ToolSpec], source: GroupSource) -> JsonRow:
    """One conversation in ShareGPT's format, with thinking and calls in tags, as Hermes has them. `tools` is a text of
    JSON, as its readers expect it."""
    conversation = [
        {"from": SHAREGPT_ROLES[message.role], "value": _write_sharegpt(message, rollout)}
        for message in rollout.messages
    ]
    offered = {"tools": json.dumps(write_tools(tools), ensure_ascii=False)} if tools else {}
    return {"conversations": conversation, **offered, **_describe(source, rollout)}


def export_preference(group: Group, tools: Sequence[ToolSpec], source: GroupSource) -> JsonRow | str:
    """One pair of TRL's conversational preference format, or why there is none."""
    ranked = sorted(group.scored, key=_get_score)
    if len(ranked) < 2:
        return "group with fewer than two scores"
    if _get_score(ranked[0]) == _get_score(ranked[-1]):
        return "group whose scores are all equal"
    rejected, chosen = ranked[0], ranked[-1]
    if rejected.opening != chosen.opening:  # a command-line agent chose its own words
        return "group whose rollouts begin with different words"
    return {
        "prompt": [_write_trl(message) for message in chosen.opening],
        "chosen": [_write_trl(message) for message in _list_replies(chosen)],
        "rejected": [_write_trl(message) for message in _list_replies(rejected)],
        **({"tools": write_tools(tools)} if tools else {}),
        "chosen_score": _get_score(chosen),
        "rejected_score": _get_score(rejected),
        **describe_source(chosen, source),
    }


def _list_replies(rollout: Rollout) -> tuple[Message, ...]:
    return rollout.messages[len(rollout.opening) :]


def _get_score(rollout: Rollout) -> float:
    assert rollout.score is not None
    return rollout.score.value


def _describe(source: GroupSource, rollout: Rollout) -> JsonRow:
    described = describe_source(rollout, source)
    score = rollout.score.value if rollout.score is not None else None
    return {"score": score, **described, "replicate": rollout.provenance.replicate}


def _write_trl(message: Message) -> JsonRow:
    """A message as chat templates read it: the arguments of calls are objects, not texts."""
    chat = write_message(message)
    if message.calls:
        chat["tool_calls"] = [write_call(call.id, call.name, _show_arguments(call)) for call in message.calls]
    return chat


def read_arguments(call: Call) -> tuple[dict[str, Any], str]:
    """The arguments of a call as an object; or none, and the text that is no object: the model wrote it so."""
    try:
        found: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}, call.arguments
    return (found, "") if isinstance(found, dict) else ({}, call.arguments)  # pyright: ignore[reportUnknownVariableType]


def _show_arguments(call: Call) -> dict[str, Any] | str:
    arguments, text = read_arguments(call)
    return text or arguments


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
        made = {"name": call.name, "arguments": _show_arguments(call)}
        parts.append(f"<tool_call>\n{json.dumps(made, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)
