"""The worker's place at the server."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.worker_kit import TrajectoryServer

from ludus.errors import ConfigError
from ludus.rl.atropos_client import AtroposClient, ServerRefused
from ludus.rl.server_link import LOST_AFTER, ServerLink, explain_refusal

FIELDS = {"desired_name": "coins", "group_size": 4}


@asynccontextmanager
async def open_link(**options):
    """A link to a trajectory server, the server, and what the link told."""
    server, told = TrajectoryServer(**options), []
    async with server.serve() as loop, asyncio.timeout(60):
        client = AtroposClient(loop.url)
        try:
            yield ServerLink(client, FIELDS, told.append), server, told
        finally:
            await client.close()


async def test_it_waits_for_the_trainer_and_says_so_once():
    async with open_link() as (link, server, told):
        server.started = False
        assert [await link.register() for _ in range(3)] == [False] * 3
        assert told == ["waiting for the trainer: the server has none yet"]
        server.started = True
        assert await link.register() and link.registered.is_set()
        assert (link.place.env_id, link.info.batch_size) == (0, 8)
        assert (await link.look(0)).current_step == 0


async def test_a_server_that_does_not_know_it_is_asked_again_before_it_registers_again():
    async with open_link() as (link, server, _):
        await link.register()
        server.restart()
        for _ in range(LOST_AFTER):
            assert link.registered.is_set()
            assert await link.look(0) is None
        assert not link.registered.is_set()
        assert await link.register() and link.place.env_id == 0


async def test_a_step_that_goes_back_means_a_restart():
    async with open_link() as (link, _, _):
        await link.register()
        assert await link.look(5) is None
        assert not link.registered.is_set()


@pytest.mark.parametrize("durable", [False, True])
async def test_after_an_absence_only_a_durable_server_is_trusted_with_the_id(durable):
    server = TrajectoryServer(durable=durable)
    async with server.serve() as loop:
        client = AtroposClient(loop.url)
        link = ServerLink(client, FIELDS, lambda message: None)
        await link.register()
    assert await link.look(0) is None and link.registered.is_set()
    async with server.serve(loop.port):
        status = await link.look(0)
        assert (status is not None, link.registered.is_set()) == (durable, durable)
        await client.close()


async def test_posts_carry_the_id_of_the_place():
    async with open_link() as (link, server, _):
        await link.register()
        await link.post([{"tokens": [[1]]}], "k")
        assert server.posts == [("k", [{"tokens": [[1]], "env_id": 0}])]
        await link.disconnect()
        assert server.disconnected == [0]


async def test_disconnecting_without_a_server_is_silent():
    server = TrajectoryServer()
    async with server.serve() as loop:
        client = AtroposClient(loop.url)
        link = ServerLink(client, FIELDS, lambda message: None)
        await link.register()
    await link.disconnect()
    await client.close()


async def test_refusals_name_the_setting():
    assert "serve.token_var" in str(explain_refusal(ServerRefused("no", 401)))
    assert "serve.server" in str(explain_refusal(ServerRefused("no", 404)))

    async with open_link() as (link, server, _):
        server.token = "secret"
        with pytest.raises(ConfigError, match=r"serve\.token_var"):
            await link.register()
