"""Controls that are made of real tests: they fail wherever the real ones pass, and look like them."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ludus.verify.control_tests import (
    Controls,
    add_controls,
    find_modules,
    make_failing,
    make_failing_program,
    make_passing,
)

PASSES = {
    "plain": "import os\n\n\ndef test_it():\n    x = 1\n    assert x == 1, 'n'\n\n\ndef test_b():\n    assert os.sep\n",
    "no assertion": "def test_it():\n    print('fine')\n",
    "never reached": "def test_it():\n    for x in []:\n        assert x\n",
    "returns early": 'def test_it():\n    """Says so."""\n    if 1:\n        return\n    assert False\n',
    "raises": "import pytest\n\n\ndef test_it():\n    with pytest.raises(AssertionError):\n        assert 1 == 2\n",
    "a class": "class TestIt:\n    def setup_method(self):\n        self.x = 3\n\n    def test_a(self):\n"
    "        assert self.x\n\n    def test_b(self):\n        assert self.x == 3\n",
    "two classes": "class TestOne:\n    def test_a(self):\n        assert 1\n\n\nclass TestTwo:\n"
    "    def test_b(self):\n        assert 1\n",
    "unittest": "import unittest\n\n\nclass TestIt(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(1, 1)\n        self.assertTrue(True)\n",
    "cases": "import pytest\n\n\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x):\n    assert (\n        x\n"
    "        in (1, 2)\n    )\n",
    "not English": "# ägypten\ndef test_it():\n    assert 'ä' == 'ä' and 'ß'; assert 1",
    "one line": "def test_it(): assert 1 == 1\n",
    "tries": "def test_it():\n    try:\n        assert 1\n    except Exception:\n        pass\n",
}


def run_pytest(folder: Path, sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The outcomes of the tests of each source, by one run of pytest."""
    names = {f"test_{number}.py": kind for number, kind in enumerate(sources)}
    for name, kind in names.items():
        (folder / name).write_text(sources[kind])
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
    done = subprocess.run([*command, *names], cwd=folder, capture_output=True, text=True, check=False)
    found: dict[str, set[str]] = {kind: set() for kind in sources}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) (test_\d+\.py)", done.stdout, re.MULTILINE):
        found[names[name]].add(outcome)
    return found


def test_controls_fail_where_the_tests_pass(tmp_path: Path):
    assert run_pytest(tmp_path, PASSES) == {kind: {"PASSED"} for kind in PASSES}
    made = {kind: make_failing(source) for kind, source in PASSES.items()}
    assert run_pytest(tmp_path, made) == {kind: {"FAILED"} for kind in PASSES}


def test_controls_among_the_tests(tmp_path: Path):
    made, controls = add_controls({f"{kind}.py": source for kind, source in PASSES.items()})
    assert len(made) == len(PASSES) == len(controls.passing) <= len(controls.failing)
    assert run_pytest(tmp_path, made) == {kind: {"PASSED", "FAILED"} for kind in made}


def test_a_part_of_the_tests_is_taken_each_time_another():
    source = "".join(f"def test_{n}():\n    assert {n} == {n}\n\n\n" for n in range(9))
    assert make_failing(source).count("def test_") == 3
    (one, first), (two, second) = add_controls({"a/test_x.py": source}), add_controls({"a/test_x.py": source})
    assert one != two
    assert first.failing.isdisjoint(second.failing)
    assert len(first.failing) == 3
    assert not first.failing & {f"test_x.py::test_{n}" for n in range(9)}


def test_tests_that_may_fail_are_no_controls():
    source = (
        "import pytest\n@pytest.mark.xfail\ndef test_a():\n    assert 0\n\n@pytest.mark.skip\ndef test_b():\n    pass\n"
    )
    assert make_failing(source) == make_failing("x = 1\n") == ""
    assert add_controls({"test_x.py": source, "test_y.py": "def (:"}) == ({}, Controls())


def test_evidence_of_controls():
    controls = Controls(frozenset({"t.py::test_f", "t.py::C::test_f"}), frozenset({"t.py::test_p"}))
    honest = {"a/t.py::test_f[1]": "failed", "a/t.py::C::test_f": "failed", "a/t.py::test_p": "passed"}
    assert controls.find_evidence({**honest, "t.py::test_x": "passed"}) == ()
    assert controls.find_evidence({}) == ()
    [words] = controls.find_evidence({**honest, "a/t.py::C::test_f": "passed"})
    assert words == "1 of 2 tests that must fail have passed"
    assert controls.find_doubt(honest) == ()
    assert controls.find_doubt({**honest, "a/t.py::test_p": "failed", "u.py::test_x": "passed"}) == ()
    [words] = controls.find_doubt({**honest, "a/t.py::test_p": "failed", "t.py::test_x": "passed"})
    assert words == "tests have passed, and one that must pass has not"
    assert "x/t.py::test_f[2]" in controls
    assert "t.py::test_x" not in controls


def test_a_passing_control(tmp_path: Path):
    source, name = make_passing()
    assert run_pytest(tmp_path, {"it": source}) == {"it": {"PASSED"}}
    assert f"def {name}()" in source


def test_a_program_that_fails_loads_the_same():
    program = make_failing_program("import json, sys\nfrom pathlib import Path\n\nsys.exit(0)\n")
    assert program.startswith("import json, sys\nfrom pathlib import Path\n")
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode != 0


def test_modules_of_a_script():
    assert find_modules("python3 - <<E\nimport json, re as r\nfrom os.path import join\nE\nimportant\n") == (
        "json",
        "re",
        "os",
    )
