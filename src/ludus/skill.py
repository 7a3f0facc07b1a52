"""The skill (the instructions of an agent) and the edits that change it.

A `Skill` is a document. Usually it is a `SKILL.md` in Agent Skills form, with front matter that names it, but any text
works. A package has further files beside it: references that the document names, scripts, data. Document and files are
one value with one hash; `ludus.skill_folder` reads and writes it as a folder.

An `Edit` is one change of the document, or of the file at its `path`. `apply_edits` makes edits in order and reports
the result of each. Targets are matched literally. A target that is missing or that occurs more than once is reported,
and nothing is guessed.

Edits cannot change some parts of a text: the front matter, and the regions between markers that the trainer writes (the
guidance of the slow update, the appendix of notes). `apply_edits` leaves these parts unchanged, and so does `protect`,
which replaces the old text with a rewritten one. Everything here is pure.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError

Op = Literal["append", "insert_after", "replace", "delete"]
FileOp = Literal["write", "remove"]
"""Changes of a whole file of a package."""
Source = Literal["failure", "success", "mixed"]


DOCUMENT = "SKILL.md"
"""The path of the document in a package."""
FILE_BYTES = 2**20
"""The size limit of one file of a package."""
PACKAGE_BYTES = 4 * 2**20
"""The size limit of all files of a package together: each record of a training run holds it."""
PACKAGE_FILES = 500
_PROGRAMS = (".py", ".sh", ".bash", ".js", ".mjs", ".rb", ".pl")
"""The ends of the names of programs, wherever they lie: a document can say `python3 tools/convert.py`."""
_PATH_CHARS = 200
_PATH_PARTS = 8


class SkillFile(Struct, frozen=True, omit_defaults=True):
    """A file of a package beside its document."""

    path: str
    """Relative to the package's folder, with `/` between its parts."""
    text: str = ""
    """Its content, if that is UTF-8."""
    data: bytes = b""
    """Its content, if that is not text."""
    executable: bool = False

    @property
    def content(self) -> bytes:
        return self.data or self.text.encode()

    @property
    def is_script(self) -> bool:
        """Whether agents run it: it is below `scripts/`, may be executed, or has the name of a program."""
        return self.executable or self.path.startswith("scripts/") or self.path.endswith(_PROGRAMS)


