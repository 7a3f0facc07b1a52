"""Trackers: the local file, and what happens when one fails."""

import json

from ludus.trackers import Table, TrackedRun, TrackerSet

RUN = TrackedRun(name="r", project="p", folder=None, config={})  # pyright: ignore[reportArgumentType]


class Keeper:
    """Keeps what it gets; fails at the call that `fails` names."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[tuple[object, ...]] = []

    def _note(self, name: str, *more: object) -> None:
        if name == self.fails:
            raise OSError("no network")
        self.calls.append((name, *more))

    def start(self, run: TrackedRun) -> None:
        self._note("start", run.name)

    def log(self, values, step: int) -> None:
        self._note("log", dict(values), step)

    def close(self) -> None:
        self._note("close")


def test_the_local_file_and_every_tracker_get_all_values():
    lines, keeper = [], Keeper()
    trackers = TrackerSet([("mine", keeper)], lines.append, print)
    trackers.start(RUN)
    trackers.log({"a": 1.5, "t": Table(("x", "y"), (("one", 2),))}, 3)
    trackers.log({}, 4)
    trackers.close()
    (line,) = [json.loads(line) for line in lines]
    assert line.pop("time") > 0
    assert line == {"step": 3, "a": 1.5, "t": {"columns": ["x", "y"], "rows": [["one", 2]]}}
    assert keeper.calls[0] == ("start", "r")
    assert keeper.calls[1][1:] == ({"a": 1.5, "t": Table(("x", "y"), (("one", 2),))}, 3)
    assert keeper.calls[2:] == [("close",)]


def test_a_tracker_that_fails_is_told_once_and_gets_no_more():
    for fails in ("start", "log", "close"):
        lines, told, broken, good = [], [], Keeper(fails), Keeper()
        trackers = TrackerSet([("broken", broken), ("good", good)], lines.append, told.append)
        trackers.start(RUN)
        trackers.log({"a": 1}, 0)
        trackers.log({"a": 2}, 1)
        trackers.close()
        assert len(lines) == 2 and len(good.calls) == 4
        assert len(told) == 1 and "broken gets no more values" in told[0] and "no network" in told[0]
        names = [name for name, *_ in broken.calls]
        assert names == {"start": [], "log": ["start"], "close": ["start", "log", "log"]}[fails]
