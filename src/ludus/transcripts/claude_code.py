"""Sessions of Claude Code: `~/.claude/projects/FOLDER/SESSION.jsonl`.

A line is an entry: a message of the user or of the model, an attachment, or a note of the program. Entries name the
entry before them, so a file is a tree. It is read in the order of its lines, because one reply is several entries (one
for each block), and the results of parallel calls are beside each other in the tree. Only where the user went back and
asked again, which makes two prompts with one parent, is the older branch left out.

The program writes messages of the user, too: the text of a skill, reminders, the output of commands. They are kept,
since the model saw them, but are not what the user said.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from ludus.transcripts.foreign_messages import read_content, read_reply_content, read_user_content
from ludus.transcripts.past_session import PastSession
from ludus.transcripts.session_draft import SessionDraft, as_count, as_list, as_object, as_text
from ludus.transcripts.sightings import list_named_skills, list_skills, make_sighting
from ludus.types import JsonObject, Message, Usage

TYPES = frozenset({"user", "assistant", "system", "attachment", "summary", "queue-operation", "file-history-snapshot"})
HEADLESS = "sessions without a user (headless)"
SUB_AGENT = "sessions of sub-agents"
_SIDE = "messages of sub-agents"
_NOTES = "error messages of the program"
_BRANCHES = "messages on branches that the user left"
_REPEATED = "lines that were there before"
_SUMMARIES = "summaries in place of earlier messages"
_ADDED = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_WRITTEN = (
    "<command-name>", "<command-message>", "<local-command", "<bash-input>", "<bash-stdout>", "<bash-stderr>",
    "<task-notification>", "Base directory for this skill:", "Caveat: The messages below were generated",
)  # fmt: skip
"""How messages of the user begin that the program wrote."""


def matches(value: Any) -> bool:
    """Whether a line is one of Claude Code."""
    entry = as_object(value)
    named = isinstance(entry.get("sessionId"), str) or isinstance(entry.get("uuid"), str) or "leafUuid" in entry
    return isinstance(entry.get("type"), str) and "payload" not in entry and (named or "snapshot" in entry)


def read_file(values: Iterable[Any], path: str, headless: bool, dropped: Counter[str]) -> PastSession | None:
    """The session of a file; None if it is left out, which `dropped` says."""
    entries, side = _take_entries(values, dropped)
    if not entries:
        dropped[SUB_AGENT] += bool(side)
        return None
    if not headless and _is_headless(entries):
        dropped[HEADLESS] += 1
        return None
    draft = SessionDraft("claude-code", path)
    draft.dropped.update(dropped)
    dropped.clear()
    draft.dropped[_SIDE] += side
    left = _find_left(entries)
    reader = _EntryReader(draft)
    for entry in entries:
        if as_text(entry.get("uuid")) in left:
            draft.dropped[_BRANCHES] += entry.get("type") in ("user", "assistant")
        else:
            reader.take(entry)
    reader.close()
    return draft.finish()


def _take_entries(values: Iterable[Any], dropped: Counter[str]) -> tuple[list[JsonObject], int]:
    """The entries of the main conversation, each once, and how many messages of sub-agents there are."""
    entries: list[JsonObject] = []
    known: set[str] = set()
    side = 0
    for value in values:
        entry = as_object(value)
        if not isinstance(entry.get("type"), str):
            dropped["lines of another format"] += 1
            continue
        if entry.get("isSidechain") is True or isinstance(entry.get("agentId"), str):
            side += entry["type"] in ("user", "assistant")
            continue
        id = as_text(entry.get("uuid"))
        if id and id in known:
            dropped[_REPEATED] += 1
            continue
        known.add(id)
        if entry["type"] in ("user", "assistant", "attachment", "system"):
            entries.append(entry)
    return entries, side


def _is_headless(entries: Iterable[JsonObject]) -> bool:
    """Whether a program asked, and not a person."""
    starts = [as_text(entry.get("entrypoint")) for entry in entries if entry.get("entrypoint")]
    return bool(starts) and all(start.startswith("sdk") for start in starts)


def _is_prompt(entry: JsonObject) -> bool:
    """Whether the user wrote this entry."""
    if entry.get("type") != "user" or entry.get("isMeta") is True or entry.get("isCompactSummary") is True:
        return False
    if as_text(as_object(entry.get("origin")).get("kind")) not in ("", "human"):
        return False
    content = as_object(entry.get("message")).get("content")
    blocks = [as_object(block) for block in as_list(content)]
    if any(block.get("type") == "tool_result" for block in blocks):
        return False
    text = as_text(blocks[0].get("text")) if blocks else as_text(content)
    return not text.lstrip().startswith(_WRITTEN)


def _find_left(entries: list[JsonObject]) -> set[str]:
    """The ids of entries on branches that the user left. Circles of parents are no trouble: each id is visited once."""
    children: defaultdict[str, list[str]] = defaultdict(list)
    prompts: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries:
        id, parent = as_text(entry.get("uuid")), as_text(entry.get("parentUuid"))
        if id and parent:
            children[parent].append(id)
            if _is_prompt(entry):
                prompts[parent].append(id)
    waiting = [id for siblings in prompts.values() for id in siblings[:-1]]
    kept = {siblings[-1] for siblings in prompts.values()}
    left: set[str] = set()
    while waiting:
        id = waiting.pop()
        if id not in left and id not in kept:
            left.add(id)
            waiting += children[id]
    return left


class _EntryReader:
    """Puts entries together to messages."""

    def __init__(self, draft: SessionDraft) -> None:
        self._draft = draft
        self._replies: dict[str, int] = {}
        """The place of the reply of each message id since the user last spoke."""
        self._usage: dict[str, Usage] = {}

    def take(self, entry: JsonObject) -> None:
        draft = self._draft
        draft.note_time(entry.get("timestamp"))
        draft.id = draft.id or as_text(entry.get("sessionId"))
        draft.project = draft.project or as_text(entry.get("cwd"))
        if version := as_text(entry.get("version")):
            draft.agent = f"claude-code {version}"
        match entry["type"]:
            case "user":
                self._take_user(entry)
            case "assistant":
                self._take_reply(entry)
            case "attachment":
                self._take_attachment(as_object(entry.get("attachment")))
            case _:
                pass
        if skill := as_text(entry.get("attributionSkill")):
            draft.skills.append(make_sighting(skill, "recorded"))

    def _take_user(self, entry: JsonObject) -> None:
        if entry.get("isCompactSummary") is True:
            self._draft.dropped[_SUMMARIES] += 1
            return
        prompt = _is_prompt(entry)
        content = as_object(entry.get("message")).get("content")
        for message in read_user_content(content, self._draft.dropped):
            words = _ADDED.sub("", message.content).strip() if prompt else ""
            self._draft.add(message, words or None)
            if words:
                self._replies.clear()

    def _take_reply(self, entry: JsonObject) -> None:
        given = as_object(entry.get("message"))
        if entry.get("isApiErrorMessage") is True or given.get("model") == "<synthetic>":
            self._draft.dropped[_NOTES] += 1
            return
        draft = self._draft
        draft.model = as_text(given.get("model")) or draft.model
        message = read_reply_content(given.get("content"), draft.dropped)
        id = as_text(given.get("id"))
        self._usage[id or str(len(draft.messages))] = _read_usage(as_object(given.get("usage")))
        if id and (place := self._replies.get(id)) is not None:
            draft.messages[place] = _join_replies(draft.messages[place], message)
            return
        if id:
            self._replies[id] = len(draft.messages)
        draft.add(message)

    def _take_attachment(self, attachment: JsonObject) -> None:
        match attachment.get("type"):
            case "skill_listing":
                text = as_text(attachment.get("content"))
                self._draft.skills += list(list_skills(text)) or list(list_named_skills(text))
            case "queued_command":  # what the user typed while the agent worked
                text, images = read_content(attachment.get("prompt"), self._draft.dropped)
                written = text.lstrip().startswith(_WRITTEN)
                self._draft.add(Message("user", text, images=images), None if written else "")
            case _:
                pass

    def close(self) -> None:
        self._draft.usage = sum(self._usage.values(), Usage())


def _join_replies(one: Message, other: Message) -> Message:
    """A reply whose blocks came in two entries."""
    text = "\n".join(each.content for each in (one, other) if each.content)
    known = {call.id for call in one.calls}
    calls = (*one.calls, *(call for call in other.calls if call.id not in known))
    return Message("assistant", text, calls, reasoning=one.reasoning or other.reasoning)


def _read_usage(usage: JsonObject) -> Usage:
    cached = as_count(usage.get("cache_read_input_tokens"))
    written = as_count(usage.get("cache_creation_input_tokens"))
    return Usage(as_count(usage.get("input_tokens")) + cached + written, as_count(usage.get("output_tokens")), cached)
