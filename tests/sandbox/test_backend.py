"""What a backend of the user's own gets from the base classes."""

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.backend import BackendFinding, BackendSettings, SlotBackend, look_for_program
from ludus.sandbox.local.unisolated import Local
from ludus.sandbox.owner import OwnedResource


class MineSettings(BackendSettings, frozen=True, kw_only=True):
    size: int = 1


class Mine(SlotBackend[MineSettings]):
    name = "mine"
    Settings = MineSettings

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.local = Local()
        self.box = await self.local.create(spec)
        return self.box

    async def close(self) -> None:
        await self.local.close()


def test_settings_and_secrets_are_kept():
    mine = Mine(MineSettings(size=3), {"token": "x"})
    assert (mine.settings.size, mine.secrets["token"]) == (3, "x")
    assert Mine(MineSettings()).secrets == {}


def test_a_backend_that_says_nothing_does_not_isolate():
    assert not Mine.isolates(MineSettings())


async def test_a_trial_makes_a_slot_runs_a_command_and_closes_the_slot():
    mine = Mine(MineSettings())
    assert await mine.try_out() == BackendFinding("mine", "works", "a slot ran")
    with pytest.raises(SandboxError):
        await mine.box.exec("true")
    await mine.close()


async def test_what_a_backend_does_not_have_is_refused():
    mine = Mine(MineSettings())
    assert await mine.list_resources() == []
    with pytest.raises(SandboxError, match="mine has nothing to remove"):
        await mine.remove_resource(OwnedResource("mine", "container", "a", ""))
    box = await mine.create(SandboxSpec(disk_mb=16))
    with pytest.raises(SandboxError, match="no snapshots"):
        await mine.snapshot(box)
    await box.close()
    await mine.close()


def test_looking_for_a_program():
    found = look_for_program("b", "sh", "set x")
    assert (found.state, found.remedy) == ("ready", "set x")
    missing = look_for_program("b", "no-such-program", "set x")
    assert (missing.state, missing.message) == ("off", "there is no program 'no-such-program'")
    assert missing.remedy == "install it; then set x"
