"""The skill document (the instructions of an agent) and the edits that change it.

A `Skill` is text. Usually it is a `SKILL.md` in Agent Skills form, with front matter that names it, but any text works.
An `Edit` is one change. `apply_edits` makes edits in order and reports the result of each. Targets are matched
literally. A target that is missing or that occurs more than once is reported, and nothing is guessed.

Edits cannot change some parts of a document: the front matter, and the regions between markers that the trainer writes
(the guidance of the slow update, the appendix of notes). `apply_edits` leaves these parts unchanged, and so does
`protect`, which replaces the old text with a rewritten one. Everything here is pure.
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
    """A text document that an agent follows. Its hash identifies it on every record."""

    text: str

    @property
    def hash(self) -> str:
        return _hash_text(self.text)

    @property
    def front(self) -> "FrontMatter | None":
        """The front matter of the document; None if it has none.

        Raises:
            ConfigError: the front matter is not in the Agent Skills form.
        """
        found = _FRONT.match(self.text)
        return None if found is None else _read_front(found[1])

    @property
    def body(self) -> str:
        """The document without its front matter."""
        return self.text[_find_front_end(self.text) :].lstrip("\r\n")


@lru_cache(maxsize=256)  # it is on every rollout's record, and a run has few texts at a time
def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Edit(Struct, frozen=True, omit_defaults=True, tag="edit", tag_field="form"):
    """One change to a document, and its origin."""

    op: Op
    content: str = ""
    target: str = ""
    """The text to replace or delete, or to insert after, exactly as it is in the document."""
    source: Source = "failure"
    """Whether it was learned from failed or successful rollouts, or from both."""
    support: int = 0
    """The number of rollouts it was learned from."""
    level: int = 0
    """How many times it was merged with other edits."""
    evidence: tuple[str, ...] = ()
    """The ids of the tasks of those rollouts."""


class EditReport(Struct, frozen=True, omit_defaults=True):
    """The result of an edit.

    `status` begins with `applied` or `skipped`. Skipped: `…_missing_target` (none given), `…_target_not_found`,
    `…_ambiguous_target` (it occurs more than once), `…_protected_region`, `…_empty_content`, `…_unknown_op`.
    """

    edit: Edit
    status: str
    matches: int = 0
    """The number of times the target occurs."""

    @property
    def applied(self) -> bool:
        return self.status.startswith("applied")


# ---- front matter ---------------------------------------------------------------------------------------------------


class FrontMatter(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"allowed_tools": "allowed-tools"}
):
    """The front matter of a `SKILL.md`, in the Agent Skills form."""

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


def add_front_matter(skill: Skill, name: str, description: str) -> Skill:
    """The document with front matter added. Front matter that is already there stays."""
    if skill.front is not None:
        return skill
    return Skill(_render_head(FrontMatter(name=name, description=description)) + skill.text.lstrip())


def render_file(skill: Skill, name: str, description: str) -> str:
    """The document as the text of a `SKILL.md` file. One without front matter gets some, which `parse_file` removes.

    Front matter that is added after training is not part of the text that was trained and measured. It holds the hash
    of that text, so that `parse_file` returns exactly that text.
    """
    if _FRONT.match(skill.text):
        return skill.text
    return _render_head(FrontMatter(name=name, description=description, metadata={_TEXT_HASH: skill.hash})) + skill.text


def parse_file(text: str) -> Skill:
    """The skill in a file: the whole text, without front matter that `render_file` added to exactly this text."""
    found = _FRONT.match(text)
    marked = found and re.search(rf"^  {_TEXT_HASH}: '?([0-9a-f]{{16}})'?$", found[1], re.MULTILINE)
    rest = text[_find_front_end(text) :].removeprefix("\n\n")
    return Skill(rest if marked and marked[1] == _hash_text(rest) else text)


def make_name(text: str) -> str:
    """Convert a text to a valid name in the Agent Skills form."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "skill"


_TEXT_HASH = "ludus-text"
"""The metadata key of front matter that `render_file` adds. Its value is the hash of the text that follows."""


def _render_head(front: FrontMatter) -> str:
    import yaml

    _check_front(front)
    fields = {"name": front.name, "description": front.description}
    values = fields | ({"metadata": dict(front.metadata)} if front.metadata else {})
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000)}---\n\n"


def _read_front(text: str) -> FrontMatter:
    import yaml  # imported here because most runs have no front matter to read

    try:
        front = msgspec.convert(yaml.safe_load(text), FrontMatter)
        msgspec.json.encode(front)  # an escape can stand for half of a surrogate pair, which no file can hold
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"skill: the front matter is not in the Agent Skills form: {error}") from None
    return _check_front(front)


