"""The skill document, the instructions of an agent, and the changes that can be made to it.

A `Skill` is text: usually a `SKILL.md` in Agent Skills form, with front matter that names it, but any text will do. An
`Edit` is one change. `apply` makes changes in order and says of each what became of it: matching is literal, a target
that is missing or that occurs more than once is reported and nothing is guessed.

Some parts of a document are not an edit's to touch: the front matter, and the regions between markers that the trainer
keeps (the guidance of the slow update, the appendix of notes). They come out of `apply` and of `protect`, which puts a
rewritten text in place of the old one, exactly as they went in. Everything here is pure.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError

Op = Literal["append", "insert_after", "replace", "delete"]
Source = Literal["failure", "success", "mixed"]


class Skill(Struct, frozen=True):
    """A document in words that an agent follows. Its hash is its identity on every record."""

    text: str

    @property
    def hash(self) -> str:
        return _digest(self.text)

    @property
    def front(self) -> "FrontMatter | None":
        """What the document says about itself; None if it says nothing.

        Raises:
            ConfigError: there is front matter, but not in the Agent Skills form.
        """
        found = _FRONT.match(self.text)
        return None if found is None else _read_front(found[1])

    @property
    def body(self) -> str:
        """The document without its front matter."""
        return self.text[_front_end(self.text) :].lstrip("\r\n")


@lru_cache(maxsize=256)  # every rollout's record has it, and a run has few texts at a time
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Edit(Struct, frozen=True, omit_defaults=True, tag="edit", tag_field="form"):
    """One change to a document, and where it comes from."""

    op: Op
    content: str = ""
    target: str = ""
    """The text that is replaced or deleted, or that the content goes after: literally as it stands in the document."""
    source: Source = "failure"
    """The kind of rollouts it was learned from."""
    support: int = 0
    """How many rollouts it was learned from."""
    level: int = 0
    """How often it was merged with others."""
    evidence: tuple[str, ...] = ()
    """The ids of the tasks of those rollouts."""


class EditReport(Struct, frozen=True, omit_defaults=True):
    """What became of an edit.

    `status` begins with `applied` or `skipped`. Skipped: `…_missing_target` (none given), `…_target_not_found`,
    `…_ambiguous_target` (it occurs more than once), `…_protected_region`, `…_empty_content`, `…_unknown_op`.
    """

    edit: Edit
    status: str
    matches: int = 0
    """How often the target occurs."""

    @property
    def applied(self) -> bool:
        return self.status.startswith("applied")


# ---- front matter -------------------------------------------------------------------------------------------------


class FrontMatter(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"allowed_tools": "allowed-tools"}
):
    """The head of a `SKILL.md`, as the Agent Skills form has it."""

    name: str
    """At most 64 lower-case letters, digits and single hyphens between them."""
    description: str
    """What the skill does and when to use it; at most 1,024 characters."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, Any] = {}
    allowed_tools: str = ""


_FRONT = re.compile(r"\A---[ \t]*\r?\n((?=[A-Za-z][\w-]*[ \t]*:).*?\n)---[ \t]*(?=\r?\n|\Z)", re.DOTALL)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def with_front_matter(skill: Skill, name: str, description: str) -> Skill:
    """The document under a head of its own; one that has a head keeps it."""
    if skill.front is not None:
        return skill
    return Skill(_head(FrontMatter(name=name, description=description)) + skill.text.lstrip())


def as_file(skill: Skill, name: str, description: str) -> str:
    """The document as a `SKILL.md` for others to use: one without a head gets one, which `from_file` takes off again.

    A head that was put on after training is no part of what was trained and measured; with this hash in it, whoever
    reads the file back here gets that very text.
    """
    if _FRONT.match(skill.text):
        return skill.text
    return _head(FrontMatter(name=name, description=description, metadata={_PUT_ON: skill.hash})) + skill.text


def from_file(text: str) -> Skill:
    """The skill in a file: all of it, but for a head that `as_file` put on the very text that follows it."""
    found = _FRONT.match(text)
    marked = found and re.search(rf"^  {_PUT_ON}: '?([0-9a-f]{{16}})'?$", found[1], re.MULTILINE)
    rest = text[_front_end(text) :].removeprefix("\n\n")
    return Skill(rest if marked and marked[1] == _digest(rest) else text)


