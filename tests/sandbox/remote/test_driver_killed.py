"""A driver that is killed (kill -9) while its slots work leaves nothing behind, on any backend."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.sandbox.remote import machinery

from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.backends import BuiltinSettings, make_backend

DRIVER = """
import asyncio, os, sys
import msgspec
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backends import BuiltinSettings
from ludus.sandbox.profiles import open_pool

async def main():
    profile = msgspec.json.decode(sys.argv[1], type=BuiltinSettings)
    spec = msgspec.json.decode(sys.argv[3], type=SandboxSpec)
    secret = lambda name, setting: os.environ[name] if name else ""
    async with open_pool(profile, read_secret=secret) as pool:
        async def one(number):
            async with pool.lease(spec) as box:
                await box.exec(f"setsid sleep 650.{number} & sleep 651.{number} &")
                print("ready", flush=True)
                await box.exec(f"sleep 652.{number}", timeout=600)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(one(sys.argv[2] + str(number)))

asyncio.run(main())
"""

NUMBERS = {"docker": 1, "docker_single": 2, "podman": 3, "ssh": 4, "nomad": 5, "apptainer": 6, "modal": 7}
IMAGES = {"docker": machinery.IMAGE, "podman": f"localhost/{machinery.IMAGE}"}


@pytest.mark.parametrize("backend", list(NUMBERS))
def test_nothing_is_left_of_a_killed_driver(backend, request):
    check_killed(backend, NUMBERS[backend], SandboxSpec(disk_mb=16), request)


@pytest.mark.parametrize("backend", list(IMAGES))
async def test_nothing_is_left_of_a_killed_driver_whose_slots_have_images(backend, request):
    spec = SandboxSpec(disk_mb=16, image=ImageSpec(name=IMAGES[backend]))
    check_killed(backend, 8 + list(IMAGES).index(backend), spec, request)
    docker = make_backend(request.getfixturevalue(f"{backend}_fleet").profile())

    async with asyncio.timeout(120):
        while await docker.list_resources():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def check_killed(backend: str, number: int, spec: SandboxSpec, request: pytest.FixtureRequest) -> None:
    profile = request.getfixturevalue(f"{backend}_fleet").profile(lapse_seconds=3.0)
    env = {**os.environ, "TEST_NOMAD_TOKEN": "test-token", "TEST_MODAL_ID": "ak-test", "TEST_MODAL_SECRET": "as-test"}
    encoded = msgspec.json.encode(profile).decode()
    assert msgspec.json.decode(encoded, type=BuiltinSettings) == profile
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, encoded, str(number), msgspec.json.encode(spec).decode()],
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        for _ in range(3):
            assert driver.stdout.readline() == b"ready\n"
        until = time.monotonic() + 120
        while len(sleeping(number)) < 9 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(sleeping(number)) == 9
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
    until = time.monotonic() + 120
    while sleeping(number) and time.monotonic() < until:
        time.sleep(0.1)
    assert sleeping(number) == []


def sleeping(number: int) -> list[bytes]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(b"sleep\0") and any(b"65%d.%d" % (kind, number) in line for kind in range(3)):
            found.append(line)
    return found
