"""Build the engine of a run from settings: what its workers on other machines are opened with."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ludus import __version__
from ludus.config.reading import is_tree
from ludus.config.secrets import find_ray_address, read_variables, refuse_ray_reports
from ludus.config.tree import TRAINING, WEIGHTS, Config
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models.ledger import Ledger
from ludus.policy import Policy
from ludus.runner import RunEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ludus.engines.wire import NodeOrder

NOT_SENT = TRAINING | WEIGHTS | {"engine", "gateway"}
"""Sections that workers do not need."""


async def open_engine(
    config: Config,
    env: Env,
    policy: Policy | None,
    ledger: Ledger,
    stack: AsyncExitStack,
    tell: "Callable[[str], None]",
    *,
    relays: bool = False,
) -> RunEngine | None:
    """The engine that the settings name, open until the stack is closed; None: rollouts run in this process. Without a
    policy, stored rollouts are judged. `relays`: the policy's model is not that of the settings, and stays in this
    process.

    Raises:
        ConfigError: its package is missing, there is no cluster, or no node can work.
    """
    if config.engine.type == "local":
        return None
    from ludus.engines.ray_engine import RayEngine

    if relays and policy is not None and policy.agent is not None:
        raise ConfigError(
            f"engine.type ray: {policy.agent_name} needs the model where it acts, and the one of a trainer is in this "
            "process: leave --engine out, or let Ludus's own loop act"
        )
    order = make_order(config, env, policy, policy.model.name if relays and policy is not None else "")
    settings = config.engine
    if not settings.address:
        settings = msgspec.structs.replace(settings, address=find_ray_address())
        refuse_ray_reports()
    return await stack.enter_async_context(RayEngine(settings, config.run.concurrency, order, ledger, tell))


def make_order(config: Config, env: Env, policy: Policy | None, relay: str = "") -> "NodeOrder":
    """What a worker is opened with. `relay`: the name of a model of this process that workers ask."""
    from ludus.config import to_record
    from ludus.engines.wire import NodeOrder, prove

    folder = Path.cwd()
    settings = {name: value for name, value in to_record(config).items() if name not in NOT_SENT}
    settings["run"] = {**settings["run"], "out": "", "resume": False}
    found = {str(path): path for path in _list_files(settings, folder)}
    digests = {name: hash_file(folder / name) for name in found}
    small = _choose_small(found, folder, config.engine.ship_mb * 2**20)
    return NodeOrder(
        version=__version__,
        settings=settings,
        variables=read_variables(config),
        folder=str(folder),
        files={name: (folder / name).read_bytes() for name in small},
        digests=digests,
        proof=prove(env, policy),
        judges=policy is None,
        relay=relay,
    )


def _choose_small(found: Mapping[str, Path], folder: Path, limit: int) -> list[str]:
    """The files that are sent: the smallest first, as far as the limit allows. Absolute paths are not sent."""
    sizes = {name: (folder / name).stat().st_size for name, path in found.items() if not path.is_absolute()}
    chosen: list[str] = []
    for name in sorted(sizes, key=lambda name: sizes[name]):
        limit -= sizes[name]
        if limit < 0:
            break
        chosen.append(name)
    return chosen


def _list_files(settings: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """The files that workers need: those that settings name, and the modules below the working folder that are
    loaded. Paths below it are relative to it."""
    for text in _list_texts(settings):
        for name in (text, text.rpartition(":")[0]):
            if 0 < len(name) < 1024 and "\n" not in name:
                yield from _list_below(Path(name).expanduser(), folder)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder) and not _is_installed(Path(file), folder):
            yield Path(file).relative_to(folder)


def _list_below(path: Path, folder: Path) -> Iterator[Path]:
    place = folder / path
    try:
        files = [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()] if _is_data(path) else []
    except OSError:  # a text that is no path
        return
    for file in files:
        if "__pycache__" not in file.parts:
            yield file.relative_to(folder) if file.is_relative_to(folder) and not path.is_absolute() else file


def _is_data(path: Path) -> bool:
    """Whether a text that names a folder means it: `.` and plain words may mean something else."""
    return len(path.parts) > 1 or path.suffix != ""


def _is_installed(path: Path, folder: Path) -> bool:
    return any(part in ("site-packages", ".venv", "venv") for part in path.relative_to(folder).parts)


def _list_texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif is_tree(tree):
        for value in tree.values():
            yield from _list_texts(value)
    elif isinstance(tree, list):
        for value in tree:  # pyright: ignore[reportUnknownVariableType]
            yield from _list_texts(value)


def hash_file(path: Path) -> str:
    """The digest of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
