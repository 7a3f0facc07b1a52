"""`ludus parse`, `check` and `export`, and token mode in the settings, as a user meets them."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ludus.agent import Policy
from ludus.cli import main
from ludus.config import load
from ludus.config.build_agent import build_env, build_policy
from ludus.config.tree import EmbeddedConfig, OpenAIConfig
from ludus.config.token_mode import make_ready
from ludus.models.ledger import Ledger, Metered
from ludus.tools.toolsets import BUILTIN

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]):
    """Run a command with text on stdin: its exit code, stdout and stderr."""

    def run(*words: str, stdin: bytes | str = b"") -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(list(words))
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


# ---- parse --------------------------------------------------------------------------------------------------------


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
        (["--parser", "hermez"], b"", "unknown tool-call parser 'hermez': did you mean 'hermes'?"),
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


# ---- check --------------------------------------------------------------------------------------------------------

GOOD = {
    "tokens": [[5, 6, 7, 8], [5, 6, 9]],
    "masks": [[-100, -100, 7, 8], [-100, -100, 9]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, 1.0, -0.5, -0.1], [1.0, 1.0, -2.0]],
}


def lines(*groups: object) -> str:
    return "".join(json.dumps(group) + "\n" for group in groups)


def test_check_of_good_rows_ends_with_0(typed, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text(lines(GOOD, GOOD))
    code, out, _ = typed("check", str(file))
    assert (code, out) == (0, "2 groups, 4 rows, 14 tokens, 6 trained: 0 fatal, 0 warning, 0 info\n")
    assert typed("check", "-", stdin=lines(GOOD))[0] == 0


def test_check_names_the_group_the_row_and_what_is_wrong(typed, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    bad = {**GOOD, "inference_logprobs": [[1.0, 1.0, float("nan"), -0.1], [1.0, 1.0, 1.0]]}
    file.write_text(lines(GOOD, bad) + "{broken\n" + lines({"rollouts": [{"score": {}, "mode": "chat"}]}))
    code, out, _ = typed("check", str(file))
    assert code == 1
    assert "fatal: group 2, row 1: 1 logprobs are not finite, such as nan [logprob_infinite]" in out
    assert "fatal: group 2, row 2: 1 trained ids have no logprob [logprob_missing]" in out
    assert "fatal: group 3: the line is not JSON" in out
    assert "fatal: group 4: its rollouts were run in chat mode" in out
    report = json.loads(typed("check", "--json", str(file))[1])
    assert report["ok"] is False
    assert [finding["code"] for finding in report["findings"]][-2:] == ["shape", "chat"]


def test_check_counts_what_it_does_not_repeat(typed, tmp_path: Path):
    (tmp_path / "groups.jsonl").write_text(lines(*[{**GOOD, "scores": [1.0]}] * 30))
    code, out, _ = typed("check", str(tmp_path))
    assert code == 1
    assert out.count("1 scores for 2 rows") == 20
    assert "fatal: 10 more [count]" in out


def test_check_of_what_cannot_be_read_ends_with_2(typed, tmp_path: Path):
    code, _, err = typed("check", str(tmp_path / "none.jsonl"))
    assert (code, "none.jsonl cannot be read" in err) == (2, True)
    assert "groups.jsonl cannot be read" in typed("check", str(tmp_path))[2]
    (tmp_path / "rows.jsonl").write_text(lines(GOOD))
    code, _, err = typed("check", str(tmp_path / "rows.jsonl"), "--tokenizer", "./nowhere.json")
    assert (code, "there is no file or folder './nowhere.json'" in err) == (2, True)
    (tmp_path / "empty.jsonl").write_text("")
    assert typed("check", str(tmp_path / "empty.jsonl"))[0] == 1


def test_check_with_a_tokenizer_knows_the_vocabulary_and_drift(typed, tmp_path: Path, shipped: Path):
    from ludus.tokens.tokenizer import load

    tokenizer = load(shipped).tokenizer
    letters = [tokenizer.encode(letter)[0] for letter in "the"]
    whole = tokenizer.encode("the")
    assert letters != whole

    def group(ids: list[int]) -> dict[str, object]:
        return {
            "tokens": [ids],
            "masks": [[-100, *ids[1:]]],
            "scores": [1.0],
            "inference_logprobs": [[-0.5] * len(ids)],
        }

    (tmp_path / "rows.jsonl").write_text(lines(group(letters), group([0, *whole]), group([0, 999_999])))
    report = json.loads(typed("check", "--json", str(tmp_path / "rows.jsonl"), "--tokenizer", str(shipped))[1])
    assert {f["code"] for f in report["findings"]} >= {"drift", "vocabulary"}
    assert 0 < report["drift_rate"] < 1


# ---- token mode ---------------------------------------------------------------------------------------------------

ENV = '''
from collections.abc import Iterator, Sequence
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.tools import Tool
from ludus.types import Rollout, Score, Task, ToolSpec

async def double(arguments):
    return str(2 * arguments["number"])

SPEC = ToolSpec("double", "Doubles a number.", {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]})

class Doubles(Env, frozen=True):
    """Double a number."""
    name: ClassVar[str] = "doubles"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        for n in range(2):
            yield Task(id=f"task-{n}", prompt=f"Double {n}", split=split, answer=str(2 * n))

    def tools(self, task, box) -> Sequence[Tool]:
        return (Tool(SPEC, double),)

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.task.answer in rollout.answer))
'''

WORDS = "the quick brown fox <tool_call> </tool_call> name arguments double number answer user assistant system"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer and a template, as models ship them."""
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), WORDS)


