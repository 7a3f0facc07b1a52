"""Staging: what a night proposes is written beside the live skill's base, with its evidence, and nothing else is done.

A staged patch is the skill as it would be, file by file, the change as text, and a receipt. Files that the proposal
does not change stay byte for byte as they are. Before it is written, every added line is looked at once more: a line in
which something would be masked is not staged.
"""

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.guards import list_added
from ludus.skill import DOCUMENT, Skill, render_file
from ludus.skill_folder import read_skill
from ludus.sleep import live_tree as trees
from ludus.sleep.live_tree import ROOT, NewFile, Tree, TreeEntry, select_package
from ludus.sleep.night import (
    BASE,
    DIFF,
    PROPOSED,
    RECEIPT,
    Receipt,
    TaskDelta,
    list_nights,
    make_private,
    write_private,
    write_receipt,
)
from ludus.transcripts.masking import mask_text
from ludus.types import Rollout

PATCH_CHARS = 2_000_000


class LiveSkill(Struct, frozen=True, kw_only=True):
    """A skill as it is installed."""

    path: str
    """Without links."""
    name: str
    skill: Skill
    files: Mapping[str, TreeEntry]
    contents: Mapping[str, bytes]

    @property
    def is_package(self) -> bool:
        return ROOT not in self.files


def read_live(path: Path) -> LiveSkill:
    """The live skill at a path. Links on the way to it are resolved once, here.

    Raises:
        ConfigError: it is not there, or it cannot be kept as it is.
    """
    real = path.expanduser().resolve()
    if not real.exists():
        raise ConfigError(f"agent.skill: there is no {path}")
    skill = read_skill(real)
    with trees.open_parent(real) as parent:
        files = select_package(trees.read_tree(parent, real.name))
        contents = {place: file.content for place, file in trees.read_package_files(parent, real.name).items()}
    front = skill.front
    name = (
        front.name
        if front
        else (real.name if real.is_dir() else real.parent.name if real.name == DOCUMENT else real.stem)
    )
    return LiveSkill(path=str(real), name=name, skill=skill, files=files, contents=contents)


def make_files(live: LiveSkill, skill: Skill) -> dict[str, NewFile]:
    """The files of a skill in place of those of the live one. What the skill does not change keeps its bytes."""
    document = ROOT if not live.is_package else DOCUMENT
    files = {document: NewFile(_keep_text(live, document, live.skill.text, skill.text))}
    for file in skill.files:
        old = live.skill.get_file(file.path)
        same = old is not None and old.content == file.content
        content = live.contents[file.path] if same else file.content
        files[file.path] = NewFile(content, None, file.executable)
    return files


def _keep_text(live: LiveSkill, path: str, before: str, after: str) -> bytes:
    if before == after:
        return live.contents[path]
    whole = live.contents[path].decode()
    plain = whole.replace("\r\n", "\n")
    front = Skill(plain).front
    if front is not None and not before.startswith("---"):  # front matter that was added to a text without any
        after = render_file(Skill(after), front.name, front.description)
    if "\r\n" in whole and "\r\n" not in before:
        after = after.replace("\n", "\r\n")
    return after.encode()


def find_private_lines(before: Skill, after: Skill) -> list[str]:
    """Added lines in which something would be masked, in masked form."""
    lines = (line for line in list_added(before, after).splitlines() if line.strip())
    return [masked for line in lines if (masked := mask_text(line)) != line]


def write_diff(live: LiveSkill, files: Mapping[str, NewFile]) -> str:
    """The change as a text that `patch -p1` takes in the folder of the skill. Files that are no text are named only."""
    pieces: list[str] = []
    for path in sorted(live.contents.keys() | files.keys()):
        old = live.contents.get(path)
        new = files[path].content if path in files else None
        if old != new:
            pieces += _diff_file(path or Path(live.path).name, old, new)
    return "".join(pieces)


