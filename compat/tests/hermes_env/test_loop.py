"""Hermes files that build the loop and the tool context themselves, and agents that try to spoil their reward."""

import json
from pathlib import Path

import pytest
from compat.tests.file_kit import flags, read_jsonl, write_files
from tests.cli_kit import Ludus

pytestmark = pytest.mark.usefixtures("bwrap")

OWN = """
import asyncio, json
from pathlib import Path
from atroposlib.envs.server_handling.server_manager import APIServerConfig
from environments.agent_loop import AgentResult, HermesAgentLoop, _tool_executor
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.tool_context import ToolContext
from environments.tool_call_parsers import get_parser
from model_tools import get_tool_definitions
from tools.terminal_tool import cleanup_vm, clear_task_env_overrides, register_task_env_overrides


class Own(HermesAgentBaseEnv):
    name = "own"
    env_config_cls = HermesAgentEnvConfig

    @classmethod
    def config_init(cls):
        return HermesAgentEnvConfig(
            enabled_toolsets=["terminal_tools", "file"], max_agent_turns=4, group_size=2, total_steps=1,
            tool_result_overrides={"terminal": 40}, default_result_size_chars=5000, preview_size_chars=20,
        ), [APIServerConfig(model_name="m", base_url="http://h/v1")]

    async def setup(self):
        self.seen = []

    async def get_next_item(self):
        return {"prompt": "count"}

    def format_prompt(self, item):
        return item["prompt"]

    async def compute_reward(self, item, result, ctx):
        shown = ctx.terminal("cat count.txt; pgrep sleep | wc -l", timeout=20)
        return float(json.loads(shown["output"].splitlines()[0])["value"])

    async def evaluate(self, *args, **kwargs):
        task_id = "eval-1"
        register_task_env_overrides(task_id, {"cwd": "/tmp"})
        tools, names = self._resolve_tools_for_group()
        assert names == {"terminal", "process", "read_file", "write_file", "patch", "search_files"}
        assert not self._use_managed_server()
        assert {tool["function"]["name"] for tool in get_tool_definitions(["file"], quiet_mode=True)} < names
        content, calls = get_parser("hermes").parse('<tool_call>{"name": "x", "arguments": {}}</tool_call>')
        assert content is None and calls[0]["function"]["name"] == "x"
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "long"}]
        loop = HermesAgentLoop(server=self.server, tool_schemas=tools, valid_tool_names=names, max_turns=4,
                               task_id=task_id, temperature=0.0, max_tokens=99, extra_body={"x": 1},
                               budget_config=self.config.build_budget_config())
        result = await loop.run(messages)
        assert result.messages is messages and result.turns_used == 3 and result.finished_naturally
        assert [message["role"] for message in messages[2:]] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert "characters are not shown" in messages[3]["content"]
        assert result.tool_errors[0].turn == 2 and result.tool_errors[0].tool_name == "nonsense"
        assert result.reasoning_per_turn == ["hm", None, None] and result.managed_state is None
        ctx = ToolContext(task_id)
        assert ctx.terminal("pwd")["output"].strip() == "/tmp"
        assert ctx.terminal("exit 3") == {"exit_code": 3, "output": ""}
        Path("up/deep").mkdir(parents=True)
        Path("up/deep/a b.bin").write_bytes(bytes(range(256)) * 400)
        assert ctx.upload_dir("up", "/tmp/there")[0]["exit_code"] == 0
        assert ctx.upload_file("missing", "/tmp/x")["exit_code"] == -1
        assert ctx.download_file("/tmp/there/deep/a b.bin", "down.bin") == {"success": True, "bytes": 102400}
        assert Path("down.bin").read_bytes() == Path("up/deep/a b.bin").read_bytes()
        assert ctx.download_dir("/tmp/there", "down")[0]["success"]
        assert not ctx.download_file("/nowhere", "no.bin")["success"]
        assert ctx.write_file("/tmp/n.txt", "needle")["success"]
        assert ctx.read_file("/tmp/n.txt")["content"] == "needle"
        assert "error" in ctx.read_file("/tmp/none.txt") and "needle" in json.dumps(ctx.search("needle", "/tmp"))
        assert "error" in json.loads(ctx.call_tool("no_such_tool", {}))
        ctx.cleanup()
        cleanup_vm(task_id)
        clear_task_env_overrides(task_id)
        await self.evaluate_log({"eval/ok": 1.0})
"""

AGENT = '''
from ludus.models.scripted import call, say


def plays(messages, tools, sampling):
    turn = sum(message.role == "assistant" for message in messages)
    if turn == 0:
        from ludus.types import Call, Message, Reasoning
        return Message("assistant", calls=(Call("c1", "terminal", '{"command": "seq 1 500"}'),),
                       reasoning=Reasoning("hm", "reasoning_content"))
    return call("nonsense") if turn == 1 else "done"


def counts(value):
    def act(messages, tools, sampling):
        if messages[-1].role == "tool":
            return "done"
        return call("terminal", command=f"echo '{value}' > count.txt; (sleep 300 > /dev/null 2>&1 &)")
    return act


right = counts('{"value": 1}')
spoiler = counts("[1")



def in_text(messages, tools, sampling):
    """A server that leaves the calls in the text."""
    import json
    if messages[-1].role == "tool":
        return "done"
    arguments = {"command": "echo '{\\"value\\": 1}' > count.txt"}
    return "<tool_call>" + json.dumps({"name": "terminal", "arguments": arguments}) + "</tool_call>"
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, own=OWN)
    with (tmp_path / "agents.py").open("a") as file:
        file.write(AGENT)
    return tmp_path


def test_a_loop_and_a_context_of_the_author_s_own(ludus: Ludus):
    done = ludus("evaluate", "hermes:own.py", "--out", "run", "--json", *flags("plays"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"] == {"eval/ok": 1.0}


def test_calls_in_the_text_of_a_chat_server_are_read(ludus: Ludus):
    assert ludus("process", "hermes:own.py", "--out", "run", "--json", *flags("in_text")).code == 0
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0, 1.0]


def test_processes_of_the_agent_are_dead_when_the_reward_is_computed(ludus: Ludus):
    done = ludus("process", "hermes:own.py", "--out", "run", "--json", *flags("right"))
    assert done.code == 0, done.err
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0, 1.0]


def test_a_reward_that_raises_in_any_slot_is_a_failure_and_no_zero(ludus: Ludus):
    done = ludus("process", "hermes:own.py", "--out", "run", "--json", *flags("spoiler"))
    assert done.code == 1, done.err
    (row,) = read_jsonl("run/groups.jsonl")
    assert [rollout["failure"]["boundary"] for rollout in row["rollouts"]] == ["verifier", "verifier"]


def test_a_reward_that_raises_because_of_the_agent_is_zero(ludus: Ludus, folder: Path):
    guarded = OWN.replace("cat count.txt;", "cat count.txt 2>/dev/null || echo '{\\\"value\\\": 0}';")
    (folder / "own.py").write_text(guarded)
    done = ludus("process", "hermes:own.py", "--out", "run", "--json", *flags("spoiler"))
    assert done.code == 0, done.err
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [0.0, 0.0]
