"""The `tools` section."""

from ludus.config import load
from ludus.tools.settings import McpSettings, ToolsSettings, WebSettings


def test_the_section_holds_the_settings_of_providers_and_servers_as_they_are():
    flags = [
        ("tools.enabled", "terminal, my_tools.py:add"),
        ("tools.web.provider", "brave"),
        ("tools.mcp.files.command", "[server, --stdio]"),
        ("tools.distributions.mine.file", "50"),
    ]
    assert load([], flags).tools == ToolsSettings(
        enabled=("terminal", "my_tools.py:add"),
        web=WebSettings(provider="brave"),
        mcp={"files": McpSettings(command=("server", "--stdio"))},
        distributions={"mine": {"file": 50.0}},
    )


def test_nothing_is_chosen_by_default():
    tools = load().tools
    assert (tools.enabled, tools.disabled, tools.distribution, tools.web.provider) == (None, (), "", "")
