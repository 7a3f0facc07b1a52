"""What works on this machine: profiles are tried, other backends are looked at."""

import asyncio
from typing import Any

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.backend import BackendFinding, BackendSettings, SlotBackend
from ludus.sandbox.backend_settings import BwrapSettings, DockerSettings, LocalSettings, NomadSettings
from ludus.sandbox.backends import BACKENDS, Profile, refuse_secret
from ludus.sandbox.survey import format_title, survey, try_profile


async def try_one(profile: Profile, title: str = "it") -> BackendFinding:
    return await try_profile(title, profile, refuse_secret)


async def test_every_backend_is_found_once_and_profiles_come_first():
    profiles = {"": LocalSettings(), "far": DockerSettings(image="i", socket="/no/such.sock")}
    findings = await survey(profiles, refuse_secret)
    assert [finding.backend for finding in findings[:2]] == ["local", "docker, profile far"]
    assert {finding.backend for finding in findings[2:]} == BACKENDS.keys() - {"local", "docker"}
    assert (findings[0].state, findings[1].state) == ("works", "broken")


async def test_a_backend_that_cannot_be_looked_at_hides_no_other(monkeypatch):
    async def fail() -> BackendFinding:
        raise PermissionError("/proc")

    monkeypatch.setattr("ludus.sandbox.remote.ssh.Ssh.look", fail)
    findings = {each.backend: each for each in await survey({"": LocalSettings()}, refuse_secret)}
    assert findings.keys() == BACKENDS.keys()
    assert findings["ssh"].message.startswith("it cannot be looked at: PermissionError: /proc")


async def test_the_section_of_a_backend_that_is_not_used_says_where_to_look():
    sections = {"docker": DockerSettings(socket="/no/such.sock")}
    findings = await survey({"": LocalSettings()}, refuse_secret, sections)
    assert {each.backend: each.message for each in findings}["docker"] == "there is no /no/such.sock"


def test_a_title_names_the_profile_unless_it_is_the_default():
    assert format_title("", BwrapSettings()) == "bwrap"
    assert format_title("small", BwrapSettings()) == "bwrap, profile small"


async def test_a_profile_that_works(bwrap):
    finding = await try_one(BwrapSettings(), "bwrap, profile a")
    assert (finding.backend, finding.state) == ("bwrap, profile a", "works")
    assert finding.message.startswith("isolates, with /")
    assert [limit.limit for limit in finding.limits] == ["memory", "processes", "disk", "time and output"]


async def test_profiles_that_do_not_work_say_why():
    assert (
        "no/such.sock cannot be reached" in (await try_one(DockerSettings(image="i", socket="/no/such.sock"))).message
    )
    secret = await try_one(NomadSettings(token_var="TOKEN"))
    assert (secret.state, secret.backend) == ("broken", "it")
    assert "sandbox.nomad.token_var names the variable TOKEN" in secret.message


async def test_a_trial_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("ludus.sandbox.survey._TRIAL_SECONDS", 0.01)

    async def never(self) -> BackendFinding:
        await asyncio.sleep(600)
        raise AssertionError("not reached")

    monkeypatch.setattr("ludus.sandbox.local.unisolated.Local.try_out", never)
    assert (await try_one(LocalSettings())).message == "no slot within 0.01 s"


class Raises(SlotBackend[BackendSettings]):
    name = "raises"

    async def create(self, spec: SandboxSpec) -> Sandbox:
        raise OSError("no disk")


class ReturnsNone(Raises):
    async def create(self, spec: SandboxSpec) -> Any:
        return None


class ClosesBadly(Raises):
    async def close(self) -> None:
        raise RuntimeError("still in use")


async def test_a_backend_that_raises_is_broken():
    assert (await try_one(Raises(BackendSettings()))).message.startswith("no slot could be made: OSError: no disk (")
    assert "ReturnsNone.create returned NoneType" in (await try_one(ReturnsNone(BackendSettings()))).message
    finding = await try_one(ClosesBadly(BackendSettings()))
    assert (finding.state, finding.message[:38]) == ("broken", "close raised RuntimeError: still in use"[:38])
