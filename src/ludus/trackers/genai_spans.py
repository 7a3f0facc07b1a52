"""A finished rollout as spans, by OpenTelemetry's conventions for generative AI. Pure.

    invoke_agent NAME            the rollout: task, score or failure, tokens
    ├─ chat MODEL                a completion: model, tokens, why it ended
    ├─ execute_tool TOOL         a tool call: name, id, error
    └─ …

The record has how long each turn and each tool took, so spans are made when a rollout has ended, and the agent waits
for nothing. Within a turn the completion comes first and its tools after it, one after the other. Prompts, replies,
arguments and results are content: they are left out unless the user asks for them. A completion then has the messages
that are new to it; the earlier ones are on the spans before it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from ludus.types import Message, Rollout, Sampling, ToolResult, Turn

Attribute = str | int | float | bool | tuple[str, ...]
Mask = Callable[[str], str]


class SpanPlan(Struct, frozen=True, kw_only=True):
    """A span that is to be sent. Its first one is the root, the others are its children."""

    name: str
    client: bool = False
    """Whether it is a request to a server."""
    start: float
    """Seconds since 1970."""
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    error: str = ""
    """What went wrong; empty: nothing."""


class SpanOptions(Struct, frozen=True, kw_only=True):
    """How spans are written."""

    provider: str = "openai"
    """Who serves the model, or whose interface its server has."""
    agent: str = "ludus"
    content: bool = False
    longest: int = 20_000
    """Characters of one attribute with content. What is longer is cut, and says so."""
    mask: Mask = str
    """Takes secrets out of a text."""


def plan_spans(key: str, rollout: Rollout, ended: float, options: SpanOptions) -> Iterator[SpanPlan]:
    """The spans of a rollout, its root first. `ended`: the time for one that does not say when it ran."""
    times = rollout.times
    length = sum(times.phases.values()) if times else rollout.seconds
    start = times.began if times else ended - length
    yield _plan_root(key, rollout, start, start + length, options)
    now = start + (times.phases.get("slot", 0.0) + times.phases.get("setup", 0.0) if times else 0.0)
    new: Sequence[Message] = rollout.opening
    for number, turn in enumerate(rollout.turns, 1):
        tools = min(sum(result.seconds for result in turn.results), turn.seconds)
        yield _plan_chat(rollout, turn, number, now, now + turn.seconds - tools, new, options)
        at = now + turn.seconds - tools
        for result in turn.results:
            yield _plan_tool(result, number, at, at + result.seconds, options)
            at += result.seconds
        now += turn.seconds
        new = turn.messages[1:]


def _plan_root(key: str, rollout: Rollout, start: float, end: float, options: SpanOptions) -> SpanPlan:
    made, usage = rollout.provenance, rollout.usage
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": options.provider,
        "gen_ai.agent.name": options.agent,
        "gen_ai.conversation.id": key,
        "gen_ai.request.model": made.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "ludus.task.id": rollout.task.id,
        "ludus.rollout.replicate": made.replicate,
        "ludus.rollout.stop": rollout.stop.value,
        "ludus.rollout.turns": len(rollout.turns),
    }
    attributes |= {"ludus.task.kind": rollout.kind} if rollout.kind else {}
    attributes |= {"ludus.skill": made.skill} if made.skill else {}
    attributes |= {"ludus.cost.usd": usage.dollars} if usage.dollars else {}
    if rollout.score is not None:
        attributes |= {"ludus.score": rollout.score.value, "ludus.passed": rollout.score.passed}
    error = ""
    if rollout.failure is not None:
        attributes["error.type"] = rollout.failure.boundary
        error = options.mask(rollout.failure.message)[:1000]
    if options.content and rollout.opening:
        attributes |= _write_input(rollout.opening, options)
    return SpanPlan(name=f"invoke_agent {options.agent}", start=start, end=end, attributes=attributes, error=error)


def _plan_chat(
    rollout: Rollout, turn: Turn, number: int, start: float, end: float, new: Sequence[Message], options: SpanOptions
) -> SpanPlan:
    reply, model = turn.completion, rollout.provenance.model
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": options.provider,
        "gen_ai.request.model": model,
        "gen_ai.response.model": reply.model or model,
        "gen_ai.response.finish_reasons": (reply.finish.value,),
        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
        "ludus.turn": number,
        **_list_sampling(rollout.provenance.sampling),
    }
    if reply.usage.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = reply.usage.cached_tokens
    if options.content:
        said = {**_describe_message(reply.message), "finish_reason": reply.finish.value}
        attributes |= _write_input(new, options)
        attributes["gen_ai.output.messages"] = _write([said], options)
    return SpanPlan(name=f"chat {model}", client=True, start=start, end=end, attributes=attributes)


def _list_sampling(sampling: Sampling) -> dict[str, Attribute]:
    given = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop_sequences": sampling.stop or None,
    }
    return {f"gen_ai.request.{name}": value for name, value in given.items() if value is not None}


def _plan_tool(result: ToolResult, number: int, start: float, end: float, options: SpanOptions) -> SpanPlan:
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": result.call.name,
        "gen_ai.tool.call.id": result.call.id,
        "gen_ai.tool.type": "function",
        "ludus.turn": number,
    }
    if result.error:
        attributes["error.type"] = "tool_error"
    if options.content:
        attributes["gen_ai.tool.call.arguments"] = _cut(result.call.arguments, options)
        attributes["gen_ai.tool.call.result"] = _cut(result.content, options)
    error = "" if not result.error else _cut(result.error, options)[:1000] if options.content else "tool error"
    return SpanPlan(name=f"execute_tool {result.call.name}", start=start, end=end, attributes=attributes, error=error)


# ---- content --------------------------------------------------------------------------------------------------------


def _write_input(messages: Sequence[Message], options: SpanOptions) -> dict[str, Attribute]:
    """Instructions and input messages, apart as the conventions have them."""
    system = [{"type": "text", "content": m.content} for m in messages if m.role == "system"]
    others = [_describe_message(m) for m in messages if m.role != "system"]
    written: dict[str, Attribute] = {}
    if system:
        written["gen_ai.system_instructions"] = _write(system, options)
    if others:
        written["gen_ai.input.messages"] = _write(others, options)
    return written


def _describe_message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.reasoning is not None:
        parts.append({"type": "reasoning", "content": message.reasoning.text})
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.call_id, "response": message.content})
    elif message.content:
        parts.append({"type": "text", "content": message.content})
    for call in message.calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    parts += [{"type": "uri", "modality": "image", "uri": _name_image(image.url)} for image in message.images]
    return {"role": message.role, "parts": parts}


def _name_image(url: str) -> str:
    """Where a picture is; the data of one are not sent."""
    return "data:" if url.startswith("data:") else url


def _write(parts: Sequence[Mapping[str, Any]], options: SpanOptions) -> str:
    return _cut(json.dumps(parts, ensure_ascii=False), options)


def _cut(text: str, options: SpanOptions) -> str:
    text = options.mask(text)
    if len(text) <= options.longest:
        return text
    return f"{text[: options.longest]}… ({len(text) - options.longest} characters more)"
