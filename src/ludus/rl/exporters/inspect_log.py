"""A run as a log of Inspect (`.eval`), version 2 of its format, so that Inspect's viewer and data frames open it.

    samples/ID_epoch_N.json    a rollout: its conversation, events, score or error, usage
    summaries.json             what a list of samples shows, without reading them
    header.json                what was run, how it ended, and the numbers of all

A log is an archive of these files (`export_files.write_archive`). Everything here is a pure function of a rollout, or
of counts. A task is a sample and its rollouts are epochs. The value is in the score `score`; whether the task was
passed, in `passed`. Records have durations but no dates: an event's time is the start of the run plus the time since
its rollout began. `Task.answer`, which an agent must not know, is not in it.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from ludus import __version__
from ludus.images import split_parts
from ludus.rl.exporters import GroupSource, JsonRow
from ludus.rl.exporters.atif import describe_rollout, name_calls
from ludus.rl.exporters.chat_data import read_arguments
from ludus.types import (
    Completion,
    Failure,
    Finish,
    Message,
    Rollout,
    Sampling,
    Score,
    StopReason,
    ToolResult,
    ToolSpec,
    Turn,
    Usage,
    place_images,
)

FORMAT = 2
SCORER, PASSED = "score", "passed"
_LONGEST_INPUT = 1_000
"""How many characters of a task a summary has."""

_STOPS = {
    Finish.STOP: "stop",
    Finish.CALLS: "tool_calls",
    Finish.LENGTH: "max_tokens",
    Finish.FILTER: "content_filter",
    Finish.OTHER: "unknown",
}
_LIMITS = {
    StopReason.MAX_TURNS: ("turn", "turns"),
    StopReason.TIMEOUT: ("time", "rollout_seconds"),
    StopReason.CONTEXT: ("context", "context_tokens"),
}
"""Ends by a limit: what Inspect calls it, and the setting."""
STATUSES: Mapping[str, str] = {"finished": "success", "running": "started", "drained": "cancelled"}
"""What Inspect calls the state of a run; others are `error`."""


class LogFacts(Struct, frozen=True, kw_only=True):
    """What is known of a run before its rollouts are read."""

    name: str
    """Of the run directory."""
    env: str
    version: str = "1"
    options: Mapping[str, Any] = {}
    """The environment's own settings."""
    model: str = ""
    limits: Mapping[str, Any] = {}
    sampling: Sampling = Sampling()
    started: float = 0.0
    """Seconds since 1970."""
    ended: float = 0.0
    state: str = "finished"
    message: str = ""


class SampleName(Struct, frozen=True):
    """A sample and an epoch: together they are one rollout."""

    id: str
    epoch: int
    key: str = ""
    """The content address of the rollout."""

    @property
    def member(self) -> str:
        return f"samples/{self.id}_epoch_{self.epoch}.json"


# ---- samples ------------------------------------------------------------------------------------------------------


def make_sample(
    rollout: Rollout, name: SampleName, tools: Sequence[ToolSpec], source: GroupSource, facts: LogFacts
) -> JsonRow:
    """A rollout as a sample."""
    messages = _list_messages(rollout)
    given = messages[: len(rollout.opening)]
    last = rollout.turns[-1] if rollout.turns else None
    sample: JsonRow = {
        "id": name.id,
        "epoch": name.epoch,
        "uuid": name.key,
        "input": given or rollout.task.prompt,
        "target": "",
        "messages": messages,
        "output": _write_output(last, messages, rollout) if last is not None else {},
        "metadata": describe_rollout(rollout, source),
        "store": {},
        "events": list(_list_events(rollout, messages, tools, facts)),
        "events_data": {"messages": messages, "calls": []},
        "attachments": {},
        "model_usage": _write_all_usage(rollout),
        "total_time": rollout.seconds,
        "working_time": rollout.seconds,
        "turn_count": len(rollout.turns),
        **_write_ending(rollout, facts),
    }
    return sample


