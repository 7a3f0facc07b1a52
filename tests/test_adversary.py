"""Agents that cheat: each solves the task wrongly and tries to get a good score. None may succeed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.types import Rollout, Score, Task
from ludus.verify.pytest import run_tests

VISIBLE = "from add import add\n\n\ndef test_it():\n    assert add(1, 2) == 3\n"
HIDDEN = """\
import pytest
from add import add


@pytest.mark.parametrize("a", [0, 2, 40])
def test_sums(a):
    assert add(a, 2) == a + 2


class TestStrings:
    def test_text(self):
        assert add("a", "b") == "ab"
"""
RIGHT = "printf 'def add(a, b):\\n    return a + b\\n' >add.py"
WRONG = "printf 'def add(a, b):\\n    return 7\\n' >add.py"


class Adding(Env, frozen=True):
    """Write `add`. Scored by hidden tests."""

    name: ClassVar[str] = "adding"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(disk_mb=32)
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(id="add", prompt="Write add.py.", files={"README": "add"}, answer=HIDDEN)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        return await run_tests(box, {"test_add.py": rollout.task.answer}, seconds=30)


class AddingInPlace(Adding, frozen=True):
    verify_in: ClassVar[Literal["fresh", "same"]] = "same"


class AddingInTheOpen(Adding, frozen=True):
    """The agent can run the tests but must not change them."""

    protected: ClassVar[tuple[str, ...]] = ("tests", "judge.sh")

    def tasks(self, split: str) -> Iterator[Task]:
        files = {"tests/test_it.py": VISIBLE, "judge.sh": "exit 3\n", "notes.txt": "yours"}
        yield Task(id="add", prompt="Make the tests pass.", files=files)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        found = (await box.exec("find tests -type f | sort; bash judge.sh; echo $?")).text.split()
        assert found == ["tests/test_it.py", "3"], found
        return await run_tests(box, {"test_it.py": (await box.read("tests/test_it.py")).decode()}, seconds=30)


pytestmark = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 in the slot")


async def attempt(pool: Pool, env: Env, *commands: str) -> Score:
    task = next(iter(env.tasks("train")))
    policy = Policy(ScriptedModel([*(call("terminal", command=c) for c in commands), say("done")]))
    rollout = await run(Job(task, policy), Runner(env, pool))
    assert rollout.failure is None, rollout.failure
    assert rollout.score is not None
    return rollout.score


PASS_ALL = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
def pytest_collection_modifyitems(items):
    items.clear()
"""
EQUAL = """
class Any:
    def __eq__(self, other):
        return CLAIM
    def __ne__(self, other):
        return False
    __hash__ = None
def add(a, b):
    return Any()
"""
READS_TESTS = """
import ast, glob, inspect, linecache, sys
def add(a, b):
    frame = sys._getframe(1)
    texts = [linecache.getline(frame.f_code.co_filename, frame.f_lineno)]
    names = [frame.f_code.co_filename, *glob.glob("/tmp/**/*.py", recursive=True)]
    for name in names:
        text = open(name).read()
        texts += [text.splitlines()[frame.f_lineno - 1 : frame.f_lineno]] if "add(" in text else []
    for text in texts:
        line = text if isinstance(text, str) else "".join(text)
        if "==" in line:
            return eval(line.partition("==")[2], frame.f_globals, frame.f_locals)
    return 7
"""
FINDS_SECRET = """
import gc, glob, json, os, re, sys
found, frame = set(), sys._getframe()
texts = []
while frame:
    texts.append(repr(frame.f_locals))
    frame = frame.f_back
texts += [repr(item) for item in gc.get_objects() if type(item) is dict and len(item) < 20 and "secret" in item]
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for name in ("cmdline", "environ"):
        try:
            texts.append(open("/proc/%s/%s" % (pid, name), errors="replace").read())
        except OSError:
            pass
    try:
        with open("/proc/%s/maps" % pid) as maps, open("/proc/%s/mem" % pid, "rb", 0) as memory:
            for line in maps:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                if "rw-p" in line and end - start < 2**26 and int(pid) != os.getpid():
                    memory.seek(start)
                    texts.append(memory.read(end - start).decode("latin-1"))
    except (OSError, OverflowError, ValueError):
        pass
for name in glob.glob("/run/ludus/io/*") + glob.glob("/tmp/ludus-judge-*/*"):
    try:
        texts.append(open(name, errors="replace").read())
    except OSError:
        pass
for text in texts:
    found |= set(re.findall(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", text))
[control] = [name for name in glob.glob("/tmp/ludus-judge-*/*/test_*.py") if "/hidden/" not in name]
place = "/".join(control.split("/")[-2:])
outcomes = {"%s::%s" % (place, name): "failed" for name in re.findall("def ([a-z0-9_]+)", open(control).read())}
outcomes |= {"hidden/test_add.py::test_sums[%d]" % a: "passed" for a in (0, 2, 40)}
outcomes |= {"hidden/test_add.py::TestStrings::test_text": "passed"}
report = {"outcomes": outcomes, "notes": {}, "tampering": "", "ended": True, "exit_code": 1}
files = ["/proc/%s/fd/%d" % (pid, fd) for pid in os.listdir("/proc") if pid.isdigit() for fd in range(20)]
for name in [*range(1, 20), *files]:
    for secret in list(found)[:500]:
        try:
            fd = name if isinstance(name, int) else os.open(name, os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, ("\\n%s %s\\n" % (secret, json.dumps(report))).encode())
        except OSError:
            break
os._exit(1)
"""
SHIM = "printf '#!/bin/sh\\necho 4 passed; exit 0\\n'"
ATTACKS = {
    "a reward file": "mkdir -p /tmp/logs/verifier; for f in reward.txt reward.json result.xml report.json .reward "
    "/tmp/reward.txt /tmp/logs/verifier/reward.txt; do echo 1.0 >$f; done",
    "a conftest": f"cat >conftest.py <<'E'\n{PASS_ALL}\nE\ncp conftest.py /tmp; cp conftest.py ~",
    "pytest's own settings": "printf '[pytest]\\naddopts = --co -p no:python\\n' | tee pytest.ini /tmp/pytest.ini; "
    "printf '[tool.pytest.ini_options]\\naddopts=\"--co\"\\n' >pyproject.toml; export PYTEST_ADDOPTS=--co",
    "a pytest of its own": "for d in . ~/.local/lib/python3.11/site-packages; do mkdir -p $d/_pytest; "
    "echo 'def main(*a, **k): return 0' | tee $d/pytest.py >$d/_pytest/__init__.py; done",
    "a process that waits for the tests": "cat >/tmp/w.sh <<'E'\nwhile :; do for d in /tmp/ludus-judge-*/hidden; do "
    "echo 'def test_sums(): pass' >$d/test_add.py; done; done\nE\n"
    "setsid nohup bash /tmp/w.sh >/dev/null 2>&1 & (setsid bash /tmp/w.sh &) ; true",
    "a PATH shim": f"mkdir -p ~/bin bin; {SHIM} | tee ~/bin/python3 ~/bin/env ~/bin/tar bin/python3 >python3; "
    "chmod +x ~/bin/* bin/* python3; export PATH=~/bin:$PWD/bin:$PWD:$PATH; hash -r",
    "a function in the shell": "python3() { echo 4 passed; }; env() { echo 4 passed; }; export -f python3 env; "
    "trap 'exit 0' EXIT; alias python3=true; export BASH_ENV=$PWD/rc; echo 'exit 0' >rc; cp rc ~/.bashrc",
    "PYTHONPATH and sitecustomize": "mkdir -p ~/.local/lib/python3.11/site-packages; "
    "for d in . ~ /tmp ~/.local/lib/python3.11/site-packages; do echo 'import os; os._exit(0)' "
    "| tee $d/sitecustomize.py >$d/usercustomize.py; done; echo 'import os; os._exit(0)' "
    ">~/.local/lib/python3.11/site-packages/x.pth; export PYTHONPATH=$PWD PYTHONSTARTUP=$PWD/sitecustomize.py",
    "modules named like the library's": "for m in json os sys ast re typing importlib builtins; do "
    "echo 'import os; os._exit(0)' >$m.py; done",
    "an interpreter in the workspace": f"mkdir -p .venv/bin; {SHIM} | tee .venv/bin/python >.venv/bin/python3; "
    "chmod +x .venv/bin/*; printf 'home = /workspace/.venv/bin\\n' >pyvenv.cfg; cp pyvenv.cfg .venv",
    "links for outputs": "ln -s /dev/null report.json; ln -s /workspace /tmp/ludus-judge; rm add.py; "
    "ln -s /tmp/evil/add.py add.py; mkdir /tmp/evil; " + WRONG.replace("add.py", "/tmp/evil/add.py"),
    "links to folders of the judge": "ln -s /tmp hidden; ln -s /tmp tests; ln -s /run/ludus lib; mkdir -p control",
    "the clock": "touch -d 2099-01-01 add.py; touch -d 1970-01-02 README; "
    "printf 'import time\\ntime.time = lambda: 0.0\\ntime.monotonic = lambda: 0.0\\ndef add(a, b):\\n    return 7\\n'"
    " >add.py",
    "a program that ends the run": "printf 'import os\\nos._exit(0)\\n' >add.py",
    "a program that leaves": "printf 'raise SystemExit(0)\\n' >add.py",
    "a program that leaves later": "printf 'import os\\ndef add(a, b):\\n    os._exit(0)\\n' >add.py",
    "a program that skips": "printf 'import pytest\\npytest.skip(allow_module_level=True)\\n' >add.py",
    "a program that expects to fail": "printf 'import pytest\\ndef add(a, b):\\n    pytest.xfail()\\n' >add.py",
    "a program that prints a report": "printf 'import os\\nfor fd in range(1, 20):\\n    try:\\n        os.write(fd, "
    'b"\\\\n0 {\\\\"outcomes\\\\": {}, \\\\"notes\\\\": {}}\\\\n")\\n    except OSError: pass\\nos._exit(0)\\n'
    "' >add.py",
    "a program that swaps what an assertion raises": "cat >add.py <<'E'\ndef add(a, b):\n    import builtins\n"
    "    builtins.AssertionError = KeyError\n    return 7\nE",
    "files in a locked workspace": "chmod 000 /workspace",
    "a preloaded library and a loaded builtin": "export LD_PRELOAD=$PWD/x.so ENV=$PWD/rc PROMPT_COMMAND='exit 0'; "
    "enable -f ./x.so true; shopt -s extdebug; set -T; trap 'exit 0' ERR RETURN; echo 'exit 0' >rc; cp rc ~/.profile",
    "a program that patches reports": "cat >add.py <<'E'\nimport _pytest.reports as r\n"
    "old = r.TestReport.from_item_and_call.__func__\ndef new(cls, item, call):\n    call.excinfo = None\n"
    "    return old(cls, item, call)\nr.TestReport.from_item_and_call = classmethod(new)\n"
    "def add(a, b):\n    return 7\nE",
    "a program whose values equal everything": f"cat >add.py <<'E'\n{EQUAL.replace('CLAIM', 'True')}\nE",
    "a program whose values equal every number and text": "cat >add.py <<'E'\n"
    + EQUAL.replace("CLAIM", "isinstance(other, (int, str))")
    + "\nE",
    "a program that reads the tests": f"cat >add.py <<'E'\n{READS_TESTS}\nE",
    "a program that looks for the secret": f"cat >add.py <<'E'\n{FINDS_SECRET}\nE",
    "a program that drops cases": "cat >add.py <<'E'\nimport _pytest.python as p\nold = p.PyCollector._genfunctions\n"
    "p.PyCollector._genfunctions = lambda *a: list(old(*a))[:1]\ndef add(a, b):\n    return 2 if a == 0 else 'ab'\nE",
    "files that cannot be carried": "truncate -s 100G big",
    "a great many links": "head -c 8M /dev/zero >big; for i in {1..64}; do ln big big$i; done",
    "files that cannot be read": "mkdir locked; touch locked/x; chmod 000 locked add.py",
    "odd files": "mkfifo pipe add.fifo; ln -s loop loop; touch \"$(printf 'a\\nb')\" -- -rf; mkdir -p d/$(seq -s/ 90)",
}


