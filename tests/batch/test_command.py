"""`ludus evaluate` and `ludus process`."""

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import (
    LUDUS,
    SUMS_MODELS,
    Ludus,
    make_tokenizer,
    read_calls,
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


# ---- evaluate --------------------------------------------------------------------------------------------------------


def test_evaluate_for_machines_is_json_alone(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *script_flags())
    assert code == 0
    found = json.loads(out)
    assert (found["status"], found["run"], found["resume"]) == ("completed", "r", "")
    assert found["summary"]["overall"]["mean"] == 1.0
    assert found["ledger"]["agent"]["calls"] == 4
    assert json.loads(Path(found["files"]["summary"]).read_text()) == found["summary"]


def test_a_real_sandbox_end_to_end(ludus: Ludus):
    code, out, err = ludus("evaluate", "terminal-test", "--out", "r", "--json", *script_flags("write"))
    assert code == 0, err
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


def test_a_verify_that_raises_buys_the_turns_once(ludus: Ludus, folder: Path):
    text = (
        (folder / "sums.py").read_text().replace("return Score.of", "raise KeyError('column')\n        return Score.of")
    )
    (folder / "broken_sums.py").write_text(text)
    code, out, _ = ludus("evaluate", "broken_sums.py", "--out", "r", "--json", *script_flags())
    found = json.loads(out)
    assert (code, found["ledger"]["agent"]["calls"]) == (1, 4)
    assert found["summary"]["failed"] == {"verifier": 4}


def test_answers_that_break_verify_are_zeros_and_the_numbers_show_no_exclusion(ludus: Ludus, folder: Path):
    """The sums of two tasks are wrong in a way that the verifier cannot read."""
    text = (folder / "sums.py").read_text().replace("rollout.answer == ", "int(rollout.answer or 0) == int(")
    (folder / "fragile_sums.py").write_text(text.replace("rollout.task.answer)", "rollout.task.answer))"))
    (folder / "evil.py").write_text(
        "def act(messages, tools, sampling):\n"
        "    number = int(messages[-1].content.partition('+')[0])\n"
        "    return 'no number' if number in (2, 3) else str(2 * number)\n"
    )
    flags = ["--model.type", "scripted", "--model.script", "evil.py:act"]
    code, out, _ = ludus("evaluate", "fragile_sums.py", "--out", "r", "--json", *flags)
    found = json.loads(out)
    overall = found["summary"]["overall"]
    assert (code, overall["mean"], overall["scored"], found["summary"]["failed"]) == (0, 0.5, 4, {})
    assert found["summary"]["stops"] == {"broken": 2, "finished": 2}
    assert found["ledger"]["agent"]["calls"] == 4


def test_the_numbers_show_what_was_left_out(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("half_broken"))
    assert code == 0
    assert "bounds            0.5 to 1  the mean if each" in out
    assert "warning: 2 of 4 rollouts (50.0 %) have no score and are in no mean" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["overall"]["mean"], summary["overall"]["mean_with_zeros"]) == (1.0, 0.5)


SECRET = "sk-this-is-the-secret-value"


@pytest.fixture
def echoing_server() -> Generator[str]:
    """A model server that gives back the key it was sent, as a careless one might."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            reply = {"choices": [{"message": {"role": "assistant", "content": self.headers["Authorization"]}}]}
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_key_is_in_no_file_and_no_output(
    ludus: Ludus, folder: Path, echoing_server: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_KEY", SECRET)
    server = ["--model.base_url", echoing_server, "--model.name", "m", "--model.api_key_var", "MY_KEY"]
    for command in ("process", "evaluate"):
        code, out, err = ludus(command, "sums.py", "--out", command, *server)
        assert code == 0, err
        files = [path for path in (folder / command).rglob("*") if path.is_file()]
        assert len(files) >= 5
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        assert any(b"[redacted]" in path.read_bytes() for path in files)
        assert SECRET not in out + err
    assert SECRET not in ludus("process", "sums.py", "--print-config", *server).out


BUGGY = """
from pathlib import Path
from ludus.models.scripted import say
from ludus.types import Call, Message

