"""The `tools` section of the settings."""

from typing import ClassVar

from msgspec import field

from ludus.settings import Settings
from ludus.tools.browser import BrowserSettings
from ludus.tools.mcp import McpSettings
from ludus.tools.web import WebSettings


class ToolsSettings(Settings, frozen=True):
    """Which tools the agent may use. `ludus tools` lists toolsets and distributions."""

    enabled: tuple[str, ...] | None = None
    """Toolsets to offer, by name; also tools of your own: `module:name`, or a file, such as `my_tools.py:add`. Null:
    the toolsets that the environment asks for."""
    disabled: tuple[str, ...] = ()
    """Toolsets to leave out, also when the environment asks for them."""
    distribution: str = ""
    """Draw the toolsets of each group at random from this distribution, instead of `enabled`."""
    distributions: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Distributions of your own: name → toolset → percent."""
    own: dict[str, str] = field(default_factory=dict[str, str])
    """Tools of your own under the name of a toolset: name → `module:name` or a file. So distributions that name `moa`
    or `image_gen`, which Ludus does not have, can draw yours."""
    browser: BrowserSettings = BrowserSettings()
    """The browser in slots."""
    web: WebSettings = WebSettings()
    """The search provider."""
    mcp: dict[str, McpSettings] = field(default_factory=dict[str, McpSettings])
    """MCP servers: toolset name → server."""

    added_later: ClassVar[tuple[str, ...]] = ("own", "browser")
