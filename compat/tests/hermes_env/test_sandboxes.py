"""The flat sandbox settings of Hermes environments."""

import pytest

from ludus.compat.hermes_env.sandboxes import (
    HermesSandboxes,
    read_modal_profiles,
    read_modal_variables,
    read_sandboxes,
)
from ludus.errors import ConfigError
from ludus.sandbox.backend_settings import BwrapSettings, ModalSettings, NomadSettings
from ludus.sandbox.pool import PoolSettings


def test_nothing_set_is_this_host():
    assert read_sandboxes({}) == HermesSandboxes()
    assert read_sandboxes({}).profile == BwrapSettings()
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
    assert read.pool == PoolSettings(max_slots=12, warm=2, acquire_seconds=5.0)
    assert read.network
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
        env={"A": "1", "B": "x=y"},
    )
    assert read.pool == PoolSettings(max_slots=10, warm=1, acquire_seconds=60.0)
    assert read.command_seconds == 30.0


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"slot_per_container": 3}, "'slot_per_container' is not .* did you mean 'slots_per_container'"),
        ({"tool_pool_mode": "nomads"}, "tool_pool_mode"),
        ({"max_containers": "many"}, "max_containers"),
        ({"tool_pool_mode": "nomad", "slots_per_container": 0}, "slots_per_container"),
        ({"tool_pool_mode": "modal", "modal_max_sandboxes": -1}, "modal_max_sandboxes"),
        ({"acquire_timeout_s": 0}, "acquire_timeout_s"),
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


def test_several_modal_profiles_of_a_file():
    read = read_modal_profiles(
        {
            "gpu": {"name": "gpu", "gpu": "T4", "cpu": 2, "secrets": ["a", "b"], "env_vars": {"X": 1}},
            "small": {"memory": 512, "max_sandboxes": 1, "slots_per_sandbox": 3, "acquire_timeout_s": 7},
        }
    )
    assert set(read) == {"default", "gpu", "small"}
    gpu = read["gpu"].profile
    assert isinstance(gpu, ModalSettings)
    assert (gpu.gpu, gpu.cpus, gpu.secrets, gpu.env) == ("T4", 2.0, ("a", "b"), {"X": "1"})
    assert read["small"].pool == PoolSettings(max_slots=3, warm=1, acquire_seconds=7.0)
    assert read["default"] == read_sandboxes({"tool_pool_mode": "modal"})


def test_several_modal_profiles_of_variables():
    read = read_modal_variables(
        {
            "ATROPOS_MODAL_PROFILES": "gpu, big",
            "ATROPOS_MODAL_IMAGE": "python:3.12",
            "ATROPOS_MODAL_PROFILE_GPU_GPU": "A100",
            "ATROPOS_MODAL_PROFILE_BIG_MEMORY": "9000",
            "ATROPOS_MODAL_PROFILE_BIG_IMAGE": "big:1",
            "HOME": "/root",
        }
    )
    assert {name: (r.profile.image, r.profile.gpu, r.profile.memory_mb) for name, r in read.items()} == {
        "default": ("python:3.12", "", 2048),
        "gpu": ("python:3.12", "A100", 2048),
        "big": ("big:1", "", 9000),
    }


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ({"a": {"imag": "x"}}, "profile 'a': 'imag' is unknown; did you mean 'image'"),
        ({"a": {"cpu": "much"}}, "profile 'a': .*modal_cpu"),
    ],
)
def test_a_problem_names_the_profile(profiles, words):
    with pytest.raises(ConfigError, match=words):
        read_modal_profiles(profiles)