def named(text: str) -> str:
    """A text as a name of the Agent Skills form."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "skill"


_PUT_ON = "ludus-text"
"""In the metadata of a head that was put on: the hash of the text beneath it."""


def _head(front: FrontMatter) -> str:
    import yaml

    _checked(front)
    said = {"name": front.name, "description": front.description}
    given = said | ({"metadata": dict(front.metadata)} if front.metadata else {})
    return f"---\n{yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=10_000)}---\n\n"


def _read_front(text: str) -> FrontMatter:
    import yaml  # here, because most runs have no front matter to read

    try:
        return _checked(msgspec.convert(yaml.safe_load(text), FrontMatter))
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"skill: the front matter is not in the Agent Skills form: {error}") from None


def _checked(front: FrontMatter) -> FrontMatter:
    if not _NAME.fullmatch(front.name) or len(front.name) > 64:
        raise ConfigError(
            f"skill: the name {front.name!r} must be 1 to 64 lower-case letters and digits, with single hyphens between"
        )
    if not front.description.strip() or len(front.description) > 1024:
        raise ConfigError(f"skill: the description must have 1 to 1,024 characters, it has {len(front.description)}")
    if len(front.compatibility) > 500:
        raise ConfigError(f"skill: compatibility must have at most 500 characters, it has {len(front.compatibility)}")
    return front


def _front_end(text: str) -> int:
    found = _FRONT.match(text)
    return found.end() if found else 0


# ---- protected regions --------------------------------------------------------------------------------------------


class Region(Struct, frozen=True):
    """A part of the document between two markers, which edits leave alone."""

    name: str
    start: str
    end: str


GUIDANCE = Region("slow update", "<!-- SLOW_UPDATE_START -->", "<!-- SLOW_UPDATE_END -->")
APPENDIX = Region("appendix", "<!-- APPENDIX_START -->", "<!-- APPENDIX_END -->")
REGIONS = (GUIDANCE, APPENDIX)
APPENDIX_TITLE = "## Execution Notes Appendix"


def protected_parts(text: str) -> tuple[str, ...]:
    """The front matter (perhaps empty) and the protected regions, with their markers, in order."""
    return (text[: _front_end(text)], *(text[start:end] for start, end in _spans(text)))


def without_markers(text: str) -> str:
    """Take out every marker, also one that only appears when another is gone."""
    markers = [marker for region in REGIONS for marker in (region.start, region.end)]
    while any(marker in text for marker in markers):
        for marker in markers:
            text = text.replace(marker, "")
    return text


def without_regions(text: str) -> str:
    """The document as edits see it: no protected region, and no marker that is left over."""
    for start, end in reversed(_spans(text)):
        text = _joined(text[:start], text[end:])
    return without_markers(text)


def protect(old: Skill, text: str) -> Skill:
    """A rewritten text in place of the old one, with the protected parts of the old one as they were.

    A text that kept them is left alone. Otherwise whatever it has of its own is dropped, and those of the old document
    are put back: front matter first, regions last.
    """
    front, *regions = protected_parts(old.text)
    text = f"{text.rstrip()}\n" if text.strip() else ""
    if protected_parts(text) == (front, *regions) and _without_strays(text) == text:
        return Skill(text)
    body = without_regions(text).strip()
    while end := _front_end(body):
        body = body[end:].strip()
    blocks = [block for block in (front, body, *regions) if block]
    return Skill("\n\n".join(blocks) + "\n" if blocks else "")


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the regions are, markers included. One that lacks a marker is none."""
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        found = [(place, region) for region in REGIONS if (place := _start_of(text, region, at)) >= 0]
        if not found:
            return spans
        start, region = min(found, key=lambda pair: pair[0])
        at = text.index(region.end, start) + len(region.end)
        spans.append((start, at))


def _start_of(text: str, region: Region, at: int) -> int:
    """Where the next whole region of this kind starts; -1 if there is none."""
    start = text.find(region.start, at)
    return start if start >= 0 and text.find(region.end, start) >= 0 else -1


def _without_strays(text: str) -> str:
    """The text without markers outside of regions: one of them could pair with a marker that is added later."""
    pieces: list[str] = []
    last = 0
    for start, end in _spans(text):
        pieces += [without_markers(text[last:start]), text[start:end]]
        last = end
    return "".join([*pieces, without_markers(text[last:])])


def _joined(before: str, after: str) -> str:
    """What is left when something between is taken out: one blank line, no growing gap."""
    if not before.strip() or not after.strip():
        return (before.rstrip() or "") + ("\n" if before.strip() else "") + after.lstrip("\n")
    return before.rstrip() + "\n\n" + after.lstrip("\n")


# ---- what the regions hold ----------------------------------------------------------------------------------------


def guidance(skill: Skill) -> str:
    """The text of the slow update; empty if there is none."""
    return _inner(skill.text, GUIDANCE)


def with_guidance(skill: Skill, content: str) -> Skill:
    """The document with this guidance in place of any it had."""
    return Skill(_with_region(skill.text, GUIDANCE, without_markers(content).strip()))


def notes(skill: Skill) -> tuple[str, ...]:
    """The notes of the appendix, one per bullet."""
    lines = (line.strip() for line in _inner(skill.text, APPENDIX).splitlines())
    return tuple(line[2:].strip() for line in lines if line.startswith("- ") and line[2:].strip())


def with_notes(skill: Skill, added: Iterable[str]) -> Skill:
    """The document with these notes added to its appendix; what it has already is not added again."""
    return replace_notes(skill, [*notes(skill), *added])