def make_file(path: str, content: bytes, *, executable: bool = False) -> SkillFile:
    """A file of this content: as text if it is UTF-8 without NUL, else as bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return SkillFile(path, data=content, executable=executable)
    return (
        SkillFile(path, data=content, executable=executable) if "\0" in text else SkillFile(path, text, b"", executable)
    )


class Skill(Struct, frozen=True, omit_defaults=True):
    """A document that an agent follows, and the files of its package. Its hash identifies it on every record."""

    text: str
    """The document."""
    files: tuple[SkillFile, ...] = ()
    """The other files, sorted by path; none if the skill is one document."""

    def __post_init__(self) -> None:
        if self.files and (fault := find_package_fault(self.files)):
            raise ValueError(f"Skill: {fault}")

    @property
    def hash(self) -> str:
        return _hash_package(self.text, self.files) if self.files else _hash_text(self.text)

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

    @property
    def paths(self) -> tuple[str, ...]:
        """The document and the files, by path."""
        return (DOCUMENT, *(file.path for file in self.files))

    def get_file(self, path: str) -> SkillFile | None:
        """The file at a path beside the document; None if there is none."""
        return next((file for file in self.files if file.path == path), None)

    def read(self, path: str) -> str | None:
        """The text of the document (`""` or `SKILL.md`) or of a file; None if there is none or it is not text."""
        if path in ("", DOCUMENT):
            return self.text
        file = self.get_file(path)
        return None if file is None or file.data else file.text

    def change_text(self, text: str) -> "Skill":
        """The skill with another document, and the same files."""
        return Skill(text, self.files)

    def put_file(self, file: SkillFile) -> "Skill":
        """The skill with this file, in place of one at the same path.

        Raises:
            ValueError: the path or the size is not allowed.
        """
        others = (each for each in self.files if each.path != file.path)
        return Skill(self.text, tuple(sorted((*others, file), key=lambda each: each.path)))

    def remove_file(self, path: str) -> "Skill":
        """The skill without the file at a path."""
        return Skill(self.text, tuple(file for file in self.files if file.path != path))


def render_whole(skill: Skill) -> str:
    """All texts of a skill as one: the document, then each file below a line with its path."""
    if not skill.files:
        return skill.text
    parts = (f"==== {each.path} ====\n{each.text or f'({len(each.data):,} bytes)'}" for each in skill.files)
    return "\n\n".join((skill.text.rstrip("\n"), *(part.rstrip("\n") for part in parts))) + "\n"


@lru_cache(maxsize=256)  # it is on every rollout's record, and a run has few texts at a time
def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _hash_package(text: str, files: tuple[SkillFile, ...]) -> str:
    found = hashlib.sha256(b"ludus package 1\n")
    for file in (SkillFile(DOCUMENT, text), *files):
        content = file.content
        mode = "x" if file.executable else "-"
        found.update(f"{len(file.path.encode())} {mode} {len(content)}\n".encode())  # lengths: no two are joined alike
        found.update(file.path.encode())
        found.update(content)
    return found.hexdigest()[:16]


@lru_cache(maxsize=2048)  # every edit of a package looks at all its paths again
def find_path_fault(path: str) -> str:
    """Why a package cannot have a file at this path; empty if it can."""
    parts = path.split("/")
    if not path or not all(parts) or any(part in (".", "..") for part in parts):
        return "a path is relative to the package, without '.', '..' and empty parts"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in path) or "\\" in path:
        return "a path has no control characters, line breaks, backslashes or bytes that are not UTF-8"
    if len(path.encode()) > _PATH_CHARS or len(parts) > _PATH_PARTS:
        return f"a path has at most {_PATH_CHARS} bytes and {_PATH_PARTS} parts"
    if path.casefold() == DOCUMENT.casefold():
        return f"the document is {DOCUMENT}: a package has no second one"
    return ""


def find_package_fault(files: Sequence[SkillFile]) -> str:
    """Why these files cannot be those of a package; empty if they can."""
    paths = [file.path for file in files]
    if list(paths) != sorted(set(paths)):
        return "files are sorted by path, each path once"
    if len(files) > PACKAGE_FILES:
        return f"a package has at most {PACKAGE_FILES:,} files, this one has {len(files):,}"
    folders = {"/".join(parts[:end]) for path in paths for parts in [path.split("/")] for end in range(1, len(parts))}
    for file in files:
        if fault := find_path_fault(file.path):
            return f"{file.path!r}: {fault}"
        if file.path in folders:
            return f"{file.path!r} is a file and a folder"
        if file.text and file.data:
            return f"{file.path!r} has text and data"
        if (size := len(file.content)) > FILE_BYTES:
            return f"{file.path!r} has {size:,} bytes; a file has at most {FILE_BYTES:,}"
    if (size := sum(len(file.content) for file in files)) > PACKAGE_BYTES:
        return f"the files have {size:,} bytes together; a package has at most {PACKAGE_BYTES:,}"
    return ""


class Edit(Struct, frozen=True, omit_defaults=True, tag="edit", tag_field="form"):
    """One change to the document or to a file of a package, and its origin."""

    op: Op | FileOp
    """`write` makes `content` the whole file at `path`, new or not; `remove` removes that file. The others change the
    text of the document or file; `append` makes a file that is not there."""
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
    path: str = ""
    """The file of the package that it changes; empty: the document."""


class EditReport(Struct, frozen=True, omit_defaults=True):
    """The result of an edit.

    `status` begins with `applied` or `skipped`. Skipped: `…_missing_target` (none given), `…_target_not_found`,
    `…_ambiguous_target` (it occurs more than once), `…_protected_region`, `…_empty_content`, `…_unknown_op`. Of files:
    `…_file_not_found`, `…_not_text`, `…_bad_path` (the path, or a size limit), `…_document` (it is not removed).
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
    return skill.change_text(_render_head(FrontMatter(name=name, description=description)) + skill.text.lstrip())


