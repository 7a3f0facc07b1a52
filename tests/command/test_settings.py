"""The settings of a command: flags over files over those of the run that is resumed or judged."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import Ludus, write_sums

from ludus.arguments import RunArguments
from ludus.command.settings import (
    choose_out,
    find_env_name,
    print_model_hint,
    read_own_settings,
    read_recorded_settings,
    read_settings,
    require_env,
    set_out,
)
from ludus.config import load
from ludus.config.reading import Layer
from ludus.errors import ConfigError


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def make_arguments(env: str | None = None, **fields: Any) -> RunArguments:
    given = {"command": "evaluate", "flags": [], "config": [], "json": False, "out": None, "resume": False}
    return RunArguments(**{**given, "print_config": False, "quiet": True, "env": env, **fields})


def write_run(folder: Path, record: dict[str, Any], kind: str = "evaluate") -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "run.json").write_text(json.dumps({"kind": kind}))


# ---- layers -------------------------------------------------------------------------------------------------------


def test_flags_are_above_files_and_a_later_file_above_an_earlier_one(folder: Path):
    (folder / "a.yaml").write_text("env: {name: sums.py, size: 2, limit: 5}\nrun: {seed: 1}\n")
    (folder / "b.yaml").write_text("run: {seed: 2, concurrency: 3}\n")
    config = read_settings(make_arguments(config=["a.yaml", "b.yaml"], flags=[("run.concurrency", "4")], out="r"))
    assert (config.env.name, config.env.limit) == ("sums.py", 5)
    assert (config.run.seed, config.run.concurrency, config.run.out) == (2, 4, "r")


def test_a_resumed_run_has_its_own_settings_below_all_others(folder: Path):
    write_run(folder / "r", {"env": {"name": "sums.py", "limit": 3}, "run": {"seed": 7}, "content": {"x": "y"}})
    config = read_settings(make_arguments(out="r", resume=True, flags=[("env.limit", "2")]))
    assert (config.env.name, config.env.limit, config.run.seed) == ("sums.py", 2, 7)
    assert (config.run.resume, config.run.out) == (True, "r")


def test_the_run_that_is_resumed_may_be_named_by_a_setting(folder: Path):
    write_run(folder / "r", {"env": {"name": "sums.py"}, "run": {"seed": 7}})
    assert read_settings(make_arguments(resume=True, flags=[("run.out", "r")])).run.seed == 7
    with pytest.raises(ConfigError, match=r"run\.out: which run should be resumed"):
        read_settings(make_arguments("sums.py", resume=True))


@pytest.mark.parametrize("as_setting", [True, False])
def test_a_run_of_another_command_or_environment_is_refused(folder: Path, as_setting: bool):
    write_run(folder / "trained", {"env": {"name": "sums.py"}}, "train")
    write_run(folder / "other", {"env": {"name": "gsm8k"}})

    def resume(out: str) -> None:
        if as_setting:
            read_settings(make_arguments("sums.py", out=out, flags=[("run.resume", "true")]))
        else:
            read_settings(make_arguments("sums.py", out=out, resume=True))

    with pytest.raises(ConfigError, match="trained is a training run, which `ludus evaluate` cannot resume"):
        resume("trained")
    with pytest.raises(ConfigError, match=r"other is a run of gsm8k, not of sums\.py"):
        resume("other")


def test_the_environment_is_found_wherever_it_is_named(folder: Path):
    (folder / "a.yaml").write_text("env: {name: from-file}\n")
    write_run(folder / "r", {"env": {"name": "from-run"}})
    assert find_env_name(make_arguments()) == ""
    assert find_env_name(make_arguments(out="r")) == "from-run"
    assert find_env_name(make_arguments(out="r", config=["a.yaml"])) == "from-file"
    assert find_env_name(make_arguments(out="r", config=["a.yaml"], flags=[("env.name", "from-flag")])) == "from-flag"
    assert find_env_name(make_arguments("typed", out="r", flags=[("env.name", "from-flag")])) == "typed"


def test_a_base_is_below_everything_that_was_typed():
    base = [Layer("base", {"run": {"seed": 3, "retries": 0}})]
    config = read_own_settings(make_arguments("sums.py", flags=[("run.seed", "4")]), base)
    assert (config.run.seed, config.run.retries) == (4, 0)


def test_another_environment_judges_a_run_without_the_options_of_its_own():
    recorded = {"env": {"name": "sums.py", "size": 2, "split": "test"}, "run": {"seed": 7}, "content": {}}
    arguments = make_arguments(flags=[("run.concurrency", "3")])
    config = read_recorded_settings(arguments, recorded, "")
    assert (config.env.name, config.run.seed, config.run.concurrency) == ("sums.py", 7, 3)
    config = read_recorded_settings(arguments, recorded, "gsm8k")
    assert (config.env.name, config.env.split) == ("gsm8k", "test")


# ---- checks and choices -------------------------------------------------------------------------------------------


def test_a_command_without_an_environment_says_what_to_type():
    with pytest.raises(ConfigError, match=r"which environment\? For example: ludus evaluate gsm8k"):
        require_env(load(), "ludus evaluate gsm8k")
    with pytest.raises(ConfigError, match="r: there is no run to resume"):
        require_env(load(flags=[("run.resume", "true"), ("run.out", "r")]), "ludus evaluate gsm8k")


def test_a_new_run_directory_has_the_name_of_the_environment_and_is_never_one_that_exists(folder: Path):
    config = load(flags=[("env.name", "sums.py")])
    first = choose_out(config)
    assert re.fullmatch(r"runs/sums-\d{8}-\d{6}", str(first))
    for number in range(3):  # those of this second and the next ones
        for second in range(120):
            moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() + second))
            (folder / "runs" / f"sums-{moment}{f'-{number + 1}' if number else ''}").mkdir(parents=True)
        assert choose_out(config).name.endswith(f"-{number + 2}")
    mine = load(flags=[("env.name", "sums.py"), ("run.out", "mine")])
    assert choose_out(mine) == Path("mine") and set_out(mine).run.out == "mine"


def test_the_small_embedded_model_is_mentioned_and_another_is_not(capsys: pytest.CaptureFixture[str]):
    print_model_hint(load())
    assert "the small embedded one, for trials" in capsys.readouterr().err
    print_model_hint(load(flags=[("model.name", "qwen2.5-coder-1.5b")]))
    assert capsys.readouterr().err == ""
    print_model_hint(load(flags=[("model.base_url", "http://127.0.0.1:9/v1"), ("model.name", "m")]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["env.split", "env.limit", "env.ids", "env.group_size", "run.seed"])
@pytest.mark.parametrize(("command", "aim"), [("train", "to train"), ("headroom", "to train"), ("rl", "for rl")])
def test_settings_of_batches_are_refused_elsewhere_with_what_to_use(ludus: Ludus, command: str, aim: str, name: str):
    done = ludus(command, "sums.py", f"--{name}", "3")
    assert done.code == 2 and f"{name} is for process and evaluate; {aim}, use " in done.err
