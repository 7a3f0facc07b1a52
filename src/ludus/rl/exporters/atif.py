"""A rollout as a trajectory in ATIF, Harbor's format for the exchange of agents' trajectories, version 1.7.

A message before the first turn and a word of the user are a step each; a turn is one step of the agent: what it
thought, said and called, the results, and what the reply used. What ATIF has no field for (the score, the failure, why
the agent stopped, where the rollout comes from) is in `extra`. Turns that were played from another rollout are marked
as copied context, which is not to be trained on. There are no times: a record does not have them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import PurePosixPath

from ludus import __version__
from ludus.chat_form import write_tools
from ludus.images import FOLDER, split_parts
from ludus.rl.exporters import GroupSource, JsonRow, describe_source
from ludus.rl.exporters.chat_data import read_arguments
from ludus.tokens.sequences import find_own_ids
from ludus.types import Call, Completion, Message, Rollout, ToolResult, ToolSpec, Turn, Usage, place_images

VERSION = "ATIF-v1.7"
"""The first version with every field that is used here."""

PlaceImage = Callable[[str], str]
"""Takes the name of a picture in the run directory, and returns the path that the trajectory has for it."""

_MEDIA = {".png": "image/png", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}


def export_atif(
    rollout: Rollout, tools: Sequence[ToolSpec], source: GroupSource, id: str, place_image: PlaceImage
) -> JsonRow:
    """One rollout as a trajectory. `id` is its name, unique in the export."""
    steps = [{"step_id": number, **step} for number, step in enumerate(_list_steps(rollout, place_image), 1)]
    return {
        "schema_version": VERSION,
        "session_id": id,
        "trajectory_id": id,
        "agent": _write_agent(rollout, tools),
        "steps": steps,
        "final_metrics": {**_write_totals(rollout.usage), "total_steps": len(steps)},
        "extra": describe_rollout(rollout, source),
    }


def describe_rollout(rollout: Rollout, source: GroupSource) -> JsonRow:
    """Where a rollout comes from and how it ended, for a viewer. It has no `Task.answer`."""
    score, failure, origin = rollout.score, rollout.failure, rollout.provenance
    facts: JsonRow = {
        **describe_source(rollout, source),
        "kind": rollout.kind,
        "replicate": origin.replicate,
        "model": origin.model,
        "seed": origin.seed,
        "attempt": origin.attempt,
        "toolsets": list(origin.toolsets),
        "versions": dict(origin.versions),
        "stop": rollout.stop.value,
        "seconds": rollout.seconds,
    }
    if score is not None:
        facts |= {"score": score.value, "passed": score.passed, "soft": score.soft, "feedback": score.feedback}
        facts |= {"parts": dict(score.parts), "suspect": list(score.suspect)}
    if failure is not None:
        facts["failure"] = {"boundary": failure.boundary, "message": failure.message}
    if (played := origin.replayed) is not None:
        facts["replayed"] = {"run": played.run, "outcome": played.outcome, "turns": played.turns}
    if rollout.exit is not None:
        facts["exit"] = {"code": rollout.exit.code, "output": rollout.exit.output}
    return {name: value for name, value in facts.items() if value not in ("", [], {})}


def name_calls(turn: Turn, number: int) -> list[tuple[str, Call, ToolResult | None]]:
    """The calls of a turn with their results. Each has an id that no other call of the turn has: models leave ids out,
    and repeat them."""
    left, seen = list(turn.results), set[str]()
    named: list[tuple[str, Call, ToolResult | None]] = []
    for place, call in enumerate(turn.completion.message.calls, 1):
        id = call.id if call.id and call.id not in seen else f"call_{number}_{place}"
        seen.add(id)
        result = next((each for each in left if each.call == call), None)
        if result is not None:
            left.remove(result)
        named.append((id, call, result))
    return named


def _write_agent(rollout: Rollout, tools: Sequence[ToolSpec]) -> JsonRow:
    name, _, version = rollout.provenance.versions.get("agent", "").partition("@")
    agent: JsonRow = {
        "name": name or "ludus",
        "version": version or rollout.provenance.versions.get("ludus", __version__),
        "model_name": rollout.provenance.model,
    }
    return {**agent, "tool_definitions": write_tools(tools)} if tools else agent


def _list_steps(rollout: Rollout, place_image: PlaceImage) -> Iterator[JsonRow]:
    """The steps, without their numbers. There is at least one, as ATIF demands it."""
    for message in rollout.opening:
        yield _write_given(message, place_image)
    played = rollout.provenance.replayed
    for number, turn in zip(count(1), rollout.turns, strict=False):
        step = _write_turn(turn, number, place_image)
        yield {**step, "is_copied_context": True} if played is not None and number <= played.turns else step
        for message in turn.notices:
            yield _write_given(message, place_image)
    if not rollout.opening and not rollout.turns:
        why = rollout.failure.message if rollout.failure else "nothing was said"
        yield {"source": "system", "message": why}


def _write_given(message: Message, place_image: PlaceImage) -> JsonRow:
    """A message that the agent did not write in this rollout: of the user, the system, a worked example, or the result
    of a call that is in none of its replies."""
    content = _write_content(message, place_image)
    if message.role == "tool":
        return {"source": "system", "message": "", "observation": {"results": [{"content": content}]}}
    if message.role != "assistant":
        return {"source": message.role, "message": content}
    turn = Turn(Completion(message))
    return {"source": "agent", "message": content, **_write_calls(turn, 0, place_image), "is_copied_context": True}


def _write_turn(turn: Turn, number: int, place_image: PlaceImage) -> JsonRow:
    completion = turn.completion
    message = completion.message
    step: JsonRow = {"source": "agent", "message": _write_content(message, place_image)}
    if completion.model:
        step["model_name"] = completion.model
    if message.reasoning is not None:
        step["reasoning_content"] = message.reasoning.text
    step |= _write_calls(turn, number, place_image)
    return {**step, "metrics": _write_metrics(completion), "llm_call_count": 1, "extra": {"seconds": turn.seconds}}


def _write_calls(turn: Turn, number: int, place_image: PlaceImage) -> JsonRow:
    named = name_calls(turn, number)
    if not named:
        return {}
    results = [_write_result(id, result, place_image) for id, _, result in named if result is not None]
    calls = {"tool_calls": [_write_call(id, call) for id, call, _ in named]}
    return {**calls, "observation": {"results": results}} if results else calls


def _write_call(id: str, call: Call) -> JsonRow:
    arguments, raw = read_arguments(call)
    written: JsonRow = {"tool_call_id": id, "function_name": call.name, "arguments": arguments}
    return {**written, "extra": {"raw_arguments": raw}} if raw else written


def _write_result(id: str, result: ToolResult, place_image: PlaceImage) -> JsonRow:
    message = Message("tool", result.content, images=place_images(result.images, result.content))
    written: JsonRow = {"source_call_id": id, "content": _write_content(message, place_image)}
    extra = {"seconds": result.seconds, **({"error": result.error} if result.error else {})}
    return {**written, "extra": extra}


def _write_content(message: Message, place_image: PlaceImage) -> str | list[JsonRow]:
    if not message.images:
        return message.content
    return [
        {"type": "text", "text": part} if isinstance(part, str) else _write_image(part.url, place_image)
        for part in split_parts(message)
    ]


def _write_image(url: str, place_image: PlaceImage) -> JsonRow:
    """A picture by its place. One on the web whose kind its address does not tell is a text."""
    path = place_image(url) if url.startswith(f"{FOLDER}/") else url
    media = _MEDIA.get(PurePosixPath(path.partition("?")[0]).suffix.lower())
    if media is None:
        return {"type": "text", "text": f"[picture {url[:200]}]"}
    return {"type": "image", "source": {"media_type": media, "path": path}}


def _write_metrics(completion: Completion) -> JsonRow:
    usage, own = completion.usage, find_own_ids(completion)
    metrics: JsonRow = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": usage.dollars,
    }
    if own is not None:
        metrics["completion_token_ids"] = list(own.ids)
        if None not in own.logprobs:
            metrics["logprobs"] = list(own.logprobs)
    return metrics


def _write_totals(usage: Usage) -> JsonRow:
    return {
        "total_prompt_tokens": usage.prompt_tokens,
        "total_completion_tokens": usage.completion_tokens,
        "total_cached_tokens": usage.cached_tokens,
        "total_cost_usd": usage.dollars,
    }
