"""`ludus new`: create a package for an environment of your own, which passes `ludus validate` as it is.

The files of the package are in `cli/new_env`, with `$name`, `$title`, `$module` and `$class_name` in place of its
names. What is there already is never written over.
"""

import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from ludus.arguments import Arguments, make_argument
from ludus.command import Command
from ludus.config.references import ENV
from ludus.errors import ConfigError

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    "src/$module/__init__.py": "init.py.txt",
    "src/$module/env.py": "env.py.txt",
    "tests/test_env.py": "test_env.py.txt",
}
"""The files of a package, and their templates."""


class NewArguments(Arguments):
    kind: Literal["env"]
    name: str
    folder: str | None


def run(arguments: NewArguments) -> int:
    name = arguments.name
    _check_name(name)
    folder = Path(arguments.folder or name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: name another one with --folder")
    written = write_package(folder, name)
    print(f"{folder}: a package with the environment '{name}'")
    for path in written:
        print(f"  {path}")
    module = name.replace("-", "_")
    print(
        "\nnext:\n"
        f"  ludus validate {folder}/src/{module}/env.py       every task can be solved, and is scored right\n"
        f"  pip install -e '{folder}[dev]'       then `ludus validate {name}` and `pytest {folder}`\n"
        "  the guide: docs/environments.md"
    )
    return 0


def write_package(folder: Path, name: str) -> list[Path]:
    """Write the files of a package. Returns their paths."""
    module = name.replace("-", "_")
    words = {
        "name": name,
        "module": module,
        "title": name.replace("-", " ").capitalize(),
        "class_name": "".join(part.capitalize() for part in module.split("_")),
    }
    templates = files("ludus.cli") / "new_env"
    written: list[Path] = []
    for place, template in FILES.items():
        path = folder / Template(place).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((templates / template).read_text(encoding="utf-8")).substitute(words))
        written.append(path)
    return written


def _check_name(name: str) -> None:
    """Raise `ConfigError` if the name cannot be that of an environment, a package and a module."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(
            f"'{name}': use lower-case letters, digits and single hyphens, as in: ludus new env word-games"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("ludus", "tests"):
        raise ConfigError(f"'{name}' is the name of a module of Python or Ludus: choose another one")
    if name in ENV.list_names():
        raise ConfigError(f"there is an environment '{name}' already (ludus envs): choose another name")


COMMAND = Command(
    run,
    "ludus new env word-games\nludus validate word-games/src/word_games/env.py",
    (
        make_argument("kind", choices=["env"], help="what to create: an environment"),
        make_argument("name", metavar="NAME", help="its name: lower-case letters, digits and hyphens"),
        make_argument("--folder", metavar="DIR", help="the folder of the package; default: NAME"),
    ),
    NewArguments,
)