def make_summary(rollout: Rollout, name: SampleName, sample: JsonRow) -> JsonRow:
    """What a list of samples shows of one."""
    summary = {part: sample[part] for part in ("id", "epoch", "uuid", "target", "model_usage", "total_time")}
    error, limit = sample.get("error"), sample.get("limit")
    return {
        **summary,
        "input": rollout.task.prompt[:_LONGEST_INPUT],
        "metadata": {key: value for key, value in sample["metadata"].items() if isinstance(value, str | int | float)},
        "working_time": rollout.seconds,
        "completed": True,
        "message_count": len(sample["messages"]),
        "turn_count": len(rollout.turns),
        **({"scores": sample["scores"]} if "scores" in sample else {}),
        **({"error": error["message"]} if error else {}),
        **({"limit": limit["type"]} if limit else {}),
    }


def _write_ending(rollout: Rollout, facts: LogFacts) -> JsonRow:
    """Score, error and limit, as far as there are any."""
    ending: JsonRow = {}
    if rollout.score is not None:
        ending["scores"] = _write_scores(rollout.score, rollout.answer)
    if rollout.failure is not None:
        ending["error"] = _write_error(rollout.failure)
    kind, setting = _LIMITS.get(rollout.stop, ("", ""))
    if kind:
        ending["limit"] = {"type": kind, "limit": float(facts.limits.get(setting) or 0)}
    return ending


def _write_scores(score: Score, answer: str) -> JsonRow:
    details = {"soft": score.soft, "parts": dict(score.parts), "suspect": list(score.suspect)}
    value: JsonRow = {"value": score.value, "metadata": details}
    if answer:
        value["answer"] = answer
    if score.feedback:
        value["explanation"] = score.feedback
    return {SCORER: value, PASSED: {"value": "C" if score.passed else "I"}}


def _write_error(failure: Failure) -> JsonRow:
    first, _, more = failure.message.partition("\n")
    return {"message": f"{failure.boundary}: {first}", "traceback": more, "traceback_ansi": more}


# ---- messages -----------------------------------------------------------------------------------------------------


def _list_messages(rollout: Rollout) -> list[JsonRow]:
    """The whole conversation. Every message has an id, by its place."""
    messages = [_write_given(message) for message in rollout.opening]
    for number, turn in enumerate(rollout.turns, 1):
        messages += _list_turn_messages(turn, number)
    return [{"id": f"m{place}", **message} for place, message in enumerate(messages, 1)]


def _list_turn_messages(turn: Turn, number: int) -> Iterator[JsonRow]:
    yield _write_reply(turn, number)
    for id, call, result in name_calls(turn, number):
        if result is not None:
            answer = Message("tool", result.content, images=place_images(result.images, result.content))
            yield {"role": "tool", "content": _write_content(answer), "tool_call_id": id, "function": call.name} | (
                {"error": _write_tool_error(result)} if result.error else {}
            )
    for message in turn.notices:
        yield _write_given(message)


def _write_given(message: Message) -> JsonRow:
    written: JsonRow = {"role": message.role, "content": _write_content(message), "source": "input"}
    if message.calls:
        written["tool_calls"] = [
            _write_call(id, call.name, *read_arguments(call))
            for id, call, _ in name_calls(Turn(Completion(message)), 0)
        ]
    return {**written, "tool_call_id": message.call_id} if message.role == "tool" else written


def _write_reply(turn: Turn, number: int) -> JsonRow:
    completion = turn.completion
    calls = [_write_call(id, call.name, *read_arguments(call)) for id, call, _ in name_calls(turn, number)]
    return {
        "role": "assistant",
        "content": _write_content(completion.message),
        "source": "generate",
        **({"tool_calls": calls} if calls else {}),
        **({"model": completion.model} if completion.model else {}),
    }


def _write_call(id: str, name: str, arguments: Mapping[str, Any], raw: str) -> JsonRow:
    call: JsonRow = {"id": id, "function": name, "arguments": arguments, "type": "function"}
    return {**call, "parse_error": f"not a JSON object: {raw}"} if raw else call


def _write_tool_error(result: ToolResult) -> JsonRow:
    kind = "parsing" if read_arguments(result.call)[1] else "unknown"
    return {"type": kind, "message": result.error}


def _write_content(message: Message) -> str | list[JsonRow]:
    if not message.images and message.reasoning is None:
        return message.content
    thought = [{"type": "reasoning", "reasoning": message.reasoning.text}] if message.reasoning is not None else []
    parts = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part.url}
        for part in split_parts(message)
    ]
    return [*thought, *parts]


# ---- events -------------------------------------------------------------------------------------------------------


