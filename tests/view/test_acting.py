"""What a person does on a page is in the record of the run."""

from pathlib import Path

from tests.view_kit import keep_running, make_notes

from ludus.control_client import FOLDER, SOCKET
from ludus.run_info import read_info, read_state
from ludus.store import RunDir
from ludus.view.acting import read_run_secrets, write_notes
from ludus.view.overview import read_last_events
from ludus.view.run_folder import read_notes


def test_tags_are_in_the_record_of_a_run_that_ended(tmp_path: Path):
    make_notes(tmp_path)
    run = next(path for path in sorted((tmp_path / "runs").iterdir()) if (path / "run.json").exists())
    write_notes(run, b'{"tags": ["paper", "paper "], "note": ""}')
    assert read_notes(run).tags == ("paper",)
    assert read_last_events(run)[-1].text == "tags: paper; no note"


def test_tags_are_in_the_record_of_a_run_that_runs(tmp_path: Path):
    with keep_running(tmp_path) as process:
        run = tmp_path / "runs" / "running"
        while not (run / FOLDER / SOCKET).exists() and process.poll() is None:
            pass
        write_notes(run, b'{"tags": [], "note": "look at this"}')
        info = read_info(run)
        assert info is not None and read_state(info) == "running"
        event = read_last_events(run)[-1]
        assert event.text == "tags: none; a note" and event.who.startswith("ludus view, ")


def test_secrets_of_a_run_are_those_that_its_settings_name(tmp_path: Path):
    make_notes(tmp_path)
    run = next(path for path in sorted((tmp_path / "runs").iterdir()) if (path / "run.json").exists())
    with RunDir.read(run) as directory:
        assert read_run_secrets(directory) == ()
