"""Backends for the tests, started when first asked for and stopped at the end of the session."""

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.docker import Docker
from ludus.sandbox.fleet import Fleet
from ludus.sandbox.nomad import Nomad
from ludus.sandbox.pool import Pool
from ludus.sandbox.settings import DockerSettings, NomadSettings, SshSettings
from ludus.sandbox.ssh import Ssh

HERE = Path(__file__).parent
SPEC = SandboxSpec(disk_mb=64, memory_mb=512)


def load(path: Path) -> ModuleType:
    """A file of tests as a module."""
    spec = importlib.util.spec_from_file_location(f"ludus_tests_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


machinery = load(HERE / "machinery.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last of all: the daemons live until the session ends, and other tests check that nothing is running."""
    items.sort(key=lambda item: HERE in item.path.parents)


@pytest.fixture(autouse=True)
def nothing_left() -> Generator[None]:
    """In place of the check for local slots: no child but the daemons outlives a test."""
    yield


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ludus-t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def skipping(name: str) -> Iterator[None]:
    try:
        yield
    except machinery.Missing as missing:
        pytest.skip(f"{name}: {missing}")


@pytest.fixture(scope="session")
def image(folder: Path) -> Path:
    path = folder / "image.tar"
    with skipping("image"):
        machinery.image_tar(path)
    return path


@pytest.fixture(scope="session")
def docker_socket(folder: Path, image: Path) -> Iterator[Path]:
    with skipping("docker"):
        (folder / "docker").mkdir()
        yield from machinery.docker(folder / "docker", image)


@pytest.fixture(scope="session")
def podman_socket(folder: Path, image: Path) -> Iterator[Path]:
    with skipping("podman"):
        (folder / "podman").mkdir()
        yield from machinery.podman(folder / "podman", image)


@pytest.fixture(scope="session")
def sshd(folder: Path) -> Iterator[Any]:
    with skipping("ssh"):
        (folder / "ssh").mkdir()
        yield from machinery.sshd(folder / "ssh")


@pytest.fixture(scope="session")
def nomad(folder: Path) -> Iterator[Any]:
    with skipping("nomad"):
        (folder / "nomad").mkdir()
        yield from machinery.nomad(folder / "nomad")


# ---- one pool per backend ----------------------------------------------------------------------------------------


class Ground:
    """A pool of one backend that lives through many tests, in an event loop of its own."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pool = Pool(fleet.create, max_slots=8)
        self._runner = asyncio.Runner()
        self._runner.run(self.pool.__aenter__())

    def run(self, test: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec = SPEC) -> None:
        self._runner.run(self._in_slot(test, spec))

    async def _in_slot(self, test: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec) -> None:
        async with asyncio.timeout(90):
            async with self.pool.lease(spec) as box:
                await test(box)
            while self.pool.metrics().live:
                await asyncio.sleep(0.005)
            assert self.pool.metrics().lost == 0

    def close(self) -> None:
        self._runner.run(self.pool.__aexit__(None, None, None))
        self._runner.run(self.fleet.close())
        self._runner.close()


@pytest.fixture(scope="session")
def grounds(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Ground]]:
    made: dict[str, Ground] = {}
    with ExitStack() as stack:

        def ground(name: str) -> Ground:
            if name not in made:
                fleet = request.getfixturevalue(f"{name}_fleet")()
                made[name] = Ground(fleet)
                stack.callback(made[name].close)
            return made[name]

        yield ground


@pytest.fixture(scope="session")
def docker_fleet(docker_socket: Path) -> Callable[..., Fleet]:
    """Four slots per container, with namespaces of their own."""
    return _docker_fleet(docker_socket, machinery.IMAGE, slots=4)


@pytest.fixture(scope="session")
def docker_single_fleet(docker_socket: Path) -> Callable[..., Fleet]:
    """A container per slot, without any right to make namespaces."""
    return _docker_fleet(docker_socket, machinery.IMAGE, slots=1)


@pytest.fixture(scope="session")
def podman_fleet(podman_socket: Path) -> Callable[..., Fleet]:
    return _docker_fleet(podman_socket, f"localhost/{machinery.IMAGE}", slots=4)


@pytest.fixture(scope="session")
def ssh_fleet(sshd: Any) -> Callable[..., Fleet]:
    def make(**more: object) -> Fleet:
        common = {"hosts": ("127.0.0.1",), "port": sshd.port, "user": "root", "config_file": "none"}
        keys = {"key_file": str(sshd.key), "known_hosts": str(sshd.known_hosts), "python": "/usr/bin/python3"}
        settings = SshSettings(**{**common, **keys, **more})
        return Fleet(Ssh(settings), slots=settings.slots, idle_seconds=settings.idle_seconds)

    return make


@pytest.fixture(scope="session")
def nomad_fleet(nomad: Any) -> Callable[..., Fleet]:
    def make(**more: object) -> Fleet:
        common = {"address": nomad.address, "driver": "raw_exec", "slots": 4, "python": "/usr/bin/python3"}
        settings = NomadSettings(**{**common, **more})
        backend = Nomad(settings, token=nomad.token)
        return Fleet(backend, slots=settings.slots, idle_seconds=settings.idle_seconds)

    return make


def _docker_fleet(socket: Path, image: str, **common: object) -> Callable[..., Fleet]:
    def make(**more: object) -> Fleet:
        settings = DockerSettings(**{"image": image, "socket": str(socket), "network": "host", **common, **more})
        return Fleet(Docker(settings), slots=settings.slots, idle_seconds=settings.idle_seconds)

    return make


BACKENDS = os.environ.get("LUDUS_TEST_BACKENDS", "docker,docker_single,podman,ssh,nomad").split(",")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, grounds: Callable[[str], Ground]) -> str:
    grounds(request.param)
    return request.param


@pytest.fixture
def in_box(grounds: Callable[[str], Ground]) -> Callable[..., None]:
    return lambda backend, test, spec=SPEC: grounds(backend).run(test, spec)


@pytest.fixture
def one_box(grounds: Callable[[str], Ground]) -> Callable[..., None]:
    return lambda test: grounds("docker").run(test)
