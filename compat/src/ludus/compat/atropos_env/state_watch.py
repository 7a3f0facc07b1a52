"""Watches the attributes of a file's environment object while groups run side by side.

`state_analysis` reads the code before a run. Here is what it cannot see: a group that reads an attribute which it has
written before, and finds what another group wrote there in the meantime. That group is spoiled: it is made again,
alone.
"""

import ast
import contextvars
import functools
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ludus.compat.atropos_env.state_analysis import list_updates, parse_file

_SIMPLE = (str, int, float, bool, type(None))


class Member(NamedTuple):
    """The code that runs: it belongs to a group, and takes its item or makes it."""

    group: str
    taking: bool = False


MEMBER: contextvars.ContextVar[Member | None] = contextvars.ContextVar("ludus_group_member", default=None)
"""Tasks that a file starts inherit it."""


@contextmanager
def act_as(group: str, *, taking: bool = False) -> Generator[None]:
    """What runs inside belongs to a group."""
    token = MEMBER.set(Member(group, taking))
    try:
        yield
    finally:
        MEMBER.reset(token)


class _Write(NamedTuple):
    group: str
    value: Any


class StateWatch:
    """Who wrote which attribute, and whose values were lost."""

    def __init__(self) -> None:
        self._last: dict[str, _Write] = {}
        self._written: dict[str, dict[str, Any]] = {}
        """The values of each group, by attribute."""
        self._taken: dict[str, dict[str, Any]] = {}
        """Those of them that it wrote while it took its item."""
        self.spoiled: dict[str, str] = {}
        """Groups that have read another one's value, and the attribute."""

    def note_write(self, name: str, value: Any, depth: int = 2) -> None:
        member = MEMBER.get()
        if member is None or _is_update(name, depth + 1):
            return
        self._last[name] = _Write(member.group, value)
        self._written.setdefault(member.group, {})[name] = value
        if member.taking:
            self._taken.setdefault(member.group, {})[name] = value

    def note_read(self, name: str) -> None:
        last = self._last.get(name)
        if last is None or (member := MEMBER.get()) is None or member.taking or last.group == member.group:
            return
        own = self._written.get(member.group, {})
        if name in own and not _is_same(own[name], last.value):
            self.spoiled.setdefault(member.group, name)

    def end(self, group: str) -> dict[str, Any]:
        """Forget a group. Returns what it wrote while it took its item."""
        self.spoiled.pop(group, None)
        self._written.pop(group, None)
        return self._taken.pop(group, {})


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _SIMPLE) and one == other)


def watch_object(env: object, watch: StateWatch) -> None:
    """Tell `watch` of every attribute of an object that is read or written from now on."""
    kind: Any = type(env)

    def write(self: Any, name: str, value: Any) -> None:
        kind.__setattr__(self, name, value)
        watch.note_write(name, value)

    def read(self: Any, name: str) -> Any:
        watch.note_read(name)
        return kind.__getattribute__(self, name)

    watched = type(kind.__name__, (kind,), {"__setattr__": write, "__getattribute__": read})
    watched.__module__, watched.__qualname__ = kind.__module__, kind.__qualname__
    env.__class__ = watched  # `type(env)` has its name, and all of its methods


# ---- counters and running records ----------------------------------------------------------------------------------


def _is_update(name: str, depth: int) -> bool:
    """Whether the statement that writes an attribute makes its new value of the old one, such as `self.seen += 1`."""
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    return any(first <= frame.f_lineno <= last for first, last in _list_update_lines(frame.f_code.co_filename, name))


@functools.cache
def _list_update_lines(file: str, name: str) -> list[tuple[int, int]]:
    tree = _parse(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    owners = {node.args.args[0].arg for node in functions if node.args.args}
    return [
        (statement.lineno, statement.end_lineno or statement.lineno)
        for owner in owners
        for statement, keys in list_updates(tree, owner)
        if name in keys and _writes(statement, name)
    ]


_parse = functools.cache(parse_file)


def _writes(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and each.attr == name
        for each in ast.walk(statement)
    )
