import asyncio
import socket

import pytest
from rich.console import Console

from ludus.http_client import Timeouts
from ludus.models.openai import make_chat_server
from ludus.models.server import (
    Endpoint,
    Price,
    ServerFault,
    find_message,
    is_retryable,
    merge_headers,
    redact,
)
from ludus.models.settings import OpenAISettings
from ludus.types import Message, Sampling

KEY = "sk-very-secret-key-0123456789"
USER = [Message("user", "hi")]


async def fault(kit, handler, *, base_url="", api_key=KEY, response_bytes=2**26, **settings) -> ServerFault:
    """What one attempt at a server with this behaviour raises."""

    async def main():
        async with kit.Loopback(handler) as loopback:
            endpoint = Endpoint(base_url or loopback.url + "/v1", api_key=api_key, response_bytes=response_bytes)
            server = make_chat_server(OpenAISettings(name="my-model", **settings), endpoint)
            try:
                await server.attempt(USER, [], Sampling())
            finally:
                await server.close()

    with pytest.raises(ServerFault) as caught:
        await main()
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value)
    return caught.value


def error(message):
    return {"error": {"message": message, "type": "some_error"}}


# ---- the request's fault ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (401, f"bad key {KEY}", "does not accept the key in the environment variable MY_KEY"),
        (403, "no", "does not accept the key in the environment variable MY_KEY"),
        (402, "pay", "no credit left"),
        (404, "no such model", "Check the model name 'my-model' and base_url 'http://127.0.0.1:"),
        (400, "This model's maximum context length is 4096 tokens", "limits.context_tokens"),
        (413, "too much", "limits.context_tokens"),
        (400, "Use 'max_completion_tokens' instead", "max_tokens_field"),
        (422, "odd field", ""),
        (429, "You exceeded your current quota (insufficient_quota)", "no credit left"),
    ],
)
async def test_what_the_user_must_fix_is_not_retryable_and_has_a_hint(kit, status, message, hint):
    got = await fault(kit, kit.sequence(kit.response(error(message), status)), api_key_var="MY_KEY")
    assert not got.retryable
    assert not got.down
    assert f"/v1/chat/completions: status {status}: {message.replace(KEY, '[redacted]')}" in str(got)
    assert hint in str(got)
    assert got.too_long == ("limits.context_tokens" in hint)


async def test_a_missing_key_and_a_wrong_one_have_different_hints(kit):
    got = await fault(kit, kit.sequence(kit.response(error("who are you?"), 401)), api_key="")
    assert "No key was sent: name the environment variable that holds it in api_key_var." in str(got)


async def test_a_redirect_names_its_target(kit):
    got = await fault(kit, kit.sequence(kit.response(b"", 308, Location="https://elsewhere/v1?key=x")))
    assert not got.retryable
    assert "redirects to 'https://elsewhere/v1': set base_url" in str(got)


# ---- the server's fault -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 500, 502, 503, 529])
async def test_a_broken_server_is_retryable_and_counts_as_down(kit, status):
    got = await fault(kit, kit.sequence(kit.response(b"<html>Bad gateway</html>", status)))
    assert got.retryable
    assert got.down
    assert f"status {status}: <html>Bad gateway</html>" in str(got)


async def test_a_busy_server_is_retryable_and_does_not_count_as_down(kit):
    got = await fault(kit, kit.sequence(kit.response(error("slow down"), 429, Retry_After="7")))
    assert (got.retryable, got.down, got.retry_after) == (True, False, 7.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!DOCTYPE html><title>Welcome</title>", "a web page instead of a completion"),
        (b'{"choices": [{"message": {"content": "hal', "the body is not a completion"),
        (b"", "the body is not a completion"),
        (b"{}", "no choices"),
        (b"\xff\xfe", "the body is not a completion"),
        (b'{"error": ' + b"[" * 100_000, "the body is not a completion"),
    ],
)
async def test_an_unreadable_reply_is_quoted(kit, body, words):
    got = await fault(kit, kit.sequence(kit.response(body)))
    assert (got.retryable, got.down) == (True, True)
    assert words in str(got)
    assert "/v1/chat/completions: status 200" in str(got)
    assert repr(body.decode(errors="replace"))[:20] in str(got)


async def test_only_the_start_of_an_unreadable_reply_is_quoted_and_without_the_key(kit):
    got = await fault(kit, kit.sequence(kit.response(b"<p>" + KEY.encode() + b"x" * 5000)))
    assert "[redacted]xxx" in str(got)
    assert len(str(got)) < 600


async def test_an_error_inside_a_good_status_counts_as_that_error(kit):
    got = await fault(kit, kit.sequence(kit.response({"error": {"message": "nope", "code": 403}})))
    assert not got.retryable
    assert "status 403: nope" in str(got)


