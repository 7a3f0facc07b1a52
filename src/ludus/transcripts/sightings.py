"""What the messages of a session show besides the conversation: skills, and files that were touched.

A skill is seen when the agent is told of it (a list in a text of the program), when it reads the document (the path of
a `SKILL.md` in a tool call whose result is no error, or the text that a program adds when the skill is called), and
when it calls a tool named `Skill`. Nobody looks whether a path exists.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from ludus.chat_form import decode_arguments
from ludus.skill import DOCUMENT
from ludus.transcripts.past_session import PastSkill, Sighting
from ludus.types import Call, Message

_MOST = 1000
"""The most skills and files that are kept of a session."""
_NAME = r"[\w.:-]{1,200}"
_BASE = re.compile(r"^Base directory for this skill: (\S[^\n]{0,1000})")
"""How Claude Code begins the text of a skill that was called."""
_CODEX_SKILL = re.compile(rf"^<skill>\s*<name>({_NAME})</name>\s*<path>([^<\n]{{1,1000}})</path>")
"""How Codex begins the text of a skill that the user named."""
_PATH = re.compile(rf"[^\s\"'`<>|;&()=,]{{0,1000}}/(?:[^\s\"'`<>|;&()=,/]{{1,200}})/{re.escape(DOCUMENT)}\b")
_LISTED = re.compile(
    rf"^[ \t]{{0,8}}- \*{{0,2}}({_NAME})\*{{0,2}}: .{{0,4000}}?\((?:file|path): ([^\n()]{{1,1000}})\)", re.M
)
_LISTED_PLAIN = re.compile(rf"^- ({_NAME}): ", re.M)
_LISTED_MARKUP = re.compile(rf"<skill>\s*<name>\s*({_NAME})\s*</name>")
_ROOT = re.compile(r"^- `(\w{1,20})` = `([^`\n]{1,1000})`", re.M)
_SKILL_LISTS = ("# Skills", "## Skills", "<available_skills>", "<skills>", "# Available skills", "Available skills")
_SKILL_TOOLS = frozenset({"Skill", "skill", "load_skill", "use_skill", "activate_skill"})
_NAME_KEYS = ("skill", "name", "skill_name", "command")


def find_skills(messages: Sequence[Message], known: Iterable[PastSkill] = ()) -> tuple[PastSkill, ...]:
    """The skills that a session shows, in the order in which they were first seen. `known`: those that the transcript
    names outside its messages."""
    found: dict[str, PastSkill] = {}
    for seen in (*known, *_walk_messages(messages)):
        if len(found) < _MOST or seen.name in found:
            found[seen.name] = _join(found.get(seen.name), seen)
    return tuple(found.values())


def _join(before: PastSkill | None, now: PastSkill) -> PastSkill:
    if before is None:
        return now
    seen: tuple[Sighting, ...] = (*before.seen, *(way for way in now.seen if way not in before.seen))
    return PastSkill(name=before.name, path=now.path or before.path, hash=now.hash or before.hash, seen=seen)


def _walk_messages(messages: Sequence[Message]) -> Iterator[PastSkill]:
    results = {message.call_id: message.content for message in messages if message.role == "tool"}
    for message in messages:
        if message.role == "system":
            yield from list_skills(message.content)
        elif message.role == "user":
            yield from _find_given(message.content)
        for call in message.calls:
            yield from _find_loaded(call, results.get(call.id, ""))


def list_skills(text: str) -> Iterator[PastSkill]:
    """The skills that a text for the agent lists, if it has such a list."""
    start = min((at for head in _SKILL_LISTS if (at := text.find(head)) >= 0), default=-1)
    if start < 0:
        return
    text = text[start:]
    roots = dict(_ROOT.findall(text))
    with_path = [(name, _expand(path.strip(), roots)) for name, path in _LISTED.findall(text)]
    yield from (make_sighting(name, "listed", path) for name, path in with_path)
    if not with_path:
        yield from list_named_skills(text)


def list_named_skills(text: str) -> Iterator[PastSkill]:
    """The skills of a list without paths."""
    for form in (_LISTED_MARKUP, _LISTED_PLAIN):
        if names := form.findall(text):
            yield from (make_sighting(name, "listed") for name in names)
            return


def _expand(path: str, roots: dict[str, str]) -> str:
    """A path whose first part stands for a folder."""
    head, slash, rest = path.partition("/")
    return f"{roots[head]}/{rest}" if slash and head in roots else path


def make_sighting(name: str, way: Sighting, path: str = "", hash: str = "") -> PastSkill:
    return PastSkill(name=name, path=path, hash=hash, seen=(way,))


def name_skill(path: str) -> str:
    """The name of the skill whose folder or document is at a path."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    if parts and parts[-1] == DOCUMENT:
        parts.pop()
    return parts[-1] if parts else ""


def _find_given(text: str) -> Iterator[PastSkill]:
    """A skill whose text a program put into a message of the user."""
    if (base := _BASE.match(text)) and (name := name_skill(base[1])):
        yield make_sighting(name, "read", base[1].strip())
    elif given := _CODEX_SKILL.match(text):
        yield make_sighting(given[1], "read", given[2].strip())


def _find_loaded(call: Call, result: str) -> Iterator[PastSkill]:
    """The skills that a call loads."""
    arguments = decode_arguments(call.arguments) or {}
    if call.name in _SKILL_TOOLS:
        value = next((arguments[key] for key in _NAME_KEYS if isinstance(arguments.get(key), str)), "")
        if name := str(value).strip().lstrip("/"):
            yield make_sighting(name, "called")
    for text in _list_texts(arguments):
        if DOCUMENT not in text:
            continue
        for path in dict.fromkeys(_PATH.findall(text)):
            if (name := name_skill(path)) and _is_shown(result):
                yield make_sighting(name, "read", path)


def _is_shown(result: str) -> bool:
    """Whether a result may have the text of a document: a few words are an error."""
    return len(result) > 20 and "No such file" not in result[:400]


def _list_texts(value: Any) -> Iterator[str]:
    """The texts in the arguments of a call."""
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += reversed(list(cast(dict[str, Any], each).values()))
        elif isinstance(each, list):
            waiting += reversed(cast(list[Any], each))


# ---- files ----------------------------------------------------------------------------------------------------------

_FILE_KEYS = ("file_path", "path", "filename", "notebook_path", "file", "absolute_path", "target_file")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: ([^\n]{1,1000})$", re.M)


def find_files(messages: Iterable[Message]) -> tuple[str, ...]:
    """The files that tool calls name: in an argument for a path, or in a patch."""
    found: dict[str, None] = {}
    for message in messages:
        for call in message.calls:
            if len(found) < _MOST:
                found |= dict.fromkeys(_list_files(call))
    return tuple(found)[:_MOST]


def _list_files(call: Call) -> Iterator[str]:
    arguments = decode_arguments(call.arguments) or {}
    for key in _FILE_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and 0 < len(value) <= 1000 and "\n" not in value:
            yield value
    for value in arguments.values():
        if isinstance(value, str) and "*** " in value:
            yield from (path.strip() for path in _PATCHED.findall(value))
