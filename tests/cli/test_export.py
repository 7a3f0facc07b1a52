"""`ludus export`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    serve_engine,
    write_doubles,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_doubles(folder)


def test_chat_mode_is_refused_as_rl_data_until_rows_from_text_are_asked_for(typed, folder: Path, shipped: Path):
    with serve_engine(shipped) as url:
        chat = ["--model.base_url", f"{url}/v1", "--model.name", "toy"]
        chat += ["--sampling.max_tokens", "200"]
        assert typed("process", "doubles.py", "--out", "run", "--quiet", *chat)[0] == 0
    (group, _) = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert group["rollouts"][0]["mode"] == "chat"
    assert "tokens" not in group
    code, out, _ = typed("check", "run")
    assert (code, out.count("run in chat mode")) == (1, 2)
    code, out, err = typed("export", "run")
    assert (code, out) == (2, "")
    assert "run in chat mode" in err and "re-tokenized" in err
    code, out, err = typed("export", "run", "--retokenize", str(shipped), "--parser", "hermes")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["retokenized"] for row in rows] == [True, True]
    assert rows[0]["inference_logprobs"] is None
    assert "double" in _decode(shipped, rows[0]["tokens"][0]).partition("<|im_start|>user")[0]  # the tools are shown
    assert typed("check", "-", stdin=out)[0] == 0
    assert "give --retokenize TOKENIZER too" in typed("export", "run", "--parser", "hermes")[2]


def _decode(folder: Path, ids: list[int]) -> str:
    from ludus.tokens.tokenizer import load_tokenizer

    return load_tokenizer(folder).tokenizer.decode(ids)
