"""Files written for `AgentEnv`, from the command line."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tests.cli_kit as cli_kit
import yaml
from compat.tests.file_kit import ENVIRONMENTS, count_calls, flags, read_jsonl, write_files
from tests.cli_kit import Ludus
from tests.worker_kit import TrajectoryServer, serve_in_thread

STOCK = "agent_stock_env.py"
HERE = ("--env.tool_pool_mode", "default")

OWN = """
from ..agent import AgentConfig, AgentStep, AtroposAgent
from ..tools import Tool, ToolCall, ToolResult, ToolSchema
from .agent_env import AgentEnv, AgentEnvConfig
from .beside import ASKED


class Count(Tool):
    @property
    def schema(self):
        return ToolSchema("count", "Count letters.", {"word": {"type": "string"}}, ["word"])

    async def execute(self, word):
        return ToolResult(True, str(len(word)))


class Own(AgentEnv):
    env_config_cls = AgentEnvConfig

    @classmethod
    def config_init(cls):
        config = AgentEnvConfig(group_size=1, total_steps=1, agent_max_steps=9, agent_temperature=0.25)
        return config, []

    async def setup_agent_env(self):
        pass

    def build_tools(self):
        tools = super().build_tools()
        tools.register(Count())
        return tools

    async def get_next_item(self):
        return {"prompt": ASKED}

    def build_task(self, item):
        return item["prompt"]

    async def score_trajectory(self, item, final_response):
        return 1.0 if final_response == "finished" else 0.0

    async def verify_and_score_trajectory(self, item, final_response, *, trajectory_id, exec_tool, agent_result=None):
        steps = agent_result.steps
        assert [call.name for step in steps for call in step.tool_calls] == [
            "count", "terminal", "read_file", "terminal", "no_such", "terminal"]
        results = [result for step in steps for result in step.tool_results]
        assert [result.success for result in results] == [True, False, True, False, False, False]
        assert results[0].output == "4" and results[1].metadata["exit_code"] == 3
        assert results[2].output == "text" and "background" in results[3].error
        assert "Unknown tool" in results[4].error and "JSON" in results[5].error
        assert steps[0].tool_calls[0].arguments == {"word": "four"} and not steps[-1].has_tool_calls
        late = await exec_tool(ToolCall(name="bash", arguments={"command": "sleep 9", "timeout": 1}))
        assert not late.success and late.metadata["timeout"]
        assert "Unknown tool: web_search" in (await exec_tool(ToolCall("web_search", {}))).error
        assert "'command'" in (await exec_tool(ToolCall("terminal", {}))).error
        return await self.score_trajectory(item, final_response), {}
"""
PLAYER = """
from ludus.models.scripted import call
from ludus.types import Call, Completion, Finish, Message


def play(messages, tools, sampling):
    assert sampling.temperature == 0.25 and sampling.max_tokens is None
    assert [tool.name for tool in tools] == ["terminal", "read_file", "write_file", "count"]
    turn = sum(message.role == "assistant" for message in messages)
    bad = Message("assistant", "", (Call("x", "terminal", "{"),))
    return [
        call("count", word="four"),
        call("terminal", command="echo -n text > a.txt; exit 3"),
        call("read_file", path="a.txt"),
        call("terminal", command="sleep 99", background=True),
        call("no_such"),
        bad,
        "finished",
    ][turn]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, STOCK)
    return tmp_path


def process(ludus: Ludus, agent: str, *words: str) -> list[list[float]]:
    done = ludus("process", f"hermes:{STOCK}", "--out", "run", "--json", *HERE, *flags(agent, *words))
    assert done.code == 0, done.err
    return [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")]


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize(
    ("agent", "score"),
    [("stock", 1.0), ("stock_in_text", 1.0), ("stock_and_talk", 0.5), ("stock_forever", 0.0), ("empty", 0.0)],
)
def test_a_file_runs_as_it_is(ludus: Ludus, agent: str, score: float):
    assert process(ludus, agent) == [[score] * 2] * 3
    messages = read_jsonl("run/atropos_groups.jsonl")[0]["messages"][0]
    assert [message["role"] for message in messages[:3]] == ["system", "user", "assistant"]
    if score:  # the file's own words about its judgement
        assert "<tool_response>" in messages[-1]["content"]
        assert read_jsonl("run/metrics.jsonl")[0]["train/mean_score"] == score
    else:
        assert "train/mean_score" not in read_jsonl("run/metrics.jsonl")[0]  # nothing was judged


@pytest.mark.usefixtures("bwrap")
def test_a_file_uses_its_own_tools_and_reads_each_step(ludus: Ludus, folder: Path):
    (folder / "own_env.py").write_text(OWN)
    (folder / "beside.py").write_text("ASKED = 'play'\n")
    (folder / "player.py").write_text(PLAYER)
    words = flags("x", "--model.script", "player.py:play", "--out", "run", "--json")
    done = ludus("process", "hermes:own_env.py", *HERE, *words)
    assert done.code == 0, done.err
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0]


