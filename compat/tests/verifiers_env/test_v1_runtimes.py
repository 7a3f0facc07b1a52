"""Where roles of a taskset run."""

from pathlib import Path
from typing import Any

import pytest

from ludus.compat.verifiers_env.v1_runtimes import RoleNeeds, check_runtime, choose_runtime
from ludus.errors import ConfigError


def make_needs(**fields: Any) -> RoleNeeds:
    values: dict[str, Any] = {"role": "agent", "runtime": "prime", "chosen": False, "harness": "null"}
    return RoleNeeds(**values | {"runs_code": False, "needs_container": False} | fields)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (make_needs(), "subprocess"),
        (make_needs(runtime="docker"), "docker"),
        (make_needs(runtime="prime", chosen=True), "prime"),
        (make_needs(runtime="subprocess", chosen=True, harness="bash", runs_code=True), "subprocess"),
        (make_needs(runtime="docker", chosen=True, needs_container=True, runs_code=True), "docker"),
    ],
)
def test_a_program_that_only_talks_runs_here_and_others_where_the_user_says(needs: RoleNeeds, expected: str):
    assert choose_runtime(needs) == expected


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (
            make_needs(harness="bash", runs_code=True),
            r'env\.args\.agent\.runtime: .*"bash".*docker.*"subprocess".*null',
        ),
        (
            make_needs(role="solver", harness="codex", runs_code=True, needs_container=True),
            r"env\.args\.solver\.runtime",
        ),
        (make_needs(runtime="subprocess", chosen=True, needs_container=True), "needs a container"),
    ],
)
def test_the_user_must_say_where_commands_of_the_model_run(needs: RoleNeeds, words: str):
    with pytest.raises(ConfigError, match=words):
        choose_runtime(needs)


def test_a_place_that_needs_a_container_is_not_offered_without_one():
    with pytest.raises(ConfigError) as refused:
        choose_runtime(make_needs(harness="codex", runs_code=True, needs_container=True))
    assert "subprocess" not in str(refused.value)


def test_a_cloud_needs_a_key_and_its_package(monkeypatch: pytest.MonkeyPatch):
    check_runtime("agent", "prime", has_key=True)
    check_runtime("agent", "subprocess", has_key=False)
    with pytest.raises(ConfigError, match=r"env\.args\.agent\.runtime\.type: prime is a cloud.*PRIME_API_KEY"):
        check_runtime("agent", "prime", has_key=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'verifiers\[e2b\]'"):
        check_runtime("agent", "e2b", has_key=True)


def test_an_engine_must_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("docker", "apptainer"):
        with pytest.raises(ConfigError, match=f"{program} is not installed"):
            check_runtime("agent", program, has_key=False)
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\necho 'no daemon' >&2\nexit 1\n")
    engine.chmod(0o755)
    with pytest.raises(ConfigError, match=r"env\.args\.agent\.runtime\.type: docker cannot be used: no daemon"):
        check_runtime("agent", "docker", has_key=False)
    engine.write_text("#!/bin/sh\nexit 0\n")
    check_runtime("agent", "docker", has_key=False)
