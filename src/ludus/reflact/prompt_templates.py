"""Prompts: files in plain words, rendered strictly.

A prompt is a Markdown file in `prompts/`. A line `<!-- message -->` divides what the optimizer is told it is (the
system text) from what it is asked this time. `{{name}}` is a field. Rendering with a field missing or left over is an
error, and values are never read as templates. A folder given by the user overrides prompts by file name, and a folder
in it that is named like the environment those for this environment alone; each must use the same fields as ours, so
that nothing is silently no longer said. The hash of every prompt goes into the record.
"""

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from ludus.errors import ConfigError, suggest
from ludus.types import Message, canonical

_FIELD = re.compile(r"\{\{(\w+)\}\}")
_DIVIDER = re.compile(r"^<!-- message -->\n", re.MULTILINE)


class Prompts:
    """The prompts of a run, by name. Made by `load`."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    @classmethod
    def load(cls, folder: Path | None = None, env: str = "") -> "Prompts":
        """Our prompts, and in place of them those that the folder has for every environment or for this one."""
        ours = {
            path.name.removesuffix(".md"): path.read_text("utf-8")
            for path in files("ludus.reflact").joinpath("prompts").iterdir()
            if path.name.endswith(".md")
        }
        if folder is None:
            return cls(ours)
        own = folder / env
        return cls(ours | _overrides(folder, ours) | (_overrides(own, ours) if env and own.is_dir() else {}))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._texts))

    def text(self, name: str) -> str:
        return self._texts[name]

    def hash(self, name: str) -> str:
        return hashlib.sha256(self._texts[name].encode()).hexdigest()[:16]

    @property
    def digest(self) -> str:
        """Equal for equal sets of prompts."""
        return hashlib.sha256(canonical({name: self.hash(name) for name in self.names})).hexdigest()[:16]

    def part(self, name: str, /, **values: str) -> str:
        """A piece of a prompt."""
        return _rendered(name, self._texts[name].strip(), values)

    def messages(self, name: str, values: Mapping[str, str]) -> tuple[Message, Message]:
        """A prompt as a conversation to be answered."""
        system, divider, message = self._texts[name].partition("<!-- message -->\n")
        if not divider:
            raise ValueError(f"prompt {name} has no line '<!-- message -->'")
        used = fields(self._texts[name])
        _check(name, used, set(values))
        here = {side: {k: v for k, v in values.items() if k in fields(side)} for side in (system, message)}
        return (
            Message("system", _rendered(name, system.strip(), here[system])),
            Message("user", _rendered(name, message.strip(), here[message])),
        )


def fields(text: str) -> set[str]:
    """The names of the fields of a template."""
    return set(_FIELD.findall(text))


def _rendered(name: str, text: str, values: Mapping[str, str]) -> str:
    _check(name, fields(text), set(values))
    return _FIELD.sub(lambda match: values[match[1]], text)


def _check(name: str, used: set[str], given: set[str]) -> None:
    if used != given:
        missing, unused = sorted(used - given), sorted(given - used)
        raise ValueError(f"prompt {name}: fields missing {missing}, fields it does not use {unused}")


def _overrides(folder: Path, ours: Mapping[str, str]) -> dict[str, str]:
    if not folder.is_dir():
        raise ConfigError(f"prompts: {folder} is not a folder")
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*.md")):
        name = path.stem
        if name not in ours:
            raise ConfigError(f"prompts: {path} overrides no prompt; {suggest(name, list(ours))}")
        text = path.read_text("utf-8")
        if fields(text) != fields(ours[name]) or bool(_DIVIDER.search(text)) != bool(_DIVIDER.search(ours[name])):
            wanted = ", ".join(f"{{{{{field}}}}}" for field in sorted(fields(ours[name])))
            divider = " and the line '<!-- message -->'" if _DIVIDER.search(ours[name]) else ""
            raise ConfigError(f"prompts: {path} must use exactly these fields: {wanted or 'none'}{divider}")
        texts[name] = text
    return texts