def _diff_file(name: str, old: bytes | None, new: bytes | None) -> Iterable[str]:
    try:
        before, after = ((each or b"").decode().splitlines(keepends=True) for each in (old, new))
    except UnicodeDecodeError:
        yield f"Binary files a/{name} and b/{name} differ\n"
        return
    heads = (f"a/{name}" if old is not None else "/dev/null", f"b/{name}" if new is not None else "/dev/null")
    for line in difflib.unified_diff(before, after, *heads):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def stage(folder: Path, live: LiveSkill, skill: Skill, receipt: Receipt) -> Receipt:
    """Write a staged patch. The receipt is written last: without it, nothing is staged.

    Raises:
        ConfigError: the proposal holds what looks like personal data or a secret.
    """
    if private := find_private_lines(live.skill, skill):
        raise ConfigError(
            f"the proposal holds what looks like a secret or personal data, so it is not staged: {private[0][:200]}"
        )
    files = make_files(live, skill)
    make_private(folder / PROPOSED)
    name = Path(live.path).name
    trees.write_files(folder.resolve() / PROPOSED, name, files, live.files)
    proposed = trees.describe_files(files, live.files)
    make_private(folder / BASE)
    base = {path: NewFile(content) for path, content in live.contents.items()}
    trees.write_files(folder.resolve() / BASE, name, base, live.files)
    write_private(folder / DIFF, write_diff(live, files)[:PATCH_CHARS].encode())
    receipt = replace(
        receipt,
        base=live.skill.hash,
        proposal=read_skill(folder / PROPOSED / name).hash,
        base_files=live.files,
        proposed_files=proposed,
        changes=tuple(trees.list_changes(live.files, proposed)),
        time=time.time(),
    )
    write_receipt(folder, receipt)
    return receipt


def read_base_diff(folder: Path, receipt: Receipt) -> str:
    """What others have changed since the base, as a text. The base is kept beside the proposal."""
    live = Path(receipt.live)
    try:
        with trees.open_parent(folder.resolve() / BASE / live.name) as night:
            base = {path: file.content for path, file in trees.read_package_files(night, live.name).items()}
        with trees.open_parent(live) as parent:
            now = {path: file.content for path, file in trees.read_package_files(parent, live.name).items()}
    except OSError as error:
        return f"(it cannot be shown: {error.strerror})\n"
    pieces: list[str] = []
    for path in sorted(base.keys() | now.keys()):
        if base.get(path) != now.get(path):
            pieces += _diff_file(path or live.name, base.get(path), now.get(path))
    return "".join(pieces)[:PATCH_CHARS]


def read_versions(nights: Path, live: str) -> list[Skill]:
    """The versions of a live skill that the nights of a folder have known: what they trained, and what they proposed.
    One that cannot be read any more is left out."""
    found: dict[str, Skill] = {}
    for path, night in list_nights(nights):
        places = sorted(path.glob(f"*/{RECEIPT}")) if night.live == live else []
        for folder in (place.parent / part / Path(live).name for place in places for part in (BASE, PROPOSED)):
            with suppress(ConfigError):
                skill = read_skill(folder)
                found.setdefault(skill.hash, skill)
    return list(found.values())


def has_changed(live: LiveSkill) -> list[str]:
    """What has changed of the live skill since it was read, in words."""
    now: Tree = read_live(Path(live.path)).files
    return trees.list_changes(live.files, now)


def list_deltas(rollouts: Iterable[Rollout], before: str, after: str, splits: Sequence[str]) -> list[TaskDelta]:
    """What each task of these splits scored with two versions of the skill: means over scored rollouts."""
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    for rollout in rollouts:
        skill = rollout.provenance.skill
        if rollout.score is not None and rollout.task.split in splits and skill in (before, after):
            scores.setdefault((rollout.task.split, rollout.task.id), {}).setdefault(skill, []).append(
                rollout.score.value
            )
    return [
        TaskDelta(task=task, split=split, before=_mean(found[before]), after=_mean(found[after]))
        for (split, task), found in sorted(scores.items())
        if before in found and after in found
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
