"""A module in place of `dotenv` where that is not installed: files of Hermes load the keys of their repository with it.

Lines `NAME=value` are read, with `export` or quotes; nothing is expanded.
"""

import os
import re
from pathlib import Path
from typing import Any

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


def list_dotenv() -> dict[str, Any]:
    """What the module defines."""
    return {"load_dotenv": load_dotenv, "dotenv_values": dotenv_values, "find_dotenv": find_dotenv}


def find_dotenv(filename: str = ".env", *_: Any, **__: Any) -> str:
    """The path of the file here or in a folder above; empty if there is none."""
    here = Path.cwd()
    return next((str(each / filename) for each in (here, *here.parents) if (each / filename).is_file()), "")


def dotenv_values(dotenv_path: Any = None, *_: Any, **__: Any) -> dict[str, str]:
    """The variables of a file; none if it is not there."""
    path = Path(dotenv_path or find_dotenv() or ".env")
    lines = path.read_text("utf-8").splitlines() if path.is_file() else ()
    found = (_LINE.fullmatch(line) for line in lines)
    return {each[1]: _unquote(each[2]) for each in found if each}


def load_dotenv(dotenv_path: Any = None, *_: Any, override: bool = False, **__: Any) -> bool:
    """Set the variables of a file, unless they are set. Returns whether there are some."""
    found = dotenv_values(dotenv_path)
    for name, value in found.items():
        if override or name not in os.environ:
            os.environ[name] = value
    return bool(found)


def _unquote(text: str) -> str:
    if text[:1] in ("'", '"') and text[:1] in text[1:]:
        return text[1 : text.index(text[0], 1)]
    return text.partition(" #")[0].rstrip()
