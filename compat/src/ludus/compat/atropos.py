"""The routes of Atropos' managed-server proxy, for environments that were written for it.

    POST /sessions/create                     open a session; its uuid is the secret
    GET  /sessions                            list the open sessions
    POST /{uuid}/v1/chat/completions          a chat request, recorded in the session
    POST /{uuid}/v1/chat/completions/render   the prompt of a chat request, as text and ids
    GET  /{uuid}/nodes                        the sequences so far: ids, masks, logprobs
    DELETE /{uuid}                            end the session
    GET  /health, /servers, /v1/models        what is served
    POST /setup                               use other servers

Only this module knows the field names and markers of that protocol: −100 for tokens that are not trained on, 1.0 for
"no logprob". It differs from the original where that loses data: sequences are exact (nothing is encoded again, each
branch is a row, every sampled id is marked once), parameters that the original ignores are used (`top_p`, `seed`,
`stream` and others), requests may run at the same time, replies have a usage, and idle sessions end by themselves. The
model's own parser of tool calls is used in place of `tool_parser`; the reply names it.

Opening sessions needs the gateway's token. A session's uuid opens that session only.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.config.build_models import build_endpoints
from ludus.config.token_mode import build_server_model
from ludus.errors import ConfigError, LudusError
from ludus.gateway import chat_api as chat
from ludus.gateway.dialect import BadRequest, Dialect, ErrorReply, ParsedRequest, ReadCache, decode
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.service import Gateway, Route, read_key, refuse
from ludus.gateway.session import GatewaySession
from ludus.http_server import JSON, Responder
from ludus.models import Model
from ludus.models.server import ServerSettings
from ludus.models.settings import OpenAISettings
from ludus.sources import AddModel

NOT_TRAINED = -100
NO_LOGPROB = 1.0
DEFAULT_MAX_TOKENS = 1024
DEFAULT_TEMPERATURE = 1.0


class ServerView(Struct, frozen=True):
    """A server of the model, as `/servers` lists it."""

    base_url: str
    model_name: str
    server_type: str


class Setup(Struct, frozen=True):
    """The body of `/setup`. The original's configuration file has the same form."""

    model_name: str
    servers: tuple["SetupServer", ...]
    tokenizer_name: str | None = None


class SetupServer(Struct, frozen=True):
    base_url: str
    api_key: str = ""
    server_type: str = "vllm"
    num_max_requests_at_once: int = 512
    timeout: float = 1200.0


Connect = Callable[[Setup], Model]
"""Makes the model of a setup. Raises `ConfigError` if that is not possible."""


class _Create(Struct, frozen=True):
    tool_parser: str = "hermes"
    track_tree: bool = False
    base_url: str | None = None


@dataclass
class _OpenSession:
    """An open session, and what `/sessions` lists about it."""

    session: GatewaySession
    created: float
    base_url: str | None


_CREATE = msgspec.json.Decoder(_Create)
_SETUP = msgspec.json.Decoder(Setup)
_encode = msgspec.json.Encoder().encode


# ---- the dialect --------------------------------------------------------------------------------------------------


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a chat request, with this protocol's defaults and its status for an invalid body."""
    try:
        request = chat.read(body, cache)
    except BadRequest as error:
        raise BadRequest(str(error), 400 if "at least one" in str(error) else 422) from None
    sampling = request.sampling
    return msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(
            sampling,
            max_tokens=DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
            temperature=DEFAULT_TEMPERATURE if sampling.temperature is None else sampling.temperature,
        ),
    )


def write_error(error: ErrorReply) -> bytes:
    kind = "server_error" if error.kind in ("model", "closed") else "invalid_request_error"
    return _encode({"error": {"message": error.message, "type": kind, "code": error.status}})


MANAGED = Dialect("chat", read, chat.write, chat.ChatStream, write_error, model_error_status=500)


# ---- opening ------------------------------------------------------------------------------------------------------


