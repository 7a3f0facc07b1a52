"""A catalogue: the names and descriptions of skills among which an agent chooses.

An agent sees only this of each skill until it loads one. So descriptions decide which skill is loaded, and changing one
can change what happens to the others. A catalogue is therefore one value with one hash, like a skill.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from ludus.errors import ConfigError
from ludus.skill import DOCUMENT, Skill
from ludus.skill_folder import read_skill

DESCRIPTION_CHARS = 1024
"""The most characters of a description, by the Agent Skills format."""


class SkillCard(Struct, frozen=True):
    """What an agent sees of a skill before it loads it."""

    name: str
    description: str


class Catalogue(Struct, frozen=True):
    """The skills among which an agent chooses, sorted by name."""

    cards: tuple[SkillCard, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(card.name for card in self.cards)

    def get(self, name: str) -> SkillCard:
        return next(card for card in self.cards if card.name == name)

    def describe(self, name: str, description: str) -> "Catalogue":
        """The catalogue with another description of one skill."""
        return Catalogue(tuple(SkillCard(c.name, description) if c.name == name else c for c in self.cards))

    def add(self, card: SkillCard) -> "Catalogue":
        return make_catalogue([*self.cards, card])


def make_catalogue(cards: Iterable[SkillCard]) -> Catalogue:
    """A catalogue of these skills.

    Raises:
        ConfigError: two of them have the same name, or there is none.
    """
    ordered = sorted(cards, key=lambda card: card.name)
    twice = [one.name for one, other in itertools.pairwise(ordered) if one.name == other.name]
    if twice:
        raise ConfigError(f"skills: two packages are called {twice[0]!r}; an agent could not tell them apart")
    if not ordered:
        raise ConfigError("skills: the catalogue is empty")
    return Catalogue(tuple(ordered))


def list_packages(paths: Sequence[Path]) -> list[Path]:
    """The packages at these paths: a folder with a `SKILL.md`, or a folder of such folders.

    Raises:
        ConfigError: there is no package at one of them.
    """
    found: dict[str, Path] = {}
    for path in paths:
        below = [path] if (path / DOCUMENT).is_file() else _list_below(path)
        if not below:
            raise ConfigError(
                f"{path}: there is no skill: name a folder with a {DOCUMENT}, or a folder of such folders"
            )
        found |= {os.path.realpath(each): each for each in below}
    return list(found.values())


def _list_below(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder: name the folder of a skill, or a folder of such folders")
    return sorted(each for each in path.iterdir() if (each / DOCUMENT).is_file())


def read_catalogue(paths: Sequence[Path]) -> Catalogue:
    """The catalogue of the packages at these paths.

    Raises:
        ConfigError: a package cannot be read, has no front matter, or has the name of another one.
    """
    return make_catalogue(read_card(path) for path in list_packages(paths))


def read_card(path: Path) -> SkillCard:
    """What an agent sees of the package in a folder."""
    front = read_skill(path).front
    if front is None:
        raise ConfigError(
            f"{path / DOCUMENT} has no front matter: without a name and a description no agent can choose it"
        )
    return SkillCard(front.name, front.description)


def render_catalogue(catalogue: Catalogue) -> Skill:
    """The catalogue as the text that the agent has in its instructions."""
    lines = (f"- {card.name}: {' '.join(card.description.split())}" for card in catalogue.cards)
    return Skill("\n".join([_HEAD, "", *lines, ""]))


_HEAD = """\
# Skills

A skill is a text with instructions for one kind of request. If a request is of a kind that a skill below is for, load
that skill with the tool load_skill before you answer. Skills are not tools. If none of them is for it, load none and
answer."""
"""Small models call a skill as if it were a tool, if nothing tells them what to call instead."""
