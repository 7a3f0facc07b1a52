"""Runs hidden tests with pytest inside a slot. `ludus.verify.pytest` starts it there and does not import it.

There are two processes. The runner reads the secret and the source of the tests, and removes both from the disk before
any code of the agent runs. It never imports that code. It starts the test process, which runs pytest and therefore the
agent's code, and reads one line per test phase from a pipe. When the test process has ended, it writes a report to its
own stdout, after the secret. The test process has neither the secret nor that stdout, and both processes forbid others
of the same user to read their memory and descriptors.

The first report of a test phase stands, and a second one for the same phase is tampering. A test has passed if set-up,
call and tear-down have. A test process that ends early has reported nothing.
"""

from __future__ import annotations  # the slot may have an older Python

import ast
import builtins
import json
import linecache
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    Trust = Callable[[type], bool]
    """Whether a class may have instances that equal everything."""

_NOTE_CHARS = 1500
_REPORT_BYTES = 32 * 2**20
_LINE_BYTES = 2**20
_PHASES = ("setup", "call", "teardown")
_RANK = {"passed": 0, "skipped": 1, "failed": 2}
_TESTS_FAILED = 1
"""The exit code of pytest: the control tests fail in every complete run."""
_CHECK = "@ludus_check"


# ---- the runner ---------------------------------------------------------------------------------------------------


def run_runner() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    hide_memory()
    secret = _take_file(Path(order.pop("secret")))
    order["sources"] = {name: _take_file(Path(name), leave_empty=True) for name in order.pop("hidden")}
    channel = os.dup(1)
    os.dup2(2, 1)
    reports = ReportReader()

    def announce() -> None:
        os.write(channel, f"{secret} ready\n".encode())  # no code of the agent has run so far

    exit_code = _run_tests(order, reports, announce)
    report = json.dumps(reports.summarize(exit_code)).encode()
    with os.fdopen(channel, "wb") as file:
        file.write(b"\n%b %b\n" % (secret.encode(), report))


def _take_file(path: Path, *, leave_empty: bool = False) -> str:
    """Read a file and remove it, or leave an empty one, so that nobody can read it later."""
    text = path.read_text(encoding="utf-8")
    path.unlink()
    if leave_empty:
        path.touch()
    return text


def _run_tests(order: Mapping[str, Any], reports: ReportReader, announce: Callable[[], None]) -> int:
    """Run the test process to its end and read what it reports. Returns its exit code."""
    inbox, outbox = os.pipe()
    command = [order["python"], "-I", "-B", __file__, "--tests"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(outbox,)) as child:
        os.close(outbox)
        assert child.stdin is not None
        child.stdin.write(json.dumps({**order, "outbox": outbox}).encode())
        child.stdin.close()
        os.set_blocking(inbox, False)
        is_announced, is_running = False, True
        while is_running:
            is_running = child.poll() is None  # asked first: what was written before the end is read below
            if is_running:
                select.select([inbox], [], [], 0.02)
            is_open = reports.read_from(inbox)
            if reports.is_ready and not is_announced:
                announce()
                is_announced = True
            if not is_open:
                break
        if reports.tampering:
            child.kill()  # it may wait for a reader
        return child.wait()


