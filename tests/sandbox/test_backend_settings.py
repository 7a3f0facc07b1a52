"""The settings of backends: they can be read without any backend."""

import subprocess
import sys

import msgspec
import pytest

from ludus.sandbox import backend_settings
from ludus.sandbox.backend import BackendSettings, RemoteSettings
from ludus.sandbox.backends import REFERENCES

KINDS = [
    kind for kind in vars(backend_settings).values() if isinstance(kind, type) and issubclass(kind, BackendSettings)
]
OWN = [kind for kind in KINDS if kind.__module__ == backend_settings.__name__]


def test_every_backend_has_settings_under_its_name():
    assert {kind.__struct_config__.tag for kind in OWN} == set(REFERENCES)


@pytest.mark.parametrize("kind", [kind for kind in OWN if issubclass(kind, RemoteSettings)], ids=lambda k: k.__name__)
def test_what_is_needed_is_a_setting(kind: type[RemoteSettings]):
    assert set(kind.needed) <= set(kind.__struct_fields__)


def test_a_podman_is_a_docker_at_another_socket():
    docker = msgspec.structs.asdict(backend_settings.DockerSettings(image="i"))
    podman = msgspec.structs.asdict(backend_settings.PodmanSettings(image="i"))
    assert {name for name, value in docker.items() if podman[name] != value} == {"socket"}


def test_numbers_that_make_no_sense_are_refused():
    for wrong in ({"slots": 0, "hosts": ["h"]}, {"hosts": ["h"], "connect_seconds": 0}, {"hosts": "h"}, {}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**wrong, "backend": "ssh"}, backend_settings.SshSettings)


def test_reading_settings_imports_no_backend():
    code = "import sys, ludus.sandbox.backend_settings; print([m for m in sys.modules if 'sandbox.remote' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