LISTED = """
from ludus.tools import tool


@tool
async def skills_list() -> str:
    '''List the skills.'''
    return "counting"
"""
LISTER = """
from ludus.models.scripted import call


def play(messages, tools, sampling):
    assert {"terminal", "skills_list", "todo"} == {tool.name for tool in tools}
    if messages[-1].role == "user":
        return call("skills_list")
    assert "counting" in messages[-1].content
    return "done"
"""


@pytest.mark.usefixtures("bwrap")
def test_tools_outside_of_the_slot_run_in_this_process(ludus: Ludus, folder: Path):
    (folder / "listed.py").write_text(LISTED)
    (folder / "lister.py").write_text(LISTER)
    words = ["--env.enabled_toolsets", '["terminal", "skills", "todo"]', "--env.tool_server_url", "inprocess"]
    words += ["--tools.own.skills", "listed.py:skills_list", "--model.script", "lister.py:play"]
    done = ludus("process", f"hermes:{STOCK}", "--out", "run", "--json", *HERE, *flags("x", *words))
    assert done.code == 0, done.err
    assert read_jsonl("run/atropos_groups.jsonl")[0]["messages"][0][3]["content"] == (
        '{"success": true, "output": "counting"}'
    )


@pytest.mark.usefixtures("bwrap")
def test_evaluate_runs_single_rollouts(ludus: Ludus):
    done = ludus("evaluate", f"hermes:{STOCK}", "--out", "run", "--json", *HERE, *flags("stock"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"] == {"eval/right": 1.0}


@pytest.mark.usefixtures("bwrap")
def test_groups_are_sent_to_a_trainer(ludus: Ludus):
    server = TrajectoryServer(num_steps=2, max_token_len=9000, batch_size=4)
    with serve_in_thread(server) as url:
        words = ["--env.rollout_server_url", url, "--serve.poll_seconds", "0.01", "--serve.drain_seconds", "0.1"]
        given = flags(
            "stock", *HERE, *words, "--env.total_steps", "-1", "--budget.calls", "90", "--out", "run", "--json"
        )
        done = ludus("serve", f"hermes:{STOCK}", *given)
    assert done.code == 0, done.err
    sent = [group for _, groups in server.posts for group in groups]
    assert sent and all(group["scores"] == [1.0, 1.0] and group["messages"] for group in sent)


@pytest.mark.usefixtures("bwrap")
def test_a_skill_is_trained_on_the_items_of_a_file(ludus: Ludus):
    words = ["--env.total_steps", "3", "--data.ratio", "1:1:1", "--train.proposer", "exemplars", "--train.epochs", "1"]
    done = ludus("train", f"hermes:{STOCK}", *HERE, *flags("stock", *words), "--out", "run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["summary"]["initial"]["test"]["overall"]["hard"] == 1.0


@pytest.mark.usefixtures("bwrap")
def test_a_resumed_run_asks_only_for_what_is_missing(ludus: Ludus):
    words = ["process", f"hermes:{STOCK}", "--out", "run", "--json", *HERE, *flags("stock")]
    assert ludus(*words, "--budget.calls", "5").code == 3
    assert ludus("process", "--resume", "--out", "run", "--budget.calls", "99").code == 0
    assert count_calls() == 3 * 2 * 2
    assert [group["scores"] for group in read_jsonl("run/atropos_groups.jsonl")] == [[1.0, 1.0]] * 3


@pytest.mark.usefixtures("bwrap")
def test_a_failing_server_is_no_zero(ludus: Ludus):
    done = ludus("process", f"hermes:{STOCK}", "--out", "run", "--json", *HERE, *flags("broken"), "--run.retries", "0")
    assert done.code == 1 and read_jsonl("run/atropos_groups.jsonl") == []
    assert json.loads(done.out)["summary"]["overall"]["scored"] == 0


def count_lamps(prompt: str) -> str:
    """A model in token mode that plays the first task."""
    if "<tool_response>" in prompt:
        return "7"
    given = {"name": "terminal", "arguments": {"command": "echo 7 > stock/total.txt"}}
    return f"<tool_call>\n{json.dumps(given)}\n</tool_call>"


@pytest.mark.usefixtures("bwrap")
def test_a_model_with_exact_ids_gives_rows_with_logprobs(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_kit, "reply", count_lamps)
    with cli_kit.serve_engine(folder) as url:
        words = ["--openai.server_type", "vllm", "--openai.base_url", f"{url}/v1", "--env.tokenizer_name", "."]
        done = ludus("process", f"hermes:{STOCK}", *HERE, *words, "--env.total_steps", "1", "--out", "run", "--json")
    assert done.code == 0, done.err
    (group,) = read_jsonl("run/atropos_groups.jsonl")
    assert group["scores"] == [1.0, 1.0]
    for ids, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(ids) == len(masks) == len(logprobs)
        assert sum(a == -100 and b != -100 for a, b in itertools.pairwise(masks)) == 2  # two replies
    assert ludus("check", "run").code == 0


@pytest.mark.usefixtures("bwrap")
def test_a_file_starts_by_itself_when_its_imports_are_changed(folder: Path):
    text = (ENVIRONMENTS / STOCK).read_text()
    imports = r"(?m)^from (atroposlib[\w.]*|\.\.agent|\.\.tools|\.agent_env) import"
    (folder / "own.py").write_text(re.sub(imports, "from ludus.compat.atropos_agent import", text))
    words = ["process", "--env.total_steps", "1", *HERE, *flags("stock"), "--out", "run", "--quiet"]
    done = subprocess.run([sys.executable, "own.py", *words], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0, 1.0]


# ---- settings -----------------------------------------------------------------------------------------------------


def read_config(ludus: Ludus, *words: str):
    done = ludus("process", f"hermes:{STOCK}", "--print-config", *words)
    assert done.code == 0, done.err
    return yaml.safe_load(done.out)


def test_settings_by_name_become_a_sandbox(ludus: Ludus):
    Path("theirs.yaml").write_text(
        "env: {tool_pool_mode: modal, modal_image: 'python:3.12', require_stateful_sandbox: true, agent_max_steps: 3}\n"
    )
    modal = read_config(ludus, "--config", "theirs.yaml", "--env.agent_tool_delay_s", "0.5")
    assert modal["sandbox"]["backend"] == "modal" and modal["sandbox"]["modal"]["image"] == "python:3.12"
    assert modal["sandbox"]["require_sandbox"] is True
    assert modal["env"]["settings"]["agent_max_steps"] == 3 and modal["env"]["settings"]["agent_tool_delay_s"] == 0.5
    nomad = read_config(ludus, "--env.nomad_address", "http://n:4646", "--env.slots_per_container", "4")["sandbox"]
    assert nomad["backend"] == "nomad" and nomad["nomad"]["address"] == "http://n:4646" and nomad["max_slots"] == 40
    assert nomad["nomad"]["job_prefix"] == "atropos-sandbox-agent-env"
    assert read_config(ludus, *HERE)["sandbox"]["backend"] == "bwrap"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--env.tool_batch_window_ms", "5"], "env.tool_batch_window_ms: calls are sent at once"),
        (["--env.modal_function_name", "f"], "env.modal_function_name: slots are Modal sandboxes"),
        (["--env.modal_volume_name", "v"], "env.modal_volume_name: slots begin empty"),
        (["--env.modal_volume_mount_path", "/x"], "env.modal_volume_mount_path: slots begin empty"),
        (["--env.tool_server_token", "secret-1234"], "env.tool_server_token: there is no tool server"),
        (["--env.tool_server_url", "http://h:1"], "env.tool_server_url is 'http://h:1'"),
        (["--env.purge_job_on_shutdown", "false"], "jobs are always removed"),
        (["--env.agent_max_steps", "0"], "env.agent_max_steps"),
        (["--env.max_agent_turns", "3"], "env.max_agent_turns: unknown setting"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(ludus: Ludus, words: list[str], problem: str):
    done = ludus("process", f"hermes:{STOCK}", "--print-config", *words)
    assert done.code == 2 and problem in done.err and "secret-1234" not in done.err, done.err


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize(
    ("toolsets", "problem"),
    [
        ('["web"]', "toolset 'search' cannot be used: it needs a provider"),
        ('["todo"]', "'todo' acts outside of the slot: add --env.tool_server_url inprocess"),
        ('["terminal_stateful"]', "'terminal_stateful' is a terminal of tmux"),
        ('["skills"]', "toolsets: unknown toolset 'skills'"),
    ],
)
def test_toolsets_that_cannot_be_used_end_the_run_before_the_first_rollout(ludus: Ludus, toolsets: str, problem: str):
    words = ["--env.enabled_toolsets", toolsets, "--out", "run", *HERE, *flags("stock")]
    done = ludus("process", f"hermes:{STOCK}", *words)
    assert done.code == 2 and f"env.enabled_toolsets: {problem}" in done.err, done.err
    assert count_calls() == 0
