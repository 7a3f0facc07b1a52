"""Imports a file as its author starts it: `python FILE.py`, or `python -m folder.file` in the root of its repository.

A file that imports from its own package (`from .data import load`) is a module of that package, whose name is the path
from the root of the repository. Any other file is a module of its own. Both find the modules beside them, and those of
the repository.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""What the root of a repository has."""


@contextmanager
def import_file(path: Path) -> Generator[ModuleType]:
    """The module of a file. What was added to the paths and modules of Python is taken away at the end."""
    root = find_root(path)
    in_package = _has_relative_imports(path)
    name = ".".join(path.relative_to(root).with_suffix("").parts) if in_package else f"ludus_file_{path.stem}"
    top, before = name.partition(".")[0], set(sys.modules)
    added = [str(place) for place in (path.parent, root) if str(place) not in sys.path]
    sys.path += added
    try:
        yield _import_in_package(name, path, root) if in_package else _execute(_make_spec(name, path))
    finally:
        for place in added:
            if place in sys.path:
                sys.path.remove(place)
        for each in set(sys.modules) - before:
            if each.partition(".")[0] == top:
                del sys.modules[each]


def find_root(path: Path) -> Path:
    """The root of a file's repository. Without one: the folder that holds the file's package."""
    marked = next((folder for folder in path.parents if any((folder / mark).exists() for mark in MARKS)), None)
    if marked is not None and marked != path.parent:
        return marked
    folder = path.parent
    while (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder.parent


def _has_relative_imports(path: Path) -> bool:
    """Whether a file cannot be imported on its own. An import that the file tries and does without does not count."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # importing it tells what is wrong
        return False
    return any(isinstance(line, ast.ImportFrom) and line.level for line in body)


def _import_in_package(name: str, path: Path, root: Path) -> ModuleType:
    """The file as a module of its package. The package may have imported it already."""
    top, package = name.partition(".")[0], name.rpartition(".")[0]
    if top not in sys.modules:
        spec = PathFinder.find_spec(top, [str(root)])
        if spec is not None:
            _execute(spec)
    importlib.import_module(package)
    return sys.modules.get(name) or _execute(_make_spec(name, path))


def _make_spec(name: str, path: Path) -> ModuleSpec:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    return spec


def _execute(spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # types are looked up there
    if spec.loader is not None:  # a folder without __init__.py has none
        spec.loader.exec_module(module)
    return module
