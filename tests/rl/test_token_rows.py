"""Training rows: the vocabulary that they are checked with, and rows that are left out."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    serve_engine,
    token_flags,
    write_doubles,
)

from ludus.rl.token_rows import make_vocabulary
from ludus.tokens.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_doubles(folder)


def test_rows_with_ids_beyond_the_vocabulary_are_left_out_with_a_notice(typed, folder: Path, shipped: Path):
    def mangle(path: str, body: dict) -> dict:
        if path == "/v1/completions":
            body["choices"][0]["token_ids"][0] = 70_000
            body["choices"][0]["text"] = None
        return body

    with serve_engine(shipped, mangle=mangle) as url:
        words = ["process", "doubles.py", "--env.limit", "1", "--out", "run", "--quiet", *token_flags(url, shipped)]
        code, _, err = typed(*words)
    assert code == 0
    assert "task 'task-0': a row was left out: " in err and "[vocabulary]" in err
    (group,) = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert "tokens" not in group
    assert "left_out" in typed("check", "run")[1]


def test_a_vocabulary_knows_size_and_ends_and_with_drift_encodes_again(shipped: Path):
    tokenizer = load_tokenizer(shipped).tokenizer
    plain, drifting = make_vocabulary(tokenizer), make_vocabulary(tokenizer, drift=True)
    assert (plain.size, plain.stop_ids, plain.reencode) == (tokenizer.size, frozenset(tokenizer.stop_tokens), None)
    letters = [tokenizer.encode(letter)[0] for letter in "the"]
    assert drifting.reencode is not None
    assert drifting.reencode(letters) == tokenizer.encode("the") != letters
