"""Small exercises in Exercism's layout: instructions, a stub, and hidden tests, in five languages.

Seven exercises written for Ludus come with the package. Others are read from folders (`--env.path DIR`): a checkout of
a track (MIT licence), or any folder with exercises in it. An exercise is a folder with `.meta/config.json`, which names
its `files` (`solution`, `test`, `example`), and `.docs/instructions.md`.

| track | solution | tests | needs in the slot |
|---|---|---|---|
| python | `.py` | unittest or pytest | Python |
| bash | `.sh` | bats | bash |
| awk | `.awk` | bats | gawk |
| jq | `.jq` | bats | jq |
| sqlite | `.sql` | `_test.sql` | sqlite3 |

By default the tracks `python` and `bash` are used, which run everywhere. The agent sees neither the tests nor the
example solution. All tests must pass; `soft` is the share that passes. Programs of other tracks run as processes of
their own; Python's tests import the solution (`ludus.verify.pytest` has the limits of that).
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from ludus.env import Env, EnvFacts
from ludus.envs.bats import run_bats
from ludus.envs.sqlite_tests import run_sqlite_tests
from ludus.errors import ConfigError, SetupError
from ludus.sandbox import Sandbox
from ludus.types import Positive, Rollout, Score, Task
from ludus.verify.pytest import run_tests

TRACKS: Mapping[str, tuple[str, str]] = {
    ".py": ("python", "python3"),
    ".sh": ("bash", "bash"),
    ".awk": ("awk", "gawk"),
    ".jq": ("jq", "jq"),
    ".sql": ("sqlite", "sqlite3"),
}
"""The track and its program, by the ending of the solution."""
BUNDLED_TEST = ("python/tide-table", "bash/ticket-price")
_CONFIG = ".meta/config.json"
_INSTRUCTIONS = ".docs/instructions.md"
_EXPECTED = ("create_test_table.sql",)
"""Files beside the tests that have expected values in them."""
_FILE_BYTES = 1_000_000


class ExerciseFiles(Struct, frozen=True):
    """The section `files` of an exercise's config.json."""

    solution: list[str]
    test: list[str]
    example: list[str] = field(default_factory=list[str])
    exemplar: list[str] = field(default_factory=list[str])
    """The name of `example` in concept exercises."""


class ExerciseConfig(Struct, frozen=True):
    files: ExerciseFiles