def buggy(messages, tools, sampling):
    if messages[-1].content == "1+1" and not Path("fixed").exists():
        raise LookupError("nobody expected this")
    return str(sum(map(int, messages[-1].content.split("+"))))

def nested(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("done \\ud800")
    return Message("assistant", calls=(Call("", "todo", '{"todos":' + "[" * 5000 + "]" * 5000 + "}"),))
"""


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_a_bug_in_one_rollout_ends_with_1_and_a_message_and_not_the_others(ludus: Ludus, folder: Path, command: str):
    (folder / "buggy.py").write_text(BUGGY)
    model = ["--model.type", "scripted", "--model.script", "buggy.py:buggy"]
    done = ludus(command, "sums.py", "--out", "r", "--json", *model)
    assert done.code == 1
    summary = json.loads(done.out)["summary"]
    assert (summary["overall"]["scored"], summary["overall"]["rollouts"]) == (3, 4)
    assert "Traceback" not in json.dumps(summary) and '{"bug": 1}' in json.dumps(summary)
    assert "1 rollout met a bug and has no score" in done.err and "report" in done.err
    shown = ludus("show", "r", "sum-1")
    assert "LookupError: nobody expected this" in shown.out and "in buggy" in shown.out
    (folder / "fixed").touch()
    assert ludus(command, "--resume", "--out", "r").code == 0


def test_arguments_of_a_thousand_levels_are_stored_and_shown(ludus: Ludus, folder: Path):
    (folder / "buggy.py").write_text(BUGGY)
    model = ["--model.type", "scripted", "--model.script", "buggy.py:nested", "--tools.enabled", "todo"]
    done = ludus("evaluate", "sums.py", "--out", "r", "--json", *model)
    assert done.code == 0, done.err
    assert json.loads(done.out)["summary"]["overall"]["scored"] == 4
    assert ludus("evaluate", "--resume", "--out", "r", "--quiet").code == 0
    assert "nested too deeply" in ludus("show", "r", "sum-1").out


def test_several_models_end_in_a_comparison(ludus: Ludus, folder: Path):
    for name, script in {"right": "right", "wrong": "half_broken"}.items():
        (folder / f"{name}.yaml").write_text(f"model: {{type: scripted, script: 'models.py:{script}'}}\n")
    flags = ["evaluate", "sums.py", "--models", "right.yaml,wrong.yaml", "--out", "both", "--run.retries", "0"]
    code, out, _ = ludus(*flags)
    assert code == 0 and out.index("right.yaml") < out.index("differences on the same tasks")
    assert json.loads(ludus("show", "both/right", "--json").out)["summary"]["overall"]["scored"] == 4
    asked = len(read_calls(folder))
    lines = ludus(*flags, "--resume", "--json").out.splitlines()
    assert [json.loads(line).get("run") for line in lines] == ["both/right", "both/wrong", None]
    assert json.loads(lines[-1])["pairs"][0]["tasks"] == 2
    assert len(read_calls(folder)) == asked, "what is finished is not run again"
    assert ludus(*flags, "--resume", "--quiet").out.split() == ["both/right", "both/wrong"]


def test_each_skill_is_measured_with_each_model(ludus: Ludus, folder: Path):
    (folder / "two.yaml").write_text("model: {type: scripted, script: 'models.py:told', name: two}\n")
    (folder / "one.yaml").write_text("model: {type: scripted, script: 'models.py:told', name: one}\n")
    with (folder / "models.py").open("a") as models:
        models.write(
            "\n\ndef told(messages, tools, sampling):\n"
            "    from ludus.models.scripted import say\n"
            "    return say('4') if 'Answer with 4.' in messages[0].content else say('no')\n"
        )
    for name, text in (("good", "Answer with 4."), ("bad", "Say no.")):
        (folder / name).mkdir()
        (folder / name / "SKILL.md").write_text(text)
    skills = ["--agent.skill", "", "--agent.skill", "good/SKILL.md", "--agent.skill", "bad/SKILL.md"]
    done = ludus("evaluate", "sums.py", *skills, "--models", "one.yaml,two.yaml", "--out", "all", "--json")
    names = {str(path.parent) for path in Path("all").glob("*/*/run.json")}
    assert names == {f"all/{model}/{skill}" for model in ("one", "two") for skill in ("no-skill", "good", "bad")}
    comparison = json.loads(done.out.strip().splitlines()[-1])
    assert len(comparison["runs"]) == 6 and len(comparison["pairs"]) == 15
    assert all(pair["tasks"] for pair in comparison["pairs"])
    (folder / "runs/trained/good").mkdir(parents=True)
    (folder / "runs/trained/good/SKILL.md").write_text("Answer with 4.")
    same = ("good/SKILL.md", "runs/trained/good/SKILL.md", "bad/SKILL.md")
    flags = [word for each in same for word in ("--agent.skill", each)]
    again = ludus("evaluate", "sums.py", *flags, "--config", "one.yaml", "--out", "same", "--quiet")
    assert again.err == "" and again.out.split() == ["same/good", "same/trained-good", "same/bad"], (
        "one before and after training"
    )
    assert (
        "two of them would have the same folder"
        in ludus("evaluate", "sums.py", "--agent.skill", "good/SKILL.md", "--agent.skill", "./good", "--out", "x").err
    )


def test_models_are_names_or_files(ludus: Ludus, folder: Path):
    flags = ["--model.base_url", "http://localhost:1/v1", "--print-config"]
    code, out, _ = ludus("evaluate", "sums.py", "--models", "small/a,large", "--models", "third", *flags)
    names = re.findall(r"^  name: (\S+)$", out, re.M)
    assert code == 0 and [n for n in names if n not in ("sums.py", "''")] == ["small/a", "large", "third"]
    assert not (folder / "runs").exists()
    (folder / "a.yaml").touch()
    assert "two of them would have the same folder" in ludus("evaluate", "sums.py", "--models", "a,a.yaml").err
    assert "Name their folder with --out" in ludus("evaluate", "sums.py", "--models", "a,b", "--resume").err
    assert "which environment?" in ludus("evaluate", "--models", "a,b", "--out", "x").err


# ---- process: groups of scored rollouts, and training rows in token mode ---------------------------------------------


def test_process_writes_groups_and_says_what_to_do_next(ludus: Ludus, folder: Path):
    code, out, err = ludus("process", "sums.py", "--env.group_size", "2", *script_flags())
    assert code == 0, err
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("sums-")
    rows = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    assert sorted(row["task"]["id"] for row in rows) == ["sum-0", "sum-1", "sum-2", "sum-3"]
    assert all(len(row["rollouts"]) == 2 for row in rows)
    assert f"ludus show runs/{run.name}" in out
    assert (run / "report.html").as_uri() in out


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


# ---- what both share -------------------------------------------------------------------------------------------------


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus("evaluate", "sums.py", "--out", "r", "--quiet", *script_flags()) == (0, "r\n", "")


def test_ids_and_limits_choose_tasks(ludus: Ludus):
    one = ludus("evaluate", "sums.py", "--out", "a", "--json", "--env.ids", "sum-2", *script_flags())
    assert json.loads(one.out)["summary"]["overall"]["tasks"] == 1
    two = ludus("evaluate", "sums.py", "--out", "b", "--json", "--env.limit", "2", *script_flags())
    assert json.loads(two.out)["summary"]["overall"]["tasks"] == 2


def test_a_run_without_any_score_ends_with_1(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("broken"))
    assert code == 1
    assert "ludus evaluate --resume --out r   4 rollouts have no score: run them again" in out


def test_one_rollout_without_a_score_is_singular(ludus: Ludus):
    out = ludus("evaluate", "sums.py", "--out", "r", "--env.limit", "1", *script_flags("broken")).out
    assert "ludus evaluate --resume --out r   1 rollout has no score: run it again" in out


def test_failed_rollouts_are_stated_and_run_again_on_resume(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("half_broken"))
    assert code == 0
    assert "ludus evaluate --resume --out r   2 rollouts have no score: run them again" in out
    (folder / "models.py").write_text(SUMS_MODELS.replace("raise ModelError", "pass  # "))
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    assert sorted(read_calls(folder)) == ["0+0", "1+1", "2+2", "3+3"]


def test_settings_are_checked_before_a_run_directory_is_made(
    ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = ["--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m", "--model.api_key_var", "NO_SUCH_KEY"]
    code, _, err = ludus("evaluate", "sums.py", "--out", "r", *server)
    assert code == 2
    assert "model.api_key_var: the environment variable NO_SUCH_KEY is not set" in err
    for tools in ("--tools.enabled=nothing", "--tools.enabled=terminal", "--tools.distribution=terminal_tasks"):
        assert ludus("evaluate", "sums.py", "--out", "r", tools, *script_flags()).code == 2
    assert not (folder / "r").exists()


def test_an_environment_that_breaks_on_import_shows_its_error(ludus: Ludus, folder: Path):
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    code, _, err = ludus("evaluate", "bad.py")
    assert code == 2
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in err


# ---- servers that fail -------------------------------------------------------------------------------------------


@contextmanager
def serve(answer: Callable[[int], tuple[int, dict[str, Any]]]) -> Generator[tuple[list[str], list[str]]]:
    """A model server. `answer` gets the number of the request, from 1. Yields the flags, and the paths so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            status, reply = answer(len(asked))
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield ["--model.base_url", url, "--model.name", "m"], asked
        server.shutdown()
        thread.join()


def make_reply(text: str, finish: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 1000, "completion_tokens": 0}
    return {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_a_wrong_key_stops_the_run_at_once_and_what_is_finished_is_kept(ludus: Ludus, command: str):
    with serve(lambda number: (200, make_reply("0")) if number <= 3 else (401, {"error": "bad key"})) as (flags, asked):
        many = ["--env.size", "192", "--run.concurrency", "4"]
        code, out, err = ludus(command, "sums.py", "--out", "r", "--json", *many, *flags)
    assert code == 1
    assert len(asked) <= 3 + 4, "one for each rollout under way, not 192"
    assert err.count("status 401: bad key") == 1
    assert f"resume with: ludus {command} --resume --out r" in err
    report = json.loads(out)
    assert (report["status"], report["summary"]["overall"]["scored"]) == ("broken", 3)
    with serve(lambda number: (200, make_reply("0"))) as (flags, asked):
        code, out, _ = ludus(command, "--resume", "--out", "r", "--json", *flags)
    assert (code, len(asked)) == (0, 189)
    assert json.loads(out)["summary"]["overall"]["scored"] == 192


def test_a_request_that_is_refused_does_not_stop_the_others(ludus: Ludus):
    with serve(lambda number: (400, {"error": "odd"}) if number == 1 else (200, make_reply("0"))) as (flags, _):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *flags)
    assert code == 0
    assert json.loads(out)["summary"]["overall"]["scored"] == 3


def test_a_wait_for_the_server_is_reported_where_output_is_piped(folder: Path):
    with socket.socket() as holder:  # bound and not listening: connections are refused
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/v1"
        flags = ["--model.base_url", url, "--model.name", "m", "--model.retry.first_patience", "4"]
        flags += ["--model.retry.longest", "1"]
        ended = subprocess.run(
            [*LUDUS, "evaluate", "sums.py", "--out", "r", *flags], capture_output=True, text=True, timeout=120
        )
    assert ended.returncode == 1
    assert f"ludus: waiting for {url}/chat/completions (connection refused), " in ended.stderr
    assert "no server has answered for" in ended.stderr


@pytest.mark.parametrize("command", ["evaluate", "process"])
def test_a_server_that_dies_stops_the_run_which_goes_on_when_it_is_back(ludus: Ludus, command: str):
    quick = ["--model.retry.patience", "1", "--model.retry.longest", "0.3", "--run.concurrency", "2"]
    words = [command, "sums.py", "--env.group_size", "8", "--out", "r", "--json", *quick]
    with serve(lambda number: (200, make_reply("0")) if number <= 3 else (503, {"error": "dead"})) as (flags, _):
        began = time.monotonic()
        code, out, err = ludus(*words, *flags)
    assert code == 1 and time.monotonic() - began < 30
    assert "no server has answered for" in err and f"resume with: ludus {command} --resume --out r" in err
    report = json.loads(out)
    assert (report["status"], report["summary"]["overall"]["scored"]) == ("broken", 3)
    with serve(lambda number: (200, make_reply("0"))) as (flags, _):
        code, out, _ = ludus(command, "--resume", "--out", "r", "--json", *flags)
    overall = json.loads(out)["summary"]["overall"]
    assert code == 0 and overall["scored"] == overall["rollouts"] > 3


def test_empty_replies_are_in_the_summary_and_filtered_ones_are_no_scores(ludus: Ludus):
    def answer(number: int) -> tuple[int, dict[str, Any]]:
        return 200, make_reply("", ("content_filter", "length", "stop", "stop")[number - 1])

    with serve(answer) as (flags, _):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *flags)
    assert code == 0
    assert "empty 2, failed 1, length 1" in out
    assert "4, 1 without a score (server 1)" in out


