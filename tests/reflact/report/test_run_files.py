"""The files of a run: complete, written once, and equal for equal runs."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
from tests.reflact_kit import REPORT_SETTINGS, write_run_files

from ludus.reflact.records import Baseline, EpochEnd, Record, Summary
from ludus.reflact.report import run_files as files
from ludus.reflact.report.run_files import RunRecorder, find_tested_skills
from ludus.skill import parse_file
from ludus.store import RunDir


def test_files_are_written_once_however_often_a_run_is_resumed(records: list[Record], tmp_path: Path):
    whole = write_run_files(tmp_path / "run", records)
    assert write_run_files(tmp_path / "run", records) == whole
    for cut in (1, 3):
        write_run_files(tmp_path / str(cut), records[:cut])
        assert write_run_files(tmp_path / str(cut), records) == whole


def test_a_line_that_does_not_belong_is_replaced_with_what_follows(records: list[Record], tmp_path: Path):
    whole = write_run_files(tmp_path / "run", records)[files.STEPS]
    lines = whole.splitlines(keepends=True)
    (tmp_path / "run" / files.STEPS).write_bytes(b"".join([lines[0], b'{"record":"step"}\n', *lines[2:]]) + b"torn")
    assert write_run_files(tmp_path / "run", records)[files.STEPS] == whole


def test_lines_say_what_was_decided_and_no_times(records: list[Record], tmp_path: Path):
    lines = [json.loads(line) for line in write_run_files(tmp_path / "run", records)[files.STEPS].splitlines()]
    assert [line["record"] for line in lines] == ["baseline", "step", "step", "epoch", "step", "step", "epoch"]
    for line, record in zip(lines, records, strict=False):
        assert "seconds" not in line
        assert line["state"]["current"]["skill"] == record.state.current.skill.hash
    retimed = [msgspec.structs.replace(record, seconds={"x": 1.0}) for record in records]
    assert write_run_files(tmp_path / "other", retimed)[files.STEPS] == (tmp_path / "run" / files.STEPS).read_bytes()


def test_skills_of_a_resumed_run_do_not_go_back(world: SimpleNamespace, tmp_path: Path):
    """While earlier records are yielded again, the files keep what the run had come to."""
    with RunDir.open(tmp_path / "run", {}) as run:
        whole = world.run(settings=REPORT_SETTINGS, store=run)
    best = whole[-1].state.best.skill.text
    (tmp_path / "run" / "best").mkdir()
    (tmp_path / "run" / files.BEST).write_text(best)
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        recorder = RunRecorder(run, REPORT_SETTINGS)
        assert recorder.known == len(whole)
        for record in whole:
            recorder.add(record)
            assert parse_file((tmp_path / "run" / files.BEST).read_text()).text == best
    assert isinstance(whole[0], Baseline) and isinstance(whole[3], EpochEnd)
    assert best != whole[0].state.best.skill.text


def test_the_summary_begins_with_the_claim_and_other_runs_find_which_skills_were_tested(
    records: list[Record], tmp_path: Path
):
    write_run_files(tmp_path / "one", records)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / files.SUMMARY).write_text("{")
    summary = json.loads((tmp_path / "one" / files.SUMMARY).read_bytes())
    assert next(iter(summary)) == "claim" and next(iter(summary["claim"])) == "sentence"
    last = records[-1]
    assert isinstance(last, Summary) and last.claim is not None
    split = last.claim.test_split
    assert find_tested_skills(tmp_path / "two", split) == {last.best.skill.hash}
    assert find_tested_skills(tmp_path / "one", split) == frozenset(), "its own claims are in its store"
    assert find_tested_skills(tmp_path / "two", "another split") == frozenset()
