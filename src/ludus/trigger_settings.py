"""The settings of `ludus triggers`: whether descriptions are trained, and how."""

from typing import Annotated, ClassVar

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count, Whole


class TriggerSettings(Settings, frozen=True):
    """How `ludus triggers` measures and trains the descriptions of a catalogue."""

    train: bool = False
    """Train descriptions, and measure the result on queries that were sealed until the end."""
    sealed: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """The share of the queries of each skill that is sealed."""
    rounds: Whole = 40
    """The maximum number of descriptions that are tried to be improved, one after the other."""
    candidates: Count = 3
    """How many new descriptions are asked for in a round."""
    patience: Count = 2
    """A skill is left alone after so many rounds in a row without a better description."""
    certainty: Annotated[float, Meta(ge=0.5, lt=1)] = 0.75
    """A description is taken if it is better on the train queries with this probability."""

    turns: Count = 6
    """A command-line agent that has loaded no skill after so many replies of its model has loaded none. `limits.turns`
    holds too."""

    may_change: ClassVar[tuple[str, ...]] = ()
    added_later: ClassVar[tuple[str, ...]] = ("turns",)
