"""The claims of ludus.store, each tried: nothing committed is lost, one writer, no other settings, no unsafe paths."""

import contextlib
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_rollout, make_task, make_turn

from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.sandbox.archive import ArchiveEntry
from ludus.sandbox.file_tree import CollectedFiles, KeptSizes
from ludus.store import CONFIG, LOCK, STORE, MemoryStore, RunDir, decode_record, make_safe_name
from ludus.types import Call, Failure, Message, Rollout, Task, ToolResult

SETTINGS = {"env": {"name": "toy", "limit": 3}, "run": {"concurrency": 4}}


def rollout(score: float | None = 1.0, *, text: str = "done", id: str = "t1") -> Rollout:
    return make_rollout(
        score,
        make_turn("", ToolResult(Call("c1", "look", '{"at":"a"}'), text, error="no")),
        text,
        task=make_task(id, answer={"n": [1, 2]}),
        failure=Failure("model", "server down") if score is None else None,
        feedback="good",
        opening=(Message("user", "do it"),),
    )


def unjudged(text: str = "done") -> Rollout:
    return msgspec.structs.replace(make_rollout(1.0, text), score=None)


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a copy of this process, which ends with it; returns the copy's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


# ---- outcomes -----------------------------------------------------------------------------------------------------


def test_an_outcome_comes_back_as_it_was_put(tmp_path: Path):
    one, two = rollout(0.5), rollout(None, id="ü/../t2")
    with RunDir.open(tmp_path / "run", SETTINGS) as run:
        run.put("k1", one)
        run.put("k2", two)
        assert run.get("k1") == one
        assert run.get("k3") is None
    with RunDir.read(tmp_path / "run") as run:
        assert list(run.read_outcomes()) == [("k1", one), ("k2", two)]
        assert len(run.read_scores()) == 2
        assert run.read_scores() == {"k1": 0.5, "k2": None}
        assert run.config == SETTINGS


def test_a_failed_outcome_is_replaced_and_a_scored_one_is_not(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout(None))
        run.put("k", rollout(1.0, text="first"))
        run.put("k", rollout(0.0, text="second"))
        run.put("k", rollout(None))
        found = run.get("k")
        assert found is not None
        assert found.answer == "first"
        assert run.read_scores() == {"k": 1.0}
        assert len(run.read_scores()) == 1


def test_keeping_gives_back_what_every_later_look_finds(tmp_path: Path):
    with RunDir.open(tmp_path, {}, secrets=["hunter2-hunter2"]) as run:
        for said in (rollout(None), rollout(1.0, text="it is hunter2-hunter2"), rollout(0.0, text="second")):
            kept = run.keep("k", said)
            assert kept == run.get("k")
        assert kept.answer == "it is [redacted]"


def test_text_that_is_not_unicode_does_not_lose_a_rollout(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout(text="half a pair: \ud800."))
        found = run.get("k")
        assert found is not None
        assert found.answer == "half a pair: \N{REPLACEMENT CHARACTER}."


