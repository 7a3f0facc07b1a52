"""A process for each large body: the same answers as here, and an end that costs nobody else."""

import json
import signal

import pytest
from tests.api_kit import make_wire_group

from ludus.rl.api import large_bodies
from ludus.rl.api.large_bodies import CheckFailed, LargeBodies
from ludus.rl.api.posted_groups import BadGroup, check_group, check_groups


async def test_the_answers_are_those_of_a_check_here():
    large = LargeBodies()
    group = make_wire_group(2, 7, env_id=3, generation_params={"policy_version": 5})
    body = json.dumps(group).encode()
    assert await large.check(body, many=False) == [check_group(body)]
    body = json.dumps([group, make_wire_group(1)]).encode()
    assert await large.check(body, many=True) == check_groups(body)
    assert await large.check(b"[]", many=True) == []


async def test_a_refusal_has_its_place_and_reason():
    body = json.dumps([make_wire_group(), make_wire_group(scores=[1.0])]).encode()
    with pytest.raises(BadGroup) as caught:
        await LargeBodies().check(body, many=True)
    assert (caught.value.place, caught.value.message) == ((1, "scores"), "1 scores for 2 sequences")


async def test_a_process_that_is_killed_is_an_error_of_that_body(monkeypatch: pytest.MonkeyPatch):
    real = large_bodies.asyncio.create_subprocess_exec

    async def start(*words: str, **options: object):
        process = await real(*words, **options)
        process.send_signal(signal.SIGKILL)
        return process

    large = LargeBodies()
    with monkeypatch.context() as context:
        context.setattr(large_bodies.asyncio, "create_subprocess_exec", start)
        with pytest.raises(CheckFailed, match="memory"):
            await large.check(b"{}", many=False)
    assert await large.check(b"[]", many=True) == []
