"""Backends for the tests, started when first used and stopped after the last test of this package."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.sandbox.remote import machinery

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.backend_settings import (
    ApptainerSettings,
    DockerSettings,
    ModalSettings,
    NomadSettings,
    PodmanSettings,
    SshSettings,
)
from ludus.sandbox.backends import make_backend
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.remote.fleet import Fleet, RemoteBackend, open_fleet

HERE = Path(__file__).parent
SPEC = SandboxSpec(disk_mb=64, memory_mb=512)
BACKENDS = ("docker", "docker_single", "podman", "ssh", "nomad", "apptainer", "modal")
"""With `docker_single`, each slot has its own container, without namespaces in it. With the others, several slots share
one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with parameters, one case runs on every backend, and all of them on the first: the other cases concern
    the shell, which is the same on all."""
    seen: Counter[tuple[str, str]] = Counter()
    skipped: set[pytest.Item] = set()
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("backend", "")
        if backend and HERE in item.path.parents and backend != BACKENDS[0]:
            seen[item.originalname, backend] += 1
            if seen[item.originalname, backend] > 1:
                skipped.add(item)
    items[:] = [item for item in items if item not in skipped]
    config.hook.pytest_deselected(items=list(skipped))


@pytest.fixture(autouse=True)
def nothing_left() -> Generator[None]:
    """Replaces the check for local slots, because the daemons are children that outlive a test."""
    yield


@pytest.fixture(scope="package")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ludus-t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def skip_if_missing(name: str) -> Iterator[None]:
    try:
        yield
    except machinery.Missing as missing:
        pytest.skip(f"{name}: {missing}")


@pytest.fixture(scope="package")
def image(folder: Path) -> Path:
    path = folder / "image.tar"
    with skip_if_missing("image"):
        machinery.build_image(path)
    return path


@pytest.fixture(scope="package")
def docker_socket(folder: Path, image: Path) -> Iterator[Path]:
    with skip_if_missing("docker"):
        (folder / "docker").mkdir()
        yield from machinery.start_docker(folder / "docker", image)


@pytest.fixture(scope="package")
def podman_socket(folder: Path, image: Path) -> Iterator[Path]:
    with skip_if_missing("podman"):
        (folder / "podman").mkdir()
        yield from machinery.start_podman(folder / "podman", image)


@pytest.fixture(scope="package")
def sshd(folder: Path) -> Iterator[Any]:
    with skip_if_missing("ssh"):
        (folder / "ssh").mkdir()
        yield from machinery.start_sshd(folder / "ssh")


@pytest.fixture(scope="package")
def nomad(folder: Path) -> Iterator[Any]:
    with skip_if_missing("nomad"):
        (folder / "nomad").mkdir()
        yield from machinery.start_nomad(folder / "nomad")


@pytest.fixture(scope="package")
def apptainer(folder: Path, image: Path) -> tuple[Path, Path]:
    """The command, and an image."""
    with skip_if_missing("apptainer"):
        (folder / "apptainer").mkdir()
        folder.chmod(0o755)
        return machinery.make_apptainer(folder / "apptainer", image)


@pytest.fixture(scope="package")
def modal_standin(folder: Path, apptainer: tuple[Path, Path]) -> Iterator[Any]:
    with skip_if_missing("modal"):
        (folder / "modal").mkdir()
        yield from machinery.start_modal(folder / "modal", apptainer[1])


@pytest.fixture(scope="package")
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The variables of a cluster's user."""
    with skip_if_missing("slurm"):
        (folder / "slurm").mkdir()
        yield from machinery.start_slurm(folder / "slurm")


# ---- one pool per backend ----------------------------------------------------------------------------------------


