"""The sources of this package: what their names stand for, and what they refuse."""

import json
from pathlib import Path

import pytest
import yaml
from compat.tests.file_kit import flags, write_files
from tests.cli_kit import Ludus

from ludus.compat.skillopt.adapters import AdapterEnv
from ludus.compat.verifiers_env import VerifiersAgent, VerifiersEnv
from ludus.config.contracts import check_env
from ludus.config.references import load_env_class
from ludus.models.scripted import ScriptedModel
from ludus.sources import EXTRA_ARGUMENTS, find_source, list_sources, name_env

FILE = "atropos:atropos_arithmetic_env.py"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "atropos_arithmetic_env.py", "hermes_notes_env.py")
    (tmp_path / "theirs.yaml").write_text("env: {name: terminal-test}\ntrain: {num_epochs: 1, batch_size: 3}\n")
    return tmp_path


def test_names_stand_for_environments_with_their_options():
    assert dict(name_env("verifiers:my-env")) == {
        "env.name": "ludus.compat.verifiers_env:VerifiersEnv",
        "env.id": "my-env",
    }
    assert dict(name_env("openenv:http://h:1")) == {
        "env.name": "ludus.compat.openenv_env:OpenEnvEnv",
        "env.url": "http://h:1",
    }


@pytest.mark.parametrize(
    "reference",
    [
        "ludus.compat.atropos_env.file_env:AtroposFileEnv",
        "ludus.compat.hermes_env.hermes_file_env:HermesFileEnv",
        "ludus.compat.hermes_env.hermes_file_env:HermesTaskEnv",
        "ludus.compat.openenv_env:OpenEnvEnv",
        "ludus.compat.verifiers_env:VerifiersEnv",
        "ludus.compat.skillopt.adapters:AdapterEnv",
        "ludus.compat.skillopt_adapters:AdapterEnv",
    ],
)
def test_classes_that_older_runs_have_recorded_are_found(reference: str):
    kind = load_env_class(reference)
    assert check_env(kind, "it") == ""
    has_source = "file_env" in reference
    assert (find_source(reference) is not None) is has_source


def test_the_classes_of_every_source_exist():
    for source in list_sources():
        assert source.title
        assert all(load_env_class(reference) for reference in source.references)


def test_environments_that_act_themselves_bring_their_agent():
    agent = VerifiersEnv(id="my-env").make_agent(ScriptedModel(["x"], "m"))
    assert isinstance(agent, VerifiersAgent) and agent.name == "verifiers/my-env/m" and agent.brings_model
    assert AdapterEnv(adapter="my_bench.py:MyAdapter").title == "MyAdapter"


# ---- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rl", FILE], "ludus rl: files of Atropos are for ludus process, evaluate, serve, train, headroom and audit"),
        (["validate", FILE], "files of Atropos are for ludus process"),
        (["validate", "hermes:hermes_notes_env.py"], "files of Hermes are for ludus process"),
        (["evaluate", FILE, "--models", "a,b"], "--models: files of Atropos"),
        (["process", "gsm8k", "--slurm", "true"], "--slurm is for files of Atropos and files of Hermes"),
        (["train", FILE, "--skillopt", "theirs.yaml"], "makes and scores its rollouts itself"),
    ],
)
def test_what_a_command_cannot_do_with_a_file_is_refused_by_name(ludus: Ludus, words: list[str], problem: str):
    done = ludus(*words)
    assert done.code == 2 and problem in done.err, done.err


def test_printed_settings_of_a_file_are_settings(ludus: Ludus):
    given = [FILE, "--env.total_steps", "2", *flags("sums")]
    printed = ludus("process", *given, "--print-config")
    assert printed.code == 0, printed.err
    Path("printed.yaml").write_text(printed.out)
    again = ludus("process", "--config", "printed.yaml", "--print-config")
    assert again.code == 0 and yaml.safe_load(again.out) == yaml.safe_load(printed.out), again.err
    done = ludus("process", "--config", "printed.yaml", "--out", "run", "--json")
    assert done.code == 0 and json.loads(done.out)["summary"]["overall"]["mean"] == 1.0, done.err


def test_what_a_file_prints_is_no_output_of_the_command(ludus: Ludus):
    text = Path("atropos_arithmetic_env.py").read_text()
    Path("chatty.py").write_text("print('chatter')\n" + text)
    done = ludus("process", "atropos:chatty.py", "--env.total_steps", "1", "--out", "run", "--json", *flags("sums"))
    assert done.code == 0 and json.loads(done.out)["status"] == "completed"
    assert "chatter" in done.err


def test_headroom_is_measured_on_the_items_of_a_file(ludus: Ludus):
    given = [FILE, "--env.total_steps", "9", "--data.ratio", "1:1:1", *flags("half")]
    done = ludus("headroom", *given, "--out", "run", "--json")
    assert done.code == 0 and json.loads(done.out)["headroom"] is not None, done.err


# ---- SkillOpt -----------------------------------------------------------------------------------------------------


def test_a_file_of_skillopt_can_be_named_in_two_ways(ludus: Ludus):
    named = ludus("train", "skillopt:theirs.yaml", "--print-config")
    given = ludus("train", "--skillopt", "theirs.yaml", "--print-config")
    assert named.code == given.code == 0, named.err
    assert named.out == given.out and yaml.safe_load(named.out)["train"]["batch_size"] == 3
    other = ludus("train", "gsm8k", "--skillopt", "theirs.yaml", "--print-config")
    assert yaml.safe_load(other.out)["env"]["name"] == "gsm8k"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["train", "skillopt:theirs.yaml", "--skillopt", "theirs.yaml"], "leave one of them out"),
        (["validate", "skillopt:theirs.yaml"], "start it as ludus train skillopt:theirs.yaml"),
        (["evaluate", "--skillopt", "theirs.yaml", "--models", "a,b"], "--models: settings of SkillOpt"),
        (["train", "skillopt:none.yaml"], "none.yaml"),
        (["export", "run", "--format", "skillop", "--to", "x"], "did you mean 'skillopt'"),
        (["export", "run", "--format", "skillopt"], "name it with --to FOLDER"),
        (["export", "run", "--format", "openen", "--to", "x"], "did you mean 'openenv'"),
    ],
)
def test_what_cannot_be_done_with_settings_of_skillopt_is_said(ludus: Ludus, words: list[str], problem: str):
    done = ludus(*words)
    assert done.code == 2 and problem in done.err, done.err


def test_ludus_knows_the_arguments_of_every_source():
    taken = {argument.name for source in list_sources() for each in source.takes.values() for argument in each}
    assert taken == EXTRA_ARGUMENTS.keys()