def _check_front(front: FrontMatter) -> FrontMatter:
    if not _NAME.fullmatch(front.name) or len(front.name) > 64:
        raise ConfigError(
            f"skill: the name {front.name!r} must be 1 to 64 lower-case letters and digits, with single hyphens between"
        )
    if not front.description.strip() or len(front.description) > 1024:
        raise ConfigError(f"skill: the description must have 1 to 1,024 characters, it has {len(front.description)}")
    if len(front.compatibility) > 500:
        raise ConfigError(f"skill: compatibility must have at most 500 characters, it has {len(front.compatibility)}")
    return front


def _find_front_end(text: str) -> int:
    found = _FRONT.match(text)
    return found.end() if found else 0


# ---- protected regions ----------------------------------------------------------------------------------------------


class Region(Struct, frozen=True):
    """A part of the document between two markers, which edits do not change."""

    start: str
    end: str


GUIDANCE = Region("<!-- SLOW_UPDATE_START -->", "<!-- SLOW_UPDATE_END -->")
APPENDIX = Region("<!-- APPENDIX_START -->", "<!-- APPENDIX_END -->")
REGIONS = (GUIDANCE, APPENDIX)
KEEP = Region("<!-- KEEP_START -->", "<!-- KEEP_END -->")
"""What a user wants to stay as it is. Edits do not change it, and it is never left out."""
APPENDIX_TITLE = "## Execution Notes Appendix"


def find_protected_parts(text: str) -> tuple[str, ...]:
    """The front matter (empty if there is none), then the protected regions with their markers, in order."""
    spans = _find_spans(text, (*REGIONS, KEEP))
    return (text[: _find_front_end(text)], *(text[start:end] for start, end in spans))


def find_protected_spans(text: str) -> list[tuple[int, int]]:
    """The start and end of the front matter, if there is any, and of each protected region, in order."""
    end = _find_front_end(text)
    return [*([(0, end)] if end else []), *_find_spans(text, (*REGIONS, KEEP))]


def remove_markers(text: str) -> str:
    """Remove every marker, including one that only forms when another is removed."""
    markers = [marker for region in REGIONS for marker in (region.start, region.end)]
    while any(marker in text for marker in markers):
        for marker in markers:
            text = text.replace(marker, "")
    return text


def remove_regions(text: str) -> str:
    """The document as edits see it: without protected regions and without stray markers."""
    return remove_markers(_remove_spans(text, REGIONS))


def _remove_spans(text: str, regions: Sequence[Region]) -> str:
    for start, end in reversed(_find_spans(text, regions)):
        text = _join_around(text[:start], text[end:])
    return text


def protect(old: Skill, text: str) -> Skill:
    """The rewritten text, with the protected parts of the old document unchanged.

    A text that has kept these parts is returned as it is. Otherwise its own protected parts are dropped, and those of
    the old document are put back: front matter first, regions last.
    """
    front, *regions = find_protected_parts(old.text)
    text = f"{text.rstrip()}\n" if text.strip() else ""
    if find_protected_parts(text) == (front, *regions) and _remove_strays(text) == text:
        return Skill(text)
    body = _remove_spans(remove_regions(text), (KEEP,)).strip()
    while end := _find_front_end(body):
        body = body[end:].strip()
    blocks = [block for block in (front, body, *regions) if block]
    return Skill("\n\n".join(blocks) + "\n" if blocks else "")


def _find_spans(text: str, regions: Sequence[Region] = REGIONS) -> list[tuple[int, int]]:
    """The start and end of each region, including its markers. A region that lacks a marker does not count."""
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        found = [(place, region) for region in regions if (place := _find_start(text, region, at)) >= 0]
        if not found:
            return spans
        start, region = min(found, key=lambda pair: pair[0])
        at = text.index(region.end, start) + len(region.end)
        spans.append((start, at))


def _find_start(text: str, region: Region, at: int) -> int:
    """The start of the next complete region of this kind; -1 if there is none."""
    start = text.find(region.start, at)
    return start if start >= 0 and text.find(region.end, start) >= 0 else -1


def _remove_strays(text: str) -> str:
    """The text without markers outside of regions. Such a marker could pair with one that is added later."""
    pieces: list[str] = []
    last = 0
    for start, end in _find_spans(text):
        pieces += [remove_markers(text[last:start]), text[start:end]]
        last = end
    return "".join([*pieces, remove_markers(text[last:])])


def _join_around(before: str, after: str) -> str:
    """Join the texts before and after a removed part, with one blank line between them."""
    if not before.strip() or not after.strip():
        return (before.rstrip() or "") + ("\n" if before.strip() else "") + after.lstrip("\n")
    return before.rstrip() + "\n\n" + after.lstrip("\n")


# ---- the content of the regions -------------------------------------------------------------------------------------


def read_guidance(skill: Skill) -> str:
    """The guidance of the slow update; empty if there is none."""
    return _read_region(skill.text, GUIDANCE)


def set_guidance(skill: Skill, content: str) -> Skill:
    """The document with this guidance. It replaces earlier guidance."""
    return Skill(_set_region(skill.text, GUIDANCE, remove_markers(content).strip()))


