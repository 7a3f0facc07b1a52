"""Images that a container engine builds or pulls: for containers of that engine, or as folders for slots of this host.

The engine's own command is used: `docker` or `podman`. It builds a Dockerfile with all that one may need (several
stages, any base), or pulls an image by name, with the user's own access to registries. The engine keeps the image and
builds the same content once. `export_image` writes the files of an image into a folder, and starts no container.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from ludus.errors import SandboxError
from ludus.sandbox import ImageSpec
from ludus.sandbox.dockerfile import PATH, NeedsEngine, flatten_documents
from ludus.sandbox.teardown import run_shielded

_EXPORT_SECONDS = 900.0
_SHORT_SECONDS = 60.0
_SHOWN_CHARS = 1200
LABEL = "ludus.image=task"
"""What images that were built here are marked with: `docker image prune --all --filter label=ludus.image`."""


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


async def make_image(spec: ImageSpec, engine: Sequence[str], *, network: str = "", pull: bool = True) -> EngineImage:
    """Build the image, or pull it if the engine does not have it. `engine`: its command, with the options that say
    where it is. `network`: the engine's network for the steps of a build, if not its default. `pull`: whether an image
    may be fetched by its name.

    Raises:
        SandboxError: the engine cannot. Not retryable.
    """
    if spec.folder:
        tag = await _build(spec, engine, network)
    else:
        tag = spec.name
        if (await _call(engine, "image", "inspect", tag, seconds=_SHORT_SECONDS)).code != 0:
            if not pull:
                raise SandboxError(f"{engine[0]} has no image '{tag}', and 'pull' is off", retryable=False)
            await _run(engine, "pull", "--quiet", tag, seconds=spec.seconds)
    return read_inspection((await _run(engine, "image", "inspect", tag, seconds=_SHORT_SECONDS)).stdout)


async def _build(spec: ImageSpec, engine: Sequence[str], network: str) -> str:
    with tempfile.TemporaryDirectory(prefix="ludus-build-") as folder:
        recipe = await asyncio.to_thread(_write_recipe, Path(spec.folder), Path(folder))
        options = ("--force-rm", "--label", LABEL, *(("--network", network) if network else ()))
        words = ("build", *options, "--iidfile", f"{folder}/id", "--file", str(recipe), spec.folder)
        done = await _call(engine, *words, seconds=spec.seconds)
        if done.code != 0:
            raise SandboxError(
                f"{engine[0]} cannot build {spec.folder}: {_show_end(done.stdout + done.stderr)}", retryable=False
            )
        return (await asyncio.to_thread(Path(folder, "id").read_text)).strip()


def _write_recipe(context: Path, folder: Path) -> Path:
    """The Dockerfile to build, which is in `folder` if it has here-documents: not every engine knows them."""
    path = context / "Dockerfile"
    try:
        text = path.read_bytes().decode()
        flat = flatten_documents(text)
    except (OSError, UnicodeDecodeError, NeedsEngine):  # the engine says what is wrong with it
        return path
    if flat == text.replace("\r\n", "\n"):
        return path
    changed = folder / "Dockerfile"
    changed.write_text(flat, encoding="utf-8")
    return changed


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
    program = _find(engine)
    created = subprocess.run([program, "create", image.id, "true"], capture_output=True, text=True, check=False)
    if created.returncode != 0:
        raise SandboxError(f"'{engine} create {image.id}' failed: {_show_end(created.stderr)}", retryable=False)
    container = created.stdout.strip().splitlines()[-1]
    try:
        with subprocess.Popen([program, "export", container], stdout=subprocess.PIPE) as export:
            unpacked = subprocess.run(
                ["tar", "--extract", "--no-same-owner", "--exclude=dev/*", "--directory", str(target)],
                stdin=export.stdout,
                stderr=subprocess.PIPE,
                env={"PATH": PATH},
                timeout=_EXPORT_SECONDS,
                check=False,
            )
    finally:
        subprocess.run([program, "rm", "--force", container], capture_output=True, check=False)
    if export.returncode != 0 or unpacked.returncode != 0:
        words = unpacked.stderr.decode(errors="replace").strip()[-300:]
        raise SandboxError(f"{engine} export {image.id} failed: {words}", retryable=False)


class _Ended(NamedTuple):
    """How a command of the engine ended."""

    code: int
    stdout: str
    stderr: str


async def _run(engine: Sequence[str], *words: str, seconds: float) -> _Ended:
    done = await _call(engine, *words, seconds=seconds)
    if done.code != 0:
        raise SandboxError(f"'{engine[0]} {' '.join(words)}' failed: {_show_end(done.stderr)}", retryable=False)
    return done


async def _call(engine: Sequence[str], *words: str, seconds: float) -> _Ended:
    """Run a command of the engine. When the caller is cancelled or its time is up, the command is killed."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        _find(engine[0]), *engine[1:], *words, stdin=null, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        async with asyncio.timeout(seconds):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise SandboxError(
            f"'{engine[0]} {' '.join(words)}' did not end within {seconds:g} s", retryable=False
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await run_shielded(process.wait())
    return _Ended(process.returncode or 0, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def _show_end(text: str) -> str:
    return text.strip()[-_SHOWN_CHARS:]


def _find(engine: str) -> str:
    found = shutil.which(engine)
    if found is None:
        raise SandboxError(
            f"there is no program '{engine}' on the PATH, which builds and pulls images: install it", retryable=False
        )
    return found
