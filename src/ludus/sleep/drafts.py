"""From a masked session to the draft of a task: the request, the answer that was accepted, and what it needs. Pure.

The answer to the first request is the one before the user asked for something else, praised it, or said nothing more.
Objections ("no, use ISO dates") refuse the answer before them. A session that ends with an objection has no accepted
answer: it only informs proposers. Files count if their content is in the session: what was read, and what was written.
A session that touches other files makes no task, because the request cannot be asked again without them.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct, field

from ludus.skill import find_path_fault
from ludus.sleep.past_env import SEALED, SELECTION, TRAIN
from ludus.transcripts.past_session import PastSession
from ludus.types import Call, Message

REQUEST_CHARS = 12_000
ANSWER_CHARS = 20_000
FILES, FILE_CHARS = 20, 100_000
_WORD = re.compile(r"\w+")


class TaskDraft(Struct, frozen=True, kw_only=True):
    """A request that could become a task."""

    session: str
    request: str
    reference: str
    objections: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files as they were before."""
    results: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files as they were when the answer was accepted."""

    @property
    def key(self) -> str:
        """Equal for requests that are the same but for case and white space."""
        return hash_request(self.request)


def hash_request(request: str) -> str:
    return hashlib.sha256(" ".join(request.split()).casefold().encode(errors="surrogatepass")).hexdigest()[:16]


# ---- drafts ---------------------------------------------------------------------------------------------------------


def draft_task(session: PastSession) -> TaskDraft | str:
    """The draft of a task, or the reason why there is none."""
    request = session.request.strip()
    if not request:
        return "no request of a user"
    if len(request) > REQUEST_CHARS:
        return "the request is too long"
    if session.score is not None and not session.score.passed:
        return "its rollout did not pass"
    reference = find_accepted(session)
    if not reference:
        return "no answer that the user accepted"
    if len(reference) > ANSWER_CHARS:
        return "the answer is too long"
    known = recover_files(session)
    if isinstance(known, str):
        return known
    files, results = known
    return TaskDraft(
        session=session.id,
        request=request,
        reference=reference,
        objections=list_objections(session),
        files=files,
        results={path: text for path, text in results.items() if files.get(path) != text},
    )


Mood = Literal["praise", "objection", "request"]

_OBJECTION = re.compile(
    r"^\s*(no|nope|wrong|not|that'?s (not|wrong)|this is (not|wrong)|incorrect|still|again|instead"
    r"|please (use|don'?t|fix)|you (forgot|missed|should|must|did ?n[o']t)|use|don'?t|it (should|must)|actually|hmm)\b"
    r"|\b(is|was|are|were) (wrong|incorrect|missing)\b|\b(does|did|do) ?n[o']t (work|pass|compile|run)\b"
    r"|\b(we|i) (always|never|want|need|use)\b|\binstead\b|\bshould (be|have|use|end|start|begin)\b",
    re.IGNORECASE,
)
_PRAISE = re.compile(
    r"^\s*(thanks?|thank you|great|perfect|good|nice|works|lgtm|ok(ay)?|yes|exactly|excellent|awesome|done|merged)"
    r"\b[^?]{0,120}$",
    re.IGNORECASE,
)


def judge_mood(text: str) -> Mood:
    """What a user's next message says about the answer before it. It knows English words only."""
    if _OBJECTION.search(text):
        return "objection"
    return "praise" if _PRAISE.search(text) else "request"


def find_accepted(session: PastSession) -> str:
    """The answer to the first request that the user accepted; empty if there is none."""
    answer = ""
    for kind, text in _walk(session):
        if kind == "answer":
            answer = text
        elif judge_mood(text) == "objection":
            answer = ""
        else:
            break
    return answer


def list_objections(session: PastSession) -> tuple[str, ...]:
    """What the user said against answers to the first request."""
    found: list[str] = []
    for kind, text in _walk(session):
        if kind == "feedback" and judge_mood(text) != "objection":
            break
        if kind == "feedback":
            found.append(text[:1000])
    return tuple(found[:5])


def _walk(session: PastSession) -> Iterator[tuple[Literal["answer", "feedback"], str]]:
    """The agent's last text before each message of the user, and these messages, after the request. Texts that programs
    put into messages of the user are not among them."""
    left = list(session.feedback)
    answer = ""
    for message in session.messages:
        if message.role == "assistant" and message.content.strip():
            answer = message.content.strip()
        elif message.role == "user" and left and left[0].strip() in message.content:
            if answer:
                yield "answer", answer
            yield "feedback", left.pop(0).strip()
            answer = ""
    if answer:
        yield "answer", answer


# ---- files ----------------------------------------------------------------------------------------------------------


class _Unknown(Exception):
    """The session touches a file whose content it does not have."""


