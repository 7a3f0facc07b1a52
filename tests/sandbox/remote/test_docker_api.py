"""Requests to a Docker engine: errors, time limits and attached streams, with a stand-in for the engine."""

import struct

import pytest
from tests.sandbox.remote.engine_standin import EngineStandin, make_response

from ludus.sandbox.remote.docker_api import DockerApi, DockerApiError


async def test_a_request_has_method_query_and_body_and_returns_the_response(tmp_path):
    path = tmp_path / "engine.sock"
    async with EngineStandin(path, make_response(200, b'{"a":[1]}')) as engine:
        api = DockerApi(str(path))
        assert await api.request("POST", "/x", {"name": "a b"}, {}) == b'{"a":[1]}'
        assert await api.get("/y", {}, dict[str, list[int]]) == {"a": [1]}
        assert engine.requests == [b"POST /x?name=a+b HTTP/1.1", b"GET /y HTTP/1.1"]


async def test_a_response_without_a_length_ends_with_the_connection(tmp_path):
    path = tmp_path / "engine.sock"
    async with EngineStandin(path, b"HTTP/1.1 200 OK\r\n\r\nall of it"):
        assert await DockerApi(str(path)).request("GET", "/x") == b"all of it"


@pytest.mark.parametrize(
    ("response", "words", "status"),
    [
        (make_response(409, b'{"message":"in use\\n"}'), "409: in use$", 409),
        (make_response(500, b"not json"), "500: not json", 500),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n[", "hung up", 0),
        (make_response(200, b"<a/>"), "response to /x is not understood", 0),
        (None, "did not respond to GET /x within 0.3 s", 0),
    ],
    ids=["refused", "plain", "half", "not-json", "slow"],
)
async def test_what_fails_is_an_error_with_its_status(tmp_path, response, words, status):
    path = tmp_path / "engine.sock"
    async with EngineStandin(path, response):
        with pytest.raises(DockerApiError, match=words) as error:
            await DockerApi(str(path), seconds=0.3).get("/x", {}, list[int])
        assert error.value.status == status


async def test_an_attached_container_s_stdout_and_stderr_are_separated(tmp_path):
    pieces = [(1, b"one"), (2, b"oh "), (1, b"two"), (2, b"no\n")]
    stream = b"".join(struct.pack(">B3xI", kind, len(data)) + data for kind, data in pieces)

    async def work() -> None:
        path = tmp_path / "engine.sock"
        async with EngineStandin(path, b"HTTP/1.1 101 UPGRADED\r\n\r\n" + stream):
            channel = await DockerApi(str(path)).attach("c")
            got = b""
            while data := await channel.receive():
                got += data
            assert got == b"onetwo"
            assert channel.get_stderr() == "oh no"
            await channel.close()
        async with EngineStandin(path, make_response(404, b"")):
            with pytest.raises(DockerApiError, match="refused to attach with 404"):
                await DockerApi(str(path)).attach("c")

    await work()
