"""Groups as Atropos' JSON: exact rows, and rows from text that are marked as such."""

import pytest
from tests.build import make_group, make_token_rollout

from ludus.rl.atropos_rows import build_columns, build_retokenized_columns, to_fields
from ludus.rl.row_checks import Vocabulary, check_groups
from ludus.rl.rows import NotExact
from ludus.tokens.sequences import TokenSequence
from ludus.types import (
    Splice,
    Task,
    Tokens,
)

EXACT = Tokens((1, 2, 3), (False, False, True), (None, None, -0.5))
TASK = Task(id="t1", prompt="p")


def test_rows_masks_and_logprobs_are_those_that_were_sampled():
    made, report = build_columns(
        make_group(make_token_rollout(EXACT, EXACT), make_token_rollout(EXACT, replicate=1, score=0.0))
    )
    assert to_fields(made) == {
        "tokens": [[1, 2, 3, 1, 2, 3], [1, 2, 3]],
        "masks": [[-100, -100, 3, -100, -100, 3], [-100, -100, 3]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, 1.0, 1.0, -0.5], [1.0, 1.0, -0.5]],
        "replicates": [0, 1],
    }
    assert report.rows == 2 and not report.fatal
    assert check_groups([to_fields(made)]).findings == []


def test_a_branched_rollout_gives_several_rows_with_one_score():
    made, _ = build_columns(make_group(make_token_rollout(EXACT, EXACT, splices={1: Splice(0, 2)})))
    assert made.scores == [1.0, 1.0]
    assert made.replicates == [0, 0]


def test_what_has_no_score_gives_no_row():
    made, _ = build_columns(make_group(make_token_rollout(EXACT, score=None), make_token_rollout(EXACT, replicate=1)))
    assert (made.replicates, made.excluded, to_fields(made)["excluded"]) == ([1], 1, 1)
    assert build_columns(make_group(make_token_rollout(EXACT, score=None)))[0] is None
    made, _ = build_columns(make_group(make_token_rollout(EXACT)))
    assert not {"excluded", "retokenized"} & to_fields(made).keys(), "the form of earlier versions"


def test_fatal_rows_are_never_exported():
    beyond = Tokens((1, 2, 99), (False, False, True), (None, None, -0.5))
    made, report = build_columns(
        make_group(make_token_rollout(beyond), make_token_rollout(EXACT, replicate=1)), Vocabulary(size=50)
    )
    assert made.replicates == [1]
    assert [finding.code for finding in report.findings] == ["vocabulary"]
    assert build_columns(make_group(make_token_rollout(beyond)), Vocabulary(size=50))[0] is None


def test_chat_mode_is_refused_except_for_rows_from_text():
    said = make_group(make_token_rollout(None))
    with pytest.raises(NotExact, match="chat mode"):
        build_columns(said)
    row = TokenSequence(Tokens((4, 5), (False, True), (None, None)), (0,))
    made, report = build_retokenized_columns(said, lambda _: [row])
    assert to_fields(made)["retokenized"] is True
    assert made.inference_logprobs is None
    assert (made.tokens, made.masks) == ([[4, 5]], [[-100, 5]])
    assert [finding.code for finding in report.findings] == ["no_logprobs"]
