"""`ludus process`: groups of scored rollouts, and training rows in token mode."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    make_tokenizer,
    script_flags,
    serve_engine,
    token_flags,
    write_doubles,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)
    write_doubles(folder)


def test_process_writes_groups_and_says_what_to_do_next(ludus: Ludus, folder: Path):
    code, out, err = ludus("process", "sums.py", "--env.group_size", "2", *script_flags())
    assert code == 0, err
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("sums-")
    rows = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    assert sorted(row["task"]["id"] for row in rows) == ["sum-0", "sum-1", "sum-2", "sum-3"]
    assert all(len(row["rollouts"]) == 2 for row in rows)
    assert f"ludus show runs/{run.name}" in out
    assert (run / "trajectories.html").as_uri() in out


ENGINES = ["vllm", "sglang", "llamacpp", "atropos", "vllm_chat"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_writes_groups_that_pass_the_check(typed, folder: Path, shipped: Path, engine: str):
    with serve_engine(shipped) as url:
        words = ["process", "doubles.py", "--env.group_size", "2", "--out", "run", "--quiet"]
        words += ["--sampling.max_tokens", "200"]
        code, _, err = typed(*words, *token_flags(url, shipped, engine))
    assert code == 0, err
    groups = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert [rollout["mode"] for group in groups for rollout in group["rollouts"]] == ["tokens"] * 4
    assert all(rollout["turns"] == 2 for group in groups for rollout in group["rollouts"])
    for group in groups:  # where the server renders, drift makes several rows of a rollout
        values = [rollout["score"]["value"] for rollout in group["rollouts"]]
        assert group["scores"] == [values[replicate] for replicate in group["replicates"]]
        assert len(group["scores"]) == 2 or engine == "vllm_chat"
    for group in groups:
        for ids, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            assert len(ids) == len(mask) == len(logprobs)
            assert all((m == -100) == (p == 1.0) for m, p in zip(mask, logprobs, strict=True))
    assert typed("check", "run", "--tokenizer", str(shipped))[0] == 0
    exported = typed("export", "run")[1]
    rows = [json.loads(line)["tokens"] for line in exported.splitlines()]
    assert sorted(rows) == sorted(group["tokens"] for group in groups)  # groups are written as they are finished


def test_a_tokenizer_of_another_model_is_refused_before_the_run_begins(typed, folder: Path, shipped: Path):
    (folder / "other").mkdir()
    other = make_tokenizer(folder / "other", "entirely different words, numbers 12345 3.14 and so on naïve café")
    with serve_engine(shipped) as url:
        code, _, err = typed("process", "doubles.py", "--out", "run", *token_flags(url, other))
    assert code == 2
    assert "tokenizer: the engine encodes a probe text differently" in err
    assert not Path("run").exists()


def test_a_template_that_drops_tools_is_refused_before_the_run_begins(typed, folder: Path, shipped: Path):
    Path("plain.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    )
    with serve_engine(shipped) as url:
        flags = [*token_flags(url, shipped), "--model.template", "plain.jinja", "--tools.enabled", "[todo]"]
        code, _, err = typed("process", "doubles.py", "--out", "run", *flags)
    assert code == 2
    assert "template: it leaves out the tools" in err and "`template: chatml`" in err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model.parser", "hermez"], "model.parser: unknown tool-call parser 'hermez'; did you mean 'hermes'?"),
        (["--model.tokenizer", "./nowhere"], "model.tokenizer: there is no file or folder './nowhere'"),
        (["--model.template", "nowhere"], "model.template: 'nowhere' is neither a file nor a built-in template"),
        (["--model.engine", "vlm"], "model.engine: expected one of atropos, llamacpp, sglang, vllm, vllm_chat"),
        (["--model.mode", "tokens"], "model.mode: expected one of chat, token"),
        ([], "Is the engine running, and is base_url right?"),
    ],
)
def test_what_is_wrong_with_token_mode_is_said_before_the_run_begins(
    typed, folder: Path, shipped: Path, given, message
):
    flags = [*token_flags("http://127.0.0.1:9", shipped), *given]
    code, _, err = typed("process", "doubles.py", "--out", "run", *flags)
    assert code == 2
    assert message in err
    assert not Path("run").exists()


def test_the_embedded_model_in_token_mode(typed, folder: Path):
    """For real, with little more than the mode set; one thread, which does not wait for another on a busy machine."""
    pytest.importorskip("xllamacpp", reason="the embedded model's engine is not installed")
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    words = ["process", "doubles.py", "--model.mode", "token", "--model.threads", "1"]
    words += ["--env.limit", "1", "--sampling.max_tokens", "4", "--out", "run", "--quiet"]
    code, _, err = typed(*words)
    if code == 2 and "could not be" in err:
        pytest.skip(err)
    assert code == 0, err
    (group,) = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert 0 < sum(m != -100 for m in group["masks"][0]) <= 4
    assert typed("check", "run")[0] == 0
