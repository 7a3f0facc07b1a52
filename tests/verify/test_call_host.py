"""Values that travel between the tests and the agent's functions, and calls of a real host."""

import collections
import math
from pathlib import Path
from typing import Any

import pytest

from ludus.verify import call_host
from ludus.verify.call_host import CallHost, Unreadable, decode, encode

VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**70),
    0.1,
    math.inf,
    2 + 3j,
    "é\n\udc80",
    b"\x00\xff",
    [1, (2, [3.5])],
    {"a": {1, 2}, (1, 2): frozenset("x")},
    collections.Counter("aab"),
    collections.OrderedDict(b=1, a=2),
    collections.deque([1]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_keep_type_and_content(value: Any):
    found = decode(encode(value))
    assert (type(found), found) == (type(value), value)


def test_iterators_are_read_and_other_objects_are_unreadable():
    assert list(decode(encode(iter([1, 2])))) == [1, 2]
    found = decode(encode(object()))
    assert isinstance(found, Unreadable)
    assert found != 3
    with pytest.raises(TypeError, match="no plain value"):
        bool(found)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    encode(deep)  # ends


@pytest.mark.parametrize(
    "wrong", [1, "x", ["int"], ["int", "no"], ["list", 3], ["dict", [1]], ["os", []], {}, ["set", [["list", []]]]]
)
def test_what_is_no_value_is_refused(wrong: Any):
    with pytest.raises(ValueError, match="not a value"):
        decode(wrong)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call_host, "_HOST", Path(call_host.__file__).read_text())
    monkeypatch.setattr(call_host, "_WORKSPACE", str(tmp_path))
    (tmp_path / "solution.py").write_text(
        "import os, time\n"
        "def add(a, b=1): return a + b\n"
        "def sort(items): items.sort(); print('noise')\n"
        "def fail(): raise KeyError('k')\n"
        "class Own(Exception): pass\n"
        "def fail_own(): raise Own('o')\n"
        "def leave(): os._exit(0)\n"
        "def hang(): time.sleep(60)\n"
        "def grow(size): return 'x' * size\n"
    )
    host = CallHost("solution", 30)
    yield host
    host.close()


def test_calls(host: CallHost):
    assert host.bind("add")(1, b=2) == 3
    items = [3, 1, 2]
    assert host.bind("sort")(items) is None
    assert items == [1, 2, 3]
    with pytest.raises(KeyError, match="k"):
        host.bind("fail")()
    with pytest.raises(RuntimeError, match="o"):
        host.bind("fail_own")()
    with pytest.raises(AttributeError, match="absent"):
        host.bind("absent")()


def test_a_host_that_ends_is_started_again(host: CallHost):
    with pytest.raises(AssertionError, match=r"ended its process \(exit code 0\)"):
        host.bind("leave")()
    assert host.bind("add")(1) == 2


def test_a_long_result_is_read_and_a_longer_one_is_refused(host: CallHost):
    assert len(host.bind("grow")(7 << 20)) == 7 << 20
    with pytest.raises(AssertionError, match="longer than 8 MB"):
        host.bind("grow")(40 << 20)
    assert host.bind("add")(1) == 2


def test_a_call_that_takes_too_long_fails(tmp_path: Path, host: CallHost):
    host.seconds = 0.0
    with pytest.raises(AssertionError, match="did not return within 0 s"):
        host.bind("hang")()


def test_a_module_that_cannot_be_imported_fails_each_call(tmp_path: Path, host: CallHost):
    (tmp_path / "solution.py").write_text("import nothing_of_this_name")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            host.bind("add")(1)


FORGE = """
import os
def forge():
    for fd in range(3, 200):
        try: os.write(fd, b'1\\n2\\n')
        except OSError: pass
def add(a, b): return a + b
"""


def test_forged_replies_do_not_reach_later_calls(tmp_path: Path, host: CallHost):
    (tmp_path / "solution.py").write_text(FORGE)
    with pytest.raises(AssertionError, match="something else than a result"):
        host.bind("forge")()
    assert host.bind("add")(1, 2) == 3
