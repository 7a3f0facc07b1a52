"""Toolsets from real MCP servers: one started over stdin and stdout, one reached over HTTP on loopback."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.errors import ConfigError, ToolBroken
from ludus.tools import BadArguments, Tool
from ludus.tools.mcp import McpToolError, _make_checker, open_mcp_toolset
from ludus.tools.settings import McpSettings  # pyright: ignore[reportPrivateUsage]
from ludus.tools.toolsets import BUILTIN
from ludus.types import Observation

SERVER = '''
import logging, os, sys
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent

logging.disable()
app = MCPServer("demo")
calls = []

@app.tool()
def add(a: int, b: int = 1) -> int:
    """Add two whole numbers."""
    calls.append(a)
    return a + b

@app.tool(name="odd.name/x")
def odd(text: str) -> CallToolResult:
    """Say it back, with a picture."""
    picture = ImageContent(type="image", data="AAAA", mimeType="image/png")
    return CallToolResult(content=[TextContent(type="text", text=text), picture])

@app.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("no luck today")

@app.tool()
def variable(name: str) -> str:
    """Read a variable."""
    return os.environ.get(name, "unset")

@app.tool()
def die() -> str:
    """End the server."""
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)

if sys.argv[1:]:
    app.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    app.run(transport="stdio")
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return path


@asynccontextmanager
async def open_tools(settings: McpSettings) -> AsyncGenerator[dict[str, Tool]]:
    async with open_mcp_toolset("demo", settings) as toolset:
        tools = BUILTIN.extend(toolset).make_tools(["demo"], None)
        yield {tool.name: tool for tool in tools}


async def test_pictures_go_to_the_model_if_the_settings_say_so(script: Path):
    async with open_tools(McpSettings(command=(sys.executable, str(script)), images=True)) as tools:
        seen = await tools["odd_name_x"].run({"text": "look"})
        assert seen == Observation("look\n[image: image/png, 3 bytes]", ("data:image/png;base64,AAAA",))


async def test_a_server_over_stdio_from_start_to_death_and_back(script: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "not for the server")

    async with open_tools(
        McpSettings(command=(sys.executable, str(script)), env={"GIVEN": "yes"}, start_seconds=300)
    ) as tools:
        assert set(tools) == {"add", "odd_name_x", "fail", "variable", "die"}
        add = tools["add"]
        assert add.spec.description == "Add two whole numbers."
        assert add.spec.parameters["properties"]["a"] == {"title": "A", "type": "integer"}
        assert await add.run({"a": 41}) == "42"
        assert await tools["odd_name_x"].run({"text": "é\n'\""}) == "é\n'\"\n[image: image/png, 3 bytes, not shown]"
        with pytest.raises(BadArguments, match=r"^a: '41' is not of type 'integer'$"):
            await add.run({"a": "41"})
        with pytest.raises(BadArguments, match=r"^'a' is a required property$"):
            await add.run({})
        with pytest.raises(McpToolError, match="no luck today"):
            await tools["fail"].run({})
        assert await tools["variable"].run({"name": "SECRET_KEY"}) == "unset"
        assert await tools["variable"].run({"name": "GIVEN"}) == "yes"

        with pytest.raises(ToolBroken, match=r"MCP server 'demo'.*Connection closed; it said: last words"):
            await tools["die"].run({})
        assert await add.run({"a": 1}) == "2"


async def test_a_server_over_http_that_goes_away(script: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    server = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await listening(port)
        settings = McpSettings(
            url=f"http://127.0.0.1:{port}/mcp", only=("add", "die"), prefix="my_", parallel=True, start_seconds=300
        )
        with pytest.raises(ConfigError, match=r"tools\.mcp\.remote\.only: unknown tool 'ad'; did you mean 'add'\?"):
            async with open_mcp_toolset("remote", McpSettings(url=settings.url, only=("ad",), start_seconds=300)):
                raise AssertionError("it should not come to this")
        async with open_mcp_toolset("remote", settings) as toolset:
            tools = {tool.name: tool for tool in BUILTIN.extend(toolset).make_tools(["remote"], None)}
            assert set(tools) == {"my_add", "my_die"}
            assert tools["my_add"].parallel
            sums = await asyncio.gather(*(tools["my_add"].run({"a": n}) for n in range(5)))
            assert sums == ["1", "2", "3", "4", "5"]
            with pytest.raises(ToolBroken, match="MCP server 'remote'"):
                await tools["my_die"].run({})
            await server.wait()
            with pytest.raises(ToolBroken, match="MCP server 'remote'"):
                await tools["my_add"].run({"a": 1})
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def listening(port: int) -> None:
    for _ in range(3000):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            await writer.wait_closed()
            return
    raise AssertionError("the server did not come up")


async def test_leaving_early_ends_the_server_and_passes_the_exception_on(script: Path):
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with open_tools(McpSettings(command=(sys.executable, str(script)), start_seconds=300)):
            raise Mine


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("/no/such/program",), r"tools\.mcp\.demo: .*\(/no/such/program\): FileNotFoundError"),
        ((sys.executable, "-c", "raise SystemExit('bad flag')"), "Connection closed; it said: bad flag"),
    ],
)
async def test_a_server_that_does_not_start_is_a_config_error(command: tuple[str, ...], says: str):
    with pytest.raises(ConfigError, match=says):
        async with open_tools(McpSettings(command=command, start_seconds=300)):
            raise AssertionError("it should not come to this")


async def test_a_silent_server_times_out():
    silent = (sys.executable, "-c", "import sys; sys.stdin.read()")
    with pytest.raises(ConfigError, match="no answer in time"):
        async with open_tools(McpSettings(command=silent, start_seconds=0.5)):
            raise AssertionError("it should not come to this")


async def test_leaving_while_it_is_starting_does_not_wait_for_it():
    silent = McpSettings(command=(sys.executable, "-c", "import sys; sys.stdin.read()"), start_seconds=600)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), open_mcp_toolset("silent", silent):
            raise AssertionError("it should not come to this")
    assert len(asyncio.all_tasks()) == 1


def test_a_schema_that_is_none_and_one_that_points_elsewhere():
    with pytest.raises(ConfigError, match="the schema of tool 'odd' is not valid"):
        _make_checker("odd", {"type": "thing"})
    check = _make_checker("far", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    check({"a": 1})  # not fetched: the server checks it


async def test_settings_name_one_way_to_the_server():
    for settings in (McpSettings(), McpSettings(command=("x",), url="http://x/")):
        with pytest.raises(ConfigError, match=r"tools\.mcp\.\w+: give either `command` or `url`"):
            async with open_tools(settings):
                raise AssertionError("it should not come to this")


async def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(ConfigError, match=r"pip install 'ludus-train\[mcp\]'"):
        async with open_tools(McpSettings(command=("x",))):
            raise AssertionError("it should not come to this")


ANSWERS = """
import json, sys
first = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
for line in sys.stdin:
    request = json.loads(line)
    answer = {"result": first} if request["method"] == "initialize" else LATER
    print(json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **answer}), flush=True)
