"""What is wrong with rows is found, with a level and a code."""

import json
import math

import pytest
from tests.build import make_completion, make_rollout

from ludus.rl.row_checks import Row, Vocabulary, check_groups, check_lines, check_rollout, check_row, check_rows
from ludus.tokens.sequences import TokenSequence
from ludus.types import Splice, Tokens, Usage

GOOD = {
    "tokens": [[5, 6, 7, 8], [5, 6, 9]],
    "masks": [[-100, -100, 7, 8], [-100, -100, 9]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, 1.0, -0.5, -0.1], [1.0, 1.0, -2.0]],
}


def find_codes(group, **vocabulary):
    report = check_groups([group], Vocabulary(**vocabulary))
    return {finding.code: finding.level for finding in report.findings}


def change(**fields):
    return {**json.loads(json.dumps(GOOD)), **fields}


def test_a_good_group_has_no_findings():
    report = check_groups([GOOD, GOOD])
    assert report.findings == []
    assert not report.fatal
    assert (report.groups, report.rows, report.tokens, report.trained) == (2, 4, 14, 6)
    assert report.summarize() == "2 groups, 4 rows, 14 tokens, 6 trained: 0 fatal, 0 warning, 0 info"


@pytest.mark.parametrize(
    ("fields", "code", "level"),
    [
        ({"tokens": None}, "shape", "fatal"),
        ({"tokens": [1, 2]}, "shape", "fatal"),
        ({"tokens": [["a"], [1]]}, "shape", "fatal"),
        ({"tokens": [[1.5], [1]]}, "shape", "fatal"),
        ({"tokens": [[5, 6, None, 8], [5, 6, 9]]}, "shape", "fatal"),
        ({"tokens": [[5, 6, [7], 8], [5, 6, 9]]}, "shape", "fatal"),
        ({"masks": [[-100, -100, None, 8], [-100, -100, 9]]}, "shape", "fatal"),
        ({"masks": None}, "shape", "fatal"),
        ({"scores": None}, "shape", "fatal"),
        ({"scores": 1.0}, "shape", "fatal"),
        ({"scores": [1.0]}, "count", "fatal"),
        ({"masks": [[-100, -100, 7, 8]]}, "count", "fatal"),
        ({"advantages": [[0.1]]}, "count", "fatal"),
        ({"messages": [[]]}, "count", "fatal"),
        ({"masks": []}, "lengths", "fatal"),
        ({"masks": [[-100, 7, 8], [-100, -100, 9]]}, "lengths", "fatal"),
        ({"inference_logprobs": [[1.0, -0.5], [1.0, 1.0, -2.0]]}, "lengths", "fatal"),
        ({"ref_logprobs": [[0.0], [0.0, 0.0, 0.0]]}, "lengths", "fatal"),
        ({"tokens": [[], [5, 6, 9]], "masks": [[], [-100, -100, 9]]}, "empty", "fatal"),
        ({"tokens": [[5, 6, -7, 8], [5, 6, 9]], "masks": [[-100, -100, -7, 8], [-100] * 3]}, "vocabulary", "fatal"),
        ({"tokens": [[5, 2**31, 7, 8], [5, 6, 9]]}, "vocabulary", "fatal"),
        ({"masks": [[-100, -100, 99, 8], [-100, -100, 9]]}, "mask", "fatal"),
        ({"inference_logprobs": [[1.0, 1.0, 1.0, -0.1], [1.0, 1.0, -2.0]]}, "logprob_missing", "fatal"),
        ({"inference_logprobs": [[1.0, 1.0, None, -0.1], [1.0, 1.0, -2.0]]}, "logprob_missing", "fatal"),
        ({"inference_logprobs": [[1.0, 1.0, -math.inf, -0.1], [1.0, 1.0, -2.0]]}, "logprob_infinite", "fatal"),
        ({"inference_logprobs": [[1.0, 1.0, "x", -0.1], [1.0, 1.0, -2.0]]}, "logprob_infinite", "fatal"),
        ({"inference_logprobs": [[1.0, 1.0, 0.5, -0.1], [1.0, 1.0, -2.0]]}, "logprob_positive", "fatal"),
        ({"scores": [math.nan, 0.0]}, "score", "fatal"),
        ({"scores": [None, 0.0]}, "score", "fatal"),
        ({"scores": [[1.0], 0.0]}, "score", "fatal"),
        ({"scores": [True, 0.0]}, "score", "fatal"),
        ({"inference_logprobs": None}, "no_logprobs", "warning"),
        ({"masks": [[-100] * 4, [-100, -100, 9]]}, "untrained", "warning"),
        ({"masks": [[5, 6, 7, 8], [-100, -100, 9]]}, "no_prompt", "warning"),
        ({"tokens": [[5, 5, 7, 8], [5, 6, 9]]}, "doubled_start", "warning"),
        ({"inference_logprobs": [[-0.1, 1.0, -0.5, -0.1], [1.0, 1.0, -2.0]]}, "prompt_logprob", "info"),
        ({"scores": [0.5, 0.5]}, "equal_scores", "info"),
    ],
)
def test_what_is_wrong_is_found(fields, code, level):
    assert find_codes(change(**fields)).get(code) == level


def test_a_line_as_atropos_itself_writes_it_is_fine():
    absent = {name: [] for name in ("advantages", "ref_logprobs", "overrides", "images", "inference_logprobs")}
    own = {"group_overrides": {}, "distill_token_ids": None, "distill_logprobs": None, "messages": [[], []]}
    assert find_codes(change(**absent, **own)) == {"no_logprobs": "warning"}


