"""One JSON value, from replies of every form."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.reflact.json_extract import extract_json

FENCED = "Sure!\n```json\n{}\n```\nAnything else?"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Here: {"a": {"b": [1, {"c": 2}]}} Done.', {"a": {"b": [1, {"c": 2}]}}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("```json\n[1, 2]\n```", [1, 2]),
        ('```json\n[{"a": 1}, {"a": 2}]\n```', [{"a": 1}, {"a": 2}]),
        ("[1, 2]", [1, 2]),
        ('{"a": [1, 2,], "b": "x,}",}', {"a": [1, 2], "b": "x,}"}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('A draft {"b": 2} and then\n```json\n{"a": 1}\n```', {"a": 1}),
        ('Use {braces} and {more}. {"a": 1}', {"a": 1}),
        ("An open { and then " + '{"a": 1}', {"a": 1}),
        ('{"a": "}{ \\" ```json {} ```"} and prose', {"a": '}{ " ```json {} ```'}),
    ],
)
def test_what_is_found(text: str, value: object):
    assert extract_json(text) == value


def test_a_fence_inside_a_string_is_not_mistaken_for_the_reply():
    reply = {"document": "Do this:\n```json\n{}\n```\nThen that.", "changes": []}
    for frame in ("{}", FENCED, "I changed it. {} There."):
        for text in (json.dumps(reply), json.dumps(reply, indent=1)):
            assert extract_json(frame.replace("{}", text, 1)) == reply


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON object"),
        ("I have no idea.", "no JSON object"),
        ("Use {this} or {that}.", "no JSON object"),
        ("12", "no JSON object"),
        ('{"a": 1} {"b": 2}', "2 JSON objects"),
        ('```json\n{"a": 1}\n```\n```json\n{"b": 2}\n```', "2 JSON objects"),
        ('{"a": 1, "b": {"c": 2}', "not closed"),
        ('{"a": 1 "b": {"c": 2}}', "broken"),
        ('```json\n{"a": "never ends', "not closed"),
    ],
)
def test_what_is_refused_and_why(text: str, says: str):
    with pytest.raises(ValueError, match=says):
        extract_json(text)


def test_an_inner_object_never_stands_for_a_broken_outer_one():
    with pytest.raises(ValueError, match="broken"):
        extract_json('{"items": [{"op": "append"}] "oops"}')


def test_a_text_full_of_brackets_is_given_up():
    """It would take hours in quadratic time."""
    for text in ("{" * 30_000, '{"a": [' * 30_000, "{x " * 30_000, '{"' * 30_000, "[{" * 30_000, "```json " * 20_000):
        with pytest.raises(ValueError):
            extract_json(text)


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:` \\\na1', max_size=60))
def test_whatever_comes_in_either_a_value_or_a_reason_comes_out(text: str):
    try:
        assert isinstance(extract_json(text), dict | list)
    except ValueError as error:
        assert str(error)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.lists(st.text(max_size=5)), min_size=1))
def test_every_object_is_found_in_prose_and_in_a_fence(value: dict[str, object]):
    for frame in ("{}", "So: {} that is it", FENCED):
        assert extract_json(frame.replace("{}", json.dumps(value), 1)) == value


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"a": ["\\udfff x"]}', '{"a\\ud800": 1}', '{"a": "\ud800"}'])
def test_half_a_surrogate_pair_is_a_problem_of_the_reply(text: str):
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        extract_json(text)
    assert extract_json('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("levels", [300, 900, 990, 1_000, 50_000])
def test_any_depth_is_a_value_or_a_problem_of_the_reply(levels: int):
    for opened, closed in (("[", "]"), ('{"b":', "}")):
        with contextlib.suppress(ValueError):
            extract_json('{"a": ' + opened * levels + "1" + closed * levels + "}")