def test_a_kill_right_after_put_loses_nothing(tmp_path: Path):
    def work() -> None:
        run = RunDir.open(tmp_path, {})
        for number in range(50):
            run.put(f"k{number}", rollout(float(number)))
        os.kill(os.getpid(), signal.SIGKILL)

    _, status = os.waitpid(forked(work), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with RunDir.read(tmp_path) as run:
        assert run.read_scores() == {f"k{number}": float(number) for number in range(50)}
    with RunDir.open(tmp_path, {}, resume=True) as run:
        assert len(run.read_scores()) == 50


def test_a_reader_sees_what_a_writer_has_committed(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as writer:
        writer.put("k1", rollout())
        with RunDir.read(tmp_path) as reader:
            assert len(reader.read_scores()) == 1
            writer.put("k2", rollout())
            assert len(reader.read_scores()) == 2
    with RunDir.read(tmp_path) as reader, pytest.raises(StoreError, match="reading only"):
        reader.put("k3", rollout())


def test_a_reader_copes_with_a_change_that_was_cut_off(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())

    def work() -> None:
        db = sqlite3.connect(tmp_path / STORE)
        db.execute("PRAGMA cache_size = 1")
        db.execute("DELETE FROM outcomes")
        db.executemany("INSERT INTO rollouts (body) VALUES (?)", [(b"x" * 3000,)] * 500)
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(work), 0)
    assert (tmp_path / f"{STORE}-journal").exists()
    with RunDir.read(tmp_path) as run:
        assert run.read_scores() == {"k": 1.0}


def test_a_finished_run_is_one_plain_file(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
    assert sorted(p.name for p in tmp_path.iterdir()) == [CONFIG, LOCK, STORE]


# ---- opening ------------------------------------------------------------------------------------------------------


def test_a_second_run_needs_resume_or_another_place(tmp_path: Path):
    RunDir.open(tmp_path, SETTINGS).close()
    with pytest.raises(StoreError, match=r"--resume, or name another --out"):
        RunDir.open(tmp_path, SETTINGS)


def test_resume_starts_a_run_where_there_is_none(tmp_path: Path):
    with RunDir.open(tmp_path / "a" / "b", SETTINGS, resume=True) as run:
        assert len(run.read_scores()) == 0


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(StoreError, match=r"thesis\.txt.*--out"):
            RunDir.open(tmp_path, {}, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(StoreError, match="is a file"):
        RunDir.open(tmp_path / "thesis.txt", {})


def test_changed_settings_are_named_with_old_and_new_value(tmp_path: Path):
    RunDir.open(tmp_path, SETTINGS).close()
    changed = {"env": {"name": "toy", "limit": 5, "split": "test"}, "run": {"concurrency": 64}}
    with pytest.raises(StoreError) as error:
        RunDir.open(tmp_path, changed, resume=True, ignore=frozenset({"run.concurrency"}))
    assert str(error.value).splitlines()[1:] == ["  env.limit: 3 → 5", '  env.split: (not set) → "test"']


def test_settings_that_decide_nothing_may_change(tmp_path: Path):
    RunDir.open(tmp_path, SETTINGS).close()
    changed = {**SETTINGS, "run": {"concurrency": 64}, "budget": {"tokens": 5}}
    with RunDir.open(tmp_path, changed, resume=True, ignore=frozenset({"run", "budget"})) as run:
        assert run.config == changed
    assert json.loads((tmp_path / CONFIG).read_text()) == changed


def test_a_tuple_in_the_settings_is_no_change(tmp_path: Path):
    RunDir.open(tmp_path, {"tools": ("a", "b")}).close()
    RunDir.open(tmp_path, {"tools": ["a", "b"]}, resume=True).close()


def test_an_opening_that_was_killed_half_way_is_taken_up(tmp_path: Path):
    (tmp_path / LOCK).write_text("123")
    (tmp_path / f".{CONFIG}.tmp").write_text("{")
    RunDir.open(tmp_path, SETTINGS).close()
    (tmp_path / STORE).write_bytes(b"")
    with RunDir.open(tmp_path, SETTINGS, resume=True) as run:
        assert len(run.read_scores()) == 0


def test_the_lock_names_its_owner_and_dies_with_it(tmp_path: Path):
    ready, tell = os.pipe()

    def work() -> None:
        with RunDir.open(tmp_path, {}):
            os.write(tell, b"ready")
            signal.pause()

    pid = forked(work)
    assert os.read(ready, 5) == b"ready"
    with pytest.raises(StoreError, match=rf"in use by another process \(pid {pid} on "):
        RunDir.open(tmp_path, {}, resume=True)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)
    RunDir.open(tmp_path, {}, resume=True).close()


def test_two_writers_in_one_process_exclude_each_other_too(tmp_path: Path):
    with RunDir.open(tmp_path, {}), pytest.raises(StoreError, match=f"pid {os.getpid()}"):
        RunDir.open(tmp_path, {}, resume=True)


def test_a_run_of_skillopt_is_recognized_and_left_alone(tmp_path: Path):
    for name in (CONFIG, "history.json", "runtime_state.json"):
        (tmp_path / name).write_text("{}")
    for use in (lambda: RunDir.read(tmp_path), lambda: RunDir.open(tmp_path, {}, resume=True)):
        with pytest.raises(StoreError, match=r"is a run of SkillOpt.*--agent\.skill .*--skillopt"):
            use()
    assert len(list(tmp_path.iterdir())) == 3, "not even a lock"


def test_reading_what_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(StoreError, match="not a run directory"):
        RunDir.read(tmp_path)
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(StoreError, match="nothing was run"):
        RunDir.read(tmp_path)
    db = sqlite3.connect(tmp_path / STORE)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with pytest.raises(StoreError, match="nothing was run"):
        RunDir.read(tmp_path)


# ---- damage -------------------------------------------------------------------------------------------------------


def foreign_database(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE songs (name TEXT)")
    db.commit()
    db.close()


def newer_format(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.write_bytes(b"not a database at all" * 100), "damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:100] + b"\xff" * 8000), "damaged"),
        (lambda p: (p.unlink(), foreign_database(p)), "other program"),
        (newer_format, "format 99"),
        (lambda p: (p.unlink(), p.mkdir()), "cannot be"),
    ],
)
def test_a_damaged_store_is_refused_with_advice(tmp_path: Path, damage: Any, words: str):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
    damage(tmp_path / STORE)
    for opening in (lambda: RunDir.open(tmp_path, {}, resume=True), lambda: RunDir.read(tmp_path)):
        with pytest.raises(StoreError, match=words), opening() as run:
            run.get("k")


def test_a_damaged_outcome_is_named(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
    db = sqlite3.connect(tmp_path / STORE)
    db.execute("UPDATE rollouts SET body = '{\"task\": 1}'")
    db.commit()
    db.close()
    with RunDir.read(tmp_path) as run, pytest.raises(StoreError, match="outcome k cannot be read"):
        run.get("k")


def test_a_damaged_config_is_refused(tmp_path: Path):
    RunDir.open(tmp_path, {}).close()
    (tmp_path / CONFIG).write_text('{"env": ')
    with pytest.raises(StoreError, match=r"config\.json is damaged"):
        RunDir.open(tmp_path, {}, resume=True)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 1 MB, where that may be made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_with_advice_and_keeps_what_was_put(small_disk: Path):
    big = rollout(text="x" * 20_000)
    kept = 0
    with RunDir.open(small_disk / "run", {}) as run:
        with pytest.raises(StoreError, match=r"disk full.*free some space, then --resume"):
            for kept in range(100):
                run.put(f"k{kept}", big)
        assert 0 < kept < 99
        with pytest.raises(StoreError, match="disk full"):
            run.write("page.html", b"x" * 1_000_000)
        with pytest.raises(StoreError, match="disk full"):
            for _ in range(100):
                run.append("rows.jsonl", b"y" * 20_000)
        assert set(run.read_lines("rows.jsonl")) <= {b"y" * 20_000}
        run.repair("rows.jsonl")
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with RunDir.open(small_disk / "run", {}, resume=True) as run:
        assert len(run.read_scores()) == kept
        run.put("more", big)
        run.append("rows.jsonl", b"z")
        assert set(run.read_lines("rows.jsonl")) <= {b"y" * 20_000, b"z"}
        assert not (small_disk / "run" / ".page.html.tmp").exists()


def test_a_limit_on_file_size_is_a_store_error(tmp_path: Path):
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        with RunDir.open(tmp_path, {}) as run, pytest.raises(StoreError, match="check the disk and its quota"):
            for number in range(1000):
                run.put(f"k{number}", rollout(text="x" * 20_000))

    _, status = os.waitpid(forked(work), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with RunDir.open(tmp_path, {}, resume=True) as run:
        assert len(list(run.read_outcomes())) == len(run.read_scores()) > 0


# ---- files --------------------------------------------------------------------------------------------------------


def test_write_replaces_a_file_as_a_whole(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.write("a/b.json", b"one")

        def broken():
            yield b"tw"
            raise RuntimeError("half way")

        with pytest.raises(RuntimeError):
            run.write("a/b.json", broken())
        assert (tmp_path / "a" / "b.json").read_bytes() == b"one"
        run.write("a/b.json", (part for part in (b"tw", b"o")))
        assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.json"]
        assert (tmp_path / "a" / "b.json").read_bytes() == b"two"


@settings(deadline=None, max_examples=25)
@given(whole=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=5), torn=st.binary())
def test_a_torn_tail_is_ignored_then_cut_off(tmp_path_factory: pytest.TempPathFactory, whole: list[bytes], torn: bytes):
    torn = torn.replace(b"\n", b"")
    path = tmp_path_factory.mktemp("run")
    with RunDir.open(path, {}) as run:
        (path / "rows").write_bytes(b"".join(line + b"\n" for line in whole) + torn)
        assert list(run.read_lines("rows")) == whole
        run.append("rows", b"next")
        run.append("rows", b"last")
        assert list(run.read_lines("rows")) == [*whole, b"next", b"last"]
        assert run.repair("rows") == 0


def test_repair_finds_the_end_of_lines_in_a_long_tail(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        (tmp_path / "rows").write_bytes(b"a\n" + b"x" * 200_000)
        assert run.repair("rows") == 200_000
        assert run.repair("absent") == 0
        assert (tmp_path / "rows").read_bytes() == b"a\n"


def test_appending_goes_on_after_the_file_was_replaced(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.append("rows", b"a")
        run.write("rows", b"b\n")
        run.append("rows", b"c")
        assert list(run.read_lines("rows")) == [b"b", b"c"]
        with pytest.raises(ValueError, match="newline"):
            run.append("rows", b"d\ne")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_file_name_cannot_leave_the_run(tmp_path: Path, name: str):
    with RunDir.open(tmp_path, {}) as run:
        for action in (lambda: run.write(name, b""), lambda: run.append(name, b""), lambda: list(run.read_lines(name))):
            with pytest.raises(ValueError, match="safe_name"):
                action()


# ---- names --------------------------------------------------------------------------------------------------------

HOSTILE = ["", ".", "..", "../../etc/passwd", "a/b", "a\\b", "a\0b", "CON", "nul", "com1", "x" * 5000, "é", "e\u0301"]
HOSTILE += ["A", "a", " a", "a ", "-rf", "~", "a~b", "\ud800", "a.b", "a:b", "*", "ſ", "s", "İ", "K", "k", "a\nb"]
ids = st.one_of(st.text(max_size=80), st.sampled_from(HOSTILE), st.text(alphabet="aAbB-_.~/", max_size=6))


@settings(deadline=None)
@given(ids)
def test_a_safe_name_is_a_plain_file_name(id: str):
    name = make_safe_name(id)
    assert re.fullmatch(r"[a-z0-9_-]+(~[0-9a-f]{32})?", name)
    assert len(name) <= 80
    assert name.lower() not in {"con", "nul", "prn", "aux", "com1", "lpt1"}


@settings(deadline=None)
@given(ids, ids)
def test_different_ids_have_different_names(a: str, b: str):
    def folded(id: str) -> str:
        return unicodedata.normalize("NFC", make_safe_name(id)).casefold()

    assert (folded(a) == folded(b)) == (a == b)
    if not re.fullmatch(r"[a-z0-9_-]+~[0-9a-f]{32}", a):
        assert make_safe_name(b) != a or a == b


def test_hostile_ids_become_files_side_by_side(tmp_path: Path):
    for number, id in enumerate(HOSTILE):
        (tmp_path / make_safe_name(id)).write_text(str(number))
    assert len(list(tmp_path.iterdir())) == len(HOSTILE)


def test_an_ordinary_id_is_its_own_name():
    assert make_safe_name("squares-001_b") == "squares-001_b"


# ---- secrets ------------------------------------------------------------------------------------------------------

SECRET = "sk-live-0123456789"
QUOTED = 'pass"word\\ä\n7'


def test_secrets_are_masked_wherever_they_turn_up(tmp_path: Path):
    arguments = json.dumps({"command": f"curl -H {SECRET} -d {QUOTED}"})
    call = Call("c", "terminal", arguments)
    leaky = msgspec.structs.replace(
        rollout(text=f"key={SECRET} {QUOTED}"),
        turns=(make_turn(SECRET, ToolResult(call, QUOTED)),),
    )
    with RunDir.open(tmp_path, {"note": SECRET}, secrets=[SECRET, QUOTED, "", "EMPTY"]) as run:
        run.put("k", leaky)
        run.write("page", [to_json(leaky), SECRET.encode()])
        run.append("rows", to_json({"x": QUOTED, "y": "EMPTY"}))
        found = run.get("k")
        assert found is not None
        assert found.turns[0].completion.message.content == "[redacted]"
        assert json.loads(found.turns[0].results[0].call.arguments) == {"command": "curl -H [redacted] -d [redacted]"}
        assert json.loads(next(run.read_lines("rows"))) == {"x": "[redacted]", "y": "EMPTY"}
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert SECRET.encode() not in data
        assert b"word\\" not in data


# ---- both stores --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore | RunDir]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with RunDir.open(tmp_path / "run", {}) as run:
        yield run


def test_a_record_is_found_again_and_the_first_one_stays(store: MemoryStore | RunDir):
    assert store.get_record("k") is None
    assert store.put_record("k", "call", b"one") == b"one"
    assert store.put_record("k", "call", b"two") == b"one"
    store.put_record("a", "call", b"three")
    store.put_record("b", "record", b"four")
    assert store.get_record("k") == b"one"
    assert list(store.read_records("call")) == [("k", b"one"), ("a", b"three")]


def test_records_outlive_their_process_and_are_masked(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}, secrets=["sesame-sesame"]) as run:
        assert run.put_record("k", "call", b"open sesame-sesame") == b"open [redacted]"
    with RunDir.read(tmp_path / "run") as run:
        assert run.get_record("k") == b"open [redacted]"
        with pytest.raises(StoreError, match="reading only"):
            run.put_record("l", "call", b"")


def test_a_scored_outcome_stays_and_a_failed_one_is_replaced(store: MemoryStore | RunDir):
    store.put("k", rollout(None))
    assert store.read_scores() == {"k": None}
    assert store.keep("k", rollout(0.5)) == rollout(0.5)
    assert store.keep("k", rollout(1.0)) == rollout(0.5) == store.get("k")
    store.put("l", rollout(1.0))
    assert store.read_scores() == {"k": 0.5, "l": 1.0}
    assert store.get("m") is None


# ---- damage -------------------------------------------------------------------------------------------------------


def read_everything(path: Path) -> None:
    with RunDir.read(path) as run:
        scores = run.read_scores()
        for key in scores:
            run.get(key)
        list(run.read_outcomes())
        list(run.read_failures())
        for _, body in run.read_records("kind"):
            decode_record(msgspec.json.Decoder(Task), body)


def write_everything(path: Path) -> None:
    with RunDir.open(path, {}, resume=True) as run:
        for number in range(20):
            run.keep(f"k{number}", rollout(text=f"again {number}"))
            run.put_record(f"r{number}", "kind", b"{}")


@given(st.data())
@settings(max_examples=60)
def test_flipped_bytes_are_a_message_or_go_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    path = tmp_path_factory.mktemp("run")
    with RunDir.open(path, {}) as run:
        for number in range(20):
            run.put(f"k{number}", rollout(None if number % 5 == 0 else 1.0, text=f"word {number} " * 40))
            run.put_record(f"r{number}", "kind", to_json(Task(id=f"{number}", prompt="x" * 300)))
    image = bytearray((path / STORE).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(image) - 1), min_size=1, max_size=60)):
        image[place] = data.draw(st.integers(0, 255))
    (path / STORE).write_bytes(image)
    for work in (read_everything, write_everything, read_everything):
        with contextlib.suppress(StoreError):
            work(path)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE outcomes SET score = x'00ff'", "a score is not a number"),
        ("UPDATE rollouts SET body = x'22ff22'", "cannot be read"),
        ("UPDATE rollouts SET body = 7", "cannot be read"),
        ("UPDATE rollouts SET body = CAST(x'ff' AS TEXT)", "damaged"),
        ("UPDATE rollouts SET body = CAST(replace(hex(zeroblob(5000)), '0', '[') AS BLOB)", "cannot be read"),
        ("UPDATE records SET body = x'ff'", "cannot be read"),
        ("DROP TABLE records", "damaged"),
    ],
)
def test_each_kind_of_damage_is_a_message(tmp_path: Path, sql: str, message: str):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
        run.put_record("r", "kind", to_json(Task(id="1", prompt="")))
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db:
        db.execute(sql)
        db.commit()
    with pytest.raises(StoreError, match=message):
        read_everything(tmp_path)


def test_an_outcome_whose_rollout_is_gone_is_a_message(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db:
        db.execute("DELETE FROM rollouts")
        db.commit()
    with RunDir.open(tmp_path, {}, resume=True) as run, pytest.raises(StoreError, match="a row is missing"):
        run.keep("k", rollout())


@pytest.mark.parametrize("old, new", [(b"CREATE TABLE records", b"CRE\xb1TE TABLE records"), (b"SQLite", b"SQLxte")])
def test_a_damaged_schema_is_a_message(tmp_path: Path, old: bytes, new: bytes):
    with RunDir.open(tmp_path, {}) as run:
        run.put("k", rollout())
    (tmp_path / STORE).write_bytes((tmp_path / STORE).read_bytes().replace(old, new))
    for work in (read_everything, write_everything):
        with pytest.raises(StoreError, match="damaged"):
            work(tmp_path)


def test_replace_changes_a_scored_outcome_and_put_does_not(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", SETTINGS, secrets=["hidden-key"]) as run:
        run.put("k", rollout(0.0))
        run.put("k", rollout(1.0))
        assert run.read_scores() == {"k": 0.0}
        run.replace("k", rollout(0.5, text="hidden-key"))
        assert run.read_scores() == {"k": 0.5}
        kept = run.get("k")
        assert kept is not None and kept.answer == "[redacted]"
        with pytest.raises(StoreError, match="a row is missing"):
            run.replace("other", rollout(0.5))
    with RunDir.read(tmp_path / "run") as run, pytest.raises(StoreError, match="reading only"):
        run.replace("k", rollout(1.0))


# ---- files of agents ----------------------------------------------------------------------------------------------


def left(**contents: bytes) -> CollectedFiles:
    return CollectedFiles(tuple(ArchiveEntry(name, 0o644, data=data) for name, data in contents.items()))


def count_contents(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path / STORE)) as db:
        return db.execute("SELECT count(*) FROM files").fetchone()[0]


def test_files_are_kept_once_and_survive_a_restart(tmp_path: Path):
    first, second = left(a=b"x" * 1000, b=b"y"), left(c=b"x" * 1000)
    with RunDir.open(tmp_path / "run", SETTINGS) as run:
        kept = [run.keep_files(files, KeptSizes()) for files in (first, second, first)]
    assert kept[0] == kept[2] != kept[1]
    with RunDir.open(tmp_path / "run", SETTINGS, resume=True) as run:
        assert run.keep_files(second, KeptSizes()) == kept[1]
    assert count_contents(tmp_path / "run") == 4  # two contents, two trees
    with RunDir.read(tmp_path / "run") as run:
        assert [run.read_files(name) for name in kept] == [first, second, first]


def test_files_that_are_too_large_are_not_kept(tmp_path: Path):
    with RunDir.open(tmp_path / "run", SETTINGS) as run:
        assert run.keep_files(left(a=b"x" * 5000), KeptSizes(rollout=5000)) == ""
        assert run.keep_files(left(), KeptSizes(rollout=0)) == run.keep_files(left(), KeptSizes()) != ""
        assert run.keep_files(left(a=b"x"), KeptSizes(rollout=0)) == ""
        assert run.keep_files(left(a=b"x" * 5000), KeptSizes(run=6000)) != ""
        assert run.keep_files(left(a=b"y" * 5000), KeptSizes(run=6000)) == ""
        assert run.keep_files(left(b=b"x" * 5000), KeptSizes(run=6000)) != "", "the content is there already"


def test_secrets_in_files_are_masked(tmp_path: Path):
    with RunDir.open(tmp_path / "run", SETTINGS, secrets=["sk-very-secret"]) as run:
        kept = run.keep_files(left(a=b"echo sk-very-secret"), KeptSizes())
        assert run.read_files(kept) == left(a=b"echo [redacted]")


def test_files_that_are_not_there(tmp_path: Path):
    """In a store of an earlier version, or in a damaged one."""
    with RunDir.open(tmp_path / "run", SETTINGS):
        pass
    with RunDir.read(tmp_path / "run") as run, pytest.raises(StoreError, match="no such table"):
        run.read_files("abc")
    with RunDir.open(tmp_path / "run", SETTINGS, resume=True) as run:
        run.keep_files(left(a=b"x"), KeptSizes())
        with pytest.raises(StoreError, match="a row is missing"):
            run.read_files("abc")


def test_a_store_in_memory_keeps_no_files():
    assert MemoryStore().keep_files(left(a=b"x"), KeptSizes()) == ""


# ---- without a verdict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (rollout(None), unjudged(), "now"),
        (unjudged("one"), unjudged("two"), "now"),
        (unjudged(), rollout(0.5), "now"),
        (unjudged(), rollout(None), "before"),
        (rollout(0.5), unjudged(), "before"),
    ],
    ids=["failed", "again", "judged", "failed later", "scored"],
)
def test_a_result_without_a_verdict_is_between_a_failure_and_a_score(
    tmp_path: Path, before: Rollout, now: Rollout, kept: str
):
    with RunDir.open(tmp_path / "r", SETTINGS) as run:
        for store in (run, MemoryStore()):
            store.put("k", before)
            expected = now if kept == "now" else before
            assert store.keep("k", now) == expected
            assert store.get("k") == expected


def test_a_result_without_a_verdict_is_done_and_has_no_score(tmp_path: Path):
    with RunDir.open(tmp_path / "r", SETTINGS) as run:
        run.put("judged", rollout(0.5))
        run.put("unjudged", unjudged())
        run.put("failed", rollout(None))
        assert run.list_done() == {"judged", "unjudged"}
        assert run.read_scores() == {"judged": 0.5, "unjudged": None, "failed": None}
        assert run.measure_scores() == (3, 1, 0.5)
        assert [failure.message for failure in run.read_failures()] == ["server down"]