def change_description(skill: Skill, description: str) -> Skill:
    """The skill with another description in its front matter. Every other line stays as it is.

    Raises:
        ConfigError: there is no front matter, or the description is not 1 to 1,024 characters.
    """
    import yaml

    front, found = skill.front, _FRONT.match(skill.text)
    if front is None or found is None:
        raise ConfigError("skill: a document without front matter has no description: add a head to its SKILL.md")
    _check_front(msgspec.structs.replace(front, description=description))
    line = yaml.safe_dump({"description": description}, allow_unicode=True, width=10_000)
    head = _DESCRIPTION.sub(lambda _: line, found[1], count=1)
    changed = skill.change_text(skill.text[: found.start(1)] + head + skill.text[found.end(1) :])
    if changed.front != msgspec.structs.replace(front, description=description):
        raise ConfigError(
            "skill: the front matter writes its description in a form that cannot be replaced line by line"
        )
    return changed


def render_file(skill: Skill, name: str, description: str, stamp: Mapping[str, str] = {}) -> str:
    """The document as the text of a `SKILL.md` file. One without front matter gets some, which `parse_file` removes.

    Front matter that is added after training is not part of the text that was trained and measured. It holds the hash
    of that text, so that `parse_file` returns exactly that text. So does the `stamp`: further lines of the metadata,
    such as the version, the hash and the claim (their names begin with `ludus-`).
    """
    marks = {_TEXT_HASH: _hash_text(skill.text), **stamp}
    found = _FRONT.match(skill.text)
    if not found:
        return _render_head(FrontMatter(name=name, description=description, metadata=marks)) + skill.text
    return skill.text if not stamp else _add_marks(skill.text, found.start(1), found.end(1), marks)


def _add_marks(text: str, start: int, end: int, marks: Mapping[str, str]) -> str:
    """The document with marks in the metadata of its front matter, at its end if it has none. Metadata that is not a
    block of lines is left alone."""
    import yaml

    lines = "".join(
        f"  {yaml.safe_dump({key: value}, width=10_000, allow_unicode=True)}" for key, value in marks.items()
    )
    metadata = re.search(r"^metadata[ \t]*:(.*)\n(?:([ \t]+)\S)?", text[start:end], re.MULTILINE)
    if metadata is None:
        return f"{text[:end]}metadata:\n{lines}{text[end:]}"
    if metadata[1].strip() or not metadata[2]:
        return text
    at = start + metadata.start(2)
    return text[:at] + lines.replace("  ludus-", f"{metadata[2]}ludus-") + text[at:]


def parse_file(text: str) -> Skill:
    """The document in a file: the whole text, without what `render_file` added to exactly this text."""
    found = _FRONT.match(text)
    marked = found and re.search(rf"^[ \t]+{_TEXT_HASH}: '?([0-9a-f]{{16}})'?$", found[1], re.MULTILINE)
    if not found or not marked:
        return Skill(text)
    front = _MARKS.sub("", found[1])
    rest = text[found.end(1) :]
    own = (
        text[_find_front_end(text) :].removeprefix("\n\n"),
        f"{text[: found.start(1)]}{front}{rest}",
        f"{text[: found.start(1)]}{front.removesuffix('metadata:' + chr(10))}{rest}",
    )
    return Skill(next((each for each in own if _hash_text(each) == marked[1]), text))


