"""`ludus export` for viewers: every rollout of a run, one after the other."""

import base64
import json
import tracemalloc
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.build import make_rollout, make_task, make_turn
from tests.cli_kit import Ludus, script_flags, train_words, write_rules, write_sums
from tests.export_kit import PNG, write_run

from ludus.run_info import keep_info
from ludus.store import RunDir
from ludus.types import Provenance


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read_log(path: str) -> dict[str, dict]:
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_a_log_has_samples_summaries_and_a_header(ludus: Ludus):
    write_run()
    code, _, err = ludus("export", "run", "--format", "inspect", "--to", "logs/run.eval")
    assert code == 0 and "3 rollouts in logs/run.eval" in err
    assert "do not give the definitions of these tools: look" in err
    log = read_log("logs/run.eval")
    assert list(log) == [*(f"samples/scenes/one_epoch_{n}.json" for n in (1, 2, 3)), "summaries.json", "header.json"]
    assert len(log["summaries.json"]) == 3 and log["header.json"]["results"]["total_samples"] == 3
    picture = log["samples/scenes/one_epoch_1.json"]["messages"][4]["content"][1]["image"]
    assert base64.b64decode(picture.partition("base64,")[2]) == PNG, "a log has its pictures in it"
    first = Path("logs/run.eval").read_bytes()
    ludus("export", "run", "--format", "inspect", "--to", "logs/run.eval")
    assert Path("logs/run.eval").read_bytes() == first


def test_trajectories_are_lines_or_a_folder_with_their_pictures(ludus: Ludus):
    write_run()
    code, out, _ = ludus("export", "run", "--format", "atif")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["trajectory_id"] for line in lines] == ["scenes/one#1", "scenes/one#2", "scenes/one#3"]
    assert Path(lines[0]["steps"][4]["message"][1]["source"]["path"]).read_bytes() == PNG
    assert ludus("export", "run", "--format", "atif", "--to", "some.jsonl").code == 0
    assert Path("some.jsonl").read_text() == out
    assert ludus("export", "run", "--format", "atif", "--to", "job").code == 0
    files = sorted(Path("job").glob("*/agent/trajectory.json"))
    assert len(files) == 3
    path = json.loads(files[0].read_text())["steps"][4]["message"][1]["source"]["path"]
    assert (files[0].parent / path).read_bytes() == PNG
    assert "is not empty" in ludus("export", "run", "--format", "atif", "--to", "job").err


def test_conversations_have_their_pictures_too(ludus: Ludus):
    write_run()
    (row,) = map(json.loads, ludus("export", "run", "--format", "openai").out.splitlines())
    picture = row["messages"][4]["content"][1]["image_url"]["url"]
    assert base64.b64decode(picture.partition("base64,")[2]) == PNG


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect"], "whose name ends in .eval"),
        (["inspect", "--to", "run.jsonl"], "whose name ends in .eval"),
        (["atif", "--to", "run.parquet"], "to a .jsonl file, or to a folder"),
        (["atif", "--best", "1"], "--best is for training data"),
        (["inspect", "--to", "x.eval", "--suspects", "drop"], "--suspects is for training data"),
        (["atif", "--splits", "train"], "--splits is for training runs"),
    ],
)
def test_what_does_not_fit_is_refused(ludus: Ludus, words: list[str], message: str):
    write_run()
    code, _, err = ludus("export", "run", "--format", *words)
    assert code == 2 and message in err


def test_rollouts_of_several_policies_on_one_task_are_counted_through(ludus: Ludus, tmp_path: Path):
    write_rules(tmp_path)
    assert ludus(*train_words("--out", "skill", "--quiet")).code == 0
    assert ludus("export", "skill", "--format", "inspect", "--to", "skill.eval").code == 0
    with RunDir.read(Path("skill")) as run:
        rollouts = run.measure_scores()[0]
    log = read_log("skill.eval")
    assert len(log) == rollouts + 2
    stages = {each["metadata"]["stage"] for each in log["summaries.json"]}
    assert {"rollout", "test"} <= stages
    out = ludus("export", "skill", "--format", "atif", "--splits", "test").out
    assert {json.loads(line)["extra"]["split"] for line in out.splitlines()} == {"test"}


def test_a_run_whose_environment_is_gone_and_an_empty_run(ludus: Ludus, tmp_path: Path):
    write_sums(tmp_path)
    assert ludus("evaluate", "sums.py", "--out", "r", *script_flags()).code == 0
    (tmp_path / "sums.py").unlink()
    assert ludus("export", "r", "--format", "inspect", "--to", "r.eval").code == 0
    assert "sums.py" in json.dumps(read_log("r.eval")["header.json"]["eval"]["task_args"])
    with RunDir.open(Path("empty"), {"env": {"name": "x"}}):
        pass
    code, _, err = ludus("export", "empty", "--format", "inspect", "--to", "no.eval")
    assert code == 1 and "nothing to export" in err and not Path("no.eval").exists()


def test_memory_does_not_grow_with_the_number_of_rollouts(ludus: Ludus):
    turn = make_turn("x" * 20_000)
    with RunDir.open(Path("many"), {"env": {"name": "x"}}) as run, keep_info(run, "evaluate"):
        for number in range(300):
            origin = Provenance(policy="p", model="m", replicate=number)
            run.put(f"key{number}", make_rollout(1.0, turn, task=make_task("t"), provenance=origin))
    tracemalloc.start()
    assert ludus("export", "many", "--format", "inspect", "--to", "many.eval").code == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000, "all rollouts together have 6 MB"
    assert msgspec.json.decode(zipfile.ZipFile("many.eval").read("header.json"))["results"]["total_samples"] == 300
