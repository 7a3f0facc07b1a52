"""Toolsets from MCP servers: `async with open_mcp_toolset("name", settings) as toolset`.

An MCP server is a program that the operator trusts. It runs on this machine (`command`) or elsewhere (`url`), **not in
the slot**: its tools use files and networks with the server's rights. All rollouts of a run share one connection, so a
server that keeps state keeps it across rollouts.

The model sees a server's tools as the server describes them. Arguments are checked against the server's schemas before
a call. A tool's error that the server reports is shown to the model. A server that cannot be started is a
`ConfigError`. A server that dies during the run is a failure of the world (`ToolBroken`); the next call starts it
again.

The official SDK is used for the protocol (extra `ludus-train[mcp]`). When a connection breaks, the SDK cancels the task
that holds it. So each connection is held by a task of its own, and a broken server does not end the run.
"""

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ludus.encoding import to_json
from ludus.errors import ConfigError, ToolBroken, find_first, suggest
from ludus.images import describe_bad_url
from ludus.tools import BadArguments, Tool
from ludus.tools.settings import McpSettings
from ludus.tools.toolsets import Toolset
from ludus.types import JsonObject, Observation, ToolSpec

if TYPE_CHECKING:
    from mcp import Client
    from mcp import Tool as Offer
    from mcp.types import CallToolResult, ContentBlock


ReadSecret = Callable[[str, str], str]
"""Returns the value of an environment variable, given its name and the setting that names it."""


def refuse_secret(variable: str, setting: str) -> str:
    """The `ReadSecret` of a caller that has no secrets to give."""
    raise ConfigError(f"{setting} names the variable {variable}, but nothing was given to read it with")


class McpToolError(Exception):
    """A tool of a server failed. The text is the server's."""


@asynccontextmanager
async def open_mcp_toolset(
    name: str, settings: McpSettings, read_secret: ReadSecret = refuse_secret
) -> AsyncGenerator[Toolset, None]:
    """Connect to a server and yield its tools as a toolset. Leaving closes the connection and ends a started server.

    Raises:
        ConfigError: the settings are wrong, the SDK is not installed, the server cannot be reached, or its tools cannot
            be used.
    """
    _check_settings(name, settings)
    where = f"tools.mcp.{name}"
    env = {key: read_secret(var, f"{where}.env_vars.{key}") for key, var in settings.env_vars.items()}
    headers = {key: read_secret(var, f"{where}.header_vars.{key}") for key, var in settings.header_vars.items()}
    _require_sdk(name)
    with tempfile.TemporaryFile("w+") as log:
        server = _Server(name, settings, log, env={**settings.env, **env}, headers={**settings.headers, **headers})
        try:
            try:
                offers = await server.list_offers()
            except ToolBroken as error:
                raise ConfigError(f"tools.mcp.{name}: {error}") from None
            tools = [_make_tool(server, offer, settings) for offer in _pick_offers(name, offers, settings.only)]
            yield Toolset(name, f"tools of the MCP server '{name}'", lambda _box: tools)
        finally:
            await server.close()


def _check_settings(name: str, settings: McpSettings) -> None:
    command = settings.command
    if bool(command) == bool(settings.url):
        raise ConfigError(f"tools.mcp.{name}: give either `command` or `url`")
    if len(command) == 1 and " " in command[0] and not Path(command[0]).exists():
        advice = f"give the program and its arguments as a list: [{', '.join(command[0].split())}]"
        raise ConfigError(f"tools.mcp.{name}.command: there is no program '{command[0]}'; {advice}")


def _require_sdk(name: str) -> None:
    try:
        import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]

        # Else Python prints the tracebacks that the SDK logs for each line that is not a message of the protocol.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
    except ImportError:
        raise ConfigError(f"tools.mcp.{name}: MCP servers need an extra; pip install 'ludus-train[mcp]'") from None


def _pick_offers(name: str, offers: "Sequence[Offer]", only: Sequence[str]) -> "Sequence[Offer]":
    known = [offer.name for offer in offers]
    for wanted in only:
        if wanted not in known:
            raise ConfigError(f"tools.mcp.{name}.only: unknown tool '{wanted}'; {suggest(wanted, known)}")
    return [offer for offer in offers if not only or offer.name in only]


# ---- the connection -----------------------------------------------------------------------------------------------


class _Link:
    """A connection and the task that holds it."""

    def __init__(self) -> None:
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.done = asyncio.Event()
        """Set when it is no longer needed."""
        self.task: asyncio.Task[None] | None = None


