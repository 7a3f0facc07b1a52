"""Reads folders of terminal tasks, in the three published forms.

    harbor           task.toml  instruction.md  environment/Dockerfile  tests/test.sh  solution/solve.sh
    terminal-bench   task.yaml  Dockerfile  run-tests.sh  tests/test_outputs.py  solution.sh
    endless          instruction.md or task.json  Dockerfile or container.def  test_final_state.py (or tests/…)

A folder is read as a `TaskFolder`, the same for all three. Wrong files are a `ConfigError` that names the file and the
field. A task that is right but cannot be run (several containers, steps, GPUs) has a reason in `skip`. Sections and
fields that say nothing about running or scoring a task are ignored, as the formats allow.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml
from msgspec import Struct, field

from ludus.errors import ConfigError
from ludus.types import Positive
from ludus.whole_files import read_whole_text

T = TypeVar("T")
Form = Literal["harbor", "terminal-bench", "endless"]
_DEEPEST = 4
"""How many folders below the given one a task may be."""
_STATE_TEST = "test_final_state.py"


class TaskFolder(Struct, frozen=True, kw_only=True):
    """One task."""

    id: str
    form: Form
    folder: Path
    instruction: str
    kind: str = ""
    image: str = ""
    """The name of a finished image."""
    build: Path | None = None
    """The folder with the Dockerfile."""
    tests: Path
    """The folder of the tests, or the one test file."""
    script: Path | None = None
    """What runs the tests; None: pytest does."""
    solution: Path | None = None
    """The folder of the reference solution, or its one file."""
    test_seconds: float
    build_seconds: float = 1800.0
    memory_mb: int | None = None
    storage_mb: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of everything that runs in the slot."""
    test_env: Mapping[str, str] = field(default_factory=dict[str, str])
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    skip: str = ""
    """Why the task cannot be run; empty if it can, as far as its files say."""

    def hash_files(self) -> str:
        """A hash of everything that decides the score: a changed task is another task."""
        digest = hashlib.sha256()
        parts = (self.build, self.tests, self.script, self.folder / "task.toml", self.folder / "task.yaml")
        for path in sorted({each for part in parts if part is not None for each in list_task_files(part)}):
            digest.update(path.relative_to(self.folder).as_posix().encode(errors="surrogateescape") + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]


def list_task_files(path: Path) -> Iterator[Path]:
    """The files of a folder and its folders, in the order of their names; or the one file."""
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (each for each in sorted(path.rglob("*")) if each.is_file())


# ---- finding ------------------------------------------------------------------------------------------------------


def read_task_folders(path: Path) -> list[TaskFolder]:
    """The tasks of a folder: the folder itself, or those below it, in the order of their names.

    Raises:
        ConfigError: there is none, two have the same name, or one of them is wrong.
    """
    if not path.is_dir():
        raise ConfigError(f"env.path: there is no folder {path}")
    tasks = [read_task_folder(folder) for folder in _find_folders(path, _DEEPEST)]
    if not tasks:
        raise ConfigError(f"env.path: {path} has no task: no folder in it has a task.toml, task.yaml or {_STATE_TEST}")
    first: dict[str, Path] = {}
    for task in tasks:
        if task.id in first:
            raise ConfigError(f"env.path: {task.folder} and {first[task.id]} are both named '{task.id}'")
        first[task.id] = task.folder
    return tasks


def _find_folders(path: Path, depth: int) -> Iterator[Path]:
    if _find_form(path) is not None:
        yield path
    elif depth:
        for folder in sorted(path.iterdir()):
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith("."):
                yield from _find_folders(folder, depth - 1)


def _find_form(folder: Path) -> Form | None:
    if (folder / "task.toml").is_file():
        return "harbor"
    if (folder / "task.yaml").is_file():
        return "terminal-bench"
    return "endless" if _find_state_test(folder) is not None else None


def _find_state_test(folder: Path) -> Path | None:
    return next((path for path in (folder / "tests" / _STATE_TEST, folder / _STATE_TEST) if path.is_file()), None)


