"""Control tests: real tests that were changed so that they must fail, and plain ones that must pass.

A result that passes what must fail was not judged by the tests. So that a hostile program cannot tell a control from a
real test, it is one: the same imports, names and calls, in the author's own layout. Its assertions are negated, so
nobody knows which of the two is real who does not know what is right. Since an assertion may never be reached, each
control also has one that fails whatever happens, with values that were never used before.
"""

import ast
import random
import re
import secrets
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

_WORDS = (
    *("amount", "balance", "branch", "bucket", "choice", "column", "corner", "count", "cycle", "digest", "entry"),
    *("field", "filter", "folder", "frame", "group", "header", "index", "label", "layout", "letter", "limit"),
    *("margin", "matrix", "member", "metric", "number", "offset", "option", "order", "output", "packet", "parent"),
    *("pattern", "period", "phrase", "prefix", "record", "region", "sample", "scope", "segment", "series", "signal"),
    *("status", "stream", "suffix", "summary", "symbol", "target", "thread", "ticket", "total"),
)
_PAIRS = (
    ("assertEqual", "assertNotEqual"),
    ("assertTrue", "assertFalse"),
    ("assertIn", "assertNotIn"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
    ("assertRegex", "assertNotRegex"),
)
_OPPOSITES = {**dict(_PAIRS), **{other: name for name, other in _PAIRS}}
_SHARE = 3
"""One of so many tests becomes a control: a control must be cheap."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Edit(NamedTuple):
    """A change of a text: bytes that are replaced."""

    start: int
    end: int
    text: str


class Controls(Struct, frozen=True):
    """Tests that were added to real ones: `file::function`, or `file::Class::function`, without cases. The file is the
    last part of its path."""

    failing: frozenset[str] = frozenset()
    passing: frozenset[str] = frozenset()

    def __contains__(self, test: str) -> bool:
        return _shorten(test) in self.failing or _shorten(test) in self.passing

    def __or__(self, other: "Controls") -> "Controls":
        return Controls(self.failing | other.failing, self.passing | other.passing)

    def find_evidence(self, outcomes: Mapping[str, str]) -> tuple[str, ...]:
        """What shows that the outcomes do not depend on the tests: controls that must fail have passed."""
        forged = {_shorten(test) for test, outcome in outcomes.items() if outcome == "passed"} & self.failing
        return (f"{len(forged)} of {len(self.failing)} tests that must fail have passed",) if forged else ()

    def find_doubt(self, outcomes: Mapping[str, str]) -> tuple[str, ...]:
        """What makes the outcomes doubtful: other tests of a file have passed, and its control that must pass has
        not."""
        passed = {_shorten(test) for test, outcome in outcomes.items() if outcome == "passed"}
        files = {test.partition("::")[0] for test in passed - self.passing}
        missed = [test for test in self.passing - passed if test.partition("::")[0] in files]
        return ("tests have passed, and one that must pass has not",) if missed else ()


def _shorten(test: str) -> str:
    """The id of a test without its cases and the folder of its file."""
    file, mark, name = test.partition("[")[0].partition("::")
    return f"{file.rpartition('/')[2]}{mark}{name}"


def make_name() -> str:
    """A name as a test may have, never used before."""
    words = random.SystemRandom().sample(_WORDS, 2)
    return f"{'_'.join(words)}_{secrets.randbelow(9000) + 1000}"


def make_failing(source: str) -> str:
    """A test file that has a part of the tests of another one, changed so that each of them must fail. Empty if the
    file has no test for it.

    Raises:
        SyntaxError: the source is not Python.
    """
    tree, places = ast.parse(source), _Places(source)
    tests = [test for owner, test in _list_tests(tree) if not _is_marked(owner, test)]
    if not tests:
        return ""
    kept = {id(test) for test in random.SystemRandom().sample(tests, max(1, len(tests) // _SHARE))}
    edits: list[_Edit] = []
    for owner, test in _list_tests(tree):
        if id(test) in kept:
            edits += _fail_test(test, places, test.name)
        else:
            is_last = owner is not None and test is owner.body[-1]
            edits.append(places.remove(test, "pass" if is_last else ""))
    return places.apply(edits)


def add_controls(sources: Mapping[str, str], among: Container[str] | None = None) -> tuple[dict[str, str], Controls]:
    """Test files with controls among their tests: copies of some of them that must fail, and one that must pass.
    `among`: copy only these, `function` or `Class::function`."""
    made: dict[str, str] = {}
    failing: set[str] = set()
    passing: set[str] = set()
    for path, source in sources.items():
        try:
            text, names = _add_failing(source, among)
        except SyntaxError:
            continue
        if names:
            extra, name = make_passing()
            file, is_plain = path.rpartition("/")[2], "pytestmark" not in source
            made[path] = f"{text.rstrip()}\n\n\n{extra}" if is_plain else text
            failing |= {f"{file}::{each}" for each in names}
            passing |= {f"{file}::{name}"} if is_plain else set()
    return made, Controls(frozenset(failing), frozenset(passing))


def _add_failing(source: str, among: Container[str] | None) -> tuple[str, tuple[str, ...]]:
    """The source with copies of some of its tests that must fail, and their names."""
    tree, places = ast.parse(source), _Places(source)
    tests = [(owner, test) for owner, test in _list_tests(tree) if not _is_marked(owner, test)]
    if among is not None:
        tests = [(owner, test) for owner, test in tests if _name_test(owner, test.name) in among]
    if not tests:
        return source, ()
    edits: list[_Edit] = []
    names: list[str] = []
    for owner, test in random.SystemRandom().sample(tests, max(1, len(tests) // _SHARE)):
        name = f"test_{make_name()}"
        names.append(_name_test(owner, name))
        edits.append(places.copy(test, list(_fail_test(test, places, name)), owner))
    return places.apply(edits), tuple(names)


def _name_test(owner: ast.ClassDef | None, name: str) -> str:
    return f"{owner.name}::{name}" if owner else name


def make_plain() -> tuple[str, str, Controls]:
    """A test file of tests that must fail, for every run: its name, its text and the controls in it."""
    file, first, second = f"test_{make_name()}.py", f"test_{make_name()}", f"test_{make_name()}"
    text = f"def {first}():\n    {_make_failure()}\n\n\ndef {second}():\n    raise ValueError({make_name()!r})\n"
    return file, text, Controls(frozenset({f"{file}::{first}", f"{file}::{second}"}))


def make_passing() -> tuple[str, str]:
    """A test that must pass, and its name."""
    name, number = f"test_{make_name()}", secrets.randbelow(9000) + 1000
    return f'def {name}():\n    assert int("{number}") + 1 == {number + 1}\n', name


def make_failing_program(source: str) -> str:
    """A program that loads what another one does, and then fails.

    Raises:
        SyntaxError: the source is not Python.
    """
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = [ast.unparse(node) for node in imports]
    return "\n".join([*lines, f"raise SystemExit({secrets.randbelow(40) + 1})", ""])


def find_modules(source: str) -> tuple[str, ...]:
    """The modules that a text with Python in it imports, such as a shell script. By its lines."""
    found = re.findall(r"^\s*(?:from\s+([\w.]+)\s+import|import\s+([\w., ]+))", source, re.MULTILINE)
    names = [name.strip().split(" ")[0] for one, many in found for name in (one or many).split(",")]
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names if name))


# ---- tests in a module --------------------------------------------------------------------------------------------


def _list_tests(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, _Function]]:
    for node in tree.body:
        if isinstance(node, _Function) and node.name.startswith("test"):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            tests = [each for each in node.body if isinstance(each, _Function) and each.name.startswith("test")]
            yield from ((node, test) for test in tests)


def _is_marked(owner: ast.ClassDef | None, test: _Function) -> bool:
    """Whether it is skipped, or may fail, or is no plain function."""
    marks = [*test.decorator_list, *(owner.decorator_list if owner else ())]
    if any(word in ast.unparse(mark) for mark in marks for word in ("xfail", "skip", "expectedFailure")):
        return True
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(test))


def _fail_test(test: _Function, places: "_Places", name: str) -> Iterator[_Edit]:
    """Negate the assertions of a test, and add one that fails."""
    inner = list(_walk_own(test))
    for node in inner:
        if isinstance(node, ast.Assert):
            yield places.negate(node.test)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OPPOSITES:
            yield places.rename(node.func, node.func.attr, _OPPOSITES[node.func.attr])
    if name != test.name:
        yield places.rename_function(test, name)
    leaves = any(isinstance(node, ast.Return | ast.Try | ast.With | ast.AsyncWith) for node in inner)
    yield places.insert_first(test, _make_failure()) if leaves else places.append(test, _make_failure())


def _walk_own(test: _Function) -> Iterator[ast.AST]:
    """The nodes of a test without those of functions in it."""
    open_nodes: list[ast.AST] = list(test.body)
    while open_nodes:
        node = open_nodes.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            open_nodes += ast.iter_child_nodes(node)


def _make_failure() -> str:
    one, two = secrets.randbelow(9000) + 1000, secrets.randbelow(9000) + 20_000
    return secrets.choice(
        (
            f'assert int("{one}") + 1 == {two}',
            f'assert len("{make_name()}") == {two}',
            f'assert "{one}".zfill(6) == "{two}"',
        )
    )


class _Places:
    """Places in a source text, as offsets in its bytes."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _find(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._find(node.lineno, node.col_offset), self._find(node.end_lineno, node.end_col_offset)

    def negate(self, node: ast.expr) -> _Edit:
        start, end = self._span(node)
        text = self._data[start:end].decode()
        return _Edit(start, end, f"not ({text})")

    def rename(self, node: ast.Attribute, old: str, new: str) -> _Edit:
        _, end = self._span(node)
        return _Edit(end - len(old.encode()), end, new)

    def rename_function(self, test: _Function, name: str) -> _Edit:
        start = self._data.index(test.name.encode(), self._find(test.lineno, test.col_offset))
        return _Edit(start, start + len(test.name.encode()), name)

    def remove(self, node: _Function, instead: str) -> _Edit:
        first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
        assert node.end_lineno is not None
        text = f"{' ' * node.col_offset}{instead}\n" if instead else ""
        return _Edit(self._starts[first - 1], self._starts[node.end_lineno], text)

    def copy(self, node: _Function, edits: list[_Edit], owner: ast.ClassDef | None) -> _Edit:
        """Add a copy of a function with changes, at the end of its class or of the file."""
        first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
        assert node.end_lineno is not None
        start, end = self._starts[first - 1], self._starts[node.end_lineno]
        changed = self.apply(edits).encode()
        text = changed[start : end + len(changed) - len(self._data)].decode()
        assert owner is None or owner.end_lineno is not None
        place = len(self._data) if owner is None else self._starts[owner.end_lineno or 0]
        return _Edit(place, place, f"\n\n{text.rstrip()}\n")

    def append(self, node: _Function, text: str) -> _Edit:
        """Add a statement at the end of a function."""
        last = node.body[-1]
        _, end = self._span(last)
        if node.body[0].lineno == node.lineno:  # all of it is on one line
            return _Edit(end, end, f"; {text}")
        assert last.end_lineno is not None
        place = self._starts[last.end_lineno]
        before = "" if self._data[:place].endswith(b"\n") else "\n"
        return _Edit(place, place, f"{before}{' ' * node.body[0].col_offset}{text}\n")

    def insert_first(self, node: _Function, text: str) -> _Edit:
        start, _ = self._span(node.body[0])
        return _Edit(start, start, f"{text}\n{' ' * node.body[0].col_offset}")

    def apply(self, edits: list[_Edit]) -> str:
        """The text with these changes. One within another is left out."""
        data, limit = self._data, len(self._data) + 1
        for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
            if edit.end <= limit:
                data = data[: edit.start] + edit.text.encode() + data[edit.end :]
                limit = edit.start
        return data.decode()
