"""What is proposed for a library: skills that are retired, merged, split or trimmed. Pure.

A proposal names the packages that it removes and has the packages that it writes, whole, so what a person accepts is
what was measured. Each skill is in one proposal at most.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ludus.catalogue import DESCRIPTION_CHARS
from ludus.errors import ConfigError
from ludus.library.duplicates import DuplicateGroup
from ludus.library.line_evidence import SUPERFLUOUS, PassageEvidence, normalize
from ludus.library.worth import SkillVerdict, SkillWorth
from ludus.reflact.ledger.passages import drop_passages, list_passages
from ludus.skill import FrontMatter, Skill, add_front_matter, make_name
from ludus.skill_library import LibraryPackage, SkillLibrary, make_package

LibraryAction = Literal["retire", "merge", "split", "trim"]


RETIRED: tuple[SkillVerdict, ...] = ("hurts", "below its price", "never loads")
"""The verdicts after which a skill is proposed to be retired."""
STEPS_IN = 0.1
"""From this share of rollouts without another skill on, one is needed when that other one is gone."""


class LibraryChange(Struct, frozen=True, kw_only=True):
    """One proposal. `removed` and `written` are all that it does."""

    id: str
    action: LibraryAction
    skills: tuple[str, ...]
    """The skills that it is about; of a merge, the first is the one that stays."""
    removed: tuple[str, ...]
    written: tuple[LibraryPackage, ...] = ()
    """Packages that are new, or that take the place of the one of their name."""
    reason: str


def apply_changes(library: SkillLibrary, changes: Iterable[LibraryChange]) -> SkillLibrary:
    """The library after these changes.

    Raises:
        ConfigError: two packages would have the same name.
    """
    for change in changes:
        library = library.leave_out(*change.removed)
        for package in change.written:
            library = library.put(package.skill)
    return library


def propose_changes(
    library: SkillLibrary,
    skills: Sequence[SkillWorth],
    groups: Sequence[DuplicateGroup],
    lines: Sequence[PassageEvidence],
) -> list[LibraryChange]:
    """The proposals, those about whole skills first."""
    found: list[LibraryChange] = []
    touched: set[str] = set()
    for change in _list_changes(library, skills, groups, lines):
        if not touched & {*change.skills}:
            touched |= {*change.skills}
            found.append(change)
    return [_number(change, number) for number, change in enumerate(found, 1)]


def _number(change: LibraryChange, number: int) -> LibraryChange:
    from msgspec.structs import replace

    return replace(change, id=f"C{number}")


def _list_changes(
    library: SkillLibrary,
    skills: Sequence[SkillWorth],
    groups: Sequence[DuplicateGroup],
    lines: Sequence[PassageEvidence],
) -> Iterator[LibraryChange]:
    for group in groups:
        if group.verdict == "one is enough":
            yield _merge(library, group)
    waiting = _list_waiting(skills)
    for skill in skills:
        if skill.verdict in RETIRED and skill.name not in waiting:
            yield LibraryChange(
                id="", action="retire", skills=(skill.name,), removed=(skill.name,), reason=skill.sentence
            )
    for name in library.names:
        own = [line for line in lines if line.skill == name]
        if split := _split(library.get(name), own, library.names):
            yield split
        if trim := _trim(library.get(name), own):
            yield trim


def _list_waiting(skills: Sequence[SkillWorth]) -> set[str]:
    """Skills that never load because another one is loaded in their place that is retired: their turn comes then."""
    idle = {skill.name for skill in skills if skill.verdict == "never loads"}
    taken = (skill.instead for skill in skills if skill.verdict in RETIRED)
    return {name for instead in taken for name, share in instead.items() if share >= STEPS_IN} & idle


# ---- merge ----------------------------------------------------------------------------------------------------------


def _merge(library: SkillLibrary, group: DuplicateGroup) -> LibraryChange:
    """One skill stays and takes over what only the others say. Nothing of theirs is dropped in silence."""
    kept, *others = (library.get(name) for name in group.skills)
    merged, taken = kept.skill, 0
    for other in others:
        merged, count = _take_over(merged, other)
        taken += count
    said = f"It takes over what only the others have ({taken} passages or files)." if taken else "It says all they say."
    return LibraryChange(
        id="",
        action="merge",
        skills=group.skills,
        removed=tuple(other.name for other in others),
        written=() if merged == kept.skill else (make_package(merged),),
        reason=f"{group.sentence} {kept.name} stays. {said}",
    )


def _take_over(kept: Skill, other: LibraryPackage) -> tuple[Skill, int]:
    """The skill with the passages and files of another one that it has not."""
    known = {normalize(each.text) for each in list_passages(kept)}
    new = [each.text for each in list_passages(other.skill) if not each.path and normalize(each.text) not in known]
    text = kept.text.rstrip() + "\n\n" + "\n".join(new) + "\n" if new else kept.text
    merged, taken = kept.change_text(text), len(new)
    for file in other.skill.files:
        if merged.get_file(file.path) is None:
            try:
                merged, taken = merged.put_file(file), taken + 1
            except ValueError:  # the package would be too large: the file stays in the other one's backup
                continue
    return merged, taken


# ---- split ----------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r"^##? [^\n]*$", re.MULTILINE)


class _Section(Struct, frozen=True):
    """A part of a document under a heading."""

    title: str
    text: str


def _list_sections(body: str) -> tuple[str, list[_Section]]:
    """What is before the first section, and the sections. One heading of the highest level is the title."""
    starts = [match.start() for match in _SECTION.finditer(body)]
    if starts and len([s for s in starts if body[s:].startswith("# ")]) == 1 and body[starts[0] :].startswith("# "):
        starts = starts[1:]
    if not starts:
        return body, []
    ends = [*starts[1:], len(body)]
    sections = [body[start:end] for start, end in zip(starts, ends, strict=True)]
    return body[: starts[0]], [_Section(text.partition("\n")[0].lstrip("# ").strip(), text) for text in sections]


def _split(package: LibraryPackage, lines: Sequence[PassageEvidence], taken: Sequence[str]) -> LibraryChange | None:
    """Split a document whose sections help different kinds of tasks, none of them in common."""
    head, sections = _list_sections(package.skill.body)
    if len(sections) < 2:
        return None
    kinds = [_find_kinds(section, lines) for section in sections]
    used = [each for each in kinds if each]
    together = set[str]().union(*used)
    if len(used) < 2 or len(used) < len(kinds) or len(together) < sum(map(len, used)):
        return None
    try:
        written = tuple(
            _make_part(package, head, section, sections, list(part), taken)
            for section, part in zip(sections, kinds, strict=True)
        )
    except (ConfigError, ValueError):  # a part cannot be named or described within the form
        return None
    said = "; ".join(f"{s.title}: {', '.join(sorted(part))}" for s, part in zip(sections, kinds, strict=True))
    return LibraryChange(
        id="",
        action="split",
        skills=(package.name,),
        removed=(package.name,),
        written=written,
        reason=f"Its sections help different kinds of tasks ({said}), and each is paid for by all of them.",
    )


def _find_kinds(section: _Section, lines: Sequence[PassageEvidence]) -> frozenset[str]:
    return frozenset(kind for line in lines if not line.path and line.text in section.text for kind in line.kinds)


def _make_part(
    package: LibraryPackage,
    head: str,
    section: _Section,
    sections: Sequence[_Section],
    kinds: Sequence[str],
    taken: Sequence[str],
) -> LibraryPackage:
    """A package of one section. It has the files that the section names, and those that no section names."""
    name = make_name(f"{package.name}-{section.title}")
    if name in taken:
        raise ConfigError(f"there is a skill {name} already")
    named = {file.path: [each for each in sections if file.path in each.text] for file in package.skill.files}
    files = tuple(file for file in package.skill.files if not named[file.path] or section in named[file.path])
    about = f" This part: {section.title}, for {', '.join(sorted(kinds))}."
    description = package.description[: DESCRIPTION_CHARS - len(about)] + about
    front = FrontMatter(name=name, description=description)
    text = f"{head.strip()}\n\n{section.text.strip()}\n".lstrip()
    return make_package(add_front_matter(Skill(text, files), front.name, front.description))


# ---- trim -----------------------------------------------------------------------------------------------------------


def _trim(package: LibraryPackage, lines: Sequence[PassageEvidence]) -> LibraryChange | None:
    """Leave out the passages that do harm, or that do nothing that could be measured."""
    absent = {line.id for line in lines if line.verdict in SUPERFLUOUS}
    if not absent or len(absent) == len(lines):
        return None
    tokens = sum(line.tokens for line in lines if line.id in absent)
    harm = sum(line.verdict == "hurts" for line in lines)
    return LibraryChange(
        id="",
        action="trim",
        skills=(package.name,),
        removed=(),
        written=(make_package(drop_passages(package.skill, absent)),),
        reason=f"{len(absent)} of {len(lines)} passages, about {tokens} tokens, are left out: {harm} do harm, "
        f"{len(absent) - harm} change less than a point.",
    )