def read_task_folder(folder: Path) -> TaskFolder:
    """One task. Raises ConfigError if a file is missing or wrong."""
    match _find_form(folder):
        case "harbor":
            return _read_harbor(folder)
        case "terminal-bench":
            return _read_terminal_bench(folder)
        case "endless":
            return _read_endless(folder)
        case None:
            raise ConfigError(f"env.path: {folder} has neither task.toml, task.yaml nor {_STATE_TEST}")


# ---- Harbor -------------------------------------------------------------------------------------------------------


class _Phase(Struct, frozen=True):
    timeout_sec: Positive = 600.0
    env: dict[str, str] = field(default_factory=dict[str, str])
    environment_mode: str = ""


class _Environment(Struct, frozen=True):
    build_timeout_sec: Positive = 600.0
    docker_image: str | None = None
    memory_mb: int | None = None
    memory: str | None = None
    storage_mb: int | None = None
    storage: str | None = None
    gpus: int = 0
    os: str = "linux"
    env: dict[str, str] = field(default_factory=dict[str, str])
    mcp_servers: list[Any] = field(default_factory=list[Any])


class _TaskToml(Struct, frozen=True):
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    verifier: _Phase = _Phase()
    agent: _Phase = _Phase()
    environment: _Environment = _Environment()
    solution: _Phase = _Phase()
    steps: list[Any] = field(default_factory=list[Any])


def _read_harbor(folder: Path) -> TaskFolder:
    config = _read_toml(folder / "task.toml", _TaskToml)
    environment = config.environment
    build = folder / "environment"
    steps = bool(config.steps)
    if not environment.docker_image and not steps:
        _require_file(
            build / "Dockerfile", "or environment.docker_image in task.toml", (build / "docker-compose.yaml",)
        )
    if not steps:
        _require_file(folder / "tests" / "test.sh")
    toml = folder / "task.toml"
    return TaskFolder(
        id=folder.name,
        form="harbor",
        folder=folder,
        instruction="" if steps else _read_text(folder / "instruction.md"),
        kind=str(config.metadata.get("category", "")),
        image=environment.docker_image or "",
        build=build if (build / "Dockerfile").is_file() else None,
        tests=folder / "tests",
        script=folder / "tests" / "test.sh",
        solution=folder / "solution" if (folder / "solution" / "solve.sh").is_file() else None,
        test_seconds=config.verifier.timeout_sec,
        build_seconds=environment.build_timeout_sec,
        memory_mb=environment.memory_mb or _read_size(environment.memory, toml, "environment.memory"),
        storage_mb=environment.storage_mb or _read_size(environment.storage, toml, "environment.storage"),
        env=environment.env,
        test_env=config.verifier.env,
        solution_env=config.solution.env,
        skip=_find_harbor_obstacle(config, build),
    )


def _find_harbor_obstacle(config: _TaskToml, build: Path) -> str:
    environment = config.environment
    variables = {**environment.env, **config.verifier.env}
    templates = [name for name, value in variables.items() if value.startswith("${")]
    obstacles = {
        "it has several steps": bool(config.steps),
        "it needs docker compose": any((build / name).is_file() for name in ("docker-compose.yaml", "compose.yaml")),
        "it needs a GPU": environment.gpus > 0,
        f"it needs {environment.os}": environment.os != "linux",
        "it needs MCP servers": bool(environment.mcp_servers),
        "its verifier runs in a container of its own": config.verifier.environment_mode == "separate",
        f"it needs the variable {templates[0] if templates else ''} of the driver": bool(templates),
    }
    return next((reason for reason, applies in obstacles.items() if applies), "")


def _read_toml(path: Path, kind: type[T]) -> T:
    try:
        return _convert(tomllib.loads(_read_text(path)), kind, path)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"env.path: {path} is not TOML: {error}") from None


_SIZES = {"K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


def _read_size(text: str | None, path: Path, name: str) -> int | None:
    """A size such as `4G`, in megabytes."""
    if not text:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])i?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"env.path: {path}: {name} is '{text}', not a size such as 2G or 512M")
    return max(1, round(float(match[1]) * _SIZES[match[2].upper()]))


# ---- Terminal-Bench -----------------------------------------------------------------------------------------------


class _Description(Struct, frozen=True):
    key: str
    description: str