def make_name(text: str) -> str:
    """Convert a text to a valid name in the Agent Skills form."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "skill"


_TEXT_HASH = "ludus-text"
"""The metadata key that `render_file` adds. Its value is the hash of the text without what was added."""
_MARKS = re.compile(r"^[ \t]+ludus-[a-z]+: .*\n", re.MULTILINE)
_DESCRIPTION = re.compile(r"^description[ \t]*:.*\n(?:(?:[ \t].*)?\n)*", re.MULTILINE)
_KEY = re.compile(r"^([A-Za-z][\w-]*)[ \t]*:", re.MULTILINE)
_FRONT_DEPTH = 20
"""The scanner of YAML takes time in proportion to depth for each token: thousands of brackets took 40 seconds."""
_FRONT_CHARS = 20_000
"""The size limit of front matter: a description has at most 1,024 characters."""


def _render_head(front: FrontMatter) -> str:
    import yaml

    _check_front(front)
    fields = {"name": front.name, "description": front.description}
    values = fields | ({"metadata": dict(front.metadata)} if front.metadata else {})
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000)}---\n\n"


def _read_front(text: str) -> FrontMatter:
    import yaml  # imported here because most runs have no front matter to read

    if len(text) > _FRONT_CHARS:
        raise ConfigError(f"skill: the front matter has {len(text):,} characters; it has at most {_FRONT_CHARS:,}")
    try:
        _check_tokens(text)
        front = msgspec.convert(yaml.safe_load(text), FrontMatter)
        msgspec.json.encode(front)  # an escape can stand for half of a surrogate pair, which no file can hold
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"skill: the front matter is not in the Agent Skills form: {error}") from None
    return _check_front(front)


def _check_tokens(text: str) -> None:
    """Raise ValueError for front matter that could take a reader hours, or that readers understand differently."""
    import yaml

    keys = Counter(_KEY.findall(text))
    if twice := [key for key, count in keys.items() if count > 1]:
        raise ValueError(f"it has {twice[0]!r} more than once")
    scan = cast("Callable[[str], Iterable[object]]", yaml.scan)  # pyright: ignore[reportUnknownMemberType]
    depth = 0
    for token in scan(text):
        if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
            raise ValueError("it has anchors or aliases (& and *), which can stand for a text without end")
        depth += isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken)
        depth -= isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken)
        if depth > _FRONT_DEPTH:
            raise ValueError(f"its brackets are nested more than {_FRONT_DEPTH} deep")


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
MARKED = (*REGIONS, KEEP)
"""No edit brings markers of these: what it writes could never be changed again."""
APPENDIX_TITLE = "## Execution Notes Appendix"


def find_protected_parts(text: str) -> tuple[str, ...]:
    """The front matter (empty if there is none), then the protected regions with their markers, in order."""
    spans = _find_spans(text, MARKED)
    return (text[: _find_front_end(text)], *(text[start:end] for start, end in spans))


def find_protected_spans(text: str) -> list[tuple[int, int]]:
    """The start and end of the front matter, if there is any, and of each protected region, in order."""
    end = _find_front_end(text)
    return [*([(0, end)] if end else []), *_find_spans(text, MARKED)]


def find_strays(text: str, region: Region) -> list[str]:
    """The markers of a region that lack their other half."""
    rest = text
    for start, end in reversed(_find_spans(text, (region,))):
        rest = rest[:start] + rest[end:]
    return [marker for marker in (region.start, region.end) if marker in rest]


def remove_markers(text: str, regions: Sequence[Region] = REGIONS) -> str:
    """Remove every marker, including one that only forms when another is removed."""
    markers = [marker for region in regions for marker in (region.start, region.end)]
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
        return old.change_text(text)
    body = _remove_spans(remove_regions(text), (KEEP,)).strip()
    while end := _find_front_end(body):
        body = body[end:].strip()
    blocks = [block for block in (front, body, *regions) if block]
    return old.change_text("\n\n".join(blocks) + "\n" if blocks else "")


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
    return skill.change_text(_set_region(skill.text, GUIDANCE, remove_markers(content, MARKED).strip()))


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
    notes = "\n".join([APPENDIX_TITLE, *(f"- {note}" for note in kept)])
    return skill.change_text(_set_region(skill.text, APPENDIX, notes))


def drop_duplicates(wanted: Iterable[str]) -> tuple[str, ...]:
    """The notes in order, each on one line, without empty ones and duplicates (see `normalize_note`)."""
    lines = (" ".join(remove_markers(note, MARKED).split()) for note in wanted)
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
    reports: list[EditReport] = []
    for edit in edits:
        skill, report = _make_edit(skill, edit, lenient)
        reports.append(report)
    return skill, tuple(reports)


def _make_edit(skill: Skill, edit: Edit, lenient: bool) -> tuple[Skill, EditReport]:
    in_document = edit.path in ("", DOCUMENT)
    if edit.op in ("write", "remove"):
        changed, status = _change_file(skill, edit) if not in_document else (skill, "skipped_document")
        return changed, EditReport(edit, status)
    text = skill.read(edit.path)
    if text is None:
        changed, status = _make_missing_file(skill, edit)
        return changed, EditReport(edit, status)
    places = _find_occurrences(text, edit.target)
    changed, status = _apply_edit(text, edit, places, lenient)
    if changed != text and find_protected_parts(changed) != find_protected_parts(text):
        changed, status = text, "skipped_protected_region"
    if in_document:
        return skill.change_text(changed), EditReport(edit, status, len(places))
    file = skill.get_file(edit.path)
    assert file is not None  # its text was read above
    result, status = _try_file(skill, SkillFile(file.path, changed, b"", file.executable), status)
    return result, EditReport(edit, status, len(places))


def _change_file(skill: Skill, edit: Edit) -> tuple[Skill, str]:
    """Write or remove a whole file. A file with protected parts is not replaced."""
    old = skill.get_file(edit.path)
    if old is not None and find_protected_parts(old.text)[1:]:  # front matter is that of the document only
        return skill, "skipped_protected_region"
    if edit.op == "remove":
        return (skill.remove_file(edit.path), "applied_remove") if old else (skill, "skipped_file_not_found")
    content = remove_markers(edit.content, MARKED)
    if not content.strip():
        return skill, "skipped_empty_content"
    runs = old.executable if old else content.startswith("#!")
    return _try_file(skill, SkillFile(edit.path, content, b"", runs), "applied_write")


def _make_missing_file(skill: Skill, edit: Edit) -> tuple[Skill, str]:
    """The result of an edit of a file that is not there, or is not text. Something appended to it makes it."""
    if skill.get_file(edit.path) is not None:
        return skill, "skipped_not_text"
    if edit.op != "append":
        return skill, "skipped_file_not_found"
    made, status = _change_file(skill, msgspec.structs.replace(edit, op="write", content=edit.content.rstrip() + "\n"))
    return made, "applied_append" if status == "applied_write" else status


def _try_file(skill: Skill, file: SkillFile, status: str) -> tuple[Skill, str]:
    try:
        return skill.put_file(file), status
    except ValueError:  # the path is not allowed, or the package would be too large
        return skill, "skipped_bad_path"


def _apply_edit(text: str, edit: Edit, places: Sequence[int], lenient: bool) -> tuple[str, str]:
    content = remove_markers(edit.content, MARKED)
    content = content.strip("\r\n") if edit.path else content.strip()  # the first line of code may be indented
    if edit.op in ("append", "insert_after") and (edit.path in ("", DOCUMENT) or edit.path.endswith(".md")):
        content = close_fence(content)
    if edit.op == "append":
        if not content.strip():
            return text, "skipped_empty_content"
        return _append(text, content, "append")
    if edit.op not in ("insert_after", "replace", "delete"):
        return text, "skipped_unknown_op"
    if edit.op == "insert_after" and not content.strip():
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


def close_fence(text: str) -> str:
    """A text of Markdown in which no block of code is left open: all that follows would be a part of it."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
    return f"{text}\n{fence}" if fence else text


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


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def _find_occurrences(text: str, target: str) -> list[int]:
    """Every position where the target starts, including overlapping occurrences."""
    places: list[int] = []
    at = text.find(target) if target else -1
    while at >= 0:
        places.append(at)
        at = text.find(target, at + 1)
    return places
