"""Calls the agent's functions in a process of their own, inside a slot. `ludus.verify.function_tests` puts this text
before the hidden tests and does not import it.

The tests run in one process, the agent's code in another one: the host. A call is one line to the host, its result is
one line back. Both hold plain values only (numbers, text, lists, dicts, …), so what the host sends can be wrong but
cannot do anything. The host sees the arguments of the calls and nothing else: neither the expected values nor the
source of the tests.

A list, dict or set that the function changes is changed for the test as well. An exception of the function is raised in
the test, with the same type if it is a built-in one. Any other object becomes an `Unreadable`, which equals nothing.
"""

from __future__ import annotations  # the slot may have an older Python

import builtins
import collections
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_DEPTH = 100
_ITEMS = 200_000
_LINE_BYTES = 8 * 2**20
"""The longest result: decoding takes a second for a few megabytes, of the time of the tests."""
_WORKSPACE = "/workspace"
_HOST = ""
"""The text of this file. `ludus.verify.function_tests` sets both."""


class Unreadable:
    """A value of the agent's that is not plain."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<an object of type {self._name}>"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is no plain value")


# ---- values -------------------------------------------------------------------------------------------------------


def encode(value: Any, depth: int = _DEPTH) -> Any:
    """A value as JSON. Types are kept: `[tag, content]`."""
    if depth == 0:
        return ["object", "a value that is nested too deeply"]
    if value is None or value is True or value is False:
        return value
    for kind, tag in ((int, "int"), (float, "float"), (complex, "complex"), (str, "str"), (bytes, "bytes")):
        if isinstance(value, kind):
            return [tag, _encode_plain(tag, value)]
    items: Any = value
    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            items = list(map(list, items.items())) if issubclass(kind, dict) else items
            return [kind.__name__, [encode(item, depth - 1) for item in items]]
    if isinstance(value, (Iterator, range)):
        return ["iterator", [encode(item, depth - 1) for item in itertools.islice(items, _ITEMS)]]
    return ["object", type(items).__name__]


_COLLECTIONS: tuple[Any, ...] = (
    *(collections.Counter, collections.OrderedDict, collections.deque),
    *(list, tuple, dict, set, frozenset),
)
"""The more special ones first. `defaultdict` and named tuples become their base type, to which they are equal."""


def _encode_plain(tag: str, value: Any) -> Any:
    if tag == "int":
        return hex(int(value))
    if tag == "float":
        return float.hex(value)
    if tag == "complex":
        return [float.hex(value.real), float.hex(value.imag)]
    return str(value) if tag == "str" else value.hex()


def decode(item: Any) -> Any:
    """The value that `encode` was given. Raises ValueError for anything else."""
    if item is None or item is True or item is False:
        return item
    try:
        tag, content = item
        if tag == "int":
            return int(content, 16)
        if tag == "float":
            return float.fromhex(content)
        if tag == "complex":
            return complex(float.fromhex(content[0]), float.fromhex(content[1]))
        if tag == "str":
            return str(content)
        if tag == "bytes":
            return bytes.fromhex(content)
        if tag == "object":
            return Unreadable(str(content))
        values = [decode(each) for each in content]
        if tag == "iterator":
            return iter(values)
        kind: Any = {each.__name__: each for each in _COLLECTIONS}[tag]
        return kind(dict(values) if hasattr(kind, "items") else values)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a value: {error}") from None


# ---- the side of the tests ----------------------------------------------------------------------------------------


class CallHost:
    """The process that has imported the agent's module. The first call starts it, and so does a call after its end."""

    def __init__(self, module: str, seconds: float) -> None:
        self._module = module
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._replies = -1
        self._rest = b""

    def bind(self, name: str) -> Callable[..., Any]:
        """A function that calls the agent's function of this name."""

        def call(*arguments: Any, **named: Any) -> Any:
            return self._call(name, arguments, named)

        call.__name__ = name
        return call

    def _call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        line = json.dumps([name, [encode(each) for each in arguments], {k: encode(v) for k, v in named.items()}])
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # it has ended; there will be no reply
        reply = self._read_reply(process, time.monotonic() + self.seconds)
        try:
            outcome, value, changed = json.loads(reply)
            value, changed = decode(value), [decode(each) for each in changed]
        except (ValueError, TypeError, RecursionError):
            self.close()  # what else it wrote is not the result of a later call
            raise AssertionError("the function's process wrote something else than a result") from None
        for argument, now in zip(arguments, changed):  # noqa: B905  # `strict` is newer than Python 3.8
            _change_in_place(argument, now)
        if outcome == "raised":
            kind, message = value
            error = getattr(builtins, str(kind), None)
            is_error = isinstance(error, type) and issubclass(error, Exception)
            raise (error if is_error and error else RuntimeError)(message)
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        inbox, outbox = os.pipe()
        command = [
            sys.executable,
            "-I",
            "-B",
            "-c",
            f"{_HOST}\n_WORKSPACE = {_WORKSPACE!r}\nserve_calls({self._module!r}, {outbox})\n",
        ]
        self.close()
        self._replies, self._rest = inbox, b""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(outbox,), cwd=_WORKSPACE
        )
        os.close(outbox)
        self._process = process
        return process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            os.close(self._replies)
            self._process, self._replies = None, -1

    def _read_reply(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                process.kill()
                process.wait()
                raise AssertionError(f"the function did not return within {self.seconds:g} s")
            data = os.read(self._replies, 65_536)
            if not data:
                process.kill()
                code = process.wait()
                raise AssertionError(f"the function ended its process (exit code {code})")
            parts.append(data)
            size += len(data)
            if size > _LINE_BYTES:
                self.close()
                raise AssertionError(f"the function's result is longer than {_LINE_BYTES // 2**20} MB")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _change_in_place(argument: Any, now: Any) -> None:
    if type(argument) is not type(now) or type(argument) not in (list, dict, set) or argument == now:
        return
    argument.clear()
    (argument.extend if hasattr(argument, "extend") else argument.update)(now)


# ---- the side of the agent's code ---------------------------------------------------------------------------------


def serve_calls(module: str, outbox: int) -> None:
    """Import the agent's module and answer calls until the tests end."""
    import importlib

    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(outbox, False)
    sys.path.append(_WORKSPACE)
    sys.argv = [module]
    loaded: Any = None
    failure: Any = None
    try:
        loaded = importlib.import_module(module)
    except BaseException as error:  # code of the agent
        failure = error
    for line in requests:
        name, arguments, named = json.loads(line)
        arguments = [decode(each) for each in arguments]
        try:
            if failure is not None:
                raise failure
            value = getattr(loaded, name)(*arguments, **{key: decode(each) for key, each in named.items()})
            reply: list[Any] = ["returned", encode(value), [encode(each) for each in arguments]]
        except BaseException as error:  # code of the agent
            reply = ["raised", encode([type(error).__name__, str(error)[:2000]]), []]
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(outbox, data) :]
