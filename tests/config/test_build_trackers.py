"""Trackers from settings."""

from pathlib import Path

import pytest

from ludus.config import load
from ludus.config.build_trackers import build_trackers
from ludus.errors import ConfigError
from ludus.trackers import TrackedRun

MINE = """
class Mine:
    def __init__(self, prefix: str = ""):
        self.prefix = prefix
    def start(self, run):
        with open("mine.txt", "a") as file: print("start", run.name, file=file)
    def log(self, values, step):
        with open("mine.txt", "a") as file: print(self.prefix, values, step, file=file)
    def close(self):
        with open("mine.txt", "a") as file: print("close", file=file)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def build(*flags: tuple[str, str]):
    return build_trackers(load([], list(flags)).tracking, lambda line: None, print)


def test_a_tracker_of_the_users_own_gets_its_options(folder: Path):
    trackers = build(("tracking.use", "mine.py"), ("tracking.options", "{mine.py: {prefix: '>'}}"))
    trackers.start(TrackedRun(name="r", project="p", folder=folder))
    trackers.log({"a": 1.0}, 2)
    trackers.close()
    assert (folder / "mine.txt").read_text().splitlines() == ["start r", "> {'a': 1.0} 2", "close"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([("tracking.use", "wandbb")], r"tracking\.use: unknown tracker 'wandbb'; did you mean 'wandb'\?"),
        ([("tracking.options", "{wandb: {mode: offline}}")], r"tracking\.options\.wandb: this tracker is not used"),
        ([("tracking.use", "mine.py"), ("tracking.options", "{mine.py: {colour: red}}")], "colour"),
        ([("tracking.use", "mine.py"), ("tracking.options", "{mine.py: {api_key: abc}}")], "looks like a secret"),
    ],
)
def test_mistakes_are_named(flags, message):
    with pytest.raises(ConfigError, match=message):
        build(*flags)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    def log", "    async def log"), "log must be written as `def`"),
        (("values, step):", "values):"), r"is called with log\(values, step\)"),
        (("    def close", "    def shut"), "it has no|no class with the methods|has no"),
    ],
)
def test_a_class_that_does_not_fit_is_refused_when_it_is_loaded(folder: Path, change, message):
    (folder / "other.py").write_text(MINE.replace(*change))
    with pytest.raises(ConfigError, match=message):
        build(("tracking.use", "other.py"))
