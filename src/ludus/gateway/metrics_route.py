"""`GET /metrics`: what the requests to a gateway wait for, for a monitor such as Prometheus.

It has counts and times, no names. Where agents need a token, the monitor needs it too, as `Authorization: Bearer`.
"""

import hmac
from collections.abc import Callable

from ludus.activity import ActivityReport
from ludus.gateway.service import Gateway, Route, read_key
from ludus.http_server import JSON, METRICS, Responder
from ludus.watchdog import format_metrics


def make_metrics_route(read: Callable[[], ActivityReport], token: str) -> Route:
    """A route of a gateway. It must come before routes that open sessions."""

    def handle(gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        if path != "/metrics" or responder.request.method != "GET":
            return False
        if token and not hmac.compare_digest(read_key(responder).encode(), token.encode()):
            responder.send(401, JSON, b'{"error":"metrics need the token of the gateway, as Authorization: Bearer"}')
        else:
            responder.send(200, METRICS, format_metrics(read(), "ludus_gateway").encode())
        return True

    return handle
