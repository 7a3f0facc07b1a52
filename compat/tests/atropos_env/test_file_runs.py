"""Files of Atropos from the command line: process and evaluate."""

import json
from pathlib import Path

import pytest
import tests.cli_kit as cli_kit
from compat.tests.file_kit import count_calls, flags, look_up, read_jsonl, write_files
from tests.cli_kit import Ludus, serve_engine

ARITHMETIC = "atropos_arithmetic_env.py"
PROCESS = ["process", f"atropos:{ARITHMETIC}", "--env.total_steps", "3", "--out", "run", "--json"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, ARITHMETIC, "atropos_tool_env.py")
    return tmp_path


@pytest.mark.parametrize(("agent", "score"), [("sums", 1.0), ("empty", -1.0)])
def test_a_file_with_one_turn_makes_groups_as_it_is(ludus: Ludus, agent: str, score: float):
    done = ludus(*PROCESS, *flags(agent))
    assert done.code == 0, done.err
    groups = read_jsonl("run/atropos_groups.jsonl")
    assert [group["scores"] for group in groups] == [[score] * 4] * 3
    assert all(len(a) == len(b) for group in groups for a, b in zip(group["tokens"], group["masks"], strict=True))
    assert json.loads(done.out)["summary"]["overall"]["mean"] == score
    assert count_calls() == 12
    rows = read_jsonl("run/groups.jsonl")
    assert [len(row["rollouts"]) for row in rows] == [4, 4, 4]
    assert rows[0]["task"]["prompt"].startswith("What is")
    shown = ludus("show", "run", "item-00001")
    assert "boxed" in shown.out
    assert read_jsonl("run/metrics.jsonl")[0]["train/percent_correct"] == max(score, 0.0)


def test_a_row_of_text_is_trained_on_in_its_last_message_alone(ludus: Ludus):
    assert ludus(*PROCESS, *flags("sums")).code == 0
    from ludus.compat.atropos_env.tokenizer_view import TokenizerView

    group = read_jsonl("run/atropos_groups.jsonl")[0]
    trained = [id for id, mask in zip(group["tokens"][0], group["masks"][0], strict=True) if mask != -100]
    assert TokenizerView.load(".").decode(trained).startswith("So it is \\boxed{")


def test_a_resumed_run_makes_only_what_is_missing(ludus: Ludus):
    assert ludus(*PROCESS, *flags("sums"), "--budget.calls", "6").code == 3
    assert count_calls() == 6
    more = ludus("process", "--resume", "--out", "run", "--budget.calls", "100", "--json")
    assert more.code == 0, more.err
    assert count_calls() == 12  # replies that a group had before the end are not asked for again
    assert len(read_jsonl("run/atropos_groups.jsonl")) == 3
    assert ludus("process", "--resume", "--out", "run", "--env.total_steps", "4", "--json").code == 0
    assert count_calls() == 16
    items = [row["task"]["prompt"] for row in read_jsonl("run/groups.jsonl")]
    assert len(set(items)) == 4  # the items of a resumed run are the next ones


def test_a_failing_server_is_a_failure_and_no_score(ludus: Ludus):
    done = ludus(*PROCESS, *flags("broken"))
    assert done.code == 1
    assert json.loads(done.out)["summary"]["overall"]["scored"] == 0
    assert read_jsonl("run/atropos_groups.jsonl") == []
    assert "on fire" in read_jsonl("run/groups.jsonl")[0]["rollouts"][0]["failure"]["message"]


