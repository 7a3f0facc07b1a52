"""Decisions about the proposals for a library, and the files that come out of them.

A decision is kept as soon as it is made. Accepted proposals are written in one of two ways. **As a copy**: a new
folder, which is there whole or not at all. **In place**, with a backup: packages that go or change are moved into a
folder beside the library, and new ones are moved in. The plan is written down first, so a process that was killed goes
on where it was when it is asked again, and nothing is lost meanwhile. Only folders of packages are touched, links are
not followed, and a library that is no longer the one that was measured is refused.
"""

import os
import secrets
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.errors import ConfigError, suggest
from ludus.library.measurement import LibraryReport
from ludus.library.proposals import LibraryChange, apply_changes
from ludus.skill import DOCUMENT, Skill
from ludus.skill_folder import read_package, write_package
from ludus.skill_library import SkillLibrary, make_library, make_package, read_packages
from ludus.whole_files import take_lock, write_whole

DECISIONS = "decisions.jsonl"
PLACED = "placed.json"
"""The plan of changes in place, while they are made and afterwards."""
CurateAction = Literal["accept", "reject"]


class CurateDecision(Struct, frozen=True, kw_only=True):
    """What a person decided about a proposal. The last one counts."""

    change: str
    action: CurateAction
    reason: str = ""
    who: str = ""
    time: float = 0.0
    library: str = ""
    """The hash of the library that the proposal is for."""


class PlacementPlan(Struct, frozen=True, kw_only=True):
    """How accepted proposals get into the library's own folder."""

    folder: str
    before: str
    """The hash of the library as it was."""
    after: str
    changes: tuple[str, ...]
    removed: Mapping[str, str]
    """The packages that are moved away: their folders in the library → in the backup."""
    written: Mapping[str, str]
    """The packages that are moved in: their folders in the library → where they lie until then."""
    backup: str
    staging: str


# ---- decisions ------------------------------------------------------------------------------------------------------


def read_decisions(run: Path, report: LibraryReport) -> dict[str, CurateDecision]:
    """The last decision about each proposal, by its id. Those about an earlier measurement do not count."""
    found: dict[str, CurateDecision] = {}
    ids = [change.id for change in report.changes]
    for number, line in enumerate(_read_whole(run).splitlines(), 1):
        decision = _parse_decision(line, f"{run / DECISIONS}, line {number}")
        if decision.library != report.hash:
            continue
        if decision.change not in ids:
            raise ConfigError(
                f"{run / DECISIONS}, line {number}: change: there is no proposal {decision.change}; "
                f"{suggest(decision.change, ids)}"
            )
        found[decision.change] = decision
    return found


def _parse_decision(line: bytes, place: str) -> CurateDecision:
    try:
        return msgspec.json.decode(line, type=CurateDecision)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"{place} is no decision ({error}): correct the line or remove it") from None


def _read_whole(run: Path) -> bytes:
    """The decisions so far. A line that was cut off is none; an editor may have left out the end of the last line."""
    file = run / DECISIONS
    found = file.read_bytes() if file.exists() else b""
    last = found[found.rfind(b"\n") + 1 :]
    with suppress(ConfigError):
        if last and _parse_decision(last, ""):
            return found + b"\n"
    return found.removesuffix(last) if last else found


def keep_decision(path: Path, report: LibraryReport, decision: CurateDecision) -> CurateDecision:
    """Keep a decision.

    Raises:
        ConfigError: there is no such proposal, or a rejection has no reason.
    """
    ids = [change.id for change in report.changes]
    if decision.change not in ids:
        raise ConfigError(f"curate: there is no proposal {decision.change}; {suggest(decision.change, ids)}")
    if decision.action == "reject" and not decision.reason.strip():
        raise ConfigError(f"curate: why is {decision.change} rejected? Say it with --reason: who reads it later asks")
    kept = msgspec.structs.replace(decision, time=time.time(), library=report.hash)
    with _lock(path):
        write_whole(path / DECISIONS, [_read_whole(path), to_json(kept), b"\n"])
    return kept