def read_notes(skill: Skill) -> tuple[str, ...]:
    """The notes of the appendix, one per bullet."""
    lines = (line.strip() for line in _read_region(skill.text, APPENDIX).splitlines())
    return tuple(line[2:].strip() for line in lines if line.startswith("- ") and line[2:].strip())


def add_notes(skill: Skill, added: Iterable[str]) -> Skill:
    """The document with these notes added to its appendix. Notes that it has already are not added again."""
    return set_notes(skill, [*read_notes(skill), *added])


def set_notes(skill: Skill, wanted: Iterable[str]) -> Skill:
    """The document with exactly these notes in its appendix, each once."""
    kept = drop_duplicates(wanted)
    if kept == read_notes(skill):
        return skill
    return Skill(_set_region(skill.text, APPENDIX, "\n".join([APPENDIX_TITLE, *(f"- {note}" for note in kept)])))


def drop_duplicates(wanted: Iterable[str]) -> tuple[str, ...]:
    """The notes in order, each on one line, without empty ones and duplicates (see `normalize_note`)."""
    lines = (" ".join(remove_markers(note).split()) for note in wanted)
    first: dict[str, str] = {}
    for line in lines:
        if key := normalize_note(line):
            first.setdefault(key, line)
    return tuple(first.values())


def normalize_note(note: str) -> str:
    """A key that is equal for notes that differ only in spacing, case or final punctuation."""
    return " ".join(note.split()).rstrip(" .;:,_-").casefold()


def _read_region(text: str, region: Region) -> str:
    for start, end in _find_spans(text):
        if text.startswith(region.start, start):
            return text[start + len(region.start) : end - len(region.end)].strip()
    return ""


def _set_region(text: str, region: Region, inner: str) -> str:
    """The text with one region of this kind: at the place of the first one, or at the end."""
    block = f"{region.start}\n{inner}\n{region.end}"
    text = _remove_strays(text)
    spans = [span for span in _find_spans(text) if text.startswith(region.start, span[0])]
    for start, end in reversed(spans[1:]):
        text = _join_around(text[:start], text[end:])
    if spans:
        return text[: spans[0][0]] + block + text[spans[0][1] :]
    before = text.rstrip()
    return f"{before}\n\n{block}\n" if before else f"{block}\n"


# ---- edits ----------------------------------------------------------------------------------------------------------


def apply_edits(skill: Skill, edits: Sequence[Edit], *, lenient: bool = False) -> tuple[Skill, tuple[EditReport, ...]]:
    """Make the edits one after the other. An edit that cannot be made is skipped, and its report gives the reason.

    `lenient` matches as SkillOpt does: the first of several matches is used, and an insertion after a missing text goes
    to the end. Protected parts are never changed.
    """
    text = skill.text
    reports: list[EditReport] = []
    for edit in edits:
        places = _find_occurrences(text, edit.target)
        changed, status = _apply_edit(text, edit, places, lenient)
        if changed != text and find_protected_parts(changed) != find_protected_parts(text):
            changed, status = text, "skipped_protected_region"
        text = changed
        reports.append(EditReport(edit, status, len(places)))
    return Skill(text), tuple(reports)


def _apply_edit(text: str, edit: Edit, places: Sequence[int], lenient: bool) -> tuple[str, str]:
    content = remove_markers(edit.content).strip()
    if edit.op == "append":
        if not content:
            return text, "skipped_empty_content"
        return _append(text, content, "append")
    if edit.op not in ("insert_after", "replace", "delete"):
        return text, "skipped_unknown_op"
    if edit.op == "insert_after" and not content:
        return text, "skipped_empty_content"
    place = _choose_place(text, edit, places, lenient)
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
    """Add the content at the end, or before the first protected region."""
    spans = _find_spans(text)
    if not spans:
        before = text.rstrip()
        status = "applied_append" if name == "append" else f"applied_{name}_append"
        return (f"{before}\n\n{content}\n" if before else f"{content}\n"), status
    before, after = text[: spans[0][0]].rstrip(), text[spans[0][0] :]
    return (f"{before}\n\n" if before else "") + f"{content}\n\n{after}", f"applied_{name}_before_protected_region"


def _choose_place(text: str, edit: Edit, places: Sequence[int], lenient: bool) -> int | str:
    """The position of the edit, or the reason why there is none."""
    if not edit.target:
        return f"skipped_{edit.op}_missing_target"
    if not places:
        return f"skipped_{edit.op}_target_not_found"
    closed = find_protected_spans(text)
    free = [p for p in places if not any(p < end and start < p + len(edit.target) for start, end in closed)]
    if not free or (lenient and free[0] != places[0]):
        return "skipped_protected_region"
    return free[0] if lenient or len(free) == 1 else "skipped_ambiguous_target"


def _find_occurrences(text: str, target: str) -> list[int]:
    """Every position where the target starts, including overlapping occurrences."""
    places: list[int] = []
    at = text.find(target) if target else -1
    while at >= 0:
        places.append(at)
        at = text.find(target, at + 1)
    return places
