"""Slots of a real slotd, through the driver's classes: the handshake, what a slot starts with, and its limits."""

import pytest
from tests.slotd_kit import needs_python, open_boxes, start_slotd

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.remote.remote_sandbox import (
    SlotdInfo,
    SlotServer,
    check_isolation,
    describe_server_limits,
    finish_handshake,
)
from ludus.sandbox.slotd.frames import Frame


@pytest.mark.parametrize(
    ("isolation", "slots", "trusted", "container", "accepted"),
    [
        ("namespaces", 8, False, False, True),
        ("user", 1, False, True, True),
        ("user", 2, False, True, False),
        ("user", 1, False, False, False),
        ("none", 1, False, True, False),
        ("none", 4, True, False, True),
    ],
)
def test_which_isolation_is_accepted(isolation, slots, trusted, container, accepted):
    info = SlotdInfo(version=1, python="3.11", isolation=isolation, why="because")
    if accepted:
        check_isolation(info, slots=slots, trusted=trusted, container=container)
    else:
        with pytest.raises(SandboxError, match="because") as refused:
            check_isolation(info, slots=slots, trusted=trusted, container=container)
        assert not refused.value.retryable


def test_a_slot_with_an_image_needs_namespaces_even_if_it_is_trusted():
    for isolation in ("user", "none"):
        info = SlotdInfo(version=1, python="3.11", isolation=isolation, why="because")
        with pytest.raises(SandboxError, match=r"cannot give a slot its own copy of the image there.*because"):
            check_isolation(info, slots=1, trusted=True, container=True, image=True)


class FakeLink:
    closed = False

    async def close(self):
        self.closed = True


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_link_to_a_server_that_is_refused_is_closed(trusted):
    async def reply():
        return Frame({"version": 1, "python": "3.11", "isolation": "none", "why": "no namespaces"})

    link = FakeLink()
    try:
        info = await finish_handshake(link, reply(), slots=1, trusted=trusted, container=True)
    except SandboxError:
        assert not trusted
    else:
        assert info.isolation == "none"
    assert link.closed == (not trusted)


@needs_python
async def test_a_slot_starts_with_its_base_and_has_it_again_after_a_reset(tmp_path):
    (tmp_path / "a").write_text("from the host")

    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info, base=(str(tmp_path),))
        assert await box.read("a") == b"from the host"
        await box.exec("rm a; touch b")
        await box.reset()
        assert (await box.exec("ls")).stdout == b"a\n"
        with pytest.raises(SandboxError, match=r"sandbox.base '/no/such' cannot be used"):
            await open_boxes(link, info, base=("/no/such",))


@needs_python
async def test_the_server_is_told_when_a_slot_is_closed_and_ends_after_its_link():
    events: list[str] = []

    async def note(event: str) -> None:
        events.append(event)

    async with start_slotd() as (link, info):
        server = SlotServer(link, info, end=lambda: note("ended"), env={"A": "server", "B": "server"})
        box = await server.open(SandboxSpec(disk_mb=32, env=(("A", "spec"),)), lambda: note("slot closed"))
        assert (await box.exec("echo $A $B")).stdout == b"spec server\n"
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")
        assert server.alive and server.reusable
        await server.close()
        assert not server.alive
    assert events == ["slot closed", "ended"]


@needs_python
async def test_long_input_is_sent_in_parts(monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.remote_sandbox._PART_BYTES", 1000)
    data = bytes(range(256)) * 13

    async with start_slotd() as (link, info):
        (box,) = await open_boxes(link, info)
        assert (await box.exec("cat", stdin=data)).stdout == data


@pytest.mark.parametrize(
    ("isolation", "container", "strong"),
    [
        ("namespaces", (), {"memory": False, "processes": True, "disk": True}),
        ("namespaces", ("memory",), {"memory": True, "processes": True, "disk": True}),
        ("user", ("memory", "disk"), {"memory": True, "processes": True, "disk": True}),
        ("user", (), {"memory": False, "processes": True, "disk": False}),
        ("none", ("processes",), {"memory": False, "processes": True, "disk": False}),
        ("none", (), {"memory": False, "processes": False, "disk": False}),
    ],
)
def test_the_limits_of_a_server(isolation, container, strong):
    info = SlotdInfo(version=1, python="3.11", isolation=isolation)
    found = {status.limit: status.strong for status in describe_server_limits(info, container=container)}
    assert found == {**strong, "time and output": True}