def _list_events(
    rollout: Rollout, messages: Sequence[JsonRow], tools: Sequence[ToolSpec], facts: LogFacts
) -> Iterator[JsonRow]:
    """What happened, in order: a call of the model, the calls of tools, the verdict. The input of a model is a range of
    the messages, which are stored once."""
    offered, at, place = [_write_tool(tool) for tool in tools], 0.0, len(rollout.opening)
    config = write_sampling(rollout.provenance.sampling)
    for number, turn in enumerate(rollout.turns, 1):
        in_tools = sum(result.seconds for result in turn.results)
        yield {
            "event": "model",
            **_stamp(facts, at, max(0.0, turn.seconds - in_tools), f"e{number}"),
            "model": turn.completion.model or rollout.provenance.model,
            "input": [],
            "input_refs": [[0, place]],
            "tools": offered,
            "tool_choice": "auto",
            "config": config,
            "output": _write_output(turn, messages[place : place + 1], rollout),
        }
        yield from _list_tool_events(turn, number, facts, at + max(0.0, turn.seconds - in_tools))
        at += turn.seconds
        place += 1 + sum(result is not None for _, _, result in name_calls(turn, number)) + len(turn.notices)
    if rollout.score is not None:
        for scorer, score in _write_scores(rollout.score, rollout.answer).items():
            yield {"event": "score", **_stamp(facts, at, 0.0, f"s-{scorer}"), "scorer": scorer, "score": score}
    if rollout.failure is not None:
        yield {"event": "error", **_stamp(facts, at, 0.0, "failure"), "error": _write_error(rollout.failure)}


def _list_tool_events(turn: Turn, number: int, facts: LogFacts, at: float) -> Iterator[JsonRow]:
    for place, (id, call, result) in enumerate(name_calls(turn, number), 1):
        if result is None:
            continue
        yield {
            "event": "tool",
            **_stamp(facts, at, result.seconds, f"e{number}-{place}"),
            "type": "function",
            "id": id,
            "function": call.name,
            "arguments": read_arguments(call)[0],
            "result": result.content,
            **({"error": _write_tool_error(result)} if result.error else {}),
        }
        at += result.seconds


def _stamp(facts: LogFacts, at: float, seconds: float, uuid: str) -> JsonRow:
    stamp: JsonRow = {"uuid": uuid, "timestamp": write_time(facts.started + at), "working_start": at}
    return (
        {**stamp, "completed": write_time(facts.started + at + seconds), "working_time": seconds} if seconds else stamp
    )


def write_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _write_output(turn: Turn, messages: Sequence[JsonRow], rollout: Rollout) -> JsonRow:
    completion = turn.completion
    message = next(each for each in reversed(messages) if each["role"] == "assistant")
    return {
        "model": completion.model or rollout.provenance.model,
        "choices": [{"message": message, "stop_reason": _STOPS[completion.finish]}],
        "completion": completion.message.content,
        "usage": write_usage(completion.usage),
        "time": turn.seconds,
    }


def _write_tool(tool: ToolSpec) -> JsonRow:
    parameters = _write_schema(tool.parameters)
    parameters |= {"type": "object", "properties": parameters.get("properties", {})}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "type": (str, list),
    "description": str,
    "enum": list,
    "required": list,
    "format": str,
    "pattern": str,
    "minimum": (int, float),
    "maximum": (int, float),
}
"""What of a JSON schema Inspect reads, beside other schemas, and what these values must be."""


