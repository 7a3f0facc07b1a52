"""Slots of Modal: its real client library against a stand-in of its servers."""

import asyncio
import sys

import msgspec
import pytest

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.agent_files import collect_files, copy_files
from ludus.sandbox.backend_settings import ModalSettings
from ludus.sandbox.owner import make_owner_mark
from ludus.sandbox.remote.modal import Modal

SPEC = SandboxSpec(disk_mb=32)


async def sandboxes(app: str) -> list:
    import modal

    client = await modal.Client.from_credentials.aio("ak-test", "as-test")
    found = await modal.App.lookup.aio(app, create_if_missing=True, client=client)
    return [sandbox async for sandbox in modal.Sandbox.list.aio(app_id=found.app_id, client=client)]


async def test_a_sandbox_has_what_the_profile_says_and_ends_with_its_slots(modal_fleet):
    fleet = modal_fleet(app="one", slots=2, env={"FROM": "profile"}, idle_seconds=0.05)
    boxes = await asyncio.gather(*(fleet.create(SPEC) for _ in range(3)))
    found = await sandboxes("one")
    assert len(found) == 2
    assert set((await found[0].get_tags.aio()).values()) == {make_owner_mark()}
    assert (await boxes[0].exec("echo $FROM; pwd; env | grep -c MODAL_")).stdout == b"profile\n/workspace\n0\n"
    assert (await boxes[0].exec("(exec 3<>/dev/tcp/10.255.255.1/80) 2>&1")).stdout.endswith(b"unreachable\n")
    await asyncio.gather(*(box.close() for box in boxes))
    await fleet.close()
    assert await sandboxes("one") == []


async def test_a_sandbox_that_is_ended_fails_its_slots(modal_fleet):
    fleet = modal_fleet(app="two")
    box = await fleet.create(SPEC)
    running = asyncio.create_task(box.exec("sleep 30"))
    await asyncio.sleep(0.3)
    (sandbox,) = await sandboxes("two")
    await sandbox.terminate.aio()
    with pytest.raises(SandboxError, match="connection"):
        await running
    await box.close()
    again = await fleet.create(SPEC)
    assert (await again.exec("echo on")).stdout == b"on\n"
    await fleet.close()


@pytest.mark.parametrize(
    ("change", "spec", "words"),
    [
        ({"image": "missing/image"}, SPEC, "manifest unknown"),
        ({"python": "python9"}, SPEC, "connection"),
        ({}, SandboxSpec(caches=(("/a", "/b"),)), "cannot mount"),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(modal_fleet, change, spec, words):
    fleet = modal_fleet(app="three", **change)
    with pytest.raises(SandboxError, match=words):
        await fleet.create(spec)
    await fleet.close()
    assert await sandboxes("three") == []


async def test_a_task_has_the_image_that_modal_builds_of_its_folder(modal_fleet, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        "FROM python:3.11\nENV GREETING='good day'\nWORKDIR /srv/work\nRUN echo made >/srv/made\n"
    )
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool ran\n")
    image = ImageSpec(folder=str(tmp_path), seconds=60)
    spec = SandboxSpec(disk_mb=32, image=image, caches=((f"{tmp_path}/tool", "/run/ludus/uv/tool"),))

    fleet = modal_fleet(app="four")
    one, two = await asyncio.gather(*(fleet.create(spec) for _ in range(2)))
    assert len(await sandboxes("four")) == 2
    seen = await one.exec("pwd; id -u; echo $GREETING; cat /srv/made; /run/ludus/uv/tool; touch /usr/x; rm /srv/made")
    assert seen.text == "/srv/work\n0\ngood day\nmade\ntool ran\n"
    await one.settle()
    await copy_files(await collect_files(one), two, (), ())
    assert (await two.exec("ls /usr/x /srv")).stdout == b"/usr/x\n\n/srv:\nwork\n"
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\nRUN exit 3\n")
    with pytest.raises(SandboxError, match="RUN exit 3"):
        await fleet.create(msgspec.structs.replace(spec, image=ImageSpec(folder=str(tmp_path), seconds=61)))
    await fleet.close()
    assert await sandboxes("four") == []


async def test_what_dead_drivers_left_is_ended(modal_fleet, modal_standin):
    import modal

    host, boot, _, _ = make_owner_mark().split("_")
    client = await modal.Client.from_credentials.aio("ak-test", "as-test")
    app = await modal.App.lookup.aio("four", create_if_missing=True, client=client)
    image = modal.Image.from_registry("python:3.11")
    made = {}
    for name, mark in (
        ("dead", f"{host}_{boot}_999999_1"),
        ("alive", make_owner_mark()),
        ("elsewhere", "other_b_1_2"),
    ):
        made[name] = await modal.Sandbox.create.aio(app=app, image=image, client=client, tags={"ludus-owner": mark})
    fleet = modal_fleet(app="four")
    await fleet.create(SPEC)
    left = {sandbox.object_id for sandbox in await sandboxes("four")}
    assert made["dead"].object_id not in left
    assert {made["alive"].object_id, made["elsewhere"].object_id} < left
    await fleet.close()


def test_without_the_client_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(ConfigError, match=r"pip install 'ludus-train\[modal\]'"):
        Modal(ModalSettings())
