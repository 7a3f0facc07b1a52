"""Scripts that optimizers write are run in slots, with a check that can fail, and refused with the reason."""

from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from ludus.env import Env
from ludus.reflact.script_checks import check_scripts, list_changed_scripts, make_check_spec
from ludus.reflact.train_settings import PackageSettings
from ludus.runner import Runner
from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.skill import Edit, Skill, SkillFile, apply_edits

HONEST = """#!/usr/bin/env python3
import sys
def convert(inches): return inches * 2.54
if sys.argv[1:] == ["--self-check"]: sys.exit(convert(2) != 5.08)
sys.exit("usage: convert.py INCHES") if len(sys.argv) != 2 or sys.argv[1].startswith("-") else print(convert(float(sys.argv[1])))
"""  # noqa: E501
BASE = Skill("Convert lengths.\n", (SkillFile("references/units.md", "One inch has 2.54 cm.\n"),))


class Slots(Env, frozen=True):
    name: ClassVar[str] = "slots"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(processes=32, memory_mb=256)


def write(path: str, content: str, skill: Skill = BASE) -> Skill:
    return apply_edits(skill, [Edit("write", content, path=path)])[0]


async def find_reason(backend: str, after: Skill, before: Skill = BASE, seconds: float = 20.0) -> str | None:
    """Why the one changed script is refused; empty if it is not."""
    async with open_pool(backend) as pool:
        [check] = await check_scripts(before, after, Runner(Slots(), pool), PackageSettings(check_seconds=seconds))
    assert check.passed is not bool(check.reason)
    return check.reason


async def test_a_script_that_checks_itself_passes(backend: str):
    assert await find_reason(backend, write("scripts/convert.py", HONEST)) == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\nexit 0\n", "accepts an option that does not exist"),
        ("#!/nowhere/x\n", "exit code 12"),
        ("#!/usr/bin/env python3\ndef f(:\n", "SyntaxError"),
        ("#!/bin/sh\ncase $1 in --self-check) sleep 1000;; esac; exit 1\n", "longer than 2 s"),
        ("#!/bin/bash\n:(){ :|:& };: ; [ $1 = --self-check ] || exit 1; while :; do :; done\n", "longer than 2 s"),
        ("#!/bin/sh\n[ $1 = --self-check ] || exit 1; kill -9 -1; kill -9 $PPID\n", "exit code"),
    ],
)
async def test_what_fails_its_check_is_refused_with_the_reason(bwrap: str, code: str, reason: str):
    found = await find_reason(bwrap, write("scripts/bad", code), seconds=2.0)
    assert found is not None and reason in found


async def test_a_script_reaches_no_network_no_task_and_no_file_of_the_host(bwrap: str, tmp_path: Path):
    (tmp_path / "answer.txt").write_text("the hidden answer")
    code = f"""#!/usr/bin/env python3
import os, socket, sys
if sys.argv[1] != "--self-check": sys.exit(2)
print(os.path.exists({str(tmp_path / "answer.txt")!r}), os.listdir("/workspace"))
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print("no network:", error.errno)
sys.exit(9)
"""
    found = await find_reason(bwrap, write("scripts/spy.py", code))
    assert found is not None and "exit code 9: False []\nno network: 101" in found


def test_the_slot_of_a_check_has_nothing_of_a_task():
    task = SandboxSpec(base=("/task",), caches=(("/a", "/b"),), folders=("/data",), env=(("A", "b"),), memory_mb=99)
    spec = msgspec.structs.replace(task, image=ImageSpec(name="task"))
    assert make_check_spec(spec) == SandboxSpec(memory_mb=99)
    assert make_check_spec(SandboxSpec(network=True)).network


TEST = """import subprocess, sys
out = subprocess.run([sys.executable, "scripts/convert.py", "2"], capture_output=True)
"""


async def test_a_test_beside_a_script_is_its_check(backend: str):
    plain = HONEST.replace('"--self-check"', '"--other"')
    script = write("scripts/convert.py", plain)
    both = write("scripts/test_convert.py", f"{TEST}assert out.stdout == b'5.08\\n'\n", script)
    assert await find_reason(backend, both) == ""
    empty = write("scripts/test_convert.py", "def test_nothing(): pass\n", write("scripts/convert.py", plain))
    assert "its test passes without it" in (await find_reason(backend, empty) or "")


def test_only_what_changed_is_checked_and_a_changed_test_checks_its_script():
    pair = write("scripts/a.sh", "#!/bin/sh\n", write("scripts/b.sh", "#!/bin/sh\n"))
    first = write("scripts/test_a.sh", "exit 1\n", pair)
    assert list_changed_scripts(BASE, first) == ("scripts/a.sh", "scripts/b.sh")
    assert list_changed_scripts(first, write("scripts/test_a.sh", "exit 0\n", first)) == ("scripts/a.sh",)
    assert list_changed_scripts(first, first.remove_file("scripts/test_a.sh")) == ("scripts/a.sh",)
    assert list_changed_scripts(first, first.remove_file("scripts/b.sh")) == ()
    assert list_changed_scripts(first, write("references/units.md", "x\n", first)) == ()


@pytest.mark.parametrize(
    "path",
    [
        "references/test_units.py",  # no test: units.md is a text
        "scripts/test_test_a.sh",  # a test of a test is never run
        "tools/convert.py",  # a document can say how to start it
        "references/convert.sh",
    ],
)
def test_no_program_escapes_its_check(path: str):
    known = write("scripts/test_a.sh", "exit 1\n", write("scripts/a.sh", "#!/bin/sh\n"))
    assert list_changed_scripts(known, write(path, "print(1)\n", known)) == (path,)


async def test_without_slots_no_script_is_run():
    [check] = await check_scripts(BASE, write("scripts/a", HONEST), Runner(Slots()), PackageSettings())
    assert "only in one" in check.reason
    [check] = await check_scripts(BASE, write("scripts/a", HONEST), Runner(Slots()), PackageSettings(scripts=False))
    assert check.reason == "train.package.scripts is off"
