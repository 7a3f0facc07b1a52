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
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, JUDGING, PRINT_CONFIG, Command
from ludus.command.terminal import print_notice
from ludus.config import Config, load, to_record, to_yaml
from ludus.config.build_models import build_ledger, build_model, check_price
from ludus.config.secrets import list_secrets, read_secret
from ludus.config.tree import SECTIONS
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.gateway.metrics_route import make_metrics_route
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.score_route import ScoredSession, ScoreRoute
from ludus.gateway.service import Gateway, Route
from ludus.models import Model, StartableModel, find_capability
from ludus.models.ledger import MeteredModel
from ludus.run import drain_on_interrupt
from ludus.run_info import keep_info
from ludus.session_runs import SESSIONS, SessionWriter
from ludus.sources import load_source
from ludus.store import RunDir
from ludus.types import Score


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
        try:
            return runner.run(_serve(config, token, score_token, as_json=arguments.json))
        except asyncio.CancelledError:  # interrupted once more, while it waited for requests
            return 130


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
    atropos = load_source("atropos", "gateway.atropos") if config.gateway.atropos else None
    async with AsyncExitStack() as stack:
        ledger = build_ledger(config)
        model = build_model(config.model, ledger, tell=print_notice)
        stack.push_async_callback(model.close)
        check_price(config.model, model, "gateway.session.dollars" if config.gateway.session.dollars else "")

        def add_model(other: Model) -> Model:
            metered = MeteredModel(other, ledger, "agent")
            stack.push_async_callback(metered.close)
            return metered

        startable = find_capability(model, StartableModel)
        if startable is not None:
            await startable.start()
        out = Path(config.run.out or f"runs/gateway-{time.strftime('%Y%m%d-%H%M%S')}")
        directory = stack.enter_context(
            RunDir.open(out, to_record(config), resume=True, ignore=frozenset(SECTIONS), secrets=list_secrets(config))
        )
        stack.enter_context(keep_info(directory, "gateway"))
        writer = SessionWriter(directory, print_notice)
        sessions = NamedSessions(writer, config.gateway, token=token, sampling=config.sampling)
        routes = [make_metrics_route(ledger.activity.report, token)]
        if atropos is not None:
            routes.append(atropos.make_gateway_route(config, sessions, add_model))
        gateway = _build_gateway(config, model, score_token, writer, sessions, routes)
        async with gateway:
            _announce(gateway, out, token=bool(token), scores=config.gateway.score_token_var, as_json=as_json)
            await _serve_until_stopped(gateway, sessions)
        print_notice(f"sessions recorded in {out}: {writer.count}. Look at them: ludus show {shlex.quote(str(out))}")
    return 0


def _build_gateway(
    config: Config,
    model: Model,
    score_token: str,
    writer: SessionWriter,
    sessions: NamedSessions,
    routes: Sequence[Route],
) -> Gateway:
    """The gateway with all its routes. `routes`: those of other systems."""
    settings = config.gateway
    scoring: list[Route] = []
    if score_token:

        async def store_score(gateway: Gateway, name: str, score: Score) -> ScoredSession:
            return await writer.store_score(sessions, gateway, name, score)

        scoring.append(ScoreRoute(score_token, store_score).handle)
    return Gateway(
        model,
        host=settings.host,
        port=settings.port,
        body_bytes=settings.body_mb * 1024 * 1024,
        routes=[*scoring, *routes, sessions.handle],
    )


async def _serve_until_stopped(gateway: Gateway, sessions: NamedSessions) -> None:
    control = RunControl()
    with drain_on_interrupt(control, print_notice):
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(sessions.run(gateway))
            try:
                await control.wait_for_stop()
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
    uses=JUDGING | {"model", "sampling", "gateway"},  # sessions are judged later, with the settings of the record
)