class ReportReader:
    """What the test process has reported. Everything in it may be forged by the agent's code."""

    def __init__(self) -> None:
        self.is_ready = False
        self.end: object = None
        self.tampering = ""
        self.phases: dict[str, dict[str, str]] = {}
        self.notes: dict[str, str] = {}
        self._rest = b""
        self._left = _REPORT_BYTES

    def read_from(self, inbox: int) -> bool:
        """Read all that has arrived. False when the pipe is closed or too much was written."""
        while self._left > 0 and len(self._rest) < _LINE_BYTES:
            try:
                data = os.read(inbox, 65_536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._left -= len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self.add(line)
        self.tampering = self.tampering or "too long a report"
        return False

    def add(self, line: bytes) -> None:
        """Add one line: `"ready"`, `["end", exit code]` or `[test, phase, outcome, note]`."""
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        if item == "ready":
            self.is_ready = True
        elif isinstance(item, list) and len(item) == 2 and item[0] == "end":  # pyright: ignore[reportUnknownArgumentType]
            self.end = item[1]  # pyright: ignore[reportUnknownMemberType]
        elif isinstance(item, list) and len(item) == 4 and all(isinstance(part, str) for part in item):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            self._add_phase(*item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            self.tampering = "a line that is no report"

    def _add_phase(self, test: str, phase: str, outcome: str, note: str) -> None:
        phases = self.phases.setdefault(test, {})
        if phase in phases or self.end is not None:
            self.tampering = f"a second report of {test}"
        phases.setdefault(phase, outcome)
        if outcome != "passed":
            self.notes.setdefault(test, note[-_NOTE_CHARS:])

    def summarize(self, exit_code: int) -> dict[str, object]:
        outcomes = {test: _find_worst(phases) for test, phases in self.phases.items()}
        is_complete = self.end == exit_code == _TESTS_FAILED
        return {
            "outcomes": outcomes,
            "notes": self.notes,
            "tampering": self.tampering,
            "ended": is_complete,
            "exit_code": exit_code,
        }


def _find_worst(phases: Mapping[str, str]) -> str:
    worst = max(phases.values(), key=lambda outcome: _RANK.get(outcome, 2))
    if worst == "passed" and any(phase not in phases for phase in _PHASES):
        return "unfinished"
    return worst if worst in _RANK else "failed"


def hide_memory() -> None:
    """Forbid other processes of the same user to read this one's memory and descriptors. Linux only, else nothing."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE; a program that is started from here has it again
    except (ImportError, OSError, AttributeError):
        pass


# ---- the test process ---------------------------------------------------------------------------------------------


def run_test_process() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    hide_memory()
    outbox = int(order["outbox"])
    os.set_inheritable(outbox, False)
    whole = sys.path[:]
    sys.path = list_outside(order["workspace"])  # a module of the agent's must not be taken for pytest
    if order["packages"]:
        sys.path.insert(0, order["packages"])
        whole.insert(0, order["packages"])
    import pytest

    sys.path = whole
    sources = SourceKeeper(order.pop("sources"))
    sources.install(_is_of_tests if order["wanted"] is None else sources.trust_repository(order))
    pytest.hookimpl(hookwrapper=True)(TestRecorder.pytest_runtest_makereport)
    pytest.hookimpl(trylast=True)(TestRecorder.pytest_collection_modifyitems)
    recorder = TestRecorder(outbox, sources, order["wanted"], order["controls"])
    recorder.send("ready")
    sys.path.append(order["workspace"])  # last: nothing there can replace the library or pytest
    exit_code = pytest.main(order["arguments"], plugins=[recorder])
    recorder.send(["end", int(exit_code)])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(exit_code))  # handlers that the agent's code has registered do not count


def list_outside(workspace: str) -> list[str]:
    """The places that modules are imported from, without those in the workspace, except the environment's own."""
    return [place for place in sys.path if not place.startswith(workspace) or place.startswith(sys.prefix)]


class TestRecorder:
    """A pytest plugin that writes each phase of each test to a pipe as soon as it is over."""

    def __init__(self, outbox: int, sources: SourceKeeper, wanted: list[str] | None, controls: list[str]) -> None:
        self._outbox = outbox
        self._controls = frozenset(controls)
        self._sources = sources
        self._wanted = None if wanted is None else set(wanted)

    def send(self, item: object) -> None:
        data = json.dumps(item).encode() + b"\n"
        while data:
            data = data[os.write(self._outbox, data) :]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out tests that nobody asked for. The ids of tests are no arguments of pytest: one that is unknown
        would end the whole run."""
        if self._wanted is not None:
            items[:] = [item for item in items if item.nodeid in self._wanted or self._is_control(item.nodeid)]

    def _is_control(self, test: str) -> bool:
        """Whether it is one of the controls, which are named without the folder of their file and without cases."""
        file, mark, name = test.partition("[")[0].partition("::")
        return file.rpartition("/")[2] + mark + name in self._controls

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._send_report(report, report.when)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._send_report(report, "collect")

    def pytest_runtest_makereport(self) -> Generator[None, None, None]:
        with self._sources.show_lines():
            yield

    def _send_report(self, report: Any, phase: str) -> None:
        note = "" if report.outcome == "passed" else str(report.longrepr)[-_NOTE_CHARS:]
        self.send([report.nodeid, phase, report.outcome, note])


class SourceKeeper:
    """Lets pytest compile the hidden tests from memory: on the disk their files are empty.

    Their lines are in `linecache` only while pytest describes a failure. Comparisons in them are checked.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)

    def trust_repository(self, order: Mapping[str, Any]) -> Trust:
        """Trust the classes of a repository that compare themselves (`known`), and those of hidden tests and installed
        packages. Tests of other projects may use values that equal everything."""
        known, workspace = frozenset(order["known"]), f"{order['workspace']}/"

        def is_trusted(kind: type) -> bool:
            owner = next((each for each in kind.__mro__ if "__eq__" in vars(each)), object)
            file = _find_source(owner)
            is_installed = file.startswith("/") and (not file.startswith(workspace) or file.startswith(sys.prefix))
            return owner.__name__ in known or file in self._sources or is_installed

        return is_trusted

    def install(self, is_trusted: Trust) -> None:
        """Let values that claim to equal everything fail, unless their class is trusted."""
        import _pytest.assertion.rewrite as rewrite

        sources = {name: text.encode() for name, text in self._sources.items()}
        rewrite_test: Any = rewrite._rewrite_test  # pyright: ignore[reportPrivateUsage]
        rewrite_asserts: Any = rewrite.rewrite_asserts

        class HeldFile(type(Path())):
            def read_bytes(self) -> bytes:
                return sources[str(self)]

        def rewrite_held(path: Path, config: Any) -> Any:
            return rewrite_test(HeldFile(path) if str(path) in sources else path, config)

        def rewrite_and_guard(tree: ast.Module, *arguments: Any) -> None:
            rewrite_asserts(tree, *arguments)
            ComparisonGuard().visit(tree)

        setattr(builtins, _CHECK, partial(check_pair, is_trusted=is_trusted))
        rewrite.rewrite_asserts = rewrite_and_guard
        if "read_bytes" in rewrite_test.__code__.co_names:
            rewrite._rewrite_test = rewrite_held  # pyright: ignore[reportPrivateUsage]
        else:  # a pytest that reads its files in another way
            for name, data in sources.items():
                Path(name).write_bytes(data)

    @contextmanager
    def show_lines(self) -> Generator[None, None, None]:
        for name, text in self._sources.items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        try:
            yield
        finally:
            for name in self._sources:
                linecache.cache.pop(name, None)


# ---- values that claim to equal everything ------------------------------------------------------------------------


class ComparisonGuard(ast.NodeTransformer):
    """Passes the operands of `==`, `!=`, `in` and `not in` to `check_pair`. For trees that pytest has rewritten: there
    the left operand of an assertion is a variable, so nothing is computed twice."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        left, operators = node.left, [type(operator) for operator in node.ops]
        if len(operators) == 1 and operators[0] in (ast.Eq, ast.NotEq, ast.In, ast.NotIn) and _is_cheap(left):
            right = node.comparators[0]
            place = right if hasattr(right, "lineno") else node
            check = ast.copy_location(ast.Name(_CHECK, ast.Load()), place)
            node.comparators = [ast.copy_location(ast.Call(check, [left, right], []), place)]
        return node


def _is_cheap(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Constant))


_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)})
_DECOYS = 20
"""A value that equals this many different random values at once equals everything."""


class _Unknown:
    """Equal to nothing but itself."""


def check_pair(left: Any, right: Any, is_trusted: Trust) -> Any:
    """Return `right`. Raises AssertionError if one of the two, or something in them, claims to equal everything."""
    _check_value(left, right, 50, is_trusted)
    _check_value(right, left, 50, is_trusted)
    return right


_Error = AssertionError  # the agent's code may replace the name


def _check_value(value: Any, other: Any, depth: int, is_trusted: Trust) -> None:
    kind = cast("type[object]", type(value))
    if kind in _PLAIN or depth == 0:
        return
    if kind in (list, tuple):
        others: Any = other if type(other) in (list, tuple) and len(other) == len(value) else None
        for index, mine in enumerate(value):
            if type(mine) not in _PLAIN:
                _check_value(mine, others[index] if others else None, depth - 1, is_trusted)
    elif kind in (set, frozenset):
        for mine in value:
            _check_value(mine, None, depth - 1, is_trusted)
    elif kind is dict:
        is_pair = bool(type(other) is dict)
        for key, mine in value.items():
            _check_value(key, None, depth - 1, is_trusted)
            _check_value(mine, other.get(key) if is_pair else None, depth - 1, is_trusted)
    elif not is_trusted(kind) and _equals_everything(value, other):
        raise _Error(f"a {kind.__name__} compares equal to every value")


def _is_of_tests(kind: type) -> bool:
    """Whether a class has its `__eq__` from the tests or from `unittest.mock`: they may use wildcards."""
    name = _find_source(kind)
    return name.startswith(str(Path(__file__).parent)) or name.endswith("/unittest/mock.py")


def _find_source(kind: type) -> str:
    """The file that the `__eq__` of a class is written in; empty if it is not written in Python."""
    code = getattr(getattr(kind, "__eq__", None), "__code__", None)
    return getattr(code, "co_filename", "")


def _equals_everything(value: Any, other: Any) -> bool:
    try:
        if value == _Unknown():
            return True
        decoys = [_make_decoy(other) for _ in range(_DECOYS)]
        return decoys[0] is not None and all(value == decoy for decoy in decoys)
    except Exception:  # arrays have no truth value; others refuse to be compared
        return False


def _make_decoy(other: Any) -> Any:
    """A random value of the same type; None if there is none."""
    number, kind = random.SystemRandom().getrandbits(60), cast("type[object]", type(other))
    for plain in (int, float, str):
        if kind is plain:
            return plain(number)
    decoys: dict[Any, Any] = {bytes: b"%d" % number, list: [number], tuple: (number,), set: {number}}
    return {number: number} if kind is dict else decoys.get(kind)


if __name__ == "__main__":
    if sys.argv[1:] == ["--tests"]:
        run_test_process()
    else:
        run_runner()
