"""Modules that exist only while a file that needs them is loaded: `atroposlib.envs.base`, `environments.agent_loop` …

    with provide_modules({"atroposlib.envs.base": {"BaseEnv": BaseEnv}}, folders): …

Files import the same class from several modules, so whole module paths have to exist. The modules are put in front of
those that are installed, and what was there before is put back at the end. A package that is provided also looks for
its other modules where they are installed, and in the folders of the user's repository.
"""

import importlib.util
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.compat.atropos_env.wandb_standin import make_wandb

Names = Mapping[str, Mapping[str, Any]]
"""What each module defines, by its path."""


@contextmanager
def provide_modules(names: Names, folders: Sequence[Path] = ()) -> Generator[None]:
    """Provide modules inside the block. `folders`: where packages of these names may have further modules."""
    roots = {path.partition(".")[0] for path in names}
    made = make_modules(names, folders)
    if not is_installed("wandb"):
        roots.add("wandb")
        made["wandb"] = make_wandb()
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    for name in before:
        del sys.modules[name]
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(before)


def is_installed(name: str) -> bool:
    """Whether a module is installed. One that is only provided has no spec."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def make_modules(names: Names, folders: Sequence[Path]) -> dict[str, ModuleType]:
    """Modules with these names, and the packages above them."""
    made: dict[str, ModuleType] = {}
    for path in names:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name in made:
                continue
            module = made[name] = ModuleType(name, "Provided by Ludus.")
            module.__path__ = _list_places(parts[:end], folders)
            if end > 1:
                setattr(made[".".join(parts[: end - 1])], parts[end - 1], module)
    for path, values in names.items():
        made[path].__dict__.update(values)
    return made


def _list_places(parts: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The folders where a package has further modules: those of the user, and those that are installed."""
    own = [folder.joinpath(*parts) for folder in folders]
    found = [str(place) for place in own if place.is_dir()]
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        spec = None
    installed = spec.submodule_search_locations if spec else None
    places = [str(Path(place, *parts[1:])) for place in installed or () if Path(place, *parts[1:]).is_dir()]
    return list(dict.fromkeys([*found, *places]))
