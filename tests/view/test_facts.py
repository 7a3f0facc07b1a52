"""The index of stores that an earlier version wrote, on disks that cannot be written, and of damaged records."""

import os
import sqlite3
import tempfile
from pathlib import Path

import pytest
from tests.build import make_rollout, make_task
from tests.view_kit import write_rollouts

from ludus.errors import StoreError
from ludus.store import STORE, RunDir
from ludus.view.facts import FactCache
from ludus.view.paging import Parameters
from ludus.view.rollout_pages import list_rollouts
from ludus.view.run_folder import RunFolder


def make_old(path: Path, count: int = 5) -> Path:
    """A run without a table of facts."""
    write_rollouts(path, [make_rollout(n / 10, task=make_task(f"t{n}")) for n in range(count)])
    with sqlite3.connect(path / STORE) as db:
        db.execute("DROP TRIGGER facts_changed")
        db.execute("DROP TABLE facts")
    db.close()
    return path


def list_scores(cache: FactCache, path: Path) -> tuple[list[float | None], int]:
    with cache.open(path) as facts:
        page = list_rollouts(facts, Parameters())
        return [row.score for row in page.rows], page.indexing


def test_an_older_store_is_indexed_in_the_cache_and_not_changed(tmp_path: Path):
    path, cache = make_old(tmp_path / "run"), FactCache(tmp_path / "cache")
    before = (path / STORE).read_bytes()
    assert list_scores(cache, path) == ([], 5)
    assert cache.build(path) == 0
    assert list_scores(cache, path) == ([0.0, 0.1, 0.2, 0.3, 0.4], 0)
    assert (path / STORE).read_bytes() == before
    assert list_scores(FactCache(None), path) == ([], 5), "without a cache it says how many are missing"


def test_a_store_that_was_continued_has_rows_of_both(tmp_path: Path):
    path, cache = make_old(tmp_path / "run"), FactCache(tmp_path / "cache")
    cache.build(path)
    with RunDir.open(path, {"env": {"name": "made"}}, resume=True) as run:
        run.put("new", make_rollout(0.9))
        run.replace(f"{1:032x}", make_rollout(0.7))
    assert cache.build(path) == 0
    scores, missing = list_scores(cache, path)
    assert (sorted(score or 0.0 for score in scores), missing) == ([0.0, 0.2, 0.3, 0.4, 0.7, 0.9], 0)


def test_another_run_in_the_same_place_is_not_taken_for_the_first(tmp_path: Path):
    path, cache = make_old(tmp_path / "run"), FactCache(tmp_path / "cache")
    cache.build(path)
    path.rename(tmp_path / "away")
    make_old(path, 3)
    with sqlite3.connect(path / STORE) as db:
        db.execute("UPDATE outcomes SET key = 'x' || key")
    db.close()
    cache.build(path)
    with cache.open(path) as facts:
        assert [row.key[0] for row in facts.list_rows("")] == ["x"] * 3


def test_a_damaged_record_is_listed_with_its_reason(tmp_path: Path):
    path, cache = make_old(tmp_path / "run"), FactCache(tmp_path / "cache")
    with sqlite3.connect(path / STORE) as db:
        db.execute("UPDATE rollouts SET body = ? WHERE id = 2", (b'{"task":',))
    db.close()
    assert cache.build(path) == 0
    with cache.open(path) as facts:
        row = facts.get(2)
    assert row is not None and (row.stop, row.score) == ("damaged", None) and row.reason


def test_a_damaged_cache_is_made_again(tmp_path: Path):
    path, cache = make_old(tmp_path / "run"), FactCache(tmp_path / "cache")
    file = cache.name_file(path)
    assert file is not None
    file.parent.mkdir()
    file.write_bytes(b"no database" * 100)
    assert list_scores(cache, path) == ([], 5)
    try:
        cache.build(path)
    except StoreError:
        cache.build(path)
    assert list_scores(cache, path)[1] == 0


def test_the_cache_is_bounded(tmp_path: Path):
    cache = FactCache(tmp_path / "cache", most=1)
    for name in ("a", "b", "c"):
        cache.build(make_old(tmp_path / name))
    assert len(list((tmp_path / "cache").glob("*.sqlite"))) == 1


def read_as_nobody(runs: Path, other: Path) -> str:
    """What a user who may not write there sees, from a copy of this process. Everything is imported before, for another
    run: the user may not read our Python either."""
    with RunFolder([other]) as folder:
        folder.list_runs(wait=60)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with RunFolder([runs]) as folder:
                card = folder.list_runs(wait=60).rows[0]
            os.write(write, f"{card.state} {card.rollouts} {card.score} {card.message}".encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read().strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs another user, for whom the disk is read-only")
def test_a_run_on_a_read_only_disk_is_read(tmp_path: Path):
    with tempfile.TemporaryDirectory() as temporary:
        path = write_rollouts(Path(temporary) / "runs" / "run", [make_rollout(1.0)])
        with sqlite3.connect(path / STORE) as db:
            db.execute("PRAGMA journal_mode = WAL")  # as a run that was killed leaves it
        db.close()
        Path(temporary).chmod(0o755)
        other = write_rollouts(tmp_path / "other", [make_rollout(1.0)])
        assert read_as_nobody(path.parent, other) == "finished 1 1.0"
        assert not list(path.glob("*-shm"))
