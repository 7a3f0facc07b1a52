"""`ludus gateway`: serve the model of the settings to any agent, and record every session as a rollout of a run.

The command runs until Ctrl-C (or SIGTERM). The first one drains: new requests wait, requests at the model are finished,
and all sessions are written. The second drops what runs. A session is written when it ends: after
`gateway.idle_seconds` without a request, or when the gateway stops.
"""

import asyncio
import gc
import ipaddress
import shlex
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec

from ludus.cli.command import CONFIG, JSON, PRINT_CONFIG, Arguments, Command, make_argument
from ludus.cli.common import drain_on_interrupt, print_notice
from ludus.cli.session_runs import SESSIONS, SessionWriter
from ludus.compat.atropos import Connect, ManagedRoutes, ServerView, Setup
from ludus.config import Config, load, to_record, to_yaml
from ludus.config.build_models import build_endpoints, build_ledger, build_model
from ludus.config.secrets import list_secrets, read_secret
from ludus.config.token_mode import build_server_model
from ludus.config.tree import SECTIONS
from ludus.errors import ConfigError
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.score_route import ScoredSession, ScoreRoute
from ludus.gateway.service import Gateway
from ludus.models import Model, StartableModel
from ludus.models.ledger import MeteredModel
from ludus.models.openai import OpenAISettings
from ludus.models.server import ServerSettings
from ludus.store import RunDir
from ludus.types import Score, to_json


class GatewayArguments(Arguments):
    out: str | None
    print_config: bool


def run(arguments: GatewayArguments) -> int:
    flags = list(arguments.flags)
    if arguments.out:
        flags.append(("run.out", arguments.out))
    config = load([Path(path) for path in arguments.config], flags)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    token = read_secret(config.gateway.token_var, "gateway.token_var")
    check_host(config.gateway.host, token, "gateway")
    score_token = read_secret(config.gateway.score_token_var, "gateway.score_token_var")
    if score_token and score_token == token:
        raise ConfigError(
            "gateway.score_token_var: agents have the token of gateway.token_var; scores need another one"
        )
    # Sessions are many small objects that live long. Searching all of them for garbage every few hundred requests
    # would take a tenth of the time.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    with asyncio.Runner(loop_factory=find_fastest_loop()) as runner:
        return runner.run(_serve(config, token, score_token, as_json=arguments.json))


def check_host(host: str, token: str, section: str) -> None:
    """Require a token for any address but loopback: without one, everybody who reaches the port can use the server.

    Raises:
        ConfigError: the address is not loopback, and there is no token.
    """
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not loopback and not token:
        raise ConfigError(
            f"{section}.host: {host} can be reached from other machines. Put a token into an environment variable and "
            f"name the variable with --{section}.token_var, or listen on 127.0.0.1"
        )


async def _serve(config: Config, token: str, score_token: str, *, as_json: bool) -> int:
    async with AsyncExitStack() as stack:
        ledger = build_ledger(config)
        model = build_model(config.model, ledger, tell=print_notice)
        stack.push_async_callback(model.close)

        def connect(setup: Setup) -> Model:
            other = MeteredModel(connect_model(setup), ledger, "agent")
            stack.push_async_callback(other.close)
            return other

        inner = model.model if isinstance(model, MeteredModel) else model
        if isinstance(inner, StartableModel):
            await inner.start()
        out = Path(config.run.out or f"runs/gateway-{time.strftime('%Y%m%d-%H%M%S')}")
        directory = stack.enter_context(
            RunDir.open(out, to_record(config), resume=True, ignore=frozenset(SECTIONS), secrets=list_secrets(config))
        )
        writer = SessionWriter(directory)
        sessions, gateway = _build_gateway(config, model, token, score_token, writer, connect)
        async with gateway:
            _announce(gateway, out, token=bool(token), scores=config.gateway.score_token_var, as_json=as_json)
            await _serve_until_stopped(gateway, sessions)
        print_notice(f"sessions recorded in {out}: {writer.count}. Look at them: ludus show {shlex.quote(str(out))}")
    return 0


