"""Helpers that files import from `atroposlib.utils`: what they return, and that it is what the originals return.

The comparison runs if atroposlib can be imported here, or in the environment that LUDUS_TEST_ATROPOS names.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compat.tests.atropos_env.helpers_peer import WordTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.compat.atropos_env.file_helpers import (
    ensure_trajectory_token_limit,
    extract_tool_call,
    parse_http_response,
    parse_tool_call,
    select_best_index,
    strip_thinking,
    truncate_thinking,
)
from ludus.compat.atropos_env.tokenizer_view import build_row

TOOLS = [{"name": "look"}, {"type": "function", "function": {"name": "run"}}, "not a tool"]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>', ("look", {"at": 1}, False)),
        ("<tool_call>{'name': 'run', 'arguments': {'x': 'y'}}</tool_call>", ("run", {"x": "y"}, False)),
        ('<tool_call>\n{"name": "run", "arguments": {"x": "a\nb"}}\n</tool_call>', ("run", {"x": "a\nb"}, False)),
        ('<tool_call>bad</tool_call><tool_call>{"name": "run"}</tool_call>', ("-ERROR-", {}, True)),
        ('<tool_call>{"name": "fly", "arguments": {"to": 2}}</tool_call>', ("-ERROR-", {"to": 2}, True)),
        ('<tool_call>{"name": "run"}</tool_call>', ("run", {}, False)),
        ("<tool_call>[1]</tool_call>", ("-ERROR-", {}, True)),
        ("no call", ("-ERROR-", {}, True)),
    ],
)
def test_the_first_call_of_a_reply_is_read(text: str, call: tuple[str, dict[str, Any], bool]):
    assert parse_tool_call(text, TOOLS) == call


def test_tags_are_tried_in_their_order():
    text = "<b>2</b><a> 1 </a><a>3</a>"
    assert extract_tool_call(text, ["a", "b"]) == "1" and extract_tool_call(text, ["c", "b"]) == "2"
    assert extract_tool_call(text) is None


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("<think>a b</think>c", 9, "<think>\na b\n</think>c"),
        ("<think>first of all\n\nlast one</think>c", 4, "<think>\n... last one\n</think>c"),
        ("<think>a b c d e</think>c", 3, "<think>\n... d e\n</think>c"),
        ("<think>  </think>c", 3, "<think></think>c"),
        ("<think>a b c</think>c", 0, "<think></think>c"),
        ("</think>a<think>", 3, "</think>a<think>"),
    ],
)
def test_thinking_is_cut_to_its_last_paragraph_or_its_tail(text: str, most: int, shown: str):
    assert truncate_thinking(text, WordTokenizer(), most) == shown


def test_thinking_is_taken_out():
    assert strip_thinking("a<think>b</think>c<think>d</think>") == "ac<think>d</think>"
    assert strip_thinking("a<think>b") == "a<think>b"


def test_the_best_score_is_found():
    assert select_best_index([1, 3, 3, 3], [0, 5, 2, 2]) == 2
    assert select_best_index([1, 3, 1], [0, 5, 2], False, False) == 2
    for scores in (([], []), ([1], [1, 2])):
        with pytest.raises(ValueError, match="score"):
            select_best_index(*scores)


def test_a_step_that_is_too_long_loses_its_oldest_turns():
    talk = [{"role": role, "content": "a b c"} for role in ("system", "environment", "agent", "environment", "agent")]
    step = {"messages": [talk], "seed": 1, "parsed_actions": [0], "scores": [1.0], "own": 1}
    step |= build_columns(step["messages"])
    (fitted,) = ensure_trajectory_token_limit([step], WordTokenizer(), 25)
    assert [message["role"] for message in fitted["messages"][0]] == ["system", "environment", "agent"]
    assert ensure_trajectory_token_limit([step, {**step, "seed": None}], WordTokenizer(), 99) == [step]
    assert ensure_trajectory_token_limit([step], WordTokenizer(), 5) == []


async def test_a_reply_of_a_client_is_read():
    class Reply:
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def raise_for_status(self) -> None:
            if self.fails:
                raise OSError("500")

        async def json(self) -> dict[str, int]:
            return {"a": 1}

        async def text(self) -> str:
            return "down"

    assert await parse_http_response(Reply(fails=False)) == {"a": 1}
    with pytest.raises(OSError, match="500"):
        await parse_http_response(Reply(fails=True))


# ---- beside the originals -----------------------------------------------------------------------------------------


class Peer:
    """A process with atroposlib."""

    def __init__(self, python: str) -> None:
        words = [python, str(Path(__file__).with_name("helpers_peer.py"))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        while (line := self._read()) != "ready":
            assert line or self._process.poll() is None, "atroposlib cannot be imported"

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def call(self, name: str, **arguments: Any) -> Any:
        assert self._process.stdin
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        while not (line := self._read()).startswith("{"):  # the originals print
            assert self._process.poll() is None
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    named = os.environ.get("LUDUS_TEST_ATROPOS", "")
    if not named and importlib.util.find_spec("atroposlib") is None:
        pytest.skip("atroposlib is not installed: see make test-atropos")
    peer = Peer(f"{named}/bin/python" if named else sys.executable)
    yield peer
    peer.close()


def compare(peer: Peer, function: Callable[..., Any], **arguments: Any) -> None:
    own = {**arguments, "tokenizer": WordTokenizer()} if "tokenizer" in arguments else arguments
    try:
        found = {"returned": function(**json.loads(json.dumps(arguments)) | own)}
    except Exception as error:
        found = {"raised": type(error).__name__}
    name = "tokenize_for_trainer" if function is build_row else function.__name__
    assert json.loads(json.dumps(found)) == peer.call(name, **arguments)


MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PIECES = [
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool>",
        "</tool>",
        "\n\n",
        "\n",
        " ",
        "word",
        "...",
        "b c d",
    ),
    *(
        '{"name": "look", "arguments": {"at": [1, null]}}',
        "{'name': 'run', 'arguments': {'x': 'it'}}",
        '{"name": "fly"}',
    ),
    *('{"name": "run", "arguments": {"x": "a\nb"}}', "[1]", '{"name": ["look"]}', '{"name": ""}', "{", "null", "'"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
TAGS = st.none() | st.lists(st.sampled_from(["tool_call", "tool", "think"]), max_size=3)
TOOL = st.sampled_from([*TOOLS, {"function": 3}, {"function": {}}, {}, {"name": "fly", "function": {"name": "run"}}])
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "environment", "agent", "assistant", "user"]),
        st.lists(st.sampled_from(["a", "bb", "c d"]), min_size=1, max_size=4).map(" ".join),
    ),
    min_size=1,
    max_size=8,
)


def build_columns(messages: list[Any]) -> dict[str, Any]:
    rows = [build_row(WordTokenizer(), each) for each in messages]
    return {name: [row[name] for row in rows] for name in ("tokens", "masks")}


@MANY
@given(TEXTS, TAGS)
def test_extract_tool_call_does_what_the_original_does(peer: Peer, text: str, tags: Any):
    compare(peer, extract_tool_call, text=text, preferred_tags=tags)


@MANY
@given(TEXTS, st.none() | st.lists(TOOL, max_size=3), TAGS)
def test_parse_tool_call_does_what_the_original_does(peer: Peer, text: str, tools: Any, tags: Any):
    compare(peer, parse_tool_call, response=text, available_tools=tools, preferred_tags=tags)


@MANY
@given(TEXTS, st.integers(-1, 8))
def test_thinking_is_shortened_as_the_original_does(peer: Peer, text: str, most: int):
    compare(peer, truncate_thinking, response_text=text, tokenizer=None, max_think_tokens=most)
    compare(peer, strip_thinking, response_text=text)


@MANY
@given(*[st.lists(st.integers(0, 3), max_size=5)] * 2, st.booleans(), st.booleans())
def test_the_best_index_is_that_of_the_original(peer: Peer, first: Any, second: Any, higher: bool, lower: bool):
    ways = {"primary_higher_is_better": higher, "secondary_lower_is_better": lower}
    compare(peer, select_best_index, primary_scores=first, secondary_scores=second, **ways)


@MANY
@given(st.lists(MESSAGES, min_size=1, max_size=3), st.integers(4, 60), st.sampled_from([0, 3, None]))
def test_trajectories_are_fitted_as_the_original_does(peer: Peer, messages: list[Any], most: int, seed: int | None):
    step = {"messages": messages, **build_columns(messages), "seed": seed, "parsed_actions": [0], "scores": [1.0]}
    compare(peer, ensure_trajectory_token_limit, trajectory=[step], tokenizer=None, max_trajectory_tokens=most)


@MANY
@given(MESSAGES, st.booleans(), st.booleans(), st.sampled_from(["", "stop", "length"]))
def test_rows_are_those_of_the_original(peer: Peer, chat: Any, messages: bool, every: bool, finish: str):
    given_ = {"include_messages": messages, "train_on_all_assistant_turns": every, "finish_reason": finish}
    compare(peer, build_row, tokenizer=None, chat=chat, **given_)
