"""Opening pools: by the name of a backend, by its settings, by profiles, or with a backend of one's own."""

import asyncio
from typing import Any

import pytest

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.backend import BackendSettings, SlotBackend
from ludus.sandbox.backend_settings import DockerSettings, LocalSettings, NomadSettings
from ludus.sandbox.local.unisolated import Local
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool


async def open_and_close(*arguments, **options) -> None:
    async with open_pool(*arguments, **options):
        pass


async def test_unknown_and_unsafe_backends_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'bwrap'"):
        await open_and_close("bwarp")
    with pytest.raises(ConfigError, match="isolates nothing"):
        await open_and_close("local", require_sandbox=True)
    with pytest.raises(ConfigError, match=r"sandbox.docker.image is not set"):
        await open_and_close("docker")
    with pytest.raises(ConfigError, match="names the variable TOKEN, but nothing was given to read it with"):
        await open_and_close(NomadSettings(token_var="TOKEN"))
    await open_and_close("local")


async def test_a_profile_that_is_not_used_may_be_broken():
    profiles = {"": LocalSettings(), "bad": DockerSettings(image="x", socket="/nowhere/d.sock")}
    async with open_pool(profiles, PoolSettings(max_slots=2)) as pool:
        async with pool.lease(SandboxSpec()) as box:
            assert (await box.exec("echo fine")).text == "fine\n"
        with pytest.raises(SandboxError, match="cannot be reached"):
            async with pool.lease(SandboxSpec(profile="bad")):
                pass
        with pytest.raises(SandboxError, match="no sandbox profile 'bda'; did you mean 'bad'"):
            async with pool.lease(SandboxSpec(profile="bda")):
                pass


class Mine(SlotBackend[BackendSettings]):
    """Local slots, and a record of what was called."""

    name = "mine"

    def __init__(self) -> None:
        super().__init__(BackendSettings())
        self.calls: list[str] = []
        self.local = Local()

    async def check(self) -> None:
        self.calls.append("check")
        await asyncio.sleep(0)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.calls.append("create")
        return await self.local.create(spec)

    async def close(self) -> None:
        self.calls.append("close")
        await self.local.close()


async def test_a_backend_of_one_s_own_is_checked_once_used_and_closed():
    mine = Mine()

    profiles = {"": LocalSettings(), "mine": mine}
    async with open_pool(profiles, PoolSettings(max_slots=4)) as pool:
        assert mine.calls == []
        spec = SandboxSpec(profile="mine")
        async with pool.lease(spec) as one, pool.lease(spec) as two:
            assert (await one.exec("echo on")).text == (await two.exec("echo on")).text == "on\n"
            with pytest.raises(SandboxError, match="no snapshots"):
                await pool.snapshot(one)
    assert mine.calls == ["check", "create", "create", "close"]


async def test_a_backend_whose_check_fails_is_closed_and_the_pool_does_not_open():
    class Broken(Mine):
        async def check(self) -> None:
            raise ConfigError("it is broken")

    broken = Broken()
    with pytest.raises(ConfigError, match="it is broken"):
        await open_and_close(broken)
    assert broken.calls == ["close"]


class ReturnsNone(SlotBackend[BackendSettings]):
    name = "none"

    async def create(self, spec: SandboxSpec) -> Any:
        return None


async def test_a_backend_that_returns_no_slot_is_named():
    async with asyncio.timeout(60), open_pool(ReturnsNone(BackendSettings())) as pool:
        with pytest.raises(SandboxError, match=r"ReturnsNone\.create returned None, which is not a Sandbox"):
            async with pool.lease(SandboxSpec()):
                pass
