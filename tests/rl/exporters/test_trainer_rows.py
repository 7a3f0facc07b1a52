"""Rows for trainers: field names, alignment, and that nothing is lost.

`tests/rl/exporters/test_consumers_live.py` gives the same rows to the trainers' own code.
"""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.export_kit import SOURCE, collect_sums

from ludus.rl.exporters import ExportedGroup
from ludus.rl.exporters.trainer_rows import (
    export_openrlhf,
    export_prime,
    export_skyrl,
    export_tinker,
    export_trl,
    export_verl,
    find_ranges,
)
from ludus.types import Tokens

PROMPT, COMPLETION, MASK = [1, 2], [10, 11, 3, 4, 12], [1, 1, 0, 0, 1]
LOGPROBS = [-0.5, -0.25, 0.0, 0.0, -0.125]


def test_trl():
    first, _ = export_trl(collect_sums())
    assert (first["prompt_ids"], first["completion_ids"]) == (PROMPT, COMPLETION)
    assert (first["env_mask"], first["logprobs"], first["reward"]) == (MASK, LOGPROBS, 1.0)


def test_verl():
    first, _ = export_verl(collect_sums())
    assert (first["prompt_ids"], first["response_ids"]) == (PROMPT, COMPLETION)
    assert (first["response_mask"], first["response_logprobs"], first["reward_score"]) == (MASK, LOGPROBS, 1.0)
    assert first["num_turns"] == 5  # system, user, call, answer of the tool, answer
    assert first["metrics"] == {"generate_sequences": 2.0, "tool_calls": 0.5}
    assert first["extra_fields"]["split"] == "train"


def test_skyrl_has_one_line_per_group_and_steps_for_branches():
    (line,) = export_skyrl(collect_sums())
    assert line["prompt_token_ids"] == [PROMPT] * 2 and line["response_ids"] == [COMPLETION] * 2
    assert line["loss_masks"] == [MASK] * 2 and line["rollout_logprobs"] == [LOGPROBS] * 2
    assert line["rewards"] == [1.0, 0.0] and line["stop_reasons"] == ["finished"] * 2
    assert line["is_last_step"] == [True, True]
    (branched,) = export_skyrl(collect_sums(branch=True))
    assert [each["repetition_id"] for each in branched["trajectory_ids"]] == [0, 0, 1]
    assert branched["is_last_step"] == [False, True, True]


class TrainingSample(msgspec.Struct, array_like=True):
    """The fields of prime-rl's struct that all its versions share, in their order. It is not on the package index."""

    prompt_ids: list[int]
    prompt_mask: list[bool]
    completion_ids: list[int]
    completion_mask: list[bool]
    completion_logprobs: list[float]


def test_prime_rl():
    first, _ = export_prime(collect_sums())
    sample = TrainingSample(**{name: first[name] for name in TrainingSample.__struct_fields__})
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=TrainingSample)
    assert again == sample
    assert (sample.prompt_ids, sample.prompt_mask, sample.completion_ids) == (PROMPT, [False, False], COMPLETION)
    assert sample.completion_mask == [True, True, False, False, True]
    assert (first["advantage"], first["reward"]) == (1.0, 1.0)


def test_openrlhf():
    first, _ = export_openrlhf(collect_sums())
    assert first["observation_tokens"] == PROMPT + COMPLETION
    assert first["action_ranges"] == [[2, 4], [6, 7]]
    assert first["rollout_log_probs"] == [0.0, 0.0, *LOGPROBS]
    assert (first["reward"], first["scores"], first["prompt"]) == (1.0, 1.0, "What is 2 + 2?")


def test_tinker_is_shifted_by_one():
    first, second = export_tinker(collect_sums())
    assert first["model_input"]["chunks"] == [{"type": "encoded_text", "tokens": [1, 2, 10, 11, 3, 4]}]
    inputs = {name: tensor["data"] for name, tensor in first["loss_fn_inputs"].items()}
    assert inputs["target_tokens"] == [2, 10, 11, 3, 4, 12]
    assert inputs["logprobs"] == [0.0, -0.5, -0.25, 0.0, 0.0, -0.125]
    assert inputs["advantages"] == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert second["loss_fn_inputs"]["advantages"]["data"][1] == -1.0
    assert {tensor["shape"][0] for tensor in first["loss_fn_inputs"].values()} == {6}


@pytest.mark.parametrize(
    "export", [export_trl, export_verl, export_skyrl, export_prime, export_openrlhf, export_tinker]
)
def test_every_format_is_json_and_says_where_it_comes_from(export):
    for row in export(collect_sums(branch=True)):
        text = msgspec.json.encode(row)
        assert msgspec.json.decode(text) == row
        assert b'"split":"train"' in text and b'"policy":"pppppppppppppppp"' in text


@given(st.lists(st.booleans(), min_size=1, max_size=14))
def test_ranges_cover_exactly_the_sampled_ids(sampled):
    tokens = Tokens(tuple(range(len(sampled))), tuple(sampled), (None,) * len(sampled))
    ranges = find_ranges(tokens)
    covered = {place for start, end in ranges for place in range(start, end)}
    assert covered == {place for place, each in enumerate(sampled) if each}
    assert all(start < end for start, end in ranges)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_a_row_of_one_id_is_left_out_of_tinker():
    exported = collect_sums()
    one = msgspec.structs.replace(exported.members[0], tokens=Tokens((5,), (True,), (-0.1,)))
    group = ExportedGroup(group=exported.group, source=SOURCE, members=(one,), advantages=exported.advantages)
    assert list(export_tinker(group)) == []
