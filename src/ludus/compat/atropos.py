"""The routes of Atropos' managed-server proxy, for environments that were written against it.

    POST /sessions/create                     a session; its uuid is the secret
    GET  /sessions                            those that are open
    POST /{uuid}/v1/chat/completions          a chat request, recorded in the session
    POST /{uuid}/v1/chat/completions/render   the prompt that it would be, as text and ids
    GET  /{uuid}/nodes                        the sequences so far: ids, masks, logprobs
    DELETE /{uuid}                            ends the session
    GET  /health, /servers, /v1/models        what is served
    POST /setup                               other servers behind it

This module alone knows the names and signs of that protocol: −100 for what is not trained on, 1.0 for "no logprob".
It differs from the original where that loses data: sequences are exact (nothing is encoded again, branches are rows of
their own, every sampled id is marked once), parameters that the original ignores are honoured (`top_p`, `seed`,
`stream`, …), requests may overlap, replies tell their usage, and a session that nobody deletes ends when it is idle.
The parser of tool calls is the model's, whatever `tool_parser` asks for; the reply says which.

Only who may open sessions is asked for the house's token; a session's uuid opens that session alone.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Struct

from ludus.errors import LudusError
from ludus.gateway import chat_api as chat
from ludus.gateway.dialect import Asked, BadRequest, Dialect, Known, Trouble, decode
from ludus.gateway.gateway_session import Session
from ludus.gateway.http_server import JSON, Responder
from ludus.gateway.named_sessions import House
from ludus.gateway.service import Gateway, key_of, refuse
from ludus.models import Model

NOT_TRAINED = -100
NO_LOGPROB = 1.0
DEFAULT_MAX_TOKENS = 1024
DEFAULT_TEMPERATURE = 1.0


class ServerView(Struct, frozen=True):
    """A server behind the gateway, as `/servers` shows it."""

    base_url: str
    model_name: str
    server_type: str


class Setup(Struct, frozen=True):
    """The body of `/setup`, which is also the original's configuration file."""

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
"""Makes the model that a setup describes. Raises `ConfigError` when it describes none."""


class _Create(Struct, frozen=True):
    tool_parser: str = "hermes"
    track_tree: bool = False
    base_url: str | None = None


@dataclass
class _Managed:
    """What is remembered of a session for its listings."""

    session: Session
    created: float
    base_url: str | None


_CREATE = msgspec.json.Decoder(_Create)
_SETUP = msgspec.json.Decoder(Setup)
_encode = msgspec.json.Encoder().encode


# ---- the dialect --------------------------------------------------------------------------------------------------


def read(body: bytes, known: Known) -> Asked:
    """A chat request, with this protocol's defaults and its status for a body of the wrong shape."""
    try:
        asked = chat.read(body, known)
    except BadRequest as error:
        raise BadRequest(str(error), 400 if "at least one" in str(error) else 422) from None
    sampling = asked.sampling
    return replace(
        asked,
        sampling=msgspec.structs.replace(
            sampling,
            max_tokens=DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
            temperature=DEFAULT_TEMPERATURE if sampling.temperature is None else sampling.temperature,
        ),
    )


def error(trouble: Trouble) -> bytes:
    kind = "server_error" if trouble.kind in ("model", "closed") else "invalid_request_error"
    return _encode({"error": {"message": trouble.words, "type": kind, "code": trouble.status}})


MANAGED = Dialect("chat", read, chat.write, chat.stream, error, chat.late_error, chat.CHAT.ping, failed=500)


# ---- the routes ---------------------------------------------------------------------------------------------------


