"""The code of an environment, and a run that is resumed after it has changed."""

import json
import re
import sys
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, read_calls, script_flags, write_sums

from ludus.config.references import load_env_class
from ludus.env_code import check_code, compute_digest, find_class_files, hash_code
from ludus.envs.terminal_test import TerminalTest
from ludus.errors import ConfigError


def test_the_code_of_a_file_is_the_file_and_what_comes_with_ludus_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_sums(tmp_path)
    kind = load_env_class("sums.py")
    code = hash_code(kind())
    assert list(code) == ["sums.py"]
    Path("sums.py").write_text(Path("sums.py").read_text() + "\n# more\n")
    assert hash_code(kind()) != code
    assert hash_code(TerminalTest()) == {}


def test_the_code_of_a_class_in_a_package_is_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sums(tmp_path)
    package = tmp_path / "sums_package"
    (package / "inner").mkdir(parents=True)
    (tmp_path / "sums.py").rename(package / "sums.py")
    for name in ("__init__.py", "inner/__init__.py", "inner/words.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        found = set(find_class_files(load_env_class("sums_package.sums:Sums")))
    finally:
        for name in [name for name in sys.modules if name.startswith("sums_package")]:
            del sys.modules[name]
    assert {str(path.relative_to(package)) for path in found} == {
        "__init__.py",
        "sums.py",
        "inner/__init__.py",
        "inner/words.py",
    }


OLD, NEW = {"a.py": "1", "b.py": "2"}, {"a.py": "9", "c.py": "3"}


def test_changes_are_named_file_by_file_and_can_be_accepted():
    assert check_code(OLD, OLD, "", Path("r")) == check_code({}, NEW, "", Path("r")) == ""
    with pytest.raises(ConfigError, match=r"a\.py \(1 → 9\), b\.py \(2 → no file\), c\.py \(no file → 3\)"):
        check_code(OLD, NEW, "", Path("r"))
    with pytest.raises(ConfigError, match="has changed since the run began"):
        check_code(OLD, NEW, compute_digest(OLD), Path("r"))
    assert "a.py (1 → 9)" in check_code(OLD, NEW, compute_digest(NEW), Path("r"))


def test_a_run_whose_environment_was_edited_is_not_resumed_unless_the_new_code_is_named(
    ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_sums(tmp_path)
    words = ["evaluate", "sums.py", *script_flags(), "--out", "run", "--quiet"]
    assert ludus(*words, "--budget.calls", "2").code == 3
    assert ludus("evaluate", "--resume", "--out", "run", "--budget.calls", "3").code == 3, "nothing has changed"
    Path("sums.py").write_text(Path("sums.py").read_text().replace("== rollout.task.answer", "!= rollout.task.answer"))
    refused = ludus("evaluate", "--resume", "--out", "run", "--budget.calls", "9")
    assert refused.code == 2 and "the environment's code has changed since the run began: sums.py" in refused.err
    assert len(read_calls(tmp_path)) == 3
    (digest,) = re.findall(r"--run\.accept_code (\w+)", refused.err)
    done = ludus("evaluate", "--resume", "--out", "run", "--quiet", "--budget.calls", "9", "--run.accept_code", digest)
    assert done.code == 0 and "as run.accept_code accepts: sums.py" in done.err
    info = json.loads(Path("run/run.json").read_text())
    assert len(info["changes"]) == 1 and compute_digest(info["code"]) == digest
    Path("sums.py").write_text(Path("sums.py").read_text() + "\n")
    again = ludus("evaluate", "--resume", "--out", "run")
    assert again.code == 2, "only the code that was named is accepted"
