"""Trajectories in ATIF, the format of Harbor, which `ludus export --format atif` writes.

A file is one trajectory. Its steps are messages of the user or the system, and steps of the agent with calls and their
observations. Trajectories of sub-agents are in files of their own, or embedded; they are no sessions of the user.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ludus.chat_form import read_arguments
from ludus.transcripts.foreign_messages import make_reasoning, read_content
from ludus.transcripts.past_session import PastSession
from ludus.transcripts.session_draft import SessionDraft, as_count, as_list, as_object, as_text
from ludus.transcripts.sightings import list_named_skills
from ludus.types import Call, JsonObject, Message, Score, Usage

_FILES = "pictures that are files of their own"


def matches(value: Any) -> bool:
    """Whether a value is a trajectory."""
    return as_text(as_object(value).get("schema_version")).startswith("ATIF")


def read_trajectories(values: Iterable[Any], path: str, dropped: Counter[str]) -> Iterator[PastSession]:
    """The trajectories of a file: one, or one in each line."""
    for value in values:
        if not matches(value):
            dropped["values that are no trajectory"] += 1
        elif session := _read_trajectory(as_object(value), path):
            yield session


def _read_trajectory(given: JsonObject, path: str) -> PastSession | None:
    agent, extra = as_object(given.get("agent")), as_object(given.get("extra"))
    draft = SessionDraft("atif", path)
    draft.id = as_text(given.get("session_id")) or as_text(given.get("trajectory_id"))
    draft.agent = " ".join(filter(None, (as_text(agent.get("name")), as_text(agent.get("version")))))
    draft.model = as_text(agent.get("model_name"))
    draft.project = as_text(extra.get("cwd")) or as_text(extra.get("project"))
    draft.score = _read_score(extra)
    draft.dropped["sessions of sub-agents"] += len(as_list(given.get("subagent_trajectories")))
    for tool in as_list(agent.get("tool_definitions")):
        function = as_object(as_object(tool).get("function"))
        if as_text(function.get("name")).lower() == "skill":
            draft.skills += list_named_skills(as_text(function.get("description")))
    for step in as_list(given.get("steps")):
        _take_step(as_object(step), draft)
    draft.usage = _read_totals(as_object(given.get("final_metrics")))
    return draft.finish()


def _take_step(step: JsonObject, draft: SessionDraft) -> None:
    draft.note_time(step.get("timestamp"))
    text = _read_text(step.get("message"), draft)
    source = step.get("source")
    if source == "agent":
        draft.model = as_text(step.get("model_name")) or draft.model
        calls = tuple(_read_call(as_object(call)) for call in as_list(step.get("tool_calls")))
        thought = make_reasoning([as_text(step.get("reasoning_content"))])
        if text or calls or thought:
            draft.add(Message("assistant", text, calls, reasoning=thought))
    elif source == "user":
        draft.add(Message("user", text))
    elif text:
        draft.add(Message("system", text))
    for result in as_list(as_object(step.get("observation")).get("results")):
        fields = as_object(result)
        draft.dropped["sessions of sub-agents"] += len(as_list(fields.get("subagent_trajectory_ref")))
        content = _read_text(fields.get("content"), draft)
        draft.add(Message("tool", content, call_id=as_text(fields.get("source_call_id"))))


def _read_text(content: Any, draft: SessionDraft) -> str:
    """The text of a content. Its pictures are names of files, which are not opened."""
    parts = [part for part in as_list(content) if as_object(part).get("type") != "image"]
    if isinstance(content, list):
        draft.dropped[_FILES] += len(as_list(content)) - len(parts)
        return read_content(parts, draft.dropped)[0]
    return read_content(content, draft.dropped)[0]


def _read_call(call: JsonObject) -> Call:
    raw = as_object(call.get("extra")).get("raw_arguments")
    arguments = raw if isinstance(raw, str) else read_arguments(call.get("arguments"))
    return Call(as_text(call.get("tool_call_id")), as_text(call.get("function_name")), arguments)


def _read_score(extra: JsonObject) -> Score | None:
    """The score that Ludus puts into a trajectory."""
    fields = {name: extra[name] for name in ("feedback", "parts", "suspect") if name in extra}
    given = {"value": extra.get("score"), "passed": extra.get("passed"), "soft": extra.get("soft"), **fields}
    try:
        return msgspec.convert(given, Score)
    except (ValueError, TypeError):  # msgspec's errors are ValueErrors
        return None


def _read_totals(metrics: JsonObject) -> Usage:
    dollars = metrics.get("total_cost_usd")
    return Usage(
        as_count(metrics.get("total_prompt_tokens")),
        as_count(metrics.get("total_completion_tokens")),
        as_count(metrics.get("total_cached_tokens")),
        float(dollars) if isinstance(dollars, int | float) and 0 <= dollars < 1e9 else 0.0,
    )
