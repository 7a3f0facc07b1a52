"""Finding environments and scripts: by built-in name, module or file.

What is found is foreign code. Importing it may fail in any way; the user is shown its own error, without our frames.
"""

import hashlib
import importlib
import importlib.util
import sys
import textwrap
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import msgspec

from ludus.batch import EnvSettings
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError, suggest


def load_env_class(name: str) -> type[Env]:
    """The environment class of a built-in name, `module:Class`, `file.py:Class`, or a file with one environment.

    Raises:
        ConfigError: there is none, or its module cannot be imported; the message shows the module's own error.
    """
    if name in BUILTIN:
        found = load_object(BUILTIN[name], "env.name")
    elif name.endswith(".py"):
        found = _only_env(_module_of_file(Path(name), "env.name"), name)
    elif ":" in name:
        found = load_object(name, "env.name")
    else:
        raise ConfigError(
            f"env.name: unknown environment '{name}'; {suggest(name, list(BUILTIN))} "
            "(your own: module:Class, or a file such as my_env.py)"
        )
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigError(f"env.name: '{name}' is not an environment: it must be a class derived from ludus.env.Env")
    return _checked_class(found, name)


def _checked_class(kind: type[Env], name: str) -> type[Env]:
    if not kind.name:
        raise ConfigError(f"env.name: {kind.__name__} in '{name}' has no name; add: name: ClassVar[str] = \"my-env\"")
    fields = {f.name for f in msgspec.structs.fields(kind)}
    if facts := sorted(fields & get_type_hints(Env).keys()):
        raise ConfigError(
            f"env.name: {kind.__name__} in '{name}' makes an option of '{facts[0]}', which is a fact about the "
            f"environment: write {facts[0]}: ClassVar[…] = …, or leave its type out"
        )
    both = fields & {f.name for f in msgspec.structs.fields(EnvSettings)}
    if both:
        raise ConfigError(
            f"env.name: {kind.__name__} in '{name}' has a field '{min(both)}', a name that Ludus uses itself; rename it"
        )
    return kind


def _only_env(module: ModuleType, name: str) -> type[Env]:
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Env) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        names = ", ".join(f"{name}:{kind.__name__}" for kind in own)
        what = f"several environments; choose one: {names}" if own else "no class derived from ludus.env.Env"
        raise ConfigError(f"env.name: {name} has {what}")
    return own[0]


def load_object(reference: str, setting: str) -> Any:
    """What `module:name` or `file.py:name` refers to."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{setting}: '{reference}' should be module:name or file.py:name")
    module = _module_of_file(Path(place), setting) if place.endswith(".py") else _module(place, setting)
    try:
        return getattr(module, name)
    except AttributeError:
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{setting}: {place} has no '{name}'; {suggest(name, known)}") from None


def _module(name: str, setting: str) -> ModuleType:
    _look_in(Path.cwd())  # as `python -m` does
    try:
        return importlib.import_module(name)
    except Exception as error:  # foreign code: whatever it raises on import is the user's to see
        raise ConfigError(f"{setting}: importing '{name}' failed:\n{_own_trace(error)}") from error


def _module_of_file(path: Path, setting: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{setting}: there is no file {path}")
    name = f"ludus_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # types are looked up there
    _look_in(path.parent)  # as `python file.py` does
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # foreign code: whatever it raises on import is the user's to see
        del sys.modules[name]
        raise ConfigError(f"{setting}: importing {path} failed:\n{_own_trace(error)}") from error
    return module


def _look_in(folder: Path) -> None:
    """Let modules in a folder be found, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _own_trace(error: Exception) -> str:
    """The traceback without the frames of the import machinery and of this file."""
    trace = traceback.TracebackException.from_exception(error)
    frames = [f for f in trace.stack if "importlib" not in f.filename and f.filename != __file__]
    trace.stack = traceback.StackSummary.from_list(frames)
    return textwrap.indent("".join(trace.format(chain=False)).rstrip(), "  ")
