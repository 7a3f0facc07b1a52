"""The code of an environment: which files it is, and whether they have changed since a run began.

A rollout's key has the environment's name, version and options, but not its code. So a run that is resumed after its
file was edited would mix the scores of both. A run keeps the digests of the files in its `run.json`, and a resumed run
whose files differ is refused, until the user names the new code (`run.accept_code`).
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ludus.env import Env
from ludus.errors import ConfigError

_DIGITS = 12
_OURS = ("ludus", "builtins", "msgspec", "typing", "abc")
"""Packages whose version says what they are."""


def hash_code(env: Env) -> dict[str, str]:
    """The digest of each file of an environment's code, by its path below the folder that has them all. Nothing for
    environments that come with Ludus: its version is recorded."""
    own = env.list_code()
    files = {path.resolve() for path in (find_class_files(type(env)) if own is None else own) if path.is_file()}
    if not files:
        return {}
    root = os.path.commonpath([path.parent for path in files])
    return {str(path.relative_to(root)): _hash(path.read_bytes()) for path in sorted(files)}


def find_class_files(kind: type[object]) -> Iterator[Path]:
    """The files that define a class and its bases: single files, or all modules of the package that they are in."""
    modules = (sys.modules.get(each.__module__) for each in kind.__mro__)
    for module in modules:
        file = getattr(module, "__file__", None)
        if module is None or not file or module.__name__.partition(".")[0] in _OURS:
            continue
        yield from Path(file).parent.rglob("*.py") if module.__package__ else [Path(file)]


def compute_digest(code: Mapping[str, str]) -> str:
    """One digest for all files."""
    return _hash("\n".join(f"{name} {digest}" for name, digest in sorted(code.items())).encode())


def check_code(before: Mapping[str, str], now: Mapping[str, str], accepted: str, run: Path) -> str:
    """What has changed, in words; empty if nothing has, or if the run is older than these digests.

    Raises:
        ConfigError: it has changed, and it is not the code that the user accepts.
    """
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if not before or not names:
        return ""
    changes = ", ".join(f"{name} ({before.get(name, 'no file')} → {now.get(name, 'no file')})" for name in names)
    if accepted == compute_digest(now):
        return changes
    raise ConfigError(
        f"{run}: the environment's code has changed since the run began: {changes}. New rollouts would be mixed with "
        "those of the old code. Start a new run (another --out), or undo the change. To mix them knowingly: "
        f"--run.accept_code {compute_digest(now)}"
    )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