class Managed:
    """A door of a gateway: see the module. `connect` is what `/setup` uses; without it there is no `/setup`."""

    def __init__(self, house: House, servers: Sequence[ServerView] = (), connect: Connect | None = None) -> None:
        self._house = house
        self._servers = tuple(servers)
        self._connect = connect
        self._open: dict[str, _Managed] = {}

    def door(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        """Serve a request if it is one of these. See `gateway.Door`."""
        method, parts = responder.request.method, path.strip("/").split("/")
        try:
            found = self._shared(gateway, responder, method, parts) or self._own(gateway, responder, method, parts)
        except BadRequest as problem:
            refuse(responder, MANAGED, Trouble(problem.status, str(problem), "request"))
            return True
        except LudusError as problem:
            refuse(responder, MANAGED, Trouble(400, str(problem), "request"))
            return True
        return found

    def _shared(self, gateway: Gateway, responder: Responder, method: str, parts: Sequence[str]) -> bool:
        """Routes of no session. They want the token."""
        routes: dict[tuple[str, str], Callable[[Gateway, bytes], dict[str, Any]]] = {
            ("GET", "v1/models"): self._models,
            ("GET", "servers"): self._list_servers,
            ("GET", "sessions"): self._list_sessions,
            ("POST", "sessions/create"): self._create,
            ("POST", "setup"): self._setup,
        }
        route = routes.get((method, "/".join(parts)))
        if route is None:
            return False
        if self._house.allows(key_of(responder)):
            responder.send(200, JSON, _encode(route(gateway, responder.request.body)))
        else:
            refuse(responder, MANAGED, Trouble(401, "this needs the gateway's token as key", "key"))
        return True

    def _own(self, gateway: Gateway, responder: Responder, method: str, parts: Sequence[str]) -> bool:
        """Routes of a session."""
        name, rest = parts[0], "/".join(parts[1:])
        if not _is_uuid(name):
            return False
        held = self._open.get(name)
        if held is None or gateway.find(name) is None:
            self._open.pop(name, None)
            raise BadRequest(f"there is no session {name}", 404)
        match method, rest:
            case "POST", "v1/chat/completions":
                gateway.answer(responder, held.session, MANAGED)
            case "POST", "v1/chat/completions/render":
                responder.send(200, JSON, _encode(_rendered(held.session, responder.request.body)))
            case "GET", "nodes":
                responder.send(200, JSON, _encode({"nodes": _nodes(held.session)}))
            case "DELETE", "":
                del self._open[name]
                self._house.release(gateway, held.session)
                responder.send(200, JSON, _encode({"status": "deleted", "uuid": name}))
            case _:
                return False
        return True

    # ---- what they answer -----------------------------------------------------------------------------------------

    def _models(self, gateway: Gateway, _: bytes) -> dict[str, Any]:
        model = {"id": gateway.model.name, "object": "model", "created": 0, "owned_by": "atropos"}
        return {"object": "list", "data": [model]}

    def _list_servers(self, _: Gateway, __: bytes) -> dict[str, Any]:
        views = [msgspec.structs.asdict(server) for server in self._servers]
        return {"servers": [{"index": index, **view, "healthy": True} for index, view in enumerate(views)]}

    def _list_sessions(self, gateway: Gateway, _: bytes) -> dict[str, Any]:
        self._open = {name: held for name, held in self._open.items() if gateway.find(name) is not None}
        now, clock = time.time(), time.monotonic()
        return {
            "sessions": [
                {
                    "uuid": name,
                    "model_name": gateway.model.name,
                    "base_url": held.base_url,
                    "created_at": held.created,
                    "last_accessed": now - (clock - held.session.used),
                    "num_nodes": 0 if held.session.tree is None else len(held.session.tree.build_sequences()),
                }
                for name, held in self._open.items()
            ]
        }

    def _create(self, gateway: Gateway, body: bytes) -> dict[str, Any]:
        asked = decode(_CREATE, body or b"{}")
        base_url = self._base_url(asked.base_url)
        name = str(uuid.uuid4())
        session = self._house.open(gateway, name, name)
        self._open[name] = _Managed(session, time.time(), base_url)
        codec = session.asker.codec
        return {
            "uuid": name,
            "model_name": gateway.model.name,
            "tool_parser": asked.tool_parser if codec is None else codec.parser.name,
            "base_url": base_url,
            "created_at": self._open[name].created,
        }

    def _base_url(self, wanted: str | None) -> str | None:
        """A server's address as we know it. Sessions are not bound to a server, but a wrong address is told."""
        known = {server.base_url.rstrip("/"): server.base_url for server in self._servers}
        if wanted is None or not known:
            return wanted
        if wanted.rstrip("/") not in known:
            raise BadRequest(f"base_url: there is no server {wanted}; available: {', '.join(known.values())}", 404)
        return known[wanted.rstrip("/")]

    def _setup(self, gateway: Gateway, body: bytes) -> dict[str, Any]:
        if self._connect is None:
            raise BadRequest("the servers of this gateway are fixed", 501)
        asked = decode(_SETUP, body)
        if not asked.servers:
            raise BadRequest("servers: at least one is needed", 422)
        gateway.use(self._connect(asked))
        self._servers = tuple(ServerView(s.base_url, asked.model_name, s.server_type) for s in asked.servers)
        return {"status": "ok", "servers": len(self._servers), "model_name": asked.model_name}


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _rendered(session: Session, body: bytes) -> dict[str, Any]:
    asked = read(body, Known())
    codec = session.asker.codec
    if codec is None:
        raise BadRequest("only a model in token mode can tell what a prompt looks like")
    text = codec.renderer.render_prompt(asked.messages, asked.tools)
    ids = codec.tokenizer.encode(text)
    return {"prompt_text": text, "token_ids": ids, "num_tokens": len(ids)}


def _nodes(session: Session) -> list[dict[str, Any]]:
    """The rows of a session so far, in the protocol's signs."""
    record = session.record()
    if not record.exact:
        raise BadRequest("only a model in token mode has nodes: this one does not tell the ids that it samples")
    codec = session.asker.codec
    nodes: list[dict[str, Any]] = []
    for row in record.sequences():
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
