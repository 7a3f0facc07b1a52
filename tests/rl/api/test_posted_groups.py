"""What the server takes as a group, and what it refuses with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api_kit import make_wire_group

from ludus.rl.api.posted_groups import KEYS, BadGroup, check_group, check_groups


def check(value: Any) -> Any:
    return check_group(json.dumps(value).encode())


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


@st.composite
def groups(sample: st.DrawFn) -> dict[str, Any]:
    """Groups with rows of any length, and any of the optional fields."""
    lengths = sample(st.lists(st.integers(1, 5), min_size=1, max_size=4))

    def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.tuples(*(st.lists(values, min_size=n, max_size=n) for n in lengths)).map(list)

    message = st.fixed_dictionaries({"role": st.text(), "content": st.none() | st.text() | st.just([{"a": 1}])})
    optional = {
        "advantages": rows(NUMBERS),
        "ref_logprobs": rows(NUMBERS),
        "inference_logprobs": rows(NUMBERS),
        "messages": st.lists(st.lists(message, max_size=2), min_size=len(lengths), max_size=len(lengths)),
        "generation_params": st.dictionaries(st.text(), NUMBERS),
        "overrides": st.just([{"set_advantage_to_zero": True}] * len(lengths)),
        "group_overrides": st.dictionaries(st.text(), st.text()),
        "images": st.text() | st.lists(st.text()),
        "env_id": st.integers(-3, 70),
        "distill_token_ids": rows(st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        "distill_logprobs": rows(st.lists(NUMBERS, min_size=2, max_size=2)),
    }
    absent = {"advantages": st.just([]), "messages": st.none() | st.just([])}
    chosen = sample(st.fixed_dictionaries({}, optional={k: v | absent.get(k, st.none()) for k, v in optional.items()}))
    return {
        "tokens": sample(rows(st.integers(0, 2**40))),
        "masks": sample(rows(st.integers(-100, 2**40))),
        "scores": sample(st.lists(NUMBERS, min_size=len(lengths), max_size=len(lengths))),
        **chosen,
    }


@given(groups(), SEPARATORS, st.booleans())
def test_a_good_group_comes_out_with_the_14_keys_and_the_same_values(group, separators, ascii_only):
    body = json.dumps(group, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadGroup):
            check_group(body)
        return
    if not body.isascii() or b"\\ud" not in body:  # lone surrogates cannot be decoded by everybody
        checked = check_group(body)
        assert json.loads(checked.body) == {**dict.fromkeys(KEYS), **group}
        assert list(json.loads(checked.body)) == list(KEYS)
        assert (checked.size, checked.env_id) == (len(group["tokens"]), group.get("env_id"))


@given(groups(), st.data())
def test_a_row_of_another_length_is_refused_at_its_place(group, data):
    aligned = [name for name in ("masks", "inference_logprobs", "ref_logprobs") if group.get(name)]
    name = data.draw(st.sampled_from(aligned))
    row = data.draw(st.integers(0, len(group["tokens"]) - 1))
    group[name][row] = group[name][row] * 2
    with pytest.raises(BadGroup) as caught:
        check(group)
    assert caught.value.place == (name, row)


@pytest.mark.parametrize(
    ("change", "place", "word"),
    [
        ({"scores": [1.0]}, ("scores",), "1 scores for 2"),
        ({"tokens": []}, ("tokens",), "no sequences"),
        ({"tokens": [[], []]}, ("tokens", 0), "no ids"),
        ({"tokens": [[1, 2, 3], 4]}, ("tokens", 1), "list"),
        ({"tokens": [[1, 2, 3], [1, 2, "x"]]}, ("tokens", 1, 2), "integer"),
        ({"tokens": [[1, 2, 3], [1, 2, 3.5]]}, ("tokens", 1, 2), "fraction"),
        ({"tokens": [[1, 2, 3], [1, 2, None]]}, ("tokens", 1, 2), "integer"),
        ({"tokens": [[1, 2, 3], [1, [2], 3]]}, ("tokens", 1, 1), "integer"),
        ({"masks": [[1, 2, 3]]}, ("masks",), "1 rows for 2"),
        ({"inference_logprobs": [[0.1, 0.2, 0.3], [0.1, 0.2, True]]}, ("inference_logprobs", 1, 2), "number"),
        ({"advantages": [[0.1]]}, ("advantages",), "1 rows for 2"),
        ({"messages": [[{"role": "user", "content": "a"}]]}, ("messages",), "1 conversations for 2"),
        ({"messages": [[{"role": "user"}], []]}, ("messages",), "'role' and 'content'"),
        ({"messages": [[{"content": "user"}], []]}, ("messages",), "'role' and 'content'"),
        ({"overrides": [{}]}, ("overrides",), "1 entries for 2"),
        ({"overrides": [1, 2]}, ("overrides",), "object"),
        ({"group_overrides": [1]}, ("group_overrides",), "object"),
        ({"env_id": "x"}, ("env_id",), "integer"),
        ({"generation_params": {"policy_version": "new"}}, ("generation_params", "policy_version"), "integer"),
        ({"distill_token_ids": [[[1], [2], [3]]]}, ("distill_token_ids",), "1 entries for 2"),
        (
            {"distill_token_ids": [[[1]], [[1]]], "distill_logprobs": [[[0.1]], [[0.1, 0.2]]]},
            ("distill_logprobs", 1),
            "parallel",
        ),
    ],
)
def test_a_bad_group_is_refused_with_its_place_and_reason(change, place, word):
    with pytest.raises(BadGroup) as caught:
        check(make_wire_group() | change)
    assert caught.value.place == place
    assert word in caught.value.message


@pytest.mark.parametrize("name", ["scores", "inference_logprobs", "advantages"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1E400"])
def test_a_number_that_is_not_finite_is_refused(name, number):
    value = f"[{number},0.5]" if name == "scores" else f"[[{number},1,1],[1,1,1]]"
    body = json.dumps(make_wire_group() | {name: "@"}).replace('"@"', value).encode()
    with pytest.raises(BadGroup) as caught:
        check_group(body)
    assert caught.value.kind == "finite_number"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"tokens":[[1,2]],"masks":[[1,2]]}',
        b'{"tokens":[[01,2]],"masks":[[1,2]],"scores":[1]}',
        b'{"tokens":[[1 2,3]],"masks":[[1,2]],"scores":[1]}',
        b'{"tokens":[[1-2,3]],"masks":[[1,2]],"scores":[1]}',
        b'{"tokens":[[1,2]],"masks":[[1,2]],"scores":[1],"images":"\xff"}',
        b'{"tokens":[[1,2]],"masks":[[1,2]],"scores":[1],"images":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_no_group_is_refused(body):
    with pytest.raises(BadGroup):
        check_group(body)


def test_numbers_as_text_and_scores_as_booleans_are_converted():
    group = check({"tokens": [["1", 2.0]], "masks": [["-100", 2]], "scores": [True], "env_id": "3"})
    fields = json.loads(group.body)
    assert (fields["tokens"], fields["masks"], fields["scores"]) == ([[1, 2]], [[-100, 2]], [1.0])
    assert (fields["env_id"], group.env_id) == (3, 3)


def test_unknown_keys_are_dropped_and_extra_keys_of_messages_kept():
    messages = [[{"role": "tool", "content": None, "reward": 1, "tool_calls": [{"id": "a"}]}]] * 2
    fields = json.loads(check(make_wire_group(messages=messages, surprise=1)).body)
    assert fields["messages"] == messages
    assert "surprise" not in fields


@pytest.mark.parametrize("name", ["advantages", "ref_logprobs", "messages", "overrides", "distill_logprobs"])
def test_an_empty_list_for_an_absent_field_is_passed_on(name):
    assert json.loads(check(make_wire_group(**{name: []})).body)[name] == []


def test_advantages_may_have_other_lengths_than_the_ids():
    assert json.loads(check(make_wire_group(advantages=[[1.0] * 7] * 2)).body)["advantages"] == [[1.0] * 7] * 2


def test_small_logprobs_are_kept_to_the_letter():
    body = json.dumps(make_wire_group(inference_logprobs=[[1.0, -1e-07, -2.5e-05]] * 2)).encode()
    assert b"-1e-07, -2.5e-05" in check_group(body).body


def test_the_version_of_the_policy_is_read():
    assert check(make_wire_group(generation_params={"policy_version": 7})).version == 7
    assert check(make_wire_group(generation_params={"temperature": 1})).version is None
    assert check(make_wire_group()).version is None


def test_a_list_is_checked_whole():
    good = make_wire_group()
    assert [group.size for group in check_groups(json.dumps([good, make_wire_group(3)]).encode())] == [2, 3]
    with pytest.raises(BadGroup) as caught:
        check_groups(json.dumps([good, good | {"scores": [1]}]).encode())
    assert caught.value.place == (1, "scores")
    with pytest.raises(BadGroup):
        check_groups(json.dumps(good).encode())
