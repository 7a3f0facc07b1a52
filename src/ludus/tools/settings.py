"""The `tools` section of the settings."""

from typing import ClassVar, Literal

from msgspec import field

from ludus.settings import Settings
from ludus.types import Count, Positive


class BrowserSettings(Settings, frozen=True):
    """The browser of the toolset `browser` (extra `ludus-train[browser]`)."""

    executable: str = ""
    """Where Chromium is in the slot: a name or a path, such as `/usr/lib/chromium/chromium` on Debian. Empty: the
    toolset cannot be used."""
    seconds: Positive = 30.0
    """How long a page may take to load, and an element to appear."""
    width: Count = 1280
    """The width of the window in pixels."""
    height: Count = 800
    """The height of the window in pixels."""
    screenshots: bool = False
    """Offer a tool that shows a picture of the page to the agent's own model, which must take pictures."""


class McpSettings(Settings, frozen=True):
    """An MCP server whose tools are offered as a toolset of its name. It runs outside the sandbox."""

    command: tuple[str, ...] = ()
    """Program and arguments of a server that speaks over stdin and stdout. Give this or `url`."""
    url: str = ""
    """Address of a server that speaks streamable HTTP."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables for the command, beside HOME, PATH and a few others; nothing else of the environment is passed on. They
    are recorded: no secrets here."""
    env_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Variables for the command whose values are secret: variable → NAME of the environment variable that holds it."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with every request to `url`. They are recorded: no secrets here."""
    header_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Headers whose values are secret: header → NAME of the environment variable."""
    cwd: str | None = None
    """The folder that the command starts in."""
    only: tuple[str, ...] = ()
    """Offer only these of its tools; empty: all."""
    prefix: str = ""
    """Put before the tools' names, for names that would collide with others."""
    parallel: bool = False
    """Its tools may run at the same time in one turn."""
    images: bool = False
    """Show the model the pictures in results. It must take pictures; models in token mode do not."""
    start_seconds: Positive = 30.0
    """Time limit for starting or reaching it."""
    call_seconds: Positive | None = None
    """Time limit of one call; null: `limits.tool_seconds`."""


class WebSettings(Settings, frozen=True):
    """Where the `web` toolsets search and read pages."""

    provider: Literal["", "tavily", "brave", "searxng"] = ""
    """The search service; empty: the agent has no web tools."""
    api_key_var: str = ""
    """The NAME of the environment variable that holds the provider's key."""
    base_url: str = ""
    """The provider's address; required for `searxng`, which is self-hosted."""
    allow_private: bool = False
    """Let the agent read pages from this machine and the local network."""


class ToolsSettings(Settings, frozen=True):
    """Which tools the agent may use. `ludus tools` lists toolsets and distributions."""

    enabled: tuple[str, ...] | None = None
    """Toolsets to offer, by name; also tools of your own: `module:name`, or a file, such as `my_tools.py:add`. Null:
    the toolsets that the environment asks for."""
    disabled: tuple[str, ...] = ()
    """Toolsets to leave out, also when the environment asks for them."""
    distribution: str = ""
    """Sample the toolsets of each group at random from this distribution, instead of `enabled`."""
    distributions: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Distributions of your own: name → toolset → percent."""
    own: dict[str, str] = field(default_factory=dict[str, str])
    """Tools of your own under the name of a toolset: name → `module:name` or a file. So distributions that name `moa`
    or `image_gen`, which Ludus does not have, can sample yours."""
    browser: BrowserSettings = BrowserSettings()
    """The browser in slots."""
    web: WebSettings = WebSettings()
    """The search provider."""
    mcp: dict[str, McpSettings] = field(default_factory=dict[str, McpSettings])
    """MCP servers: toolset name → server."""

    added_later: ClassVar[tuple[str, ...]] = ("own", "browser")
