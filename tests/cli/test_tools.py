"""`ludus tools`."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    script_flags,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_toolsets_and_distributions_are_listed(ludus: Ludus):
    listed = json.loads(ludus("tools", "--json", "--tools.distributions.mine", "{file: 50}").out)
    rows = {row["name"]: row for row in listed["toolsets"]}
    assert "terminal" in [tool["name"] for tool in rows["terminal"]["tools"]]
    assert rows["coding"]["includes"] == ["terminal", "file", "code"]
    assert "tools.web.provider" in rows["search"]["missing"]
    assert listed["distributions"]["mine"] == {"file": 50}
    assert "write_file" in ludus("tools").out


def test_toolsets_of_distributions_that_cannot_be_drawn_are_marked(ludus: Ludus):
    shown = ludus("tools").out
    assert "terminal_tasks terminal 97, file 97, [web 97], [browser 75], [vision 50], [image_gen 10]" in shown
    assert (
        "web (it needs a provider; set tools.web.provider); "
        "vision (it needs a model for pictures; set vision.base_url and vision.name)" in shown
    )
    unusable = json.loads(ludus("tools", "--json").out)["unusable"]
    assert unusable.keys() == {"web", "vision", "image_gen", "moa", "browser"}


MCP = """
import logging
from mcp.server.mcpserver import MCPServer

logging.disable()
app = MCPServer("demo")

@app.tool()
def double(number: int) -> int:
    'Twice the number.'
    return 2 * number

app.run(transport="stdio")
"""


def test_tools_of_an_mcp_server_are_listed_and_used(ludus: Ludus, folder: Path):
    pytest.importorskip("mcp")
    (folder / "server.py").write_text(MCP)
    server = ["--tools.mcp.maths.command", json.dumps([sys.executable, "server.py"])]
    server += ["--tools.mcp.maths.start_seconds", "300"]
    rows = json.loads(ludus("tools", "--json", *server).out)["toolsets"]
    assert [tool["name"] for tool in rows[-1]["tools"]] == ["double"]
    code, out, err = ludus("evaluate", "sums.py", "--out", "r", "--json", *server, *script_flags("doubling"))
    assert code == 0, err
    assert json.loads(out)["summary"]["tools"] == [{"tool": "double", "calls": 4, "errors": 0}]
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


def test_an_mcp_server_that_cannot_start_is_an_error_in_the_settings(ludus: Ludus):
    pytest.importorskip("mcp")
    code, _, err = ludus("tools", "--tools.mcp.maths.command", "[no-such-program]")
    assert code == 2
    assert "tools.mcp.maths" in err
    assert "tools.mcp.maths: give either `command` or `url`" in ludus("tools", "--tools.mcp.maths.prefix", "x").err
    spaced = ludus("tools", "--tools.mcp.maths.command", "my-server --stdio")
    assert (spaced.code, "as a list: [my-server, --stdio]" in spaced.err) == (2, True)


def test_a_description_that_is_a_sentence_has_no_full_stop_before_the_colon(ludus: Ludus, folder: Path):
    (folder / "good.py").write_text("from ludus.tools import tool\n\n@tool\nasync def good() -> str:\n    'Good.'\n")
    assert "  good.py:good Good: good\n" in ludus("tools", "--tools.enabled", "good.py:good").out