def replace_notes(skill: Skill, wanted: Iterable[str]) -> Skill:
    """The document with these notes in its appendix and no others, each once."""
    kept = distinct(wanted)
    if kept == notes(skill):
        return skill
    return Skill(_with_region(skill.text, APPENDIX, "\n".join([APPENDIX_TITLE, *(f"- {note}" for note in kept)])))


def distinct(wanted: Iterable[str]) -> tuple[str, ...]:
    """Notes on one line each, without blanks and without those that only look different, in order."""
    lines = (" ".join(without_markers(note).split()) for note in wanted)
    first: dict[str, str] = {}
    for line in lines:
        if key := note_key(line):
            first.setdefault(key, line)
    return tuple(first.values())


def note_key(note: str) -> str:
    """Equal for notes that differ in spacing, case or final punctuation only."""
    return " ".join(note.split()).rstrip(" .;:,_-").casefold()


def _inner(text: str, region: Region) -> str:
    for start, end in _spans(text):
        if text.startswith(region.start, start):
            return text[start + len(region.start) : end - len(region.end)].strip()
    return ""


def _with_region(text: str, region: Region, inner: str) -> str:
    """The text with one such region: where the first one was, or at the end."""
    block = f"{region.start}\n{inner}\n{region.end}"
    text = _without_strays(text)
    spans = [span for span in _spans(text) if text.startswith(region.start, span[0])]
    for start, end in reversed(spans[1:]):
        text = _joined(text[:start], text[end:])
    if spans:
        return text[: spans[0][0]] + block + text[spans[0][1] :]
    before = text.rstrip()
    return f"{before}\n\n{block}\n" if before else f"{block}\n"


# ---- edits --------------------------------------------------------------------------------------------------------


def apply(skill: Skill, edits: Sequence[Edit], *, lenient: bool = False) -> tuple[Skill, tuple[EditReport, ...]]:
    """Make the changes one after the other; an edit that cannot be made is skipped and the report says why.

    `lenient` is SkillOpt's way: of several matches the first is taken, and what was to go after a text that is not
    there goes to the end. Protected parts are safe either way.
    """
    text = skill.text
    reports: list[EditReport] = []
    for edit in edits:
        places = _occurrences(text, edit.target)
        changed, status = _apply(text, edit, places, lenient)
        if changed != text and protected_parts(changed) != protected_parts(text):
            changed, status = text, "skipped_protected_region"
        text = changed
        reports.append(EditReport(edit, status, len(places)))
    return Skill(text), tuple(reports)


def _apply(text: str, edit: Edit, places: Sequence[int], lenient: bool) -> tuple[str, str]:
    content = without_markers(edit.content).strip()
    if edit.op == "append":
        if not content:
            return text, "skipped_empty_content"
        return _append(text, content, "append")
    if edit.op not in ("insert_after", "replace", "delete"):
        return text, "skipped_unknown_op"
    if edit.op == "insert_after" and not content:
        return text, "skipped_empty_content"
    place = _choose(text, edit, places, lenient)
    if isinstance(place, str):
        missing = place.endswith(("_missing_target", "_target_not_found"))
        if lenient and missing and edit.op == "insert_after":
            return _append(text, content, "insert_after_fallback")
        return text, place
    end = place + len(edit.target)
    if edit.op == "insert_after":
        line_end = text.find("\n", end)
        at = len(text) if line_end < 0 else line_end + 1
        return f"{text[:at]}\n{content}\n{text[at:]}", "applied_insert_after"
    return text[:place] + (content if edit.op == "replace" else "") + text[end:], f"applied_{edit.op}"


def _append(text: str, content: str, name: str) -> tuple[str, str]:
    """At the end, or before the first protected region."""
    spans = _spans(text)
    if not spans:
        before = text.rstrip()
        status = "applied_append" if name == "append" else f"applied_{name}_append"
        return (f"{before}\n\n{content}\n" if before else f"{content}\n"), status
    before, after = text[: spans[0][0]].rstrip(), text[spans[0][0] :]
    return (f"{before}\n\n" if before else "") + f"{content}\n\n{after}", f"applied_{name}_before_protected_region"


def _choose(text: str, edit: Edit, places: Sequence[int], lenient: bool) -> int | str:
    """Where the edit goes, or why it goes nowhere."""
    if not edit.target:
        return f"skipped_{edit.op}_missing_target"
    if not places:
        return f"skipped_{edit.op}_target_not_found"
    closed = [(0, _front_end(text)), *_spans(text)]
    free = [p for p in places if not any(p < end and start < p + len(edit.target) for start, end in closed)]
    if not free or (lenient and free[0] != places[0]):
        return "skipped_protected_region"
    return free[0] if lenient or len(free) == 1 else "skipped_ambiguous_target"


def _occurrences(text: str, target: str) -> list[int]:
    """Every place where the target starts, also inside another occurrence of it."""
    places: list[int] = []
    at = text.find(target) if target else -1
    while at >= 0:
        places.append(at)
        at = text.find(target, at + 1)
    return places