def test_the_cost_that_is_shown_includes_attempts_that_were_repeated(ludus: Ludus, folder: Path):
    """A tool loses its server in the first two attempts of the only task: four replies are paid."""
    (folder / "lost.py").write_text(
        """
from ludus.errors import SandboxError, SlotEvidence
from ludus.tools import tool

calls = []

@tool
async def look() -> str:
    \"\"\"Look.\"\"\"
    calls.append(0)
    if len(calls) < 3:
        raise SandboxError("gone", evidence=SlotEvidence(outside="the server is gone"))
    return "ok"
"""
    )
    look = make_reply("", "tool_calls")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    look["choices"][0]["message"]["tool_calls"] = [call]
    flags = ["--model.price.prompt", "1000", "--env.limit", "1", "--tools.enabled", "lost.py:look"]
    with serve(lambda number: (200, look if number < 4 else make_reply("0"))) as (server, asked):
        code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *flags, *server)
    assert (code, len(asked)) == (0, 4)
    assert "$4.00" in out
    assert "$4.00" in ludus("show", "r").out


# ---- suspects -----------------------------------------------------------------------------------------------------


@pytest.fixture
def forging(folder: Path) -> None:
    """`sums.py`, in which the scores of the first two tasks are suspect."""
    write_sums(folder)
    text = (folder / "sums.py").read_text()
    old = "return Score.of(float(rollout.answer == rollout.task.answer))"
    new = "right = float(rollout.answer == rollout.task.answer)\n"
    new += "        evidence = ('sums was edited',) if rollout.task.id < 'sum-2' else ()\n"
    new += "        return Score(right, bool(right), right, suspect=evidence)"
    assert old in text
    (folder / "sums.py").write_text(text.replace(old, new))


def test_evaluate_shows_both_means_and_show_the_evidence(ludus: Ludus, folder: Path, forging: None):
    out = ludus("evaluate", "sums.py", "--out", "runs/a", *script_flags()).out
    assert "suspects" in out and "2 rollouts; mean 1 without them" in out
    summary = json.loads((folder / "runs/a/summary.json").read_text())["overall"]
    assert (summary["suspects"], summary["mean_without_suspects"]) == (2, 1.0)
    shown = ludus("show", "runs/a").out
    assert "mean 1 without them" in shown and "1?" in shown
    assert "sums was edited" in ludus("show", "runs/a", "sum-0").out
    assert "sums was edited" in (folder / "runs/a/report.html").read_text()


def test_evaluate_refuses_a_setting_for_training(ludus: Ludus, forging: None):
    code, _, err = ludus("evaluate", "sums.py", "--run.suspects", "keep", *script_flags())
    assert code == 2 and "run.suspects is for training data" in err
