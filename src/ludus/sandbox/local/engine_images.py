"""Images that a container engine builds or pulls, as folders for slots.

The engine's own command is used: `docker` or `podman`. It builds a Dockerfile with all that one may need (several
stages, any base), or pulls an image by name. The files of the image are then exported into a folder. No container is
ever started.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ludus.errors import SandboxError
from ludus.sandbox import ImageSpec
from ludus.sandbox.dockerfile import PATH

ENGINES = ("docker", "podman")
_EXPORT_SECONDS = 900.0
_SHORT_SECONDS = 60.0


class EngineImage(Struct, frozen=True):
    """An image that the engine has."""

    id: str
    env: Mapping[str, str]
    folder: str
    user: str


class _Config(Struct, rename="pascal"):
    env: list[str] | None = None
    working_dir: str = ""
    user: str = ""


class _Inspection(Struct, rename="pascal"):
    id: str
    config: _Config = field(default_factory=_Config)


def make_image(spec: ImageSpec) -> EngineImage:
    """Build the image, or pull it if the engine does not have it.

    Raises:
        SandboxError: the engine cannot. Not retryable.
    """
    if spec.folder:
        tag = _run(spec.engine, "build", "--quiet", spec.folder, seconds=spec.seconds).strip().splitlines()[-1]
    else:
        tag = spec.name
        if _call(spec.engine, "image", "inspect", tag, seconds=_SHORT_SECONDS).returncode != 0:
            _run(spec.engine, "pull", "--quiet", tag, seconds=spec.seconds)
    return read_inspection(_run(spec.engine, "image", "inspect", tag, seconds=_SHORT_SECONDS))


def read_inspection(text: str) -> EngineImage:
    """What `image inspect` says."""
    try:
        found = msgspec.json.decode(text, type=list[_Inspection])[0]
    except (msgspec.DecodeError, IndexError) as error:
        raise SandboxError(f"the engine's description of the image is not understood: {error}") from error
    env = dict(each.split("=", 1) for each in found.config.env or () if "=" in each)
    user = found.config.user.partition(":")[0]
    return EngineImage(found.id.removeprefix("sha256:")[:24], env, found.config.working_dir or "/", user)


def export_image(engine: str, image: EngineImage, target: Path) -> None:
    """Write the files of an image into a folder. Owners are not kept, and devices are left out."""
    container = _run(engine, "create", image.id, "true", seconds=_SHORT_SECONDS).strip().splitlines()[-1]
    try:
        with subprocess.Popen([_find(engine), "export", container], stdout=subprocess.PIPE) as export:
            unpacked = subprocess.run(
                ["tar", "--extract", "--no-same-owner", "--exclude=dev/*", "--directory", str(target)],
                stdin=export.stdout,
                stderr=subprocess.PIPE,
                env={"PATH": PATH},
                timeout=_EXPORT_SECONDS,
                check=False,
            )
    finally:
        _call(engine, "rm", "--force", container, seconds=_SHORT_SECONDS)
    if export.returncode != 0 or unpacked.returncode != 0:
        words = unpacked.stderr.decode(errors="replace").strip()[-300:]
        raise SandboxError(f"{engine} export {image.id} failed: {words}", retryable=False)


def _run(engine: str, *words: str, seconds: float) -> str:
    done = _call(engine, *words, seconds=seconds)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()[-600:]
        raise SandboxError(f"'{engine} {' '.join(words)}' failed: {reason}", retryable=False)
    return done.stdout.decode(errors="replace")


def _call(engine: str, *words: str, seconds: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([_find(engine), *words], capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"'{engine} {' '.join(words)}' did not end within {seconds:g} s", retryable=False) from None


def _find(engine: str) -> str:
    found = shutil.which(engine)
    if found is None:
        raise SandboxError(
            f"there is no program '{engine}' on the PATH: install it, or leave env.engine empty", retryable=False
        )
    return found