def test_evaluate_calls_the_file_and_writes_its_numbers(ludus: Ludus):
    done = ludus("evaluate", f"atropos:{ARITHMETIC}", "--out", "run", "--json", *flags("sums"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"] == {"eval/percent_correct": 1.0}
    found = json.loads(Path("run/evals/metrics.json").read_text())
    assert found["results"]["atropos|arithmetic_eval|0"] == {"eval/percent_correct": 1.0}
    assert found["config_general"]["generation_parameters"]["max_new_tokens"] == 512
    assert len(read_jsonl("run/evals/samples.jsonl")) == 8
    again = ludus("evaluate", "--resume", "--out", "run", "--json")
    assert again.code == 0 and count_calls() == 8  # remembered


def test_groups_are_written_where_the_settings_say_and_never_over_others(ludus: Ludus):
    Path("data").mkdir()
    Path("data/groups.jsonl").write_text("mine\n")
    assert ludus(*PROCESS, *flags("sums"), "--env.data_path_to_save_groups", "data/groups.jsonl").code == 0
    assert Path("data/groups.jsonl").read_text() == "mine\n"
    assert len(read_jsonl("data/groups_1.jsonl")) == 3


def test_several_turns_with_exact_ids(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_kit, "reply", look_up)
    with serve_engine(folder) as url:
        given = ["--env.total_steps", "2", "--env.tokenizer_name", ".", "--openai.base_url", f"{url}/v1"]
        words = [*given, "--env.use_wandb", "false", "--openai.model_name", "toy", "--json"]
        done = ludus("process", "atropos:atropos_tool_env.py", *words, "--out", "run")
        assert done.code == 0, done.err
        evaluated = ludus("evaluate", "atropos:atropos_tool_env.py", *words, "--out", "evaluated")
    assert json.loads(evaluated.out)["metrics"] == {"eval/mean_reward": 1.0}
    for group in read_jsonl("run/atropos_groups.jsonl"):
        assert group["scores"] == [1.0] * 4 and group["group_overrides"] == {"group_size": 4}
        for ids, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            assert len(ids) == len(masks) == len(logprobs)
            assert all((value < 0) == (mask != -100) for value, mask in zip(logprobs, masks, strict=True))
    checked = ludus("check", "run", "--json")
    assert checked.code == 0 and json.loads(checked.out)["rows"] == 8


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_ids_may_end_a_reply_of_a_server_with_exact_ids(
    ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(cli_kit, "reply", look_up)
    own = Path("atropos_tool_env.py").read_text()
    asked = own.replace("max_tokens=200, temperature=1.0", "max_tokens=200, stop=[self.tokenizer.eos_token_id]")
    assert asked != own
    Path("stopping.py").write_text(asked)
    with serve_engine(folder) as url:
        given = ["--env.total_steps", "1", "--env.tokenizer_name", ".", "--openai.base_url", f"{url}/v1"]
        words = [*given, "--env.use_wandb", "false", "--openai.model_name", "toy", "--openai.server_type", kind]
        done = ludus("process", "atropos:stopping.py", *words, "--json", "--out", "run")
    assert done.code == 0, done.err
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0] * 4
    chat = ludus("process", "atropos:stopping.py", "--env.total_steps", "1", "--out", "chat", *flags("empty"))
    assert chat.code == 2 and "managed_server needs exact ids" in chat.err


def test_requests_have_the_sampling_of_the_file_and_no_other(ludus: Ludus):
    with Path("agents.py").open("a") as file:
        file.write(
            "\ndef look(messages, tools, sampling):\n"
            "    with Path('asked.txt').open('a') as file:\n"
            "        file.write(f'{sampling.temperature} {sampling.max_tokens}\\n')\n"
            "    return ''\n"
        )
    assert ludus(*PROCESS, *flags("look")).code == 0
    assert set(Path("asked.txt").read_text().split("\n")) == {"None 512", ""}
    Path("asked.txt").unlink()
    words = ["--sampling.temperature", "0.3", "--out", "own"]
    assert ludus(*PROCESS[:-3], *words, *flags("look")).code == 0
    assert set(Path("asked.txt").read_text().split("\n")) == {"0.3 512", ""}


def test_managed_server_is_refused_on_a_server_without_ids(ludus: Ludus):
    done = ludus("process", "atropos:atropos_tool_env.py", "--env.total_steps", "1", "--out", "run", *flags("empty"))
    assert done.code == 2 or done.code == 1
    assert "server_type vllm or sglang" in done.err + Path("run/groups.jsonl").read_text()


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ('{"results": {"all": {"a": 1}}}', {"a": 1}),
        ('{"accuracy": 0.5}', {"accuracy": 0.5}),
        ('{"results": [1]}', {"results": [1]}),
        ("[1]", {}),
        ("no json", {}),
    ],
)
def test_metrics_that_a_file_wrote_itself_are_read(folder: Path, text: str, metrics: dict[str, object]):
    from ludus.compat.atropos_env.file_runs import read_eval

    (folder / "metrics.json").write_text(text)
    assert read_eval(folder) == metrics
