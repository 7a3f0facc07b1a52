"""The toolsets of files written for `AgentEnv`, and the calls in a text."""

import pytest

from ludus.compat.hermes_env.pool_tools import (
    PoolTool,
    PoolToolCall,
    PoolToolRegistry,
    PoolToolResult,
    PoolToolSchema,
    build_pool_tools,
)
from ludus.errors import ConfigError
from ludus.tools.toolsets import BUILTIN

FILES = ["read_file", "write_file"]


@pytest.mark.parametrize(
    ("enabled", "disabled", "url", "names"),
    [
        (["default"], [], None, ["terminal", *FILES]),
        (["sandbox"], ["filesystem"], None, ["terminal"]),
        (["terminal", "file"], [], None, ["terminal", *FILES, "patch", "search_files"]),
        (["filesystem", "file"], ["terminal"], None, [*FILES, "patch", "search_files"]),
        (["terminal_tools", "code_execution"], [], None, ["terminal", "run_python"]),
        (["full"], [], None, ["terminal", *FILES]),
        (["all"], [], "inprocess", ["terminal", *FILES, "run_python", "todo"]),
        (["terminal", "todo"], ["todo"], "inprocess", ["terminal"]),
    ],
)
def test_which_tools_a_toolset_has(enabled: list[str], disabled: list[str], url: str | None, names: list[str]):
    found = build_pool_tools(enabled, disabled, url, BUILTIN)
    assert [tool.name for tool in found.list_tools()] == names
    for schema in found.get_schemas():
        assert schema.to_dict()["function"]["parameters"]["type"] == "object"


def test_what_is_disabled_must_be_known_too():
    with pytest.raises(ConfigError, match=r"env\.disabled_toolsets: .*unknown toolset 'terminl'"):
        build_pool_tools(["default"], ["terminl"], None, BUILTIN)


def test_calls_in_a_text():
    text = 'first\n<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
    (call,) = PoolToolCall.parse_from_text(text)
    assert (call.name, call.arguments) == ("terminal", {"command": "ls"}) and call.uniq_id
    assert PoolToolCall.has_tool_call(text) and not PoolToolCall.has_tool_call("none")
    assert PoolToolCall.parse_from_text("none") == []


class Failing(PoolTool):
    @property
    def schema(self) -> PoolToolSchema:
        return PoolToolSchema("fail", "Fails.")

    async def execute(self, **arguments: object) -> PoolToolResult:
        raise OSError("no disk")


async def test_a_tool_of_a_file_that_raises_has_a_result():
    tools = PoolToolRegistry()
    tools.register(Failing())
    call = PoolToolCall("fail", {}, uniq_id="7")
    assert await tools.execute(call) == PoolToolResult(False, error="OSError: no disk", uniq_id="7")
    assert (await tools.execute(PoolToolCall("other", {}))).error == "Unknown tool: other"


def test_a_result_in_words():
    result = PoolToolResult(False, "out", "exit code 1", {"exit_code": 1}, "9")
    assert result.to_xml() == (
        '<tool_response>{"success": false, "output": "out", "error": "exit code 1"}</tool_response>'
    )
    assert result.to_dict()["metadata"] == {"exit_code": 1}