"""
GARBAGE = {
    "prints garbage": "print('hello'); print('[[[[ \\u0000'); import time; time.sleep(9)",
    "prints bytes": "import os, time; os.write(1, bytes([255, 254, 10]) * 9); time.sleep(9)",
    "ends at once": "raise SystemExit('no licence')",
    "answers with something else": ANSWERS.replace("first}", "{'tools': 7}}"),
    "lists no tools but an error": ANSWERS.replace("LATER", "{'error': {'code': -1, 'message': 'no list'}}"),
    "lists tools of another form": ANSWERS.replace("LATER", "{'result': {'tools': [{'name': 1}]}}"),
}


@pytest.mark.parametrize("program", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_server_that_speaks_garbage_is_an_error_of_the_settings(
    program: str, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(ConfigError, match=r"tools\.mcp\.odd: MCP server 'odd'"):
        settings = McpSettings(command=(sys.executable, "-c", program), start_seconds=2)
        async with open_mcp_toolset("odd", settings):
            raise AssertionError("it was taken for a server")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program", "/", "/dev/null"])
async def test_a_command_that_cannot_be_started_is_an_error_of_the_settings(command: str):
    with pytest.raises(ConfigError, match=r"tools\.mcp\.odd"):
        async with open_mcp_toolset("odd", McpSettings(command=(command, "x"), start_seconds=5)):
            raise AssertionError("it was taken for a server")
