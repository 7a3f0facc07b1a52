"""Prompts: Markdown files with fields, rendered strictly.

A prompt is a Markdown file in `prompts/`. A line `<!-- message -->` separates the system text from the user message.
`{{name}}` is a field. A missing or unused value is an error, and values are never read as templates. A folder given by
the user overrides prompts by file name. A subfolder with the name of the environment overrides them for this
environment only. An override must use the same fields as the original, so that nothing is lost unnoticed. The hash of
every prompt is recorded.
"""

import hashlib
import re
from collections.abc import Mapping, Set
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from ludus.encoding import canonical
from ludus.errors import ConfigError, suggest
from ludus.types import Message
from ludus.whole_files import read_whole_text

_FIELD = re.compile(r"\{\{(\w+)\}\}")
_LEDGER_PROMPTS = frozenset({"analyst_lines"})
"""The prompts of the recipe `ledger`. They are no part of the identity of other runs."""
PACKAGE_PROMPTS = ("item_files", "line_pointer")
"""The prompts of skill packages, which have a place of their own in the identity of their runs."""
PLAIN_PROMPT = "plain_rule"
"""The prompt of the proposer `plain`. Prompts of single proposers (`Proposer.own_prompts`) are apart, too."""
_APART = (*PACKAGE_PROMPTS, PLAIN_PROMPT)
_DIVIDER = re.compile(r"^<!-- message -->\n", re.MULTILINE)


class Prompts:
    """The prompts of a run, by name. Create them with `load`."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    @classmethod
    def load(cls, folder: Path | None = None, env: str = "") -> "Prompts":
        """The default prompts, with the overrides that the folder has for all environments and for this one."""
        ours = {
            path.name.removesuffix(".md"): path.read_text("utf-8")
            for path in files("ludus.reflact").joinpath("prompts").iterdir()
            if path.name.endswith(".md")
        }
        if folder is None:
            return cls(ours)
        own = folder / env
        return cls(ours | _read_overrides(folder, ours) | (_read_overrides(own, ours) if env and own.is_dir() else {}))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._texts))

    def get_text(self, name: str) -> str:
        return self._texts[name]

    def get_hash(self, name: str) -> str:
        return hashlib.sha256(self.get_text(name).encode()).hexdigest()[:16]

    def compute_digest(self, recipe: str = "reflact", support: str = "named") -> str:
        """A hash of the prompts that a recipe may use. Runs of earlier versions did not ask for the origin of items."""
        names = [name for name in self.names if recipe == "ledger" or name not in _LEDGER_PROMPTS]
        names = [name for name in names if name not in _APART and (support == "named" or name != "origins")]
        return hashlib.sha256(canonical({name: self.get_hash(name) for name in names})).hexdigest()[:16]

    def render_part(self, name: str, /, **values: str) -> str:
        """Render a prompt that is a part of another one."""
        return _render(name, self._texts[name].strip(), values)

    def render_messages(self, name: str, values: Mapping[str, str]) -> tuple[Message, Message]:
        """Render a prompt as a system message and a user message."""
        system, divider, message = self._texts[name].partition("<!-- message -->\n")
        if not divider:
            raise ValueError(f"prompt {name} has no line '<!-- message -->'")
        used = find_fields(self._texts[name])
        _check_fields(name, used, set(values))
        here = {side: {k: v for k, v in values.items() if k in find_fields(side)} for side in (system, message)}
        return (
            Message("system", _render(name, system.strip(), here[system])),
            Message("user", _render(name, message.strip(), here[message])),
        )


@lru_cache(maxsize=256)  # of the same few templates for every request
def find_fields(text: str) -> frozenset[str]:
    """The names of the fields of a template."""
    return frozenset(_FIELD.findall(text))


def _render(name: str, text: str, values: Mapping[str, str]) -> str:
    _check_fields(name, find_fields(text), set(values))
    return _FIELD.sub(lambda match: values[match[1]], text)


def _check_fields(name: str, used: Set[str], given: Set[str]) -> None:
    if used != given:
        missing, unused = sorted(used - given), sorted(given - used)
        raise ValueError(f"prompt {name}: fields missing {missing}, fields that it does not use {unused}")


def _read_overrides(folder: Path, ours: Mapping[str, str]) -> dict[str, str]:
    if not folder.is_dir():
        raise ConfigError(f"train.prompts: {folder} is not a folder")
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*.md")):
        name = path.stem
        if name not in ours:
            raise ConfigError(f"train.prompts: {path} does not have the name of a prompt; {suggest(name, list(ours))}")
        try:
            text = read_whole_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"train.prompts: {path} cannot be read: {error}") from None
        if find_fields(text) != find_fields(ours[name]) or bool(_DIVIDER.search(text)) != bool(
            _DIVIDER.search(ours[name])
        ):
            wanted = ", ".join(f"{{{{{field}}}}}" for field in sorted(find_fields(ours[name])))
            divider = " and the line '<!-- message -->'" if _DIVIDER.search(ours[name]) else ""
            raise ConfigError(f"train.prompts: {path} must use exactly these fields: {wanted or 'none'}{divider}")
        texts[name] = text
    return texts
