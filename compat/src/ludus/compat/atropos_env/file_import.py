"""Imports a file as its author starts it: `python FILE.py`, or `python -m folder.file` in the root of its repository.

A file that imports from its own package (`from .data import load`) is a module of that package, whose name is the path
from the root of the repository. If its relative imports mean modules that are provided (`from ..agent import …` in
`atropos.envs`), it is a module of that package. Any other file is a module of its own. All find the modules beside
them, and those of the repository.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Generator, Iterable, MutableSequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose modules have another name."""
MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""What the root of a repository has."""


@contextmanager
def import_file(path: Path, package: str = "") -> Generator[ModuleType]:
    """The module of a file. What was added to the paths and modules of Python is taken away at the end.

    `package`: a package that is there already, to which relative imports of the file may refer.
    """
    relative, root = _list_relative_imports(path), find_root(path)
    is_provided = bool(package) and any(_is_loaded(each, package) for each in relative)
    name = f"ludus_file_{path.stem}"
    if is_provided:
        name = f"{package}.{name}"
    elif relative:
        name = ".".join(path.relative_to(root).with_suffix("").parts)
    top, before = name.partition(".")[0], set(sys.modules)
    with (
        _extend(sys.path, (path.parent, root)),
        _extend(sys.modules[package].__path__ if is_provided else [], (path.parent,)),
    ):
        try:
            yield _import_in_package(name, path, root) if relative else _execute(_make_spec(name, path))
        finally:
            for each in set(sys.modules) - before:
                if each.partition(".")[0] == top:
                    del sys.modules[each]


@contextmanager
def _extend(places: MutableSequence[str], folders: Iterable[Path]) -> Generator[None]:
    """Have the folders at the end of a list of places inside the block."""
    added = [str(folder) for folder in folders if str(folder) not in places]
    places.extend(added)
    try:
        yield
    finally:
        for place in added:
            if place in places:
                places.remove(place)


def _is_loaded(name: str, package: str) -> bool:
    """Whether a relative import in a package means a module that is there."""
    try:
        return resolve_name(name, package) in sys.modules
    except ImportError:  # it leads out of the package
        return False


def find_root(path: Path) -> Path:
    """The root of a file's repository. Without one: the folder that holds the file's package."""
    marked = next((folder for folder in path.parents if any((folder / mark).exists() for mark in MARKS)), None)
    if marked is not None and marked != path.parent:
        return marked
    folder = path.parent
    while (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder.parent


def _list_relative_imports(path: Path) -> list[str]:
    """What a file imports from its package: `.data`, `..agent`. An import that the file tries and does without does not
    count."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # importing it tells what is wrong
        return []
    found = [line for line in body if isinstance(line, ast.ImportFrom) and line.level]
    return ["." * line.level + (line.module or line.names[0].name) for line in found]


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


def name_package(error: BaseException) -> str:
    """How to get the package that a file lacks, as a line; empty if the error is another one. Modules that are provided
    for files are no packages: a part that is missing is not here."""
    missing = _find_missing(error)
    if missing is None or not missing.name:
        return ""
    top = missing.name.partition(".")[0]
    if top == "atroposlib":
        return f"\n  '{missing.name}' is not provided here; the package atroposlib may have it: pip install atroposlib"
    if top in sys.modules and top != missing.name:
        hint = "; the package atroposlib may have it: pip install atroposlib" if top == "atroposlib" else ""
        return f"\n  '{missing.name}' is not here: '{top}' has other modules{hint}"
    return f"\n  the file needs a package: pip install {PACKAGES.get(top, top)}"


def _find_missing(error: BaseException | None) -> ModuleNotFoundError | None:
    """The missing module that an error is about. Files may raise another error in its place."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ModuleNotFoundError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
