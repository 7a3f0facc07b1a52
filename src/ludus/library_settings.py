"""The settings of `ludus library`: what a skill must be worth, and what is measured beside that."""

from typing import Annotated, ClassVar

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Whole

Share = Annotated[float, Meta(ge=0, le=1)]


class LibrarySettings(Settings, frozen=True):
    """How `ludus library` judges the skills of a library."""

    least: Share = 0.05
    """What a skill must add, at least, to the score of the tasks that it is loaded for. One that surely adds less is
    proposed to be retired."""
    per_1000_tokens: Annotated[float, Meta(ge=0)] = 0.01
    """What it must add for each 1,000 tokens that it costs each time it is loaded, if that is more than `least`."""
    similar: Annotated[float, Meta(gt=0, le=1)] = 0.6
    """How alike two texts must be (0: no word in common, 1: the same) for the two skills to be measured as
    duplicates."""
    lines: Whole = 0
    """Rollouts for each skill that is loaded, in which passages of it are left out at random: which of them earn their
    tokens, and which belong to different kinds of tasks. 0: not measured."""
    evidence: tuple[str, ...] = ()
    """Finished runs of `ludus audit-skill` or `ludus train`, whose findings on the same text are used."""
    confirm: bool = True
    """Measure the library as it is proposed, on the tasks that the changed skills are loaded for."""

    may_change: ClassVar[tuple[str, ...]] = ()
    added_later: ClassVar[tuple[str, ...]] = ()
