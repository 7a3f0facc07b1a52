"""Which changes of an agent a verifier's programs would load, and which of them a task needs."""

import pytest

from ludus.envs.verifier_files import ImageFacts, Needs, describe_loaded, find_loaded, list_guarded, list_questions
from ludus.sandbox.archive import ArchiveEntry

FACTS = ImageFacts(
    folder="app",
    homes=frozenset({"root"}),
    program_folders=("opt/tools", "usr/bin"),
    module_folders=("app/lib",),
    startup=("opt/env.sh", "opt/perl"),
    programs=frozenset({"python3", "ls", "check"}),
    existing=frozenset(
        {
            *("opt/tools/check", "opt/venv/pyvenv.cfg", "opt/venv/bin/python", "opt/venv/lib/python3.11/site-packages"),
            *("opt/venv/lib/python3.11/site-packages/six.py", "app/tests", "app/tests/test_a.py", "app/queue.py"),
            *("usr/bin/python3", "usr/lib/python3"),
        }
    ),
)
SITE = "opt/venv/lib/python3.11/site-packages"


def find(path: str, data: bytes = b"x", *, link: str | None = None, needs: Needs = Needs(), ask: str = "") -> str:
    entry = ArchiveEntry(path, 0o644, data=None if link else data, link=link)
    return find_loaded([entry], FACTS, needs, ask).get(path, "")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "root/.curlrc",
            "root/.gitconfig",
            "etc/gitconfig",
            "root/.sqliterc",
            "etc/perl/strict.pm",
            "home/me/.bashrc",
        ),
        *(
            "etc/xdg/pip/pip.conf",
            "etc/ssl/openssl.cnf",
            "root/.local/lib/python3.12/site-packages/x.py",
            "etc/profile",
        ),
        *(
            "opt/env.sh",
            "opt/perl/POSIX.pm",
            "usr/bin/python3",
            "usr/local/bin/pytest",
            "lib/x.so",
            "etc/ld.so.preload",
        ),
        *("app/json.py", "app/re/__init__.py", "app/argparse.pyc", "app/pluggy.py", "pytest.py", "app/lib/json.py"),
        *(
            "app/yaml.cpython-311-x86_64-linux-gnu.so",
            "app/sitecustomize.py",
            "root/json.py",
            "app/deep/usercustomize.py",
        ),
        *("pytest.toml", ".pytest.ini", "conftest.py", "setup.cfg", "app/pytest.ini", "app/conftest.py"),
        *("opt/tools/check", "opt/tools/ls", "opt/tools/pytest", "opt/venv/bin/python", "opt/venv/pyvenv.cfg"),
        *(f"{SITE}/a.pth", f"{SITE}/six.py", f"{SITE}/pytest/__init__.py", f"{SITE}/sitecustomize.py"),
        *("app/tests/test_a.py", "app/tests/conftest.py", "app/tests/test_new.py"),
    ],
)
def test_what_is_loaded(path: str):
    assert find(path) != ""
    assert find(path, needs=Needs(frozenset({path}), is_known=True)) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("app/answer.txt", "app/solution.py", "app/mine/json.py", "app/json/data.json", "app/queue.py", "srv/json.py"),
        *("etc/nginx/nginx.conf", "etc/hosts", "root/notes.txt", "root/.ssh/config", "home/me/project/.npmrc"),
        *("opt/tools/report", "opt/other/bin/python", "app/bin/run.sh", "app/.venv/lib/python3.11/site-packages/a.pth"),
        *(f"{SITE}/mine/__init__.py", "app/pyproject.toml", "app/src/conftest.py", "var/lib/dpkg/status"),
    ],
)
def test_what_is_not_loaded(path: str):
    assert find(path) == ""


def test_what_decides_by_content():
    assert find("app/pyproject.toml", b"[tool.pytest.ini_options]\naddopts = '-p x'\n")
    assert find("app/x.egg-info/entry_points.txt", b"[pytest11]\nx = x\n")
    assert not find("app/x.egg-info/entry_points.txt", b"[console_scripts]\nx = x\n")
    assert find("app/.git/config", b"[core]\n\tfsmonitor = sh x\n", needs=Needs(frozenset({"app/.git/config"})))
    assert not find("app/.git/config", b"[user]\n\tname = me\n")
    assert find("app/json", link="/var/tmp/m")


def test_what_the_instruction_names():
    assert not find("app/calendar.py", ask="Write /app/calendar.py.")
    assert find("app/calendar.py", ask="Write a calendar.")
    assert not find("root/.bashrc", ask="Add an alias to ~/.bashrc.")
    assert find("opt/tools/pytest", ask="Use pytest.")
    assert find("app/tests/test_a.py", ask="Make tests/test_a.py pass.")


def test_additions_to_the_system_where_the_solution_makes_some():
    needs = Needs(frozenset({"usr/sbin/nginx"}), is_known=True)
    assert not find("usr/share/nginx/index.html", needs=needs)
    assert not find("usr/bin/other", needs=needs)
    for path in ("usr/bin/python3", "usr/bin/ls", "usr/lib/python3/dist-packages/pytest/__init__.py"):
        assert find(path, needs=needs), path
    assert find("usr/lib/python3/dist-packages/a.pth", needs=needs)
    assert find("bin/x", needs=needs)


def test_questions_guards_and_words():
    asked = set(list_questions([ArchiveEntry(f"{SITE}/a/b.py", 0o644, data=b"")], "app"))
    assert {f"{SITE}/a/b.py", f"{SITE}/a", SITE, "app/tests"} <= asked
    assert {"opt/tools", "app/lib", "root", "root/.config", "app/tests", "opt/env.sh"} <= list_guarded(FACTS)
    assert describe_loaded({"a": "why", "b": "so"}, shown=1) == ("/a: why", "… and 1 more")