async def test_half_a_body(kit):
    async def handler(request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")

    got = await fault(kit, handler)
    assert (got.retryable, got.down) == (True, True)
    assert "bytes into the response" in str(got)


async def test_silence(kit):
    async def handler(request, writer):
        await asyncio.Event().wait()

    got = await fault(kit, handler, timeouts=Timeouts(total=0.05))
    assert (got.retryable, got.down) == (True, True)
    assert "raise its timeouts" in str(got)


async def test_a_huge_body(kit):
    got = await fault(kit, kit.sequence(kit.response(b"x" * 200_000)), response_bytes=100_000)
    assert "larger than 100000 bytes" in str(got)


async def test_an_unreachable_server(kit):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/v1"
        got = await fault(kit, kit.sequence(None), base_url=url)
    assert (got.retryable, got.down) == (True, True)
    assert f"{url}/chat/completions: connection refused. Is the server running, and is base_url right?" in str(got)


async def test_a_server_that_echoes_the_key_in_something_that_is_not_http(kit):
    assert "[redacted]" in str(await fault(kit, kit.sequence(f"ECHO {KEY}\r\n".encode())))


async def test_a_base_url_without_a_scheme(kit):
    got = await fault(kit, kit.sequence(None), base_url="localhost:8000/v1")
    assert not got.retryable
    assert "not an http:// or https:// URL" in str(got)


# ---- parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "a"}', "a"),
        (b'{"message": "a", "object": "error"}', "a"),
        (b'{"detail": "a"}', "a"),
        (b'{"detail": [{"msg": "a"}]}', '{"detail": [{"msg": "a"}]}'),
        (b"plain", "plain"),
        (b"[" * 100_000, "[" * 200),
        (b"", "(no text)"),
        (b"x" * 1000, "x" * 200),
    ],
)
def test_the_servers_own_message(body, words):
    assert find_message(body) == words


def test_which_statuses_are_retried():
    assert [s for s in range(300, 600) if is_retryable(s, b"")] == [408, 429, *range(500, 600)]


def test_prices():
    assert Price(prompt=1, completion=2).compute_cost(1_000_000, 1_000_000, cached=500_000) == 3.0
    assert Price(prompt=1, completion=2, cached=0).compute_cost(1_000_000, 0, cached=500_000) == 0.5


def test_secrets_are_removed_even_if_cut():
    assert redact(f"a {KEY} b {KEY[:15]}", KEY) == "a [redacted] b [redacted]"
    assert redact("short words stay", "short") == "short words stay"
    assert redact("none", "") == "none"


def test_headers_are_merged_in_any_case():
    assert merge_headers({"A": "1", "B": "2"}, {"a": "3"}) == (("B", "2"), ("a", "3"))


@pytest.mark.parametrize(
    "value",
    [
        OpenAISettings(base_url="http://me:pass@h/v1?token=abc", name="m", headers={"X-Key": KEY}),
        Endpoint("http://me:pass@h/v1?token=abc", api_key=KEY, headers={"X-Key": KEY}),
    ],
)
def test_settings_and_endpoints_never_show_the_key(value):
    console = Console(record=True, width=300, quiet=False)
    with console.capture() as captured:
        console.print(value)
    for text in (repr(value), str(value), captured.get(), f"{[value]}"):
        assert KEY not in text
        assert "token=abc" not in text
        assert "pass" not in text
        assert "h/v1" in text


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (r"a \ud800 b", "a \ufffd b"),
        (r"\uDFFF", "\ufffd"),
        (r"\ud83d\ude00 \ud83d", "\U0001f600 \ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud800 \ud800", "\\ud800 \ufffd"),
        (r"\\\ud800", "\\\ufffd"),
    ],
)
async def test_half_a_surrogate_pair_does_not_make_a_reply_unreadable(kit, written, content):
    async def main():
        body = b'{"choices": [{"message": {"role": "assistant", "content": "%b"}}]}' % written.encode()
        async with kit.Loopback(kit.sequence(kit.response(body))) as loopback:
            server = make_chat_server(OpenAISettings(name="m"), Endpoint(loopback.url + "/v1"))
            try:
                return await server.attempt(USER, [], Sampling())
            finally:
                await server.close()

    assert (await main()).message.content == content


async def test_a_request_that_cannot_be_written_is_not_sent_again(kit):
    extra = {"a": 1}
    for _ in range(5_000):
        extra = {"a": extra}

    with pytest.raises(ServerFault, match="cannot be written as JSON") as caught:
        server = make_chat_server(OpenAISettings(name="m"), Endpoint("http://127.0.0.1:9/v1"))
        try:
            await server.attempt(USER, [], Sampling(extra=extra))
        finally:
            await server.close()
    assert not caught.value.retryable
