"""The client of the trajectory server: the wire, byte by byte."""

import asyncio
import gzip
import json

import pytest
from tests.http_kit import Loopback, Request

from ludus.rl.atropos_client import KEY_HEADER, AtroposClient, ServerRefused, ServerUnavailable


async def talk(work, answer=b"{}", status=200, head=""):
    """`work(client)` against a server that always gives the same answer. Returns its result and the requests."""

    async def handle(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return f"HTTP/1.1 {status} S\r\n{head}Content-Length: {len(answer)}\r\n\r\n".encode() + answer

    async with Loopback(handle) as server:
        client = AtroposClient(server.url + "/", token="t0ken")
        try:
            return await work(client), server.requests
        finally:
            await client.close()


async def test_the_id_is_in_the_body_of_the_get():
    reply = json.dumps({"current_step": 3, "queue_size": 2, "unallocated_fraction": 0.5, "self_queue_size": 1,
                        "max_group_size": 4, "env_weight": 0.2}).encode()  # fmt: skip
    status, (request,) = await talk(lambda client: client.read_status(7), reply)
    assert (status.current_step, status.queue_size, status.unallocated_fraction) == (3, 2, 0.5)
    assert (request.method, request.path, request.json) == ("GET", "/status-env?env_id=7", {"env_id": 7})
    assert request.headers["authorization"] == "Bearer t0ken"


async def test_a_trainer_that_has_not_started_gives_no_place():
    place, _ = await talk(lambda client: client.register({"weight": 1.0}), b'{"status": "wait for trainer to start"}')
    assert place is None
    reply = b'{"status":"success","env_id":2,"wandb_name":"e_0","starting_step":4,"num_steps":9,"checkpoint_dir":""}'
    place, (request,) = await talk(lambda client: client.register({"weight": 1.0}), reply)
    assert (place.env_id, place.wandb_name, place.starting_step, place.num_steps) == (2, "e_0", 4, 9)
    assert request.path == "/register-env" and request.json == {"weight": 1.0}


async def test_one_group_is_an_object_and_several_are_a_list():
    _, (one,) = await talk(lambda client: client.post_groups([{"scores": [1]}], "k1"))
    _, (many,) = await talk(lambda client: client.post_groups([{"scores": [1]}, {"scores": [2]}], "k2"))
    assert (one.path, one.json, one.headers[KEY_HEADER.lower()]) == ("/scored_data", {"scores": [1]}, "k1")
    assert (many.path, many.json) == ("/scored_data_list", [{"scores": [1]}, {"scores": [2]}])
    assert many.headers[KEY_HEADER.lower()] == "k2"


async def test_long_bodies_are_compressed():
    group = {"tokens": [[5] * 2000]}
    _, (request,) = await talk(lambda client: client.post_groups([group], "k"))
    assert request.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(request.body)) == group


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_what_may_work_later(status):
    with pytest.raises(ServerUnavailable) as caught:
        await talk(lambda client: client.post_groups([{}], "k"), b"busy", status, "Retry-After: 7\r\n")
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)


@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_what_is_refused_for_good(status):
    with pytest.raises(ServerRefused, match="a reason"):
        await talk(lambda client: client.post_groups([{}], "k"), b"a reason", status)


async def test_no_connection_may_work_later():
    with pytest.raises(ServerUnavailable, match="does not answer") as caught:
        async with Loopback(lambda request, writer: None) as server:
            url = server.url
        client = AtroposClient(url)
        try:
            await client.read_info()
        finally:
            await client.close()
    assert caught.value.status == 0


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"batch_size": "many"}'])
async def test_another_kind_of_server_is_named_as_such(answer):
    with pytest.raises(ServerRefused, match=r"is not the API of a trajectory server .*check serve\.server"):
        await talk(lambda client: client.read_info(), answer)


async def test_a_server_of_ours_is_known_by_its_header():
    async def ask(client):
        await client.read_tracker_info()
        return client.keeps_state

    assert (await talk(ask, b'{"group": null, "project": null}'))[0] is False
    assert (await talk(ask, b"{}", head="X-Ludus-Server: 1\r\n"))[0] is True
