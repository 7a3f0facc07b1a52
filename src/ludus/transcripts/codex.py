"""Sessions of Codex: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`, and those in `archived_sessions`.

A line has a time, a type and a payload. `response_item` is what the model saw and said, in the form of the responses
API; `event_msg` is what the terminal showed. Only the items become messages. Newer versions say for each message
whether the user wrote it or the program; in older ones the events say it, and if there are none, the first words of the
text. Versions before the autumn of 2025 wrote the items without a frame.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ludus.transcripts.claude_code import HEADLESS, SUB_AGENT
from ludus.transcripts.foreign_messages import make_reasoning, read_content
from ludus.transcripts.past_session import PastSession
from ludus.transcripts.session_draft import SessionDraft, as_count, as_list, as_object, as_text
from ludus.types import Call, JsonObject, Message, Usage

_FRAMES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"})
_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output", "local_shell_call"})
_RETAKEN = "messages that the user took back"
_WRITTEN = (
    "<environment_context>", "<user_instructions>", "<permissions", "<skill>", "<turn_aborted>", "<user_shell_command>",
    "# AGENTS.md instructions", "<INSTRUCTIONS>", "<subagent_notification>", "<apps_instructions>",
)  # fmt: skip
"""How messages of the user begin that the program wrote."""


def matches(value: Any) -> bool:
    """Whether a line is one of Codex."""
    line = as_object(value)
    if isinstance(line.get("payload"), dict):
        return as_text(line.get("type")) in _FRAMES
    old_head = {"id", "timestamp", "instructions"} <= line.keys()
    return old_head or "record_type" in line or (as_text(line.get("type")) in _ITEMS and "uuid" not in line)


def read_file(values: Iterable[Any], path: str, headless: bool, dropped: Counter[str]) -> PastSession | None:
    """The session of a file; None if it is left out, which `dropped` says."""
    lines = [line for value in values if (line := as_object(value))]
    heads = [as_object(line.get("payload")) for line in lines if line.get("type") == "session_meta"]
    meta = heads[0] if heads else as_object(None)
    source = meta.get("source")
    if isinstance(source, dict) or meta.get("thread_source") == "subagent":
        dropped[SUB_AGENT] += 1
        return None
    if not headless and (source == "exec" or as_text(meta.get("originator")) in ("codex_exec", "codex_sdk_ts")):
        dropped[HEADLESS] += 1
        return None
    draft = SessionDraft("codex", path)
    draft.dropped.update(dropped)
    dropped.clear()
    reader = _LineReader(draft, _list_said(lines))
    for line in lines:
        reader.take(line)
    reader.flush()
    return draft.finish()


def _list_said(lines: Iterable[JsonObject]) -> frozenset[str] | None:
    """What the user said, as the events tell it; None if there are no such events."""
    said: set[str] = set()
    for line in lines:
        payload = as_object(line.get("payload"))
        if line.get("type") == "event_msg" and payload.get("type") == "user_message":
            said.add(as_text(payload.get("message")).strip())
    return frozenset(said) or None


class _LineReader:
    """Puts items together to messages: reasoning, text and calls of one reply are items of their own."""

    def __init__(self, draft: SessionDraft, said: frozenset[str] | None) -> None:
        self._draft = draft
        self._said = said
        self._begun = False
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[Call] = []

    def take(self, line: JsonObject) -> None:
        draft = self._draft
        draft.note_time(line.get("timestamp"))
        kind = as_text(line.get("type"))
        payload = as_object(line.get("payload"))
        match kind:
            case "session_meta":
                self._take_meta(payload)
            case "turn_context":
                draft.model = as_text(payload.get("model")) or draft.model
                draft.project = draft.project or as_text(payload.get("cwd"))
            case "event_msg":
                self._take_event(payload)
            case "compacted":
                draft.dropped["summaries in place of earlier messages"] += 1
            case "response_item":
                self._take_item(payload)
            case _ if kind in _ITEMS or kind.endswith(("_call", "_call_output")):
                self._take_item(line)
            case _ if "instructions" in line and "id" in line:
                self._take_meta(line)
            case _:
                pass

    def _take_meta(self, meta: JsonObject) -> None:
        draft = self._draft
        if draft.id:  # a thread that was forked has the head of the first one, too
            return
        draft.id = as_text(meta.get("id"))
        draft.agent = " ".join(filter(None, ("codex", as_text(meta.get("cli_version")))))
        draft.project = as_text(meta.get("cwd"))
        draft.note_time(meta.get("timestamp"))
        texts = [as_text(as_object(meta.get("base_instructions")).get("text")), as_text(meta.get("instructions"))]
        for text in filter(None, texts):
            draft.add(Message("system", text))

    def _take_event(self, event: JsonObject) -> None:
        draft = self._draft
        if event.get("type") == "token_count":
            usage = as_object(as_object(event.get("info")).get("total_token_usage"))
            if usage:
                draft.usage = Usage(
                    as_count(usage.get("input_tokens")),
                    as_count(usage.get("output_tokens")),
                    as_count(usage.get("cached_input_tokens")),
                )
        elif event.get("type") == "thread_rolled_back":
            self.flush()
            self._take_back(as_count(event.get("num_turns")))

    def _take_back(self, turns: int) -> None:
        """Leave out the last turns: each begins with what the user said."""
        draft = self._draft
        if not turns or not draft.said:
            return
        start = draft.said[max(0, len(draft.said) - turns)][0]
        draft.dropped[_RETAKEN] += len(draft.messages) - start
        del draft.messages[start:]
        draft.said = [each for each in draft.said if each[0] < start]

    def _take_item(self, item: JsonObject) -> None:
        kind = as_text(item.get("type"))
        match kind:
            case "message":
                self._take_message(item)
            case "reasoning":
                if self._texts or self._calls:
                    self.flush()
                parts = [*as_list(item.get("summary")), *as_list(item.get("content"))]
                self._thoughts += [as_text(as_object(part).get("text")) for part in parts]
            case "function_call":
                space, name = as_text(item.get("namespace")), as_text(item.get("name"))
                self._call(item, f"{space}__{name}" if space else name, as_text(item.get("arguments")))
            case "custom_tool_call":
                self._call(item, as_text(item.get("name")), _write({"input": item.get("input")}))
            case "local_shell_call":
                self._call(item, "local_shell", _write(as_object(item.get("action"))))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._take_output(item)
            case _:
                self._draft.dropped[f"items of the type '{kind[:40]}'" if kind.isidentifier() else "other items"] += 1

    def _call(self, item: JsonObject, name: str, arguments: str) -> None:
        self._calls.append(Call(_read_id(item), name, arguments))

    def _take_output(self, item: JsonObject) -> None:
        self.flush()
        output = item.get("output")
        if isinstance(output, dict) and "content" in output:
            output = as_object(output)["content"]
        text, images = read_content(output, self._draft.dropped)
        self._draft.add(Message("tool", text, call_id=_read_id(item), images=images))

    def _take_message(self, item: JsonObject) -> None:
        role = as_text(item.get("role"))
        text, images = read_content(item.get("content"), self._draft.dropped)
        if role == "assistant":
            if self._calls:
                self.flush()
            self._texts.append(text)
            return
        self.flush()
        if role in ("developer", "system"):
            self._draft.add(Message("system", text))
        else:
            message = Message("user", text, images=images)
            self._draft.add(message, "" if self._is_said(item, text) else None)

    def _is_said(self, item: JsonObject, text: str) -> bool:
        """Whether the user wrote a message."""
        noted = as_object(item.get("internal_chat_message_metadata_passthrough"))
        origins = [as_object(as_object(each).get("provenance")) for each in as_list(noted.get("content_item_metadata"))]
        if kinds := [kind for origin in origins if (kind := as_text(origin.get("type")))]:
            return "user" in kinds
        if text.lstrip().startswith(_WRITTEN):
            return False
        return self._said is None or text.strip() in self._said

    def flush(self) -> None:
        """The reply is complete."""
        if self._texts or self._calls or self._thoughts:
            thoughts = make_reasoning(self._thoughts)
            self._draft.add(Message("assistant", "\n".join(self._texts), tuple(self._calls), reasoning=thoughts))
        self._thoughts, self._texts, self._calls = [], [], []


def _read_id(item: JsonObject) -> str:
    return as_text(item.get("call_id")) or as_text(item.get("id"))


def _write(value: Any) -> str:
    return msgspec.json.encode(value).decode()