def recover_files(session: PastSession) -> tuple[dict[str, str], dict[str, str]] | str:
    """The files before and after, by path below the project; or why they are not known."""
    before: dict[str, str] = {}
    now: dict[str, str] = {}
    results = {message.call_id: message.content for message in session.messages if message.role == "tool"}
    try:
        for call in _list_calls(session.messages):
            _follow(call, results.get(call.id, ""), session.project, before, now)
        touched = {_place(path, session.project) for path in session.files if not _is_skill(path, session)}
    except _Unknown as error:
        return str(error)
    if missing := touched - now.keys():
        return f"it needs files that are not in the session, such as {sorted(missing)[0]}"
    if len(now) > FILES or any(len(text) > FILE_CHARS for text in (*before.values(), *now.values())):
        return "its files are too many or too large"
    return before, now


def _is_skill(path: str, session: PastSession) -> bool:
    """Whether a file is a part of a skill: the agent gets it by itself."""
    folders = [skill.path.removesuffix("/SKILL.md") for skill in session.skills if skill.path]
    return path.endswith("SKILL.md") or any(folder and path.startswith(f"{folder}/") for folder in folders)


def _list_calls(messages: Sequence[Message]) -> Iterator[Call]:
    return (call for message in messages for call in message.calls)


_READ = frozenset({"read", "read_file", "view", "cat"})
_WRITE = frozenset({"write", "write_file", "create_file"})
_EDIT = frozenset({"edit", "str_replace", "replace_in_file"})
_NUMBERED = re.compile(r"^\s*\d+(?:\t|→)(.*)$")


def _follow(call: Call, result: str, project: str, before: dict[str, str], now: dict[str, str]) -> None:
    """Follow what a call did to the files."""
    try:
        given: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    fields = cast("dict[str, Any]", given)
    path = next((fields[name] for name in ("file_path", "path", "filename") if isinstance(fields.get(name), str)), "")
    name = call.name.rpartition("__")[2].casefold()
    if not path or path.endswith("SKILL.md") or name not in _READ | _WRITE | _EDIT:
        return
    place = _place(path, project)
    if name in _READ:
        if place not in now and fields.get("offset") is None and fields.get("limit") is None:
            before[place] = now[place] = _unnumber(result)
    elif name in _WRITE:
        text = fields.get("content", fields.get("file_text"))
        if isinstance(text, str):
            now[place] = text
    else:
        old, new = fields.get("old_string", fields.get("old_str")), fields.get("new_string", fields.get("new_str"))
        if place not in now or not isinstance(old, str) or not isinstance(new, str) or now[place].count(old) != 1:
            raise _Unknown("an edit of a file whose content is not in the session")
        now[place] = now[place].replace(old, new)


def _place(path: str, project: str) -> str:
    """A path below the project."""
    if project and path.startswith(f"{project.rstrip('/')}/"):
        path = path[len(project.rstrip("/")) + 1 :]
    path = path.removeprefix("./")
    if path.startswith(("/", "~")) or find_path_fault(path):
        raise _Unknown("it touches files outside of its project")
    return path


def _unnumber(result: str) -> str:
    """The text of a file as a tool showed it with the numbers of lines."""
    lines = result.split("\n")
    found = [_NUMBERED.match(line) for line in lines if line]
    if found and all(found):
        return "\n".join(match[1] for match in found if match) + "\n"
    return result


# ---- splits ---------------------------------------------------------------------------------------------------------

_SHARES = ((TRAIN, 0.5), (SELECTION, 0.25), (SEALED, 0.25))
ALIKE = 0.95
"""From this share of common words on, two requests are the same but for a word."""


def assign_splits(drafts: Sequence[tuple[str, str, str]], known: Mapping[str, str]) -> dict[str, str]:
    """The split of each task, by the hash of its request. `drafts`: hash, session and request of each.

    A task stays where it was (`known`). Tasks of one session, and requests that are nearly the same, are in one split:
    words of a sealed task are in no other. Groups are taken in the order of their hashes, each by the split that has
    the least of its share.
    """
    chosen = {key: known[key] for key, _, _ in drafts if key in known}
    counts = {split: sum(each == split for each in chosen.values()) for split, _ in _SHARES}
    for group in sorted(_group(drafts), key=min):
        old = sorted({chosen[key] for key in group if key in chosen}, key=(SEALED, SELECTION, TRAIN).index)
        split = old[0] if old else min(_SHARES, key=lambda share: counts[share[0]] / share[1])[0]
        for key in group - chosen.keys():
            chosen[key] = split
            counts[split] += 1
    return chosen


def _group(drafts: Sequence[tuple[str, str, str]]) -> list[frozenset[str]]:
    """Groups of hashes that must be in one split."""
    groups: list[tuple[set[str], set[str], list[frozenset[str]]]] = []
    for key, session, request in drafts:
        words = frozenset(_WORD.findall(request.casefold()))
        joined = ({key}, {session}, [words])
        rest: list[tuple[set[str], set[str], list[frozenset[str]]]] = []
        for group in groups:
            if group[0] & joined[0] or group[1] & joined[1] or any(_are_alike(words, other) for other in group[2]):
                joined = (joined[0] | group[0], joined[1] | group[1], [*joined[2], *group[2]])
            else:
                rest.append(group)
        groups = [*rest, joined]
    return [frozenset(keys) for keys, _, _ in groups]


def _are_alike(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one | other) and len(one & other) / len(one | other) >= ALIKE