def _write_schema(schema: Mapping[str, Any]) -> JsonRow:
    """A JSON schema as far as Inspect can read it: it refuses a log with others."""
    found: JsonRow = {name: schema[name] for name, kind in _TYPES.items() if isinstance(schema.get(name), kind)}
    if isinstance(items := schema.get("items"), dict):
        found["items"] = _write_schema(items)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(fields := schema.get("properties"), dict):
        found["properties"] = {
            str(name): _write_schema(field) if isinstance(field, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
            for name, field in fields.items()  # pyright: ignore[reportUnknownVariableType]
        }
    return found


# ---- usage --------------------------------------------------------------------------------------------------------


def write_usage(usage: Usage) -> JsonRow:
    """Inspect counts tokens that came from a cache apart from the others of a prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "input_tokens_cache_read": usage.cached_tokens,
        **({"total_cost": usage.dollars} if usage.dollars else {}),
    }


def _write_all_usage(rollout: Rollout) -> JsonRow:
    return {rollout.provenance.model: write_usage(rollout.usage)} if rollout.turns else {}


def write_sampling(sampling: Sampling) -> JsonRow:
    values = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop_seqs": list(sampling.stop) or None,
    }
    return {name: value for name, value in values.items() if value is not None}


# ---- the header ---------------------------------------------------------------------------------------------------


class LogTally:
    """Counts rollouts as they are written. It keeps numbers, and no rollout."""

    def __init__(self) -> None:
        self.samples = 0
        self.failed = 0
        self.epochs = 0
        self.scores: dict[str, tuple[int, float, float]] = {}
        """By task: how many rollouts have a score, the sum of their scores, and how many passed."""
        self.ids: dict[str, None] = {}
        self.usage: dict[str, Usage] = {}

    def add(self, rollout: Rollout, name: SampleName) -> None:
        self.samples += 1
        self.failed += rollout.failure is not None
        self.epochs = max(self.epochs, name.epoch)
        self.ids[name.id] = None
        model = rollout.provenance.model
        self.usage[model] = self.usage.get(model, Usage()) + rollout.usage
        if rollout.score is not None:
            count, total, passed = self.scores.get(name.id, (0, 0.0, 0.0))
            self.scores[name.id] = count + 1, total + rollout.score.value, passed + rollout.score.passed


def make_header(facts: LogFacts, tally: LogTally) -> JsonRow:
    """What was run, how it ended, and the numbers of all samples. Means are over tasks, as in a summary of Ludus."""
    status = STATUSES.get(facts.state, "error")
    models = list(tally.usage)
    header: JsonRow = {
        "version": FORMAT,
        "status": status,
        "eval": _write_spec(facts, tally, models[0] if len(models) == 1 else facts.model or "several"),
        "plan": {
            "name": "plan",
            "steps": [{"solver": "ludus", "params": {}}],
            "config": write_sampling(facts.sampling),
        },
        "results": _write_results(tally),
        "stats": {
            "started_at": write_time(facts.started),
            "completed_at": write_time(facts.ended) if facts.ended else "",
            "model_usage": {model: write_usage(usage) for model, usage in tally.usage.items()},
        },
    }
    if status == "error":
        header["error"] = {"message": facts.message or facts.state, "traceback": "", "traceback_ansi": ""}
    return header


def _write_spec(facts: LogFacts, tally: LogTally, model: str) -> JsonRow:
    return {
        "eval_id": _make_id(facts.name, "eval"),
        "run_id": _make_id(facts.name, "run"),
        "task_id": _make_id(facts.env, "task"),
        "created": write_time(facts.started),
        "task": facts.env,
        "task_version": facts.version,
        "task_args": dict(facts.options),
        "solver": "ludus",
        "dataset": {"name": facts.env, "samples": len(tally.ids), "sample_ids": list(tally.ids), "shuffled": False},
        "model": model,
        "model_generate_config": write_sampling(facts.sampling),
        "config": {"epochs": tally.epochs or 1},
        "packages": {"ludus-train": __version__},
        "metadata": {"run": facts.name},
        "scorers": [{"name": SCORER}, {"name": PASSED}],
    }


def _make_id(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:22]


def _write_results(tally: LogTally) -> JsonRow:
    scored = sum(count for count, _, _ in tally.scores.values())
    means = [total / count for count, total, _ in tally.scores.values()]
    passed = [number / count for count, _, number in tally.scores.values()]
    counts: JsonRow = {
        "reducer": "mean",
        "scored_samples": scored,
        "unscored_samples": tally.samples - scored,
        "params": {},
    }
    return {
        "total_samples": tally.samples,
        "completed_samples": tally.samples - tally.failed,
        "scores": [
            {"name": SCORER, "scorer": SCORER, **counts, "metrics": _write_metrics("mean", means)},
            {"name": PASSED, "scorer": PASSED, **counts, "metrics": _write_metrics("accuracy", passed)},
        ]
        if means
        else [],
    }


def _write_metrics(name: str, values: Sequence[float]) -> JsonRow:
    mean = math.fsum(values) / len(values)
    metrics: JsonRow = {name: {"name": name, "value": mean, "params": {}}}
    if len(values) > 1:
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        metrics["stderr"] = {"name": "stderr", "value": math.sqrt(variance / len(values)), "params": {}}
    return metrics