def make_managed_route(config: Config, sessions: NamedSessions, add_model: AddModel) -> Route:
    """The route of a gateway with these settings. `add_model` takes the model of a `/setup` into the gateway."""
    return ManagedRoutes(sessions, list_servers(config), lambda setup: add_model(connect_model(setup))).handle


def list_servers(config: Config) -> "list[ServerView]":
    """The servers behind the gateway, as Atropos' clients see them."""
    model = config.model
    if not isinstance(model, ServerSettings):
        return []
    kind = model.engine if isinstance(model, OpenAISettings) and model.mode == "token" else "openai"
    return [ServerView(url, model.name, kind) for url in model.addresses]


def connect_model(setup: "Setup") -> Model:
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


# ---- the routes ---------------------------------------------------------------------------------------------------


class ManagedRoutes:
    """A route of a gateway that serves the routes above. `/setup` uses `connect`; without it, `/setup` is refused."""

    def __init__(
        self, sessions: NamedSessions, servers: Sequence[ServerView] = (), connect: Connect | None = None
    ) -> None:
        self._named = sessions
        self._servers = tuple(servers)
        self._connect = connect
        self._open: dict[str, _OpenSession] = {}

    def handle(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        """Serve a request if it is for one of these routes. See `service.Route`."""
        method, parts = responder.request.method, path.strip("/").split("/")
        try:
            found = self._serve_shared(gateway, responder, method, parts) or self._serve_session(
                gateway, responder, method, parts
            )
        except BadRequest as problem:
            refuse(responder, MANAGED, ErrorReply(problem.status, str(problem), "request"))
            return True
        except LudusError as problem:
            refuse(responder, MANAGED, ErrorReply(400, str(problem), "request"))
            return True
        return found

    def _serve_shared(self, gateway: Gateway, responder: Responder, method: str, parts: Sequence[str]) -> bool:
        """Serve the routes that belong to no session. They need the token."""
        routes: dict[tuple[str, str], Callable[[Gateway, bytes], dict[str, Any]]] = {
            ("GET", "v1/models"): self._list_models,
            ("GET", "servers"): self._list_servers,
            ("GET", "sessions"): self._list_sessions,
            ("POST", "sessions/create"): self._create,
            ("POST", "setup"): self._setup,
        }
        route = routes.get((method, "/".join(parts)))
        if route is None:
            return False
        if self._named.allows(read_key(responder)):
            responder.send(200, JSON, _encode(route(gateway, responder.request.body)))
        else:
            refuse(responder, MANAGED, ErrorReply(401, "this needs the gateway's token as key", "key"))
        return True

    def _serve_session(self, gateway: Gateway, responder: Responder, method: str, parts: Sequence[str]) -> bool:
        """Serve the routes of a session."""
        name, rest = parts[0], "/".join(parts[1:])
        if not _is_uuid(name):
            return False
        opened = self._open.get(name)
        if opened is None or gateway.find_session(name) is None:
            self._open.pop(name, None)
            raise BadRequest(f"there is no session {name}", 404)
        match method, rest:
            case "POST", "v1/chat/completions":
                gateway.start_answer(responder, opened.session, MANAGED)
            case "POST", "v1/chat/completions/render":
                responder.send(200, JSON, _encode(_render_prompt(opened.session, responder.request.body)))
            case "GET", "nodes":
                responder.send(200, JSON, _encode({"nodes": _list_nodes(opened.session)}))
            case "DELETE", "":
                del self._open[name]
                self._named.release(gateway, opened.session)
                responder.send(200, JSON, _encode({"status": "deleted", "uuid": name}))
            case _:
                return False
        return True

    # ---- replies --------------------------------------------------------------------------------------------------

    def _list_models(self, gateway: Gateway, _: bytes) -> dict[str, Any]:
        model = {"id": gateway.model.name, "object": "model", "created": 0, "owned_by": "atropos"}
        return {"object": "list", "data": [model]}

    def _list_servers(self, _: Gateway, __: bytes) -> dict[str, Any]:
        views = [msgspec.structs.asdict(server) for server in self._servers]
        return {"servers": [{"index": index, **view, "healthy": True} for index, view in enumerate(views)]}

    def _list_sessions(self, gateway: Gateway, _: bytes) -> dict[str, Any]:
        self._open = {name: opened for name, opened in self._open.items() if gateway.find_session(name) is not None}
        now, clock = time.time(), time.monotonic()
        return {
            "sessions": [
                {
                    "uuid": name,
                    "model_name": gateway.model.name,
                    "base_url": opened.base_url,
                    "created_at": opened.created,
                    "last_accessed": now - (clock - opened.session.last_used),
                    "num_nodes": 0 if opened.session.tree is None else len(opened.session.tree.build_sequences()),
                }
                for name, opened in self._open.items()
            ]
        }

    def _create(self, gateway: Gateway, body: bytes) -> dict[str, Any]:
        request = decode(_CREATE, body or b"{}")
        base_url = self._resolve_base_url(request.base_url)
        name = str(uuid.uuid4())
        session = self._named.open_session(gateway, name, name)
        self._open[name] = _OpenSession(session, time.time(), base_url)
        codec = session.caller.codec
        return {
            "uuid": name,
            "model_name": gateway.model.name,
            "tool_parser": request.tool_parser if codec is None else codec.parser.name,
            "base_url": base_url,
            "created_at": self._open[name].created,
        }

    def _resolve_base_url(self, wanted: str | None) -> str | None:
        """A known server's address. Sessions are not bound to a server, but an unknown address is refused."""
        known = {server.base_url.rstrip("/"): server.base_url for server in self._servers}
        if wanted is None or not known:
            return wanted
        if wanted.rstrip("/") not in known:
            raise BadRequest(f"base_url: there is no server {wanted}; available: {', '.join(known.values())}", 404)
        return known[wanted.rstrip("/")]

    def _setup(self, gateway: Gateway, body: bytes) -> dict[str, Any]:
        if self._connect is None:
            raise BadRequest("the servers of this gateway are fixed", 501)
        request = decode(_SETUP, body)
        if not request.servers:
            raise BadRequest("servers: at least one is needed", 422)
        gateway.use_model(self._connect(request))
        self._servers = tuple(ServerView(s.base_url, request.model_name, s.server_type) for s in request.servers)
        return {"status": "ok", "servers": len(self._servers), "model_name": request.model_name}


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _render_prompt(session: GatewaySession, body: bytes) -> dict[str, Any]:
    request = read(body, ReadCache())
    codec = session.caller.codec
    if codec is None:
        raise BadRequest("only a model in token mode can render a prompt")
    text = codec.renderer.render_prompt(request.messages, request.tools)
    ids = codec.tokenizer.encode(text)
    return {"prompt_text": text, "token_ids": ids, "num_tokens": len(ids)}


def _list_nodes(session: GatewaySession) -> list[dict[str, Any]]:
    """The rows of a session so far, in the protocol's form."""
    record = session.make_record()
    if not record.exact:
        raise BadRequest("only a model in token mode has nodes: this one returns no token ids")
    codec = session.caller.codec
    nodes: list[dict[str, Any]] = []
    for row in record.build_sequences():
        ids, sampled, logprobs = row.tokens.ids, row.tokens.sampled, row.tokens.logprobs
        finish = record.exchanges[row.steps[-1]].completion.finish.value if row.steps else "stop"
        nodes.append(
            {
                "full_text": "" if codec is None else codec.tokenizer.decode(ids),
                "tokens": ids,
                "masked_tokens": [token if drawn else NOT_TRAINED for token, drawn in zip(ids, sampled, strict=True)],
                "logprobs": [NO_LOGPROB if value is None else value for value in logprobs],
                "metadata": {"finish_reason": finish},
            }
        )
    return nodes
