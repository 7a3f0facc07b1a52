"""The sandbox section that a Hermes file's settings become."""

from typing import Any

import pytest

from ludus.errors import ConfigError

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.config import HermesAgentEnvConfig
from ludus.compat.hermes_env.settings import choose_parser, make_sandbox_trees, refuse_distribution


def read(variables: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    settings = HermesAgentEnvConfig(**fields).model_dump(mode="json")
    return make_sandbox_trees(settings, variables or {}, fields)["sandbox"]


@pytest.mark.parametrize(
    ("backend", "here"), [("local", "bwrap"), ("docker", "docker"), ("ssh", "ssh"), ("singularity", "apptainer")]
)
def test_terminal_backends(backend: str, here: str):
    section = read(terminal_backend=backend, terminal_timeout=7, terminal_lifetime=8)
    assert section["backend"] == here and section["command_seconds"] == 7.0 and section["lifetime_seconds"] == 8.0
    image = section.get(here, {}).get("image", "")
    assert image.startswith("docker://") is (backend == "singularity")
    assert bool(image) is (backend in ("docker", "singularity"))


def test_a_backend_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match=r"env\.terminal_backend is 'daytona'.*--sandbox\.backend"):
        read(terminal_backend="daytona")


def test_the_pool_of_modal_wins_over_the_terminal_backend():
    section = read(tool_pool_mode="modal", terminal_backend="local", modal_image="img:1", modal_slots_per_sandbox=4,
                   modal_max_sandboxes=3, modal_min_sandboxes=2, modal_execution_timeout=9.0)  # fmt: skip
    assert (section["backend"], section["modal"]["image"]) == ("modal", "img:1")
    assert (section["max_slots"], section["warm"], section["command_seconds"]) == (12, 2, 9.0)


def test_profiles_come_from_variables():
    variables = {"ATROPOS_MODAL_PROFILES": "gpu", "ATROPOS_MODAL_PROFILE_GPU_IMAGE": "cuda:1"}
    assert read(variables)["profiles"]["gpu"]["image"] == "cuda:1"
    assert read()["profiles"] == {}


def test_a_value_that_cannot_be_honoured_names_its_setting():
    with pytest.raises(ConfigError, match=r"env\.purge_job_on_shutdown"):
        read(purge_job_on_shutdown=False)
    assert read(allow_network=False, require_sandbox=True)["network"] is False


@pytest.mark.parametrize(
    ("mode", "given", "seconds"),
    [
        ("default", {}, 120.0),
        ("default", {"terminal_timeout": 7}, 7.0),
        ("nomad", {}, 300.0),
        ("nomad", {"terminal_timeout": 120}, 120.0),
        ("modal", {}, 300.0),
        ("modal", {"modal_execution_timeout": 77.0}, 77.0),
        ("modal", {"terminal_timeout": 500, "modal_execution_timeout": 77.0}, 500.0),
    ],
)
def test_commands_have_the_time_that_is_named(mode: str, given: dict[str, Any], seconds: float):
    assert read(tool_pool_mode=mode, **given)["command_seconds"] == seconds


@pytest.mark.parametrize(
    ("mode", "name"),
    [("default", "acquire_timeout_s"), ("nomad", "acquire_timeout_s"), ("modal", "modal_acquire_timeout")],
)
def test_a_short_wait_for_a_slot_is_honoured(mode: str, name: str):
    assert read(tool_pool_mode=mode, **{name: 5.0})["acquire_seconds"] == 5.0


def test_an_unknown_parser_is_that_of_hermes_with_a_note():
    told: list[str] = []
    assert choose_parser({"tool_call_parser": "mistral"}, told.append) == {}
    assert choose_parser({"tool_call_parser": "my_parser.py:Mine"}, told.append) == {} and not told
    assert choose_parser({"tool_call_parser": "mistrall"}, told.append) == {"model": {"parser": "hermes"}}
    assert "'mistrall'" in told[0] and "did you mean 'mistral'" in told[0]


def test_a_training_run_does_not_sample_tools():
    refuse_distribution({"distribution": None})
    with pytest.raises(ConfigError, match=r"env\.distribution: .*env\.enabled_toolsets"):
        refuse_distribution({"distribution": "science"})
