"""Checkers beside the server: the same answers, also when a checker dies."""

import asyncio
import json
from typing import Any

import pytest
from tests.api_kit import make_wire_group

from ludus.rl.api import check_pool
from ludus.rl.api.check_pool import SLOT_BYTES, CheckPool
from ludus.rl.api.posted_groups import BadGroup, CheckedGroup, check_group


def make_body(tag: int = 0, length: int = 3000, **fields: Any) -> bytes:
    return json.dumps(make_wire_group(2, tag, length, **fields)).encode()


async def wait_until_ready(pool: CheckPool) -> None:
    """Until a body goes to a checker."""
    while not isinstance(found := pool.check(make_body()), asyncio.Future):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await found


async def test_a_checker_gives_the_same_group(capfd):
    async with CheckPool(1, print) as pool:
        await wait_until_ready(pool)
        for tag in range(20):
            body = make_body(tag, env_id=tag, generation_params={"policy_version": tag})
            found = pool.check(body)
            assert isinstance(found, asyncio.Future)
            assert await found == check_group(body)
    assert capfd.readouterr() == ("", "")


async def test_a_refusal_comes_with_its_place_and_reason():
    async with CheckPool(1, print) as pool:
        await wait_until_ready(pool)
        found = pool.check(make_body(scores=[1.0]))
        assert isinstance(found, asyncio.Future)
        with pytest.raises(BadGroup) as caught:
            await found
        assert (caught.value.place, caught.value.message) == (("scores",), "1 scores for 2 sequences")


async def test_what_no_checker_has_room_for_is_checked_at_once():
    async with CheckPool(1, print) as pool:
        await wait_until_ready(pool)
        assert isinstance(pool.check(make_body(length=3)), CheckedGroup)  # too small to be worth the way
        assert pool.check(make_body(images="x" * SLOT_BYTES)) is None  # too large for a slot, and for the server
        answers = [pool.check(make_body(tag)) for tag in range(10)]
        assert isinstance(answers[-1], CheckedGroup)
        groups = [await each if isinstance(each, asyncio.Future) else each for each in answers]
        assert [json.loads(group.body)["tokens"][0][0] for group in groups] == list(range(10))


async def test_json_that_outgrows_its_slot_is_made_by_the_server():
    """The keys that are absent make a body longer."""

    async with CheckPool(1, print) as pool:
        await wait_until_ready(pool)
        short = json.dumps(make_wire_group(images=""), separators=(",", ":")).encode()
        body = short.replace(b'"images":""', b'"images":"%b"' % (b"x" * (SLOT_BYTES - len(short))))
        assert len(body) == SLOT_BYTES
        found = pool.check(body)
        assert isinstance(found, asyncio.Future)
        group = await found
        assert len(group.body) > SLOT_BYTES
        assert group == check_group(body)


async def test_when_a_checker_dies_the_server_checks_what_it_had():
    told: list[str] = []

    async with CheckPool(1, told.append) as pool:
        await wait_until_ready(pool)
        (checker,) = pool._checkers  # pyright: ignore[reportPrivateUsage]
        checker.process.kill()
        answers = [pool.check(make_body(tag)) for tag in range(3)]
        groups = [await each if isinstance(each, asyncio.Future) else each for each in answers]
        assert [json.loads(group.body)["tokens"][0][0] for group in groups] == [0, 1, 2]
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert isinstance(pool.check(make_body()), CheckedGroup)
    assert told == ["a process that checks groups has ended; the server checks what it had"]


async def test_checkers_end_with_the_pool():
    async with CheckPool(2, print) as pool:
        processes = [checker.process for checker in pool._checkers]  # pyright: ignore[reportPrivateUsage]
        assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)


async def test_without_checkers_everything_is_checked_at_once():
    async with CheckPool(0, print) as pool:
        assert isinstance(pool.check(make_body()), CheckedGroup)
    assert len(make_body()) > check_pool.SMALLEST
