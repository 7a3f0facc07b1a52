"""Sources of installed packages: `SCHEME:NAME`, arguments of their own, works of their own."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, read_calls, script_flags, write_sums

from ludus.config.reading import make_flag_layer
from ludus.config.references import Seam
from ludus.errors import ConfigError
from ludus.sources import find_source, list_arguments, load_source, name_env, split_scheme, translate_names

TOY = """
from ludus.arguments import make_argument
from ludus.command.run_command import RunResult
from ludus.command.settings import read_own_settings
from ludus.batch.command import BatchWork
from ludus.config.reading import Layer
from ludus.errors import ConfigError
from ludus.sources import Source

LOUD = make_argument("--loud", default="", help="an argument of the toys")


class Toys(Source):
    title = "toys"
    references = ("sums.py:Sums",)
    takes = {"evaluate": (LOUD,), "process": (LOUD,)}
    works = {"process": "toys:PlayWork"}

    def name_env(self, name):
        return {"env.name": "sums.py:Sums", "env.size": name}

    def claims(self, arguments):
        return arguments.loud == "alone"

    def read_settings(self, arguments):
        if getattr(arguments, "loud", "") != "alone":
            return None
        return read_own_settings(arguments, [Layer("toys", {"env": {"name": "sums.py:Sums", "size": 1}})])

    def translate(self, layers):
        return [Layer(s, {("run" if n == "play" else n): v for n, v in t.items()}) for s, t in layers]


class OtherToys(Source):
    title = "other toys"
    takes = {"evaluate": (LOUD,)}


class PlayWork(BatchWork):
    async def work(self, run):
        return True

    def conclude(self, run):
        return RunResult({"played": run.env.name}, print)
"""


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """A package with the schemes `toy` and `other`, and the environment `sums.py`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    write_sums(tmp_path)
    (tmp_path / "toys.py").write_text(TOY)
    metadata = tmp_path / "toys-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ludus.sources]\ntoy = toys:Toys\nother = toys:OtherToys\n")
    yield
    sys.modules.pop("toys", None)


def test_a_scheme_stands_for_settings():
    assert split_scheme("toy:3") == ("toy", "3")
    assert name_env("toy:3") == [("env.name", "sums.py:Sums"), ("env.size", "3")]
    for name in ("gsm8k", "my_env.py:Mine", "package.module:Mine", "unknown:3"):
        assert split_scheme(name) == ("", "") and name_env(name) == [("env.name", name)]


def test_the_source_of_an_environment_is_found_by_scheme_and_by_class():
    for name in ("toy:3", "sums.py:Sums"):
        source = find_source(name)
        assert source is not None and source.title == "toys"
    assert find_source("gsm8k") is None and find_source("my_env.py:Mine") is None


def test_a_source_of_this_project_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Seam, "find_installed", lambda seam: {})
    with pytest.raises(ConfigError, match=r"atropos:x\.py: this needs another package: pip install 'ludus-train\[atro"):
        split_scheme("atropos:x.py")
    with pytest.raises(ConfigError, match=r"some\.setting: this needs another package"):
        load_source("skillopt", "some.setting")
    with pytest.raises(ConfigError, match="unknown source 'toys'"):
        load_source("toys")


def test_an_argument_of_a_source_that_is_not_installed_names_its_package(monkeypatch: pytest.MonkeyPatch, ludus: Ludus):
    monkeypatch.setattr(Seam, "find_installed", lambda seam: {})
    for word in ("--skillopt", "--skillopt=file.yaml"):
        refused = ludus("train", word, "file.yaml")
        assert refused.code == 2
        assert "--skillopt: this needs another package: pip install 'ludus-train[skillopt]'" in refused.err


def test_an_environment_is_run_like_any_other(ludus: Ludus, tmp_path: Path):
    done = ludus("evaluate", "toy:2", "--out", "run", "--quiet", *script_flags())
    assert done.code == 0, done.err
    assert len(read_calls(tmp_path)) == 2
    again = ludus("evaluate", "--resume", "--out", "run", "--quiet")
    assert again.code == 0 and len(read_calls(tmp_path)) == 2
    other = ludus("evaluate", "gsm8k", "--resume", "--out", "run")
    assert other.code == 2 and "is a run of sums.py:Sums, not of gsm8k" in other.err


def test_a_scheme_may_be_in_any_setting(ludus: Ludus):
    Path("ours.yaml").write_text("env: {name: 'toy:3'}\n")
    for words in (["--config", "ours.yaml"], ["--env.name", "toy:3"]):
        found = ludus("evaluate", *words, "--print-config")
        assert found.code == 0 and "name: sums.py:Sums" in found.out and "size: 3" in found.out, found.err


def test_arguments_of_sources_are_taken_only_for_them(ludus: Ludus):
    assert [argument.name for argument in list_arguments("evaluate")].count("--loud") == 1
    assert "an argument of the toys" in ludus("evaluate", "--help").out
    assert ludus("evaluate", "toy:2", "--loud", "yes", "--print-config").code == 0
    refused = ludus("evaluate", "gsm8k", "--loud", "yes", "--print-config")
    assert refused.code == 2 and "--loud is for toys and other toys: leave it out" in refused.err
    assert ludus("train", "gsm8k", "--loud", "yes").code == 2


def test_an_argument_can_ask_for_a_source(ludus: Ludus):
    found = ludus("evaluate", "--loud", "alone", "--print-config")
    assert found.code == 0 and "size: 1" in found.out, found.err


def test_a_source_can_do_the_work_of_a_command(ludus: Ludus):
    done = ludus("process", "toy:2", "--out", "run", "--json", *script_flags())
    assert done.code == 0 and '"played": "sums"' in done.out, done.err


def test_names_are_translated_only_where_one_is_unknown(ludus: Ludus):
    found = ludus("evaluate", "gsm8k", "--play.seed", "7", "--print-config")
    assert found.code == 0 and "seed: 7" in found.out, found.err
    assert translate_names([make_flag_layer("run.seed", "7")]) is None
    wrong = ludus("evaluate", "gsm8k", "--rum.seed", "7", "--print-config")
    assert wrong.code == 2 and "rum: unknown setting" in wrong.err


def test_a_plain_run_imports_no_source():
    code = (
        "import sys; from ludus.cli import main; main(['evaluate', 'gsm8k', '--print-config']);"
        "found = [name for name in sys.modules if name.startswith('ludus.compat') or name == 'toys'];"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