def make_tokenizer(folder: Path, words: str) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    from ludus.tokens.template import named_template

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator([words] * 3, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    special = ["<|im_start|>", "<|im_end|>"]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    rust.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": named_template("chatml")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reply(prompt: str) -> str:
    """The toy model: calls the tool, then answers with what it was told."""
    _, answered, after = prompt.rpartition("<tool_response>\n")
    if answered:
        return f"<think>\nHm, 世界\n</think>\n\nIt is {after.partition(chr(10))[0]}."
    number = prompt.rpartition("Double ")[2][0]
    return 'Grüße.\n<tool_call>\n{"name": "double", "arguments": {"number": ' + number + "}}\n</tool_call>"


@contextmanager
def served(folder: Path, **options: object) -> Generator[str]:
    """A stand-in of the engines in a thread of its own; its address."""
    from ludus.tokens.codec import Codec
    from ludus.tokens.engine_standin import StandIn
    from ludus.tokens.toy_engine import ToyEngine

    codec = Codec.open(folder, "hermes")
    started, addresses = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with StandIn(ToyEngine(codec.tokenizer, reply), codec=codec, **options) as server:
            addresses.append(server.url)
            started.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(60)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doubles.py").write_text(ENV)
    return tmp_path


def settings(url: str, tokenizer: Path | str, engine: str = "vllm") -> list[str]:
    given = {"base_url": f"{url}/v1", "name": "toy", "mode": "token", "engine": engine, "tokenizer": tokenizer}
    return [word for name, value in given.items() for word in (f"--model.{name}", str(value))]


ENGINES = ["vllm", "sglang", "llamacpp", "atropos", "vllm_chat"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_writes_groups_that_pass_the_check(typed, env: Path, shipped: Path, engine: str):
    with served(shipped) as url:
        words = ["process", "doubles.py", "--env.group_size", "2", "--out", "run", "--quiet"]
        words += ["--sampling.max_tokens", "200"]
        code, _, err = typed(*words, *settings(url, shipped, engine))
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


def test_chat_mode_is_refused_as_rl_data_until_rows_from_text_are_asked_for(typed, env: Path, shipped: Path):
    with served(shipped) as url:
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
    assert "double" in _decoded(shipped, rows[0]["tokens"][0]).partition("<|im_start|>user")[0]  # the tools are shown
    assert typed("check", "-", stdin=out)[0] == 0
    assert "give --retokenize TOKENIZER too" in typed("export", "run", "--parser", "hermes")[2]


def _decoded(folder: Path, ids: list[int]) -> str:
    from ludus.tokens.tokenizer import load

    return load(folder).tokenizer.decode(ids)


def test_a_tokenizer_of_another_model_is_refused_before_the_run_begins(typed, env: Path, shipped: Path):
    (env / "other").mkdir()
    other = make_tokenizer(env / "other", "entirely different words, numbers 12345 3.14 and so on naïve café")
    with served(shipped) as url:
        code, _, err = typed("process", "doubles.py", "--out", "run", *settings(url, other))
    assert code == 2
    assert "tokenizer: the engine encodes a probe text differently" in err
    assert not Path("run").exists()


def test_a_template_that_drops_tools_is_refused_before_the_run_begins(typed, env: Path, shipped: Path):
    Path("plain.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    )
    with served(shipped) as url:
        told = [*settings(url, shipped), "--model.template", "plain.jinja", "--tools.enabled", "[todo]"]
        code, _, err = typed("process", "doubles.py", "--out", "run", *told)
    assert code == 2
    assert "template: it leaves out the tools" in err and "`template: chatml`" in err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model.parser", "hermez"], "model.parser: unknown tool-call parser 'hermez': did you mean 'hermes'?"),
        (["--model.tokenizer", "./nowhere"], "model.tokenizer: there is no file or folder './nowhere'"),
        (["--model.template", "nowhere"], "model.template: 'nowhere' is no file"),
        (["--model.engine", "vlm"], "model.engine: expected one of atropos, llamacpp, sglang, vllm, vllm_chat"),
        (["--model.mode", "tokens"], "model.mode: expected one of chat, token"),
        ([], "Is the engine running, and is base_url right?"),
    ],
)
def test_what_is_wrong_with_token_mode_is_said_before_the_run_begins(typed, env: Path, shipped: Path, given, message):
    told = [*settings("http://127.0.0.1:9", shipped), *given]
    code, _, err = typed("process", "doubles.py", "--out", "run", *told)
    assert code == 2
    assert message in err
    assert not Path("run").exists()


def test_rows_with_ids_beyond_the_vocabulary_are_left_out_and_told(typed, env: Path, shipped: Path):
    def mangle(path: str, body: dict) -> dict:
        if path == "/v1/completions":
            body["choices"][0]["token_ids"][0] = 70_000
            body["choices"][0]["text"] = None
        return body

    with served(shipped, mangle=mangle) as url:
        words = ["process", "doubles.py", "--env.limit", "1", "--out", "run", "--quiet", *settings(url, shipped)]
        code, _, err = typed(*words)
    assert code == 0
    assert "task 'task-0': a row was left out: " in err and "[vocabulary]" in err
    (group,) = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert "tokens" not in group
    assert "left_out" in typed("check", "run")[1]


def test_the_embedded_model_in_token_mode(typed, env: Path):
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


class Slow:
    """A model that takes a while to get ready."""

    name = "slow"

    def __init__(self) -> None:
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    async def complete(self, messages, tools, sampling):
        raise AssertionError("not asked here")

    async def close(self) -> None: ...


def test_a_model_is_made_ready_before_the_run(env: Path):
    model, ledger = Slow(), Ledger()
    doubles = build_env(load(flags=[("env.name", "doubles.py")]))
    for policy in (Policy(model), Policy(Metered(model, ledger, "agent"))):
        asyncio.run(make_ready(policy, doubles, print))
    assert model.started == 2


@pytest.mark.parametrize(
    ("flags", "kind", "context"),
    [
        ([], EmbeddedConfig, 3584),
        ([("model.mode", "token")], EmbeddedConfig, 3584),
        ([("model.threads", "1"), ("limits.context_tokens", "1000")], EmbeddedConfig, 1000),
        ([("model.mode", "token"), ("model.base_url", "http://127.0.0.1:9"), ("model.name", "x")], OpenAIConfig, None),
    ],
)
def test_the_embedded_models_window_is_known(env: Path, flags, kind, context):
    config = load(flags=[("env.name", "doubles.py"), *flags])
    assert isinstance(config.model, kind)
    assert build_policy(config, build_env(config), Slow(), BUILTIN).limits.context_tokens == context