class _TaskYaml(Struct, frozen=True):
    instruction: str = ""
    descriptions: list[_Description] = field(default_factory=list[_Description])
    category: str | None = None
    parser_name: str | None = None
    max_test_timeout_sec: Positive | None = None


def _read_terminal_bench(folder: Path) -> TaskFolder:
    path = folder / "task.yaml"
    config = _convert(_read_yaml(path), _TaskYaml, path)
    written = {each.key: each.description for each in config.descriptions}
    instruction = config.instruction or written.get("base", "") or next(iter(written.values()), "")
    if not instruction.strip():
        raise ConfigError(f"env.path: {path}: instruction is missing or empty")
    if not (folder / "Dockerfile").is_file():
        _require_file(folder / "docker-compose.yaml", "or a Dockerfile")
    if not (folder / "tests").is_dir() and not (folder / "run-tests.sh").is_file():
        raise ConfigError(f"env.path: {folder} has neither tests nor run-tests.sh")
    script, solution = folder / "run-tests.sh", folder / "solution.sh"
    skip = _find_compose_obstacle(folder)
    if config.parser_name not in (None, "pytest"):
        skip = f"its tests report in the form '{config.parser_name}'; only pytest's is read"
    return TaskFolder(
        id=folder.name,
        form="terminal-bench",
        folder=folder,
        instruction=instruction,
        kind=config.category or "",
        build=folder if (folder / "Dockerfile").is_file() else None,
        tests=folder / "tests",
        script=script if script.is_file() else None,
        solution=solution if solution.is_file() else None,
        test_seconds=config.max_test_timeout_sec or 180.0,
        test_env={"TEST_DIR": "/tests"},
        skip=skip,
    )


class _Compose(Struct, frozen=True):
    services: dict[str, Any]


def _find_compose_obstacle(folder: Path) -> str:
    """Why the compose file needs more than one container from the Dockerfile."""
    path = folder / "docker-compose.yaml"
    if not path.is_file():
        return ""
    services = _convert(_read_yaml(path), _Compose, path).services
    if len(services) > 1:
        return f"it needs {len(services)} containers (docker compose)"
    return "" if (folder / "Dockerfile").is_file() else "it has no Dockerfile"


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(_read_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"env.path: {path} is not YAML: {' '.join(str(error).split())[:200]}") from None


# ---- endless terminals --------------------------------------------------------------------------------------------


class _TaskJson(Struct, frozen=True):
    description: str


def _read_endless(folder: Path) -> TaskFolder:
    tests = _find_state_test(folder)
    assert tests is not None
    build = next((each for each in (folder / "environment", folder) if (each / "Dockerfile").is_file()), None)
    if build is None:
        _require_file(folder / "container.def", "or a Dockerfile")
        build = folder
    solutions = (folder / "solution", folder / "solution.sh")
    return TaskFolder(
        id=folder.name,
        form="endless",
        folder=folder,
        instruction=_read_endless_instruction(folder),
        build=build,
        tests=tests,
        solution=next((each for each in solutions if each.is_file() or (each / "solve.sh").is_file()), None),
        test_seconds=60.0,
    )


def _read_endless_instruction(folder: Path) -> str:
    path = folder / "task.json"
    if (folder / "instruction.md").is_file() or not path.is_file():
        return _read_text(folder / "instruction.md")
    try:
        return msgspec.json.decode(_read_text(path), type=_TaskJson).description
    except msgspec.DecodeError as error:
        raise ConfigError(f"env.path: {path}: {error}") from None


# ---- files --------------------------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    try:
        text = read_whole_text(path)
    except FileNotFoundError:
        raise ConfigError(f"env.path: {path} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"env.path: {path} cannot be read: {words}") from None
    if not text.strip():
        raise ConfigError(f"env.path: {path} is empty")
    return text


def _require_file(path: Path, alternative: str = "", others: Sequence[Path] = ()) -> None:
    if not any(each.is_file() for each in (path, *others)):
        raise ConfigError(f"env.path: {path} is missing{f' ({alternative})' if alternative else ''}")


def _convert(data: object, kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$")
        where = f": {place.strip('.`')}" if place else ""
        raise ConfigError(f"env.path: {path}{where}: {words}") from None