class Exercism(Env, frozen=True):
    """Exercises with hidden tests in Python, bash, awk, jq and SQLite (Exercism's layout)."""

    name: ClassVar[str] = "exercism"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="by default 2 train, 2 test; 7 in all five tracks, or one per folder of `env.path`",
        licence="MIT (written for Ludus; the published tracks, with `env.path`, are MIT too)",
        runs="agent in a slot; tests in a fresh one",
        scored="all hidden tests pass; soft: the share",
        speed="0.4 s per task",
    )
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    path: str = ""
    """A folder with exercises; empty: the bundled ones."""
    tracks: tuple[str, ...] = ("python", "bash")
    """Which of python, bash, awk, jq and sqlite."""
    test_seconds: Positive = 60.0
    """The time limit of the tests of an exercise."""

    def tasks(self, split: str) -> Iterator[Task]:
        known = [track for track, _ in TRACKS.values()]
        for track in self.tracks:
            if track not in known:
                raise ConfigError(f"env.tracks: '{track}' is not one of {', '.join(known)}")
        places: dict[str, str] = {}
        for place, exercise in self._load_exercises(split):
            task = _make_task(place, exercise, split)
            if task is None or task.kind not in self.tracks:
                continue
            if task.id in places:
                raise ConfigError(f"env.path: {place} and {places[task.id]} are both the exercise {task.id}")
            places[task.id] = place
            yield task

    async def setup(self, task: Task, box: Sandbox) -> None:
        program = task.answer["program"]
        if (await box.exec(f"command -v {program}")).exit_code:
            raise SetupError(
                f"the track {task.kind} needs {program}, which is not in the slot: install it, or use an "
                "image that has it",
                retryable=False,
            )
        await super().setup(task, box)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        answer = rollout.task.answer
        if rollout.task.kind == "python":
            return await run_tests(box, answer["tests"], seconds=self.test_seconds)
        if rollout.task.kind == "sqlite":
            test = next(name for name in answer["tests"] if name.endswith("_test.sql"))
            return await run_sqlite_tests(
                box, answer["solution"], test, {**answer["shown"], **answer["tests"]}, seconds=self.test_seconds
            )
        return await run_bats(box, answer["tests"], seconds=self.test_seconds)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        if not task.answer["example"]:
            raise ValueError(f"{task.id} has no example solution in .meta")
        await box.write(task.answer["solution"], task.answer["example"].encode())
        return "Done."

    def _load_exercises(self, split: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The files of each exercise by path, with the place of the exercise."""
        if not self.path:
            for name, texts in _load_bundled_exercises().items():
                if split == ("test" if name in BUNDLED_TEST else "train"):
                    yield name, texts
            return
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise ConfigError(f"env.path: there is no folder {root}")
        folders = sorted(path.parent.parent for path in root.rglob(_CONFIG))
        if not folders:
            raise ConfigError(f"env.path: {root} has no exercises: no folder in it has {_CONFIG}")
        for folder in folders:
            yield str(folder), _read_folder(folder)


def _make_task(place: str, exercise: Mapping[str, str], split: str) -> Task | None:
    """The task of an exercise; None if it belongs to another track."""
    config = _read_config(place, exercise)
    solution = config.files.solution[0]
    track, program = TRACKS.get(PurePosixPath(solution).suffix, ("", ""))
    if not track or (track == "sqlite" and not any(name.endswith("_test.sql") for name in config.files.test)):
        return None
    for name in config.files.test:
        if name not in exercise:
            raise ConfigError(f"env.path: {place}/{_CONFIG}: files.test: there is no file {name}")
    if not exercise.get(_INSTRUCTIONS, "").strip():
        raise ConfigError(f"env.path: {place}: there is no {_INSTRUCTIONS}, or it is empty")
    hidden = {*config.files.test, *(name for name in exercise if PurePosixPath(name).name in _EXPECTED)}
    helpers = {name for name in exercise if name.endswith(".bash")}
    shown = {
        name: text
        for name, text in exercise.items()
        if name not in hidden | helpers and not name.startswith((".meta/", ".docs/", ".approaches/", ".articles/"))
    }
    examples = [name for name in (*config.files.example, *config.files.exemplar) if name in exercise]
    answer = {
        "program": program,
        "solution": solution,
        "example": exercise[examples[0]] if examples else "",
        "tests": {name: exercise[name] for name in sorted(hidden | helpers)},
        "shown": {name: text for name, text in shown.items() if name != solution},
    }
    docs = [
        exercise.get(f".docs/{name}.md", "").strip() for name in ("introduction", "instructions", "instructions.append")
    ]
    prompt = "\n\n".join(
        [*filter(None, docs), f"Write the solution in {solution}. Tests that you do not see will run it."]
    )
    slug = PurePosixPath(place).name
    return Task(id=f"{track}/{slug}", prompt=prompt, files=shown, split=split, kind=track, answer=answer)


def _read_config(place: str, exercise: Mapping[str, str]) -> ExerciseConfig:
    try:
        config = msgspec.json.decode(exercise.get(_CONFIG, ""), type=ExerciseConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(f"env.path: {place}/{_CONFIG}: {error}") from None
    for name in ("solution", "test"):
        if not getattr(config.files, name):
            raise ConfigError(f"env.path: {place}/{_CONFIG}: files.{name}: it is empty")
    return config


def _read_folder(folder: Path) -> dict[str, str]:
    """The text files of an exercise by path."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _FILE_BYTES:
            try:
                found[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a picture, for example: no part of the task
    return found


@cache
def _load_bundled_exercises() -> dict[str, dict[str, str]]:
    data = files("ludus.envs").joinpath("data/exercism.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, dict[str, str]])
