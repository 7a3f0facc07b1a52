"""Builds the trackers that the settings name."""

from collections.abc import Callable

from ludus.config.references import TRACKER
from ludus.errors import ConfigError, suggest
from ludus.trackers import Tracker, TrackerSet, TrackingSettings


def build_trackers(
    settings: TrackingSettings, write_line: Callable[[bytes], None], tell: Callable[[str], None]
) -> TrackerSet:
    """The trackers of a run. `write_line` appends to the local file.

    Raises:
        ConfigError: a tracker is unknown or not installed, or an option is wrong.
    """
    for name in settings.options:
        if name not in settings.use:
            raise ConfigError(f"tracking.options.{name}: this tracker is not used; {suggest(name, list(settings.use))}")
    made: list[tuple[str, Tracker]] = []
    for name in settings.use:
        made.append((name, TRACKER.make(name, settings.options.get(name, {}), "", f"tracking.options.{name}")))
    return TrackerSet(made, write_line, tell)
