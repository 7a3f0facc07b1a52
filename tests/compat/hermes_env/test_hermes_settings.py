"""The sandbox section that a Hermes file's settings become."""

from typing import Any

import pytest

from ludus.errors import ConfigError

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.hermes_config import HermesAgentEnvConfig
from ludus.compat.hermes_env.hermes_settings import make_sandbox_trees


def read(variables: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    settings = HermesAgentEnvConfig(**fields).model_dump(mode="json")
    return make_sandbox_trees(settings, variables or {})["sandbox"]


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
