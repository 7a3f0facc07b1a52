"""A library: skill packages that lie beside each other, of which an agent chooses by name and description.

    skills/unit-work/SKILL.md
    skills/pdf-forms/SKILL.md

All packages together are one value with one hash. What one of them is worth is measured by the same library without
it (`ludus.library`). The agent sees name and description of each, and reads the rest when a task needs it.
"""

import hashlib
import itertools
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from ludus.catalogue import list_packages
from ludus.errors import ConfigError
from ludus.skill import DOCUMENT, PACKAGE_BYTES, Skill
from ludus.skill_folder import read_package

LIBRARY_PACKAGES = 200
LIBRARY_BYTES = 4 * PACKAGE_BYTES
"""The size limits of a library: it is written into every slot."""


class LibraryPackage(Struct, frozen=True):
    """A package by the name under which agents see it."""

    name: str
    description: str
    skill: Skill


class SkillLibrary(Struct, frozen=True):
    """The packages among which an agent chooses, sorted by name."""

    packages: tuple[LibraryPackage, ...]

    @property
    def hash(self) -> str:
        return _hash_library(self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(package.name for package in self.packages)

    def get(self, name: str) -> LibraryPackage:
        return next(package for package in self.packages if package.name == name)

    def leave_out(self, *names: str) -> "SkillLibrary":
        """The library without these packages. It may be empty."""
        return SkillLibrary(tuple(package for package in self.packages if package.name not in names))

    def put(self, skill: Skill) -> "SkillLibrary":
        """The library with this package, in place of the one of its name."""
        new = make_package(skill)
        return make_library([*self.leave_out(new.name).packages, new])


def make_package(skill: Skill) -> LibraryPackage:
    """A skill by its own name.

    Raises:
        ConfigError: it has no front matter, or one that is not in the form.
    """
    front = skill.front
    if front is None:
        raise ConfigError(f"{DOCUMENT} has no front matter: without a name and a description no agent can choose it")
    return LibraryPackage(front.name, front.description, skill)


def make_library(packages: Iterable[LibraryPackage]) -> SkillLibrary:
    """A library of these packages.

    Raises:
        ConfigError: two of them have the same name, or they are too many or too large together.
    """
    ordered = sorted(packages, key=lambda package: package.name)
    twice = [one.name for one, other in itertools.pairwise(ordered) if one.name == other.name]
    if twice:
        raise ConfigError(f"two packages are called {twice[0]!r}; an agent could not tell them apart")
    if len(ordered) > LIBRARY_PACKAGES:
        raise ConfigError(f"{len(ordered)} packages are too many: a library has at most {LIBRARY_PACKAGES}")
    size = sum(len(each.skill.text.encode()) + sum(len(f.content) for f in each.skill.files) for each in ordered)
    if size > LIBRARY_BYTES:
        raise ConfigError(f"the packages have {size:,} bytes together; a library has at most {LIBRARY_BYTES:,}")
    return SkillLibrary(tuple(ordered))


def read_library(folder: Path) -> SkillLibrary:
    """The packages in the folders below a folder.

    Raises:
        ConfigError: there is none, one cannot be read, two have the same name, or they are too large together.
    """
    return make_library(package for package, _ in read_packages(folder))


def read_packages(folder: Path) -> list[tuple[LibraryPackage, Path]]:
    """The packages in the folders below a folder, each with its own folder."""
    if (folder / DOCUMENT).is_file():
        raise ConfigError(f"{folder} is one skill: name the folder that it lies in, with the others")
    found: list[tuple[LibraryPackage, Path]] = []
    for path in list_packages([folder]):
        try:
            found.append((make_package(read_package(path)), path))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return found


@lru_cache(maxsize=256)  # an arm of a measurement has one library for all of its rollouts
def _hash_library(library: SkillLibrary) -> str:
    parts = "".join(f"{package.name} {package.skill.hash}\n" for package in library.packages)
    return hashlib.sha256(f"ludus library 1\n{parts}".encode()).hexdigest()[:16]