def test_lines_are_numbered_as_in_the_file_and_a_broken_one_does_not_hide_the_others():
    line = json.dumps(GOOD).encode()
    report = check_lines([line, b"\n", b"{not json\n", json.dumps(change(scores=[1.0])).encode()])
    assert [(finding.group, finding.code) for finding in report.findings] == [(3, "shape"), (4, "count")]
    assert report.groups == 3
    assert [finding.code for finding in check_lines([b"\n"]).findings] == ["empty"]


@pytest.mark.parametrize(
    ("rollouts", "code"),
    [
        ([{"score": {"value": 1.0}, "mode": "chat"}], "chat"),
        ([{"score": {"value": 1.0}, "mode": "tokens"}, {"score": {"value": 1.0}, "mode": "mixed"}], "chat"),
        ([{"score": None, "mode": "chat"}], "unscored"),
        ([], "unscored"),
        (None, "unscored"),
        ([{"score": {"value": 1.0}, "mode": "tokens"}], "left_out"),
    ],
)
def test_a_line_of_ours_without_ids_has_a_reason(rollouts, code):
    levels = {"chat": "fatal", "unscored": "info", "left_out": "warning"}
    assert find_codes({"rollouts": rollouts}) == {code: levels[code]}


@pytest.mark.parametrize("group", [None, 5, "x", [], {}])
def test_what_is_no_group_is_reported_and_the_next_one_is_read(group):
    report = check_groups([group, GOOD])
    assert report.fatal
    assert report.findings[0].group == 1
    assert report.rows == 2


def test_a_group_without_rows_is_empty():
    assert find_codes(change(tokens=[], masks=[], scores=[], inference_logprobs=[]))["empty"] == "fatal"


def test_ids_are_checked_against_a_known_vocabulary():
    assert find_codes(GOOD, size=10) == {}
    assert find_codes(GOOD, size=9)["vocabulary"] == "fatal"


def test_placeholders_are_recognised():
    ids = list(range(128))
    dummy = {
        "tokens": [ids],
        "masks": [[-100, *ids[1:]]],
        "scores": [1.0],
        "inference_logprobs": [[1.0] + [-0.5] * 127],
    }
    codes = find_codes(dummy)
    assert codes["dummy"] == "fatal"
    assert codes["constant"] == "warning"


def test_a_doubled_stop_token_is_found():
    doubled = change(tokens=[[5, 6, 8, 8], [5, 6, 9]], masks=[[-100] * 4, [-100] * 3])
    assert find_codes(doubled, stop_ids=frozenset([8]))["doubled_end"]


def test_drift_is_counted_where_a_tokenizer_is_given():
    report = check_groups([GOOD], Vocabulary(reencode=lambda ids: [5, 6, 9]))
    assert report.drift_rate == 0.5
    assert [(finding.level, finding.code) for finding in report.findings] == [("info", "drift")]
    assert not report.fatal


def test_rounding_errors_above_zero_are_accepted():
    assert find_codes(change(inference_logprobs=[[1.0, 1.0, 1e-6, -0.1], [1.0, 1.0, -2.0]])) == {}


def test_a_finding_is_printed_in_one_line():
    report = check_groups([GOOD, change(masks=[[-100, -100, 99, 8], [-100, -100, 9]])])
    assert str(report.findings[0]) == (
        "fatal: group 2, row 1: 1 masks hold another id than the row, the first at position 2 [mask]"
    )


# ---- our own ------------------------------------------------------------------------------------------------------


def row(ids, sampled, logprobs):
    return TokenSequence(Tokens(tuple(ids), tuple(sampled), tuple(logprobs)), (0,))


def test_rows_with_a_fatal_finding_are_left_out():
    good = row([5, 6, 7], [False, False, True], [None, None, -1.0])
    bad = row([5, 6, 7], [False, False, True], [None, None, None])
    kept, report = check_rows([good, bad])
    assert kept == [good]
    assert [(f.code, f.row) for f in report.findings] == [("logprob_missing", 2)]


def test_columns_of_other_lengths_end_the_look_at_a_row():
    assert [code for _, code, _ in check_row(Row([1, 2], [True], [None, None]), Vocabulary())] == ["lengths"]


def make_counted(given, drawn, counted, splice=None):
    ids = tuple(range(5, 5 + given + drawn))
    tokens = Tokens(ids, (False,) * given + (True,) * drawn, (None,) * given + (-0.5,) * drawn)
    return make_completion(usage=Usage(counted, drawn), tokens=tokens, splice=splice)


def test_a_rollout_whose_prompts_are_as_long_as_the_engine_counted_is_good():
    kept, report = check_rollout(
        make_rollout(1.0, make_counted(3, 2, 3), make_counted(2, 1, 7), make_counted(1, 1, 4, Splice(0, 3)))
    )
    assert len(kept) == 2
    assert not report.fatal


def test_a_prompt_of_another_length_makes_the_rollout_unusable():
    kept, report = check_rollout(make_rollout(1.0, make_counted(3, 2, 3), make_counted(2, 1, 8)))
    assert kept == []
    assert [f.code for f in report.findings] == ["echo"]
    assert "turn 2: the engine counted a prompt of 8 ids, the record has 7" in report.findings[0].message