class _Server:
    """A server. It is connected when it is needed, and again after the connection breaks."""

    def __init__(
        self, name: str, settings: McpSettings, log: TextIO, *, env: Mapping[str, str], headers: Mapping[str, str]
    ) -> None:
        self._name = name
        self._settings = settings
        self._env = env
        self._headers = headers
        self._log = log
        self._links: list[_Link] = []
        """Connections whose tasks may still run. The last one is in use."""

    async def list_offers(self) -> "Sequence[Offer]":
        client = await asyncio.shield(self._get_link().client)
        found: list[Offer] = []
        cursor: str | None = None
        while True:
            try:
                page = await client.list_tools(cursor=cursor)
            except Exception as error:  # the SDK raises its own errors and those of its validation library
                raise self._make_broken(_find_reason(error)) from error
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found

    async def call(self, tool: str, arguments: JsonObject) -> "CallToolResult":
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        link = self._get_link()
        client = await asyncio.shield(link.client)
        try:
            return await client.call_tool(tool, arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise McpToolError(str(error)) from error
            link.done.set()
            raise self._make_broken(str(error)) from error

    async def close(self) -> None:
        """Close the connection and end the program that was started. The SDK limits how long that takes."""
        tasks = [link.task for link in self._links if link.task]
        for link in self._links:
            link.done.set()
            if link.task and not link.client.done():  # still connecting: do not wait for it
                link.task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _get_link(self) -> _Link:
        """The current connection, or a new one."""
        self._links = [link for link in self._links if link.task and not link.task.done()]
        if not self._links or self._links[-1].done.is_set():
            link = _Link()
            link.task = asyncio.create_task(self._hold_link(link))
            self._links.append(link)
        return self._links[-1]

    async def _hold_link(self, link: _Link) -> None:
        """Keep a connection open until it breaks or is no longer needed."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._settings.start_seconds):
                    client = await self._connect(stack)
                link.client.set_result(client)
                await link.done.wait()
        except Exception as error:  # the SDK's transports raise whatever their libraries do, in groups
            if not link.client.done():
                link.client.set_exception(self._make_broken(_find_reason(error)))
        finally:
            if not link.client.done():  # cancelled: those who wait must not see it as their own cancellation
                link.client.set_exception(self._make_broken("the connection was given up"))
            link.client.exception()  # mark it as retrieved, also if no one waits

    async def _connect(self, stack: AsyncExitStack) -> "Client":
        import httpx2
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        settings = self._settings
        if settings.command:
            program, *arguments = settings.command
            parameters = StdioServerParameters(command=program, args=arguments, env=dict(self._env), cwd=settings.cwd)
            transport = stdio_client(parameters, errlog=self._log)
        else:
            # The time limit of a call is the tool's, so reading has none here.
            timeout = httpx2.Timeout(settings.start_seconds, read=None)
            http = httpx2.AsyncClient(headers=dict(self._headers), timeout=timeout)
            transport = streamable_http_client(settings.url, http_client=await stack.enter_async_context(http))
        return await stack.enter_async_context(Client(transport))

    def _make_broken(self, reason: str) -> ToolBroken:
        where = self._settings.url or self._settings.command[0]
        output = _read_tail(self._log.fileno())
        return ToolBroken(f"MCP server '{self._name}' ({where}): {reason}" + (f"; it said: {output}" if output else ""))


def _read_tail(file: int, size: int = 500) -> str:
    """The end of a file. Does not move the position at which the server writes."""
    start = max(0, os.fstat(file).st_size - size)
    return " ".join(os.pread(file, size, start).decode(errors="replace").split())


def _find_reason(error: BaseException) -> str:
    error = find_first(error)
    return "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"


# ---- tools --------------------------------------------------------------------------------------------------------


def _make_tool(server: _Server, offer: "Offer", settings: McpSettings) -> Tool:
    check = _make_checker(offer.name, offer.input_schema)

    async def run(arguments: JsonObject) -> str | Observation:
        check(arguments)
        result = await server.call(offer.name, arguments)
        if result.is_error:
            raise McpToolError(_format_result(result) or "the tool failed without saying why")
        text = _format_result(result) or "(no output)"
        images = _list_images(result) if settings.images else ()
        return Observation(text.replace(_NOT_SHOWN, "]"), images) if images else text

    # Model servers allow fewer characters in a name than MCP.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", settings.prefix + offer.name)[:64]
    spec = ToolSpec(name, offer.description or offer.title or "", offer.input_schema)
    return Tool(spec, run, parallel=settings.parallel, seconds=settings.call_seconds)


def _make_checker(name: str, schema: JsonObject) -> Callable[[JsonObject], None]:
    """A function that raises `BadArguments` for arguments that do not fit the schema."""
    jsonschema: Any = import_module("jsonschema")  # comes with the SDK, without types
    referencing: Any = import_module("referencing")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        advice = "leave the tool out with `only`"
        raise ConfigError(f"tools.mcp: the schema of tool '{name}' is not valid ({error.message}); {advice}") from None
    # An empty registry, so that references to other places are not fetched.
    validator = kind(schema, registry=referencing.Registry())

    def check(arguments: JsonObject) -> None:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
        except referencing.exceptions.Unresolvable:
            return  # the server checks them again
        if error is not None:
            where = ".".join(str(part) for part in error.absolute_path)
            raise BadArguments(f"{where}: {error.message}" if where else error.message)

    return check


def _format_result(result: "CallToolResult") -> str:
    """A result as text. Structured content is shown only if there is no text: servers send the same in both."""
    text = "\n".join(_format_block(block) for block in result.content)
    if not text and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return text


_NOT_SHOWN = ", not shown]"


def _list_images(result: "CallToolResult") -> tuple[str, ...]:
    """The pictures of a result that models take, as `data:` URLs."""
    urls = [f"data:{block.mime_type};base64,{block.data}" for block in result.content if block.type == "image"]
    return tuple(url for url in urls if not describe_bad_url(url))


def _format_block(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4} bytes{_NOT_SHOWN}"
        case "resource_link":
            return f"[resource: {block.uri}]"
        case "resource":
            return getattr(block.resource, "text", f"[resource: {block.resource.uri}, not text]")