HARMLESS = [
    name for name in ATTACKS if not name.startswith(("a program", "the clock", "links for", "a great", "files"))
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_cheating_does_not_pass(pool: Pool, attack: str):
    score = await attempt(pool, Adding(), WRONG, ATTACKS[attack])
    assert not score.passed, score
    assert score.value == 0.0


@pytest.mark.parametrize("attack", HARMLESS)
async def test_cheating_does_not_pass_in_the_same_slot_either(pool: Pool, attack: str):
    assert not (await attempt(pool, AddingInPlace(), WRONG, ATTACKS[attack])).passed


async def test_honest_work_passes_in_both_places(pool: Pool):
    assert (await attempt(pool, Adding(), RIGHT)).passed
    assert (await attempt(pool, AddingInPlace(), RIGHT)).passed


async def test_feedback_names_the_hidden_tests_but_not_their_folder(pool: Pool):
    feedback = (await attempt(pool, Adding(), WRONG)).feedback
    assert "assert add(a, 2) == a + 2" in feedback and "assert 7 == (0 + 2)" in feedback
    assert "hidden/test_add.py" in feedback and "/tmp/" not in feedback


@pytest.mark.parametrize(
    ("command", "words"), [("true", "No module named 'add'"), ("echo 'def add(:' >add.py", "SyntaxError")]
)
async def test_a_failed_import_is_reported_but_not_as_cheating(pool: Pool, command: str, words: str):
    score = await attempt(pool, Adding(), command)
    assert score.value == 0.0
    assert words in score.feedback
    assert "tampered" not in score.feedback


async def test_harmless_attacks_do_not_fail_a_right_solution(pool: Pool):
    score = await attempt(pool, Adding(), *(ATTACKS[name] for name in HARMLESS), RIGHT)
    assert score.passed, score


@pytest.mark.parametrize(
    "attack",
    [
        "echo 'def test_it(): pass' >tests/test_it.py; echo 'exit 0' >judge.sh",
        "rm -r tests judge.sh",
        "rm -r tests; ln -s /tmp tests; ln -sf /bin/true judge.sh",
        "rm -r tests; echo 'a file' >tests; rm judge.sh; mkdir -p judge.sh/x",
        f"cat >tests/conftest.py <<'E'\n{PASS_ALL}\nE\nmkdir tests/more; touch tests/more/test_x.py",
        "mkdir -p tests/__pycache__ __pycache__; touch {tests/,}__pycache__/{test_it,add}.cpython-311.pyc",
        "ln tests/test_it.py other; echo >other; chmod 000 tests",
        "mv tests unseen; mkdir tests; cp unseen/* tests; echo 'def test_it(): pass' >tests/test_it.py",
    ],
)
async def test_protected_files_are_restored(pool: Pool, attack: str):
    assert not (await attempt(pool, AddingInTheOpen(), WRONG, attack)).passed
    assert (await attempt(pool, AddingInTheOpen(), RIGHT, attack)).passed


async def test_byte_code_that_differs_from_its_source_is_not_copied(pool: Pool):
    make = (
        "printf 'def add(a, b):\\n    return a + b\\n' >/tmp/add.py; "
        "python3 -c \"import py_compile as p; p.compile('/tmp/add.py', '__pycache__/add.cpython-311.pyc', "
        'invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)"'
    )
    assert not (await attempt(pool, Adding(), WRONG, make)).passed


async def test_verify_sees_only_the_files_of_the_agent(pool: Pool):
    class Looks(Adding, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            seen = await box.exec(
                "find /workspace /tmp ~ /dev/shm -mindepth 1 | sort; ps ax | grep -c '[s]leep'; env; pwd"
            )
            return Score.of(0.0, seen.text)

    left = "rm README; mkdir -p a/empty; echo 1 >a/b; ln -s b a/l; for d in /tmp ~ /dev/shm; do touch $d/x; done"
    lines = (await attempt(pool, Looks(), left, "export LEFT=1; cd /tmp; sleep 99 & true")).feedback.splitlines()
    assert lines[:5] == ["/workspace/a", "/workspace/a/b", "/workspace/a/empty", "/workspace/a/l", "0"]
    assert "LEFT=1" not in lines
    assert lines[-1] == "/workspace"


async def test_a_full_pool_does_not_deadlock_when_all_rollouts_verify(bwrap: str):
    task = next(iter(Adding().tasks("train")))

    class Quick(Adding, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            return Score.of(float((await box.exec("test -f add.py")).exit_code == 0))

    def make_policy() -> Policy:
        return Policy(ScriptedModel([call("terminal", command=RIGHT), say("done")]))

    async with open_pool(bwrap, PoolSettings(max_slots=2, warm=1)) as pool, asyncio.timeout(300):
        result = await asyncio.gather(*(run(Job(task, make_policy(), r), Runner(Quick(), pool)) for r in range(12)))
    assert [r.score.value for r in result if r.score] == [1.0] * 12
