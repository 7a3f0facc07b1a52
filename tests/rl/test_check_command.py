"""`ludus check`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import script_flags, write_sums

pytestmark = pytest.mark.usefixtures("folder")

GOOD = {
    "tokens": [[5, 6, 7, 8], [5, 6, 9]],
    "masks": [[-100, -100, 7, 8], [-100, -100, 9]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, 1.0, -0.5, -0.1], [1.0, 1.0, -2.0]],
}


def to_lines(*groups: object) -> str:
    return "".join(json.dumps(group) + "\n" for group in groups)


def test_check_of_good_rows_ends_with_0(typed, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text(to_lines(GOOD, GOOD))
    code, out, _ = typed("check", str(file))
    assert (code, out) == (0, "2 groups, 4 rows, 14 tokens, 6 trained: 0 fatal, 0 warning, 0 info\n")
    assert typed("check", "-", stdin=to_lines(GOOD))[0] == 0


def test_check_names_the_group_the_row_and_what_is_wrong(typed, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    bad = {**GOOD, "inference_logprobs": [[1.0, 1.0, float("nan"), -0.1], [1.0, 1.0, 1.0]]}
    file.write_text(to_lines(GOOD, bad) + "{broken\n" + to_lines({"rollouts": [{"score": {}, "mode": "chat"}]}))
    code, out, _ = typed("check", str(file))
    assert code == 1
    assert "fatal: group 2, row 1: 1 logprobs are not finite, such as nan [logprob_infinite]" in out
    assert "fatal: group 2, row 2: 1 trained ids have no logprob [logprob_missing]" in out
    assert "fatal: group 3: the line is not JSON" in out
    assert "fatal: group 4: its rollouts were run in chat mode" in out
    report = json.loads(typed("check", "--json", str(file))[1])
    assert report["ok"] is False
    assert [finding["code"] for finding in report["findings"]][-2:] == ["shape", "chat"]


def test_check_counts_what_it_does_not_repeat(typed, tmp_path: Path):
    (tmp_path / "groups.jsonl").write_text(to_lines(*[{**GOOD, "scores": [1.0]}] * 30))
    code, out, _ = typed("check", str(tmp_path))
    assert code == 1
    assert out.count("1 scores for 2 rows") == 20
    assert "fatal: 10 more [count]" in out


def test_check_of_what_cannot_be_read_ends_with_2(typed, tmp_path: Path):
    code, _, err = typed("check", str(tmp_path / "none.jsonl"))
    assert (code, "none.jsonl cannot be read" in err) == (2, True)
    assert "has no groups.jsonl, and it is not a run directory" in typed("check", str(tmp_path))[2]
    (tmp_path / "rows.jsonl").write_text(to_lines(GOOD))
    code, _, err = typed("check", str(tmp_path / "rows.jsonl"), "--tokenizer", "./nowhere.json")
    assert (code, "there is no file or folder './nowhere.json'" in err) == (2, True)
    (tmp_path / "empty.jsonl").write_text("")
    assert typed("check", str(tmp_path / "empty.jsonl"))[0] == 1


def test_check_with_a_tokenizer_knows_the_vocabulary_and_drift(typed, tmp_path: Path, shipped: Path):
    from ludus.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(shipped).tokenizer
    letters = [tokenizer.encode(letter)[0] for letter in "the"]
    whole = tokenizer.encode("the")
    assert letters != whole

    def group(ids: list[int]) -> dict[str, object]:
        return {
            "tokens": [ids],
            "masks": [[-100, *ids[1:]]],
            "scores": [1.0],
            "inference_logprobs": [[-0.5] * len(ids)],
        }

    (tmp_path / "rows.jsonl").write_text(to_lines(group(letters), group([0, *whole]), group([0, 999_999])))
    report = json.loads(typed("check", "--json", str(tmp_path / "rows.jsonl"), "--tokenizer", str(shipped))[1])
    assert {f["code"] for f in report["findings"]} >= {"drift", "vocabulary"}
    assert 0 < report["drift_rate"] < 1


def test_check_of_a_run_without_rows_says_what_the_run_is_and_what_to_do(typed, folder: Path):
    write_sums(folder)
    assert typed("evaluate", "sums.py", "--out", "run", "--quiet", *script_flags())[0] == 0
    code, out, err = typed("check", "run")
    assert (code, out) == (2, "")
    assert "run is an evaluation, which has no file of training rows" in err
    assert "ludus export run | ludus check -" in err and "cannot be read" not in err
    (folder / "other").mkdir()
    assert "other has no groups.jsonl, and it is not a run directory" in typed("check", "other")[2]
