"""`ludus gateway`: the configured model, served to any agent; every session a line of JSON.

It runs until Ctrl-C (or SIGTERM). The first one drains: new requests are held back, those with the model are finished,
and every session is written. The second drops what runs. Sessions are written as they end: when they were idle for
`gateway.idle_seconds`, or when the gateway stops.
"""

import asyncio
import gc
import ipaddress
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec

from ludus.cli import Arguments
from ludus.cli.batches import draining
from ludus.compat.atropos import Connect, Managed, ServerView, Setup
from ludus.config import Config, load, to_record, to_yaml
from ludus.config.build_models import build_ledger, build_model, server_settings
from ludus.config.tree import SECTIONS, OpenAIConfig, ServerConfig
from ludus.config.secrets import read_secret, secrets
from ludus.config.token_mode import server_model
from ludus.errors import ConfigError
from ludus.gateway.gateway_session import Record
from ludus.gateway.named_sessions import House
from ludus.gateway.service import Gateway
from ludus.models import Model, Starts
from ludus.models.ledger import Budget, Metered
from ludus.store import RunDir
from ludus.types import to_json

SESSIONS = "sessions.jsonl"
"""A line for each session that ended."""


def run(arguments: Arguments) -> int:
    flags = list(arguments.flags)
    if arguments.out:
        flags.append(("run.out", arguments.out))
    config = load([Path(path) for path in arguments.config], flags)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    token = read_secret(config.gateway.token_var, "gateway.token_var")
    check_host(config.gateway.host, token)
    # Sessions are many small objects that live long: looking through all of them for garbage every few hundred
    # requests would cost a tenth of the time.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_serve(config, token, as_json=arguments.json))


def check_host(host: str, token: str) -> None:
    """Beyond loopback, whoever reaches the port could use the model and its key: that needs a token.

    Raises:
        ConfigError: there is none.
    """
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not loopback and not token:
        raise ConfigError(
            f"gateway.host: {host} can be reached from other machines. Put a token into an environment variable and "
            "name it with --gateway.token_var, or listen on 127.0.0.1"
        )


async def _serve(config: Config, token: str, *, as_json: bool) -> int:
    async with AsyncExitStack() as stack:
        ledger = build_ledger(config)
        model = build_model(config.model, ledger, tell=say)
        stack.push_async_callback(model.close)

        def connect(setup: Setup) -> Model:
            other = Metered(model_of(setup), ledger, "agent")
            stack.push_async_callback(other.close)
            return other

        inner = model.model if isinstance(model, Metered) else model
        if isinstance(inner, Starts):
            await inner.start()
        out = Path(config.run.out or f"runs/gateway-{time.strftime('%Y%m%d-%H%M%S')}")
        directory = stack.enter_context(
            RunDir.open(out, to_record(config), resume=True, ignore=frozenset(SECTIONS), secrets=secrets(config))
        )
        ended = Ended(directory)
        house, gateway = _build(config, model, token, ended, connect)
        async with gateway:
            _announce(gateway, out / SESSIONS, token=bool(token), as_json=as_json)
            await _until_stopped(gateway, house)
        say(f"sessions recorded in {out / SESSIONS}: {ended.count}")
    return 0


class Ended:
    """Writes sessions as they end. Those that never asked anything are not worth a line."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self.count = 0

    def __call__(self, record: Record) -> None:
        if record.requests:
            self._directory.append(SESSIONS, to_json(record))
            self.count += 1


def _build(config: Config, model: Model, token: str, ended: Ended, connect: Connect) -> tuple[House, Gateway]:
    settings = config.gateway
    house = House(
        ended,
        token=token,
        sampling=config.sampling if settings.enforce else None,
        budget=_budget(config),
        idle_seconds=settings.idle_seconds,
    )
    doors = [house.door]
    if settings.atropos:
        doors.insert(0, Managed(house, _servers(config), connect).door)
    gateway = Gateway(
        model,
        host=settings.host,
        port=settings.port,
        body_bytes=settings.body_mb * 1024 * 1024,
        doors=doors,
    )
    return house, gateway


def _budget(config: Config) -> Budget | None:
    limits = config.gateway.session
    budget = Budget(tokens=limits.tokens, dollars=limits.dollars, calls=limits.calls)
    return None if budget == Budget() else budget


def _servers(config: Config) -> list[ServerView]:
    """The servers behind the gateway, as Atropos' clients see them."""
    model = config.model
    if not isinstance(model, ServerConfig):
        return []
    kind = model.engine if isinstance(model, OpenAIConfig) and model.mode == "token" else "openai"
    return [ServerView(url, model.name, kind) for url in (model.base_url, *model.servers) if url]


def model_of(setup: Setup) -> Model:
    """The model that a client of `/setup` asks for: in token mode, which is what those clients are for."""
    engines: dict[str, Literal["atropos", "sglang"]] = {"vllm": "atropos", "sglang": "sglang"}
    engine = engines.get(setup.servers[0].server_type)
    if engine is None:
        raise ConfigError("servers[0].server_type: only 'vllm' and 'sglang' tell the ids that they sample")
    first, *others = (server.base_url for server in setup.servers)
    model = OpenAIConfig(
        base_url=first,
        servers=tuple(others),
        name=setup.model_name,
        mode="token",
        engine=engine,
        tokenizer=setup.tokenizer_name or "",
        parser="hermes",
        concurrency=setup.servers[0].num_max_requests_at_once,
    )
    settings = [
        msgspec.structs.replace(settings, api_key=server.api_key)
        for settings, server in zip(server_settings(model), setup.servers, strict=True)
    ]
    return server_model(model, settings, "setup")


async def _until_stopped(gateway: Gateway, house: House) -> None:
    with draining() as stop:
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(house.run(gateway))
            try:
                await stop.wait()
                await gateway.drain()
            finally:
                closing.cancel()
                await house.close(gateway, grace=0.0)


def _announce(gateway: Gateway, out: Path, *, token: bool, as_json: bool) -> None:
    model = gateway.model.name
    if as_json:
        print(to_json({"url": gateway.url, "model": model, "out": str(out)}).decode(), flush=True)
        return
    key = "$TOKEN.NAME" if token else "NAME"
    say(
        f"{model} at {gateway.url}, recorded in {out}. Point an agent at it; NAME is the session it is recorded as:\n"
        f"  OpenAI       OPENAI_BASE_URL={gateway.url}/v1 OPENAI_API_KEY={key}\n"
        f"  Anthropic    ANTHROPIC_BASE_URL={gateway.url} ANTHROPIC_API_KEY={key}\n"
        f"  any other    {gateway.url}/s/{key}/v1 as base URL, with any key\n"
        "Ctrl-C stops it: what runs is finished, and every session is written."
    )


def say(text: str) -> None:
    print(f"ludus: {text}", file=sys.stderr, flush=True)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop if it is installed (`ludus[fast]`), else asyncio's own: here little else costs time."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
