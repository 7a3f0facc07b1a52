"""`ludus parse`."""

import json
import time
from pathlib import Path

import pytest

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}]


def test_parse_reads_text_and_prints_one_line(typed):
    code, out, _ = typed("parse", "--parser", "hermes", stdin=f"Grüße.\n{CALL}")
    assert code == 0
    assert json.loads(out) == {"content": "Grüße.", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}
    assert out.count("\n") == 1


def test_parse_takes_types_from_a_file_of_tools(typed, tmp_path: Path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"
    shown = typed("parse", "--parser", "glm45", "--tools", str(tmp_path / "tools.json"), stdin=text)[1]
    assert json.loads(shown)["tool_calls"] == [{"name": "f", "arguments": {"x": "1"}}]


def test_parse_prints_a_line_for_each_row(typed):
    rows = [{"parser": "hermes", "input": CALL, "tools": TOOLS}, {"input": "half \ud800"}, {"input": "é\u2028"}]
    text = "\n".join(json.dumps(row) for row in rows)
    code, out, _ = typed("parse", "--jsonl", "--parser", "auto", stdin=text)
    assert code == 0
    assert [json.loads(line)["content"] for line in out.split("\n")[:-1]] == [None, "half \ud800", "é\u2028"]


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        ([], b"", "--parser: which format? One of "),
        (["--parser", "hermez"], b"", "unknown tool-call parser 'hermez'; did you mean 'hermes'?"),
        (["--parser", "hermes"], b"abc\xff", "stdin is not UTF-8: byte 3 is 0xff"),
        (["--parser", "hermes", "--tools", "nowhere.json"], b"", "--tools: nowhere.json cannot be read: No such file"),
        (["--parser", "hermes", "--tools", "bad.json"], b"", "--tools: bad.json is not JSON"),
        (["--parser", "hermes", "--tools", "deep.json"], b"", "--tools: deep.json is not JSON"),
        (["--parser", "hermes", "--tools", "object.json"], b"", "tools: expected a list of tools"),
        (["--jsonl"], b'{"parser": "hermes", "input": ""}\n{"input": "x"}', "line 2: no parser"),
        (["--jsonl"], b'\n{"parser": "x", "input": ""}', "line 2: unknown tool-call parser 'x'"),
        (["--jsonl"], b'{"parser": 5, "input": ""}', "line 1: no parser"),
        (["--jsonl"], b"[1]", 'line 1: expected an object with a text in "input"'),
        (["--jsonl"], b'{"input": 5}', 'line 1: expected an object with a text in "input"'),
        (["--jsonl"], b"[" * 100_000, "line 1: not JSON"),
        (["--jsonl"], b"{}\xff", "line 1 is not UTF-8"),
    ],
)
def test_what_parse_cannot_read_is_named(typed, tmp_path: Path, monkeypatch, words, stdin, message):
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("object.json").write_text("{}")
    Path("deep.json").write_text("[" * 100_000 + "]" * 100_000)
    code, _, err = typed("parse", *words, stdin=stdin)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_rows_before_a_bad_one_are_printed(typed):
    code, out, err = typed("parse", "--jsonl", "--parser", "hermes", stdin='{"input": "a"}\n{"input": null}\n')
    assert (code, json.loads(out)["content"]) == (2, "a")
    assert "line 2" in err


@pytest.mark.parametrize("seed", ["Some words of an answer. ", f"Well.\n{CALL}\n", "<tool_call>", '{"name": "f", '])
def test_megabytes_take_time_in_proportion(typed, seed: str):
    def seconds(size: int) -> float:
        text = seed * (size // len(seed))
        begin = time.process_time()
        assert typed("parse", "--parser", "hermes", stdin=text)[0] == 0
        return time.process_time() - begin

    large = seconds(2_000_000)
    assert large < 0.5 or large / seconds(250_000) < 32
