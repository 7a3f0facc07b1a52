"""The settings of `ludus sleep`: what may leave the machine, and how many sessions and tasks are used."""

from typing import Annotated

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count


class SleepSettings(Settings, frozen=True):
    """How `ludus sleep` makes tasks of past work."""

    remote: bool = False
    """Past work may be shown to models and slots outside of this machine. Without it they are refused."""
    headless: bool = False
    """Read sessions of command-line agents, too, that a program began: no user speaks in them."""
    sessions: Count = 200
    """The most sessions of one night, the latest first."""
    tasks: Count = 200
    """The most tasks that are trained on: those of this night, then those of earlier nights, the latest first."""
    fewest: Annotated[int, Meta(ge=8)] = 12
    """With fewer valid tasks than this, nothing is trained: the proposal comes from reading sessions, and is marked as
    unmeasured."""
    unmeasured: bool = True
    """Make such a proposal. It needs a model."""
    check_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """The time limit of one checker."""
