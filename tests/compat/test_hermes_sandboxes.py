"""The flat sandbox settings of Hermes environments."""

import pytest

from ludus.compat.hermes import HermesSandboxes, read_sandboxes
from ludus.errors import ConfigError
from ludus.sandbox.settings import ModalSettings, NomadSettings


def test_nothing_set_is_this_host():
    assert read_sandboxes({}) == HermesSandboxes()
    assert read_sandboxes({"tool_pool_mode": "default", "allow_network": "false"}).network is False


def test_nomad():
    read = read_sandboxes(
        {
            "tool_pool_mode": "nomad",
            "nomad_address": "http://n:4646",
            "sandbox_job_id": "mine",
            "sandbox_image": "img:1",
            "slots_per_container": "4",
            "max_containers": 3,
            "min_containers": 2,
            "privileged": True,
            "purge_job_on_start": True,
            "acquire_timeout_s": 5,
        },
        nomad_token_var="NOMAD_TOKEN",
    )
    assert read.profile == NomadSettings(
        address="http://n:4646",
        token_var="NOMAD_TOKEN",
        job_prefix="mine",
        image="img:1",
        slots=4,
        privileged=True,
        purge_on_start=True,
    )
    assert (read.max_slots, read.warm, read.acquire_seconds, read.network) == (12, 2, 5.0, True)
    singularity = {"tool_pool_mode": "nomad", "driver": "singularity", "singularity_image": "x.sif"}
    profile = read_sandboxes(singularity).profile
    assert isinstance(profile, NomadSettings)
    assert (profile.driver, profile.image, profile.slots) == ("singularity", "x.sif", 10)


def test_modal():
    read = read_sandboxes(
        {
            "tool_pool_mode": "modal",
            "modal_gpu": "T4",
            "modal_secrets": "one, two",
            "modal_env_vars": "A=1;B=x=y",
            "modal_slots_per_sandbox": 2,
        }
    )
    assert read.profile == ModalSettings(
        app="atropos-sandbox",
        gpu="T4",
        memory_mb=2048,
        slots=2,
        idle_seconds=120.0,
        secrets=("one", "two"),
        env=(("A", "1"), ("B", "x=y")),
    )
    assert (read.max_slots, read.warm, read.acquire_seconds, read.command_seconds) == (10, 1, 60.0, 30.0)


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"slot_per_container": 3}, "'slot_per_container' is not .* did you mean 'slots_per_container'"),
        ({"tool_pool_mode": "nomads"}, "tool_pool_mode"),
        ({"max_containers": "many"}, "max_containers"),
        ({"purge_job_on_shutdown": False}, "always removed"),
        ({"modal_workspace_base": "/work"}, "/workspace"),
        ({"tool_pool_mode": "nomad", "driver": "singularity"}, "singularity_image is not set"),
        ({"tool_pool_mode": "modal", "modal_app_name": None}, "modal_app_name is empty"),
        ({"tool_pool_mode": "modal", "modal_env_vars": "A"}, "not NAME=value"),
    ],
)
def test_what_cannot_be_meant_is_refused(flat, words):
    with pytest.raises(ConfigError, match=words):
        read_sandboxes(flat)
