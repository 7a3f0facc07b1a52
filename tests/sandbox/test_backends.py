"""The registry: every backend that comes with Ludus has a name, settings, a section and a class."""

import msgspec
import pytest

from ludus.errors import ConfigError
from ludus.sandbox.backend import RemoteSettings, SlotBackend
from ludus.sandbox.backend_settings import (
    BwrapSettings,
    DockerSettings,
    LocalSettings,
    NomadSettings,
    PodmanSettings,
    SshSettings,
)
from ludus.sandbox.backends import (
    BACKENDS,
    BuiltinSettings,
    SandboxSettings,
    get_backend_class,
    is_isolated,
    make_backend,
    read_secrets,
)
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.remote.docker import Podman
from ludus.sandbox.remote.fleet import RemoteBackend
from ludus.sandbox.remote.nomad import Nomad


@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_backend_has_settings_and_remote_ones_a_section(name):
    kind = BACKENDS[name]
    assert issubclass(kind, SlotBackend | RemoteBackend)
    assert kind.Settings.__struct_config__.tag == name
    remote = issubclass(kind.Settings, RemoteSettings)
    assert remote == issubclass(kind, RemoteBackend)
    section = {f.name: f.type for f in msgspec.structs.fields(SandboxSettings)}.get(name)
    assert section == (kind.Settings | None if remote else None)


def test_the_section_has_the_settings_of_the_pool():
    section = {f.name: f.type for f in msgspec.structs.fields(SandboxSettings)}
    for field in msgspec.structs.fields(PoolSettings):
        assert section[field.name] == field.type
    assert isinstance(SandboxSettings(), PoolSettings)
    assert (SandboxSettings().warm, PoolSettings().warm) == (2, 0)


def test_the_settings_of_a_profile_say_which_backend_it_is():
    decoded = msgspec.convert({"backend": "podman", "image": "i"}, BuiltinSettings)
    assert decoded == PodmanSettings(image="i")
    assert get_backend_class(decoded) is Podman
    assert get_backend_class(Bwrap()) is Bwrap


@pytest.mark.parametrize(
    ("profile", "isolated"),
    [
        (BwrapSettings(), True),
        (LocalSettings(), False),
        (DockerSettings(image="i"), True),
        (SshSettings(hosts=("a",)), True),
        (SshSettings(hosts=("a",), trusted=True), False),
        (Bwrap(), True),
    ],
)
def test_which_profiles_are_isolated(profile, isolated):
    assert is_isolated(profile) == isolated


def test_secrets_are_read_by_the_name_of_their_setting():
    asked = []

    def read_secret(variable: str, setting: str) -> str:
        asked.append((variable, setting))
        return f"value of {variable}"

    settings = NomadSettings(token_var="TOKEN")
    assert read_secrets(settings, "sandbox.nomad", read_secret) == {"token": "value of TOKEN"}
    assert asked == [("TOKEN", "sandbox.nomad.token_var")]
    backend = make_backend(settings, read_secret)
    assert isinstance(backend, Nomad)
    assert backend.secrets["token"] == "value of TOKEN"
    assert make_backend(backend) is backend
    with pytest.raises(ConfigError, match="names the variable TOKEN"):
        make_backend(settings)
