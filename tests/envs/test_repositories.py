"""Repositories for slots: what a start has, what it does not have, and what cannot be made."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from ludus.envs.repositories import (
    Start,
    fetch_commit,
    list_comparing_classes,
    make_repository,
    make_start,
    read_tests,
    run_git,
)
from ludus.errors import SetupError

FILES = {"pkg/code.py": "x = 1\n", "tests/test_a.py": "secret = 1\n", "tests/test_b.py": "shown = 1\n"}
START = Start(
    repo="own/pkg",
    commit="main",
    name="pkg",
    tests=("tests/test_a.py", "tests/test_b.py"),
    hidden=("tests/test_a.py",),
)
BUG = "--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
NEW_TEST = "--- /dev/null\n+++ b/tests/test_c.py\n@@ -0,0 +1 @@\n+new = 1"


@pytest.fixture
def url(tmp_path: Path) -> str:
    make_repository(tmp_path / "origin", {"main": FILES, "other": {"only.py": "y = 1\n"}})
    return str(tmp_path / "origin")


def test_a_start_has_one_commit_and_no_hidden_file(tmp_path: Path, url: str):
    made = make_start(START, url, tmp_path / "cache", seconds=60)
    tree = made.base / "pkg"
    assert sorted(path.name for path in (tree / "tests").iterdir()) == ["test_b.py"]
    assert read_tests(made.tests) == {name: text for name, text in FILES.items() if "test" in name}
    assert run_git("log", "--format=%s", "--all", cwd=tree, seconds=60).split("\n") == ["The state to work on", ""]
    assert run_git("status", "--porcelain", cwd=tree, seconds=60) == ""
    objects = run_git("cat-file", "--batch-all-objects", "--batch", cwd=tree, seconds=60)
    assert "shown" in objects and "secret" not in objects
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0


def test_patches_are_applied_where_they_belong(tmp_path: Path, url: str):
    start = msgspec.structs.replace(START, patch=BUG, test_patch=NEW_TEST)
    made = make_start(start, url, tmp_path / "cache", seconds=60)
    assert (made.base / "pkg" / "pkg" / "code.py").read_text() == "x = 2\n"
    assert not (made.base / "pkg" / "tests" / "test_c.py").exists()
    assert read_tests(made.tests)["tests/test_c.py"] == "new = 1\n"


def test_a_start_is_made_once_and_needs_no_network_then(tmp_path: Path, url: str):
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda _: make_start(START, url, tmp_path / "cache", seconds=60), range(4)))
    assert len(made) == 1
    assert made == {make_start(START, "/absent", tmp_path / "cache", seconds=60)}
    again = msgspec.structs.replace(START, hidden=())  # another start of the same commit
    assert make_start(again, "/absent", tmp_path / "cache", seconds=60) not in made
    assert not list((tmp_path / "cache").glob("making-*"))


def test_a_commit_that_its_host_does_not_give_alone_is_fetched_with_all_others(tmp_path: Path, url: str):
    commit = run_git("rev-parse", "other~0", cwd=Path(url), seconds=60).strip()
    run_git("config", "uploadpack.allowReachableSHA1InWant", "false", cwd=Path(url), seconds=60)
    for name in (commit, "other"):
        fetch_commit(tmp_path / "bare.git", url, name, seconds=60)
    made = make_start(Start(repo="o/p", commit=commit, name="p"), url, tmp_path / "cache", seconds=60)
    assert (made.base / "p" / "only.py").read_text() == "y = 1\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"commit": "0" * 40}, "has no commit '000"),
        ({"commit": "absent"}, "has no commit 'absent'"),
        ({"patch": BUG.replace("x = 1", "z")}, "patch: it does not apply"),
        ({"test_patch": BUG}, "test_patch: it does not apply"),
    ],
)
def test_what_cannot_be_made_is_a_failure_of_setup(tmp_path: Path, url: str, change: dict[str, str], says: str):
    start = msgspec.structs.replace(START, **change)
    with pytest.raises(SetupError, match=says):
        make_start(start, url, tmp_path / "cache", seconds=60)
    assert not start.locate(tmp_path / "cache").base.exists()


def test_an_absent_repository_is_named(tmp_path: Path):
    with pytest.raises(SetupError, match="/absent"):
        make_start(START, str(tmp_path / "absent"), tmp_path / "cache", seconds=60)


def test_classes_that_compare_themselves_are_listed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("class Any:\n    def __eq__(self, other):\n        return True\n")
    (tmp_path / "c.py").write_text("class Other:\n    pass\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "absent")
    assert list_comparing_classes(tmp_path) == {"Any"}