def _build_gateway(
    config: Config, model: Model, token: str, score_token: str, writer: SessionWriter, connect: Connect
) -> tuple[NamedSessions, Gateway]:
    settings = config.gateway
    sessions = NamedSessions(writer, settings, token=token, sampling=config.sampling)
    routes = [sessions.handle]
    if settings.atropos:
        routes.insert(0, ManagedRoutes(sessions, _list_servers(config), connect).handle)
    if score_token:

        async def store_score(gateway: Gateway, name: str, score: Score) -> ScoredSession:
            return await writer.store_score(sessions, gateway, name, score)

        routes.insert(0, ScoreRoute(score_token, store_score).handle)
    gateway = Gateway(
        model,
        host=settings.host,
        port=settings.port,
        body_bytes=settings.body_mb * 1024 * 1024,
        routes=routes,
    )
    return sessions, gateway


def _list_servers(config: Config) -> list[ServerView]:
    """The servers behind the gateway, as Atropos' clients see them."""
    model = config.model
    if not isinstance(model, ServerSettings):
        return []
    kind = model.engine if isinstance(model, OpenAISettings) and model.mode == "token" else "openai"
    return [ServerView(url, model.name, kind) for url in model.addresses]


def connect_model(setup: Setup) -> Model:
    """The model that a client of `/setup` asks for, in token mode."""
    engines: dict[str, Literal["atropos", "sglang"]] = {"vllm": "atropos", "sglang": "sglang"}
    engine = engines.get(setup.servers[0].server_type)
    if engine is None:
        raise ConfigError("servers[0].server_type: only 'vllm' and 'sglang' return the ids that they sample")
    first, *others = (server.base_url for server in setup.servers)
    model = OpenAISettings(
        base_url=first,
        servers=tuple(others),
        name=setup.model_name,
        mode="token",
        engine=engine,
        tokenizer=setup.tokenizer_name or "",
        parser="hermes",
        concurrency=setup.servers[0].num_max_requests_at_once,
    )
    endpoints = [
        msgspec.structs.replace(endpoint, api_key=server.api_key)
        for endpoint, server in zip(build_endpoints(model), setup.servers, strict=True)
    ]
    return build_server_model(model, endpoints, print_notice, "setup")


async def _serve_until_stopped(gateway: Gateway, sessions: NamedSessions) -> None:
    with drain_on_interrupt() as stop:
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(sessions.run(gateway))
            try:
                await stop.wait()
                await gateway.drain()
            finally:
                closing.cancel()
                await sessions.close(gateway, grace=0.0)


def _announce(gateway: Gateway, out: Path, *, token: bool, scores: str, as_json: bool) -> None:
    model = gateway.model.name
    if as_json:
        print(to_json({"url": gateway.url, "model": model, "out": str(out / SESSIONS)}).decode(), flush=True)
        return
    key = "$TOKEN.NAME" if token else "NAME"
    reward = f"  rewards      POST {gateway.url}/sessions/NAME/score with the token of {scores}\n" if scores else ""
    print_notice(
        f"{model} at {gateway.url}, recorded in {out}. Point an agent at it; NAME is its task, or TASK~LABEL:\n"
        f"  OpenAI       OPENAI_BASE_URL={gateway.url}/v1 OPENAI_API_KEY={key}\n"
        f"  Anthropic    ANTHROPIC_BASE_URL={gateway.url} ANTHROPIC_API_KEY={key}\n"
        f"  any other    {gateway.url}/s/{key}/v1 as base URL, with any key\n"
        f"{reward}"
        "Ctrl-C stops it: what runs is finished, and all sessions are written."
    )


def find_fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop if it is installed (`ludus-train[fast]`), else None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


COMMAND = Command(
    run,
    "ludus gateway --model.base_url http://127.0.0.1:8000/v1 --model.name qwen --out runs/agents\n"
    "OPENAI_BASE_URL=http://127.0.0.1:8100/s/first/v1 OPENAI_API_KEY=first my-agent   # recorded as 'first'",
    (
        CONFIG,
        make_argument("--out", metavar="DIR", help="the run directory; default: runs/gateway-<time>"),
        PRINT_CONFIG,
        JSON,
    ),
    GatewayArguments,
)