class SharedPool:
    """A pool of one backend that is used by many tests, in the loop of the package."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pool = Pool(fleet.create, PoolSettings(max_slots=8, warm=1))

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec) -> AsyncGenerator[Sandbox]:
        async with asyncio.timeout(300), self.pool.lease(spec) as box:
            yield box

    async def close(self) -> None:
        await self.pool.__aexit__(None, None, None)
        await self.fleet.close()
        assert (self.pool.metrics().lost, self.pool.metrics().failed) == (0, 0)


class FleetMaker:
    """Makes fleets of one backend, with the settings of the tests and the changes of one test."""

    def __init__(self, kind: type, secrets: dict[str, str] | None = None, **common: object) -> None:
        self._kind, self._common, self.secrets = kind, common, secrets or {}

    def profile(self, **changes: object) -> Any:
        return self._kind(**{**self._common, **changes})

    def __call__(self, **changes: object) -> Fleet:
        backend = make_backend(self.profile(**changes), lambda name, _: self.secrets.get(name, ""))
        assert isinstance(backend, RemoteBackend)
        return open_fleet(backend)


@pytest.fixture(scope="package")
def docker_fleet(docker_socket: Path) -> FleetMaker:
    """Four slots per container, with namespaces of their own."""
    return FleetMaker(DockerSettings, image=machinery.IMAGE, socket=str(docker_socket), network="host", slots=4)


@pytest.fixture(scope="package")
def docker_single_fleet(docker_socket: Path) -> FleetMaker:
    """A container per slot, without the capability to make namespaces."""
    return FleetMaker(DockerSettings, image=machinery.IMAGE, socket=str(docker_socket), network="host", slots=1)


@pytest.fixture(scope="package")
def podman_fleet(podman_socket: Path) -> FleetMaker:
    image = f"localhost/{machinery.IMAGE}"
    return FleetMaker(PodmanSettings, image=image, socket=str(podman_socket), network="host", slots=4)


@pytest.fixture(scope="package")
def ssh_fleet(sshd: Any) -> FleetMaker:
    return FleetMaker(
        SshSettings,
        hosts=("127.0.0.1",),
        port=sshd.port,
        user="root",
        config_file="none",
        key_file=str(sshd.key),
        known_hosts=str(sshd.known_hosts),
        python="/usr/bin/python3",
    )


@pytest.fixture(scope="package")
def nomad_fleet(nomad: Any) -> FleetMaker:
    return FleetMaker(
        NomadSettings,
        {"TEST_NOMAD_TOKEN": nomad.token},
        address=nomad.address,
        token_var="TEST_NOMAD_TOKEN",
        driver="raw_exec",
        slots=4,
        python="/usr/bin/python3",
    )


@pytest.fixture(scope="package")
def apptainer_fleet(apptainer: tuple[Path, Path]) -> FleetMaker:
    command, root = apptainer
    return FleetMaker(ApptainerSettings, command=str(command), image=str(root), slots=2)


@pytest.fixture(scope="package")
def modal_fleet(modal_standin: Any) -> Iterator[FleetMaker]:
    secrets = {"TEST_MODAL_ID": "ak-test", "TEST_MODAL_SECRET": "as-test"}
    names = {"token_id_var": "TEST_MODAL_ID", "token_secret_var": "TEST_MODAL_SECRET"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODAL_SERVER_URL", modal_standin.url)
        yield FleetMaker(ModalSettings, secrets, slots=4, **names)


# A pool is closed before the daemon that its fleet needs, because its fixture depends on the daemon's.


def _make_pool_fixture(fleet: str) -> Any:
    @pytest_asyncio.fixture(scope="package", loop_scope="package")
    async def shared_pool(request: pytest.FixtureRequest) -> AsyncGenerator[SharedPool]:
        # The loop of the package does not run during the tests of other modules, so no heartbeat is sent then.
        shared = SharedPool(request.getfixturevalue(fleet)(lapse_seconds=3600.0, idle_seconds=3600.0))
        await shared.pool.__aenter__()
        yield shared
        await shared.close()

    return shared_pool


for _name in BACKENDS:
    globals()[f"{_name}_shared_pool"] = _make_pool_fixture(f"{_name}_fleet")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(f"{request.param}_shared_pool")
    return request.param


@pytest.fixture
def in_box(request: pytest.FixtureRequest) -> Callable[..., AbstractAsyncContextManager[Sandbox]]:
    return lambda backend, spec=SPEC: request.getfixturevalue(f"{backend}_shared_pool").lease(spec)