@contextmanager
def _lock(run: Path) -> Generator[None]:
    """One process at a time decides about a run, or writes what was decided."""
    handle = os.open(run / ".curate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not take_lock(handle):
            raise ConfigError(f"{run}: another `ludus curate` is writing: try again when it has ended")
        yield
    finally:
        os.close(handle)


@contextmanager
def _lock_library(folder: str) -> Generator[None]:
    """One process at a time changes packages of a library: `ludus adopt` takes this lock, too."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{folder}: the library that was measured cannot be opened: {error.strerror}") from None
    try:
        if not take_lock(handle):
            raise ConfigError(f"{folder}: another process changes its skills: try again when it has ended")
        yield
    finally:
        os.close(handle)


def list_accepted(report: LibraryReport, decisions: Mapping[str, CurateDecision]) -> list[LibraryChange]:
    return [change for change in report.changes if (d := decisions.get(change.id)) and d.action == "accept"]


# ---- files ----------------------------------------------------------------------------------------------------------


def write_copy(report: LibraryReport, changes: Sequence[LibraryChange], target: Path) -> SkillLibrary:
    """Write the library with these changes into a new folder, which is there whole or not at all.

    Raises:
        ConfigError: the folder is there already.
    """
    if target.exists() or target.is_symlink():
        raise ConfigError(f"--to {target}: there is something already; name a new folder")
    library = apply_changes(report.library, changes)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        staging.mkdir(parents=True)
        for package in library.packages:
            write_package(_render(package.skill), staging / package.name)
        staging.rename(target)
    except OSError as error:
        raise ConfigError(f"--to {target} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return library


def plan_placement(report: LibraryReport, changes: Sequence[LibraryChange], stamp: str) -> PlacementPlan:
    """What has to be moved. `stamp` names the backup.

    Raises:
        ConfigError: the library is not the one that was measured, or a package that would change is a link.
    """
    folder = Path(os.path.realpath(report.folder))
    if not os.access(folder.parent, os.W_OK) or folder.stat().st_dev != folder.parent.stat().st_dev:
        raise ConfigError(
            f"{folder}: a backup cannot be put beside it (its parent is read-only, or another disk): write a copy "
            "with --to"
        )
    found = read_packages(folder)
    now = make_library(package for package, _ in found)
    if now.hash != report.hash:
        raise ConfigError(
            f"{folder} has changed since it was measured ({report.hash}, now {now.hash}): measure it again, or write "
            "the result beside it with --to"
        )
    places = {package.name: path for package, path in found}
    gone = {
        name for change in changes for name in (*change.removed, *(p.name for p in change.written)) if name in places
    }
    for name in sorted(gone):
        if places[name].is_symlink():
            raise ConfigError(f"{places[name]} is a link: change the skill where it lies, or write a copy with --to")
    after = apply_changes(now, changes)
    new = [p.name for p in after.packages if p.name not in places or p.skill != now.get(p.name).skill]
    backup, staging = folder.with_name(f"{folder.name}.backup-{stamp}"), folder.with_name(f".{folder.name}.{stamp}")
    for name in new:
        place = places.get(name, folder / name)
        if name not in places and (place.exists() or place.is_symlink()):
            raise ConfigError(f"{place} is there already, and is no package of that name: move it away")
    return PlacementPlan(
        folder=str(folder),
        before=now.hash,
        after=after.hash,
        changes=tuple(change.id for change in changes),
        removed={str(places[name]): str(backup / places[name].name) for name in sorted(gone)},
        written={str(places.get(name, folder / name)): str(staging / name) for name in new},
        backup=str(backup),
        staging=str(staging),
    )


def stage_packages(plan: PlacementPlan, report: LibraryReport, changes: Sequence[LibraryChange]) -> None:
    """Write the new packages beside the library."""
    library = apply_changes(report.library, changes)
    for staged in plan.written.values():
        try:
            write_package(_render(library.get(Path(staged).name).skill), Path(staged))
        except OSError as error:
            shutil.rmtree(plan.staging, ignore_errors=True)
            raise ConfigError(f"{staged} cannot be written: {error.strerror}. Nothing was changed") from None


def place_packages(plan: PlacementPlan) -> None:
    """Move old packages into the backup and new ones in. It can be stopped anywhere and called again."""
    Path(plan.backup).mkdir(parents=True, exist_ok=True)
    for source, kept in plan.removed.items():
        if not Path(kept).exists() and Path(source).exists():
            Path(source).rename(kept)
    for place, staged in plan.written.items():
        if Path(staged).exists():
            Path(staged).rename(place)
    shutil.rmtree(plan.staging, ignore_errors=True)


def read_plan(directory: Path) -> PlacementPlan | None:
    """The plan of changes in place that were begun; None if there are none."""
    try:
        return msgspec.json.decode((directory / PLACED).read_bytes(), type=PlacementPlan)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{directory / PLACED} cannot be read ({error}): put back a copy of it") from None


def check_plan(plan: PlacementPlan, report: LibraryReport) -> None:
    """Check a plan that was read from a run before anything is moved: it is a file that others may have written.

    Raises:
        ConfigError: it would touch something else than packages of this library, or what is staged was changed.
    """
    folder = os.path.realpath(report.folder)
    backup, staging = Path(plan.backup), Path(plan.staging)
    places = [(path, folder) for path in (*plan.removed, *plan.written)]
    places += [(path, plan.backup) for path in plan.removed.values()]
    places += [(path, plan.staging) for path in plan.written.values()]
    places += [(plan.backup, str(Path(folder).parent)), (plan.staging, str(Path(folder).parent))]
    wrong = [path for path, above in places if os.path.normpath(path) != path or str(Path(path).parent) != above]
    name = Path(folder).name
    if not backup.name.startswith(f"{name}.backup-") or not staging.name.startswith(f".{name}."):
        wrong.append(plan.backup)
    if wrong or plan.folder != folder:
        place = (wrong or [plan.folder])[0]
        raise ConfigError(f"{PLACED}: {place} is no place of a library in {folder}: remove the file")
    after = apply_changes(report.library, [change for change in report.changes if change.id in plan.changes])
    skills = {package.name: package.skill for package in after.packages}
    for staged in map(Path, plan.written.values()):
        if staged.exists() and read_package(staged) != skills.get(staged.name):
            raise ConfigError(f"{staged} is not what was accepted: it was changed later. Remove it and {PLACED}")


def list_edited(plan: PlacementPlan, report: LibraryReport) -> list[str]:
    """The packages in the backup that somebody has changed after the measurement, while they were replaced."""
    kept = {path: make_package(read_package(Path(path))) for path in plan.removed.values() if Path(path).exists()}
    return [path for path, package in kept.items() if package not in report.library.packages]


def is_placed(plan: PlacementPlan) -> bool:
    """Whether everything has been moved."""
    left = any(Path(source).exists() and not Path(kept).exists() for source, kept in plan.removed.items())
    return not left and not any(Path(staged).exists() for staged in plan.written.values())


def find_applied(run: Path, report: LibraryReport, changes: Sequence[LibraryChange]) -> PlacementPlan | None:
    """The plan that put these changes into the library, if the library is as it was left then.

    Raises:
        ConfigError: others were accepted when it was changed.
    """
    plan = read_plan(run)
    if plan is None or plan.before != report.hash or plan.folder != os.path.realpath(report.folder):
        return None
    if (
        not is_placed(plan)
        or make_library(package for package, _ in read_packages(Path(plan.folder))).hash != plan.after
    ):
        return None
    ids = {change.id for change in changes}
    if ids != {*plan.changes}:
        raise ConfigError(
            f"{plan.folder} has {', '.join(plan.changes)} already, and {', '.join(sorted(ids))} are accepted now: "
            "measure it again, or write the result beside it with --to"
        )
    return plan


def apply_in_place(run: Path, report: LibraryReport, changes: Sequence[LibraryChange]) -> PlacementPlan:
    """Change the library's own folder, with a backup. Goes on with changes that were begun.

    Raises:
        ConfigError: it cannot be done safely. Then nothing was changed.
    """
    with _lock(run), _lock_library(report.folder):
        plan = read_plan(run)
        if plan is not None and not is_placed(plan):
            check_plan(plan, report)
        else:
            stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            plan = plan_placement(report, changes, stamp)
            stage_packages(plan, report, changes)
            write_whole(run / PLACED, [to_json(plan)])
        try:
            place_packages(plan)
        except OSError as error:
            raise ConfigError(
                f"{plan.folder}: not all packages could be moved ({error}). What was moved is in {plan.backup}; when "
                "the cause is gone, --apply goes on"
            ) from None
        return plan


def _render(skill: Skill) -> Mapping[str, tuple[bytes, bool]]:
    return {
        DOCUMENT: (skill.text.encode(), False),
        **{file.path: (file.content, file.executable) for file in skill.files},
    }
