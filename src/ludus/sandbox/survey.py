"""What works on this machine: every backend, and which limits hold for its slots.

A profile that the user has set is tried: one slot is made, runs a command, and ends. A backend that no profile uses is
only looked at: is its program installed, does its service reply? That installs, fetches and pays for nothing.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from ludus.errors import LudusError, describe_error
from ludus.sandbox.backend import Backend, BackendFinding, BackendSettings, ReadSecret, SlotSource
from ludus.sandbox.backends import BACKENDS, Profile, get_backend_class
from ludus.sandbox.profiles import open_slot_source

_TRIAL_SECONDS = 120.0
NO_SECTIONS: Mapping[str, BackendSettings] = MappingProxyType({})


async def survey(
    profiles: Mapping[str, Profile], read_secret: ReadSecret, sections: Mapping[str, BackendSettings] = NO_SECTIONS
) -> list[BackendFinding]:
    """Try every profile and look at every other backend. The finding of a profile has its title as `backend`.

    `sections`: the settings of backends that no profile uses, by backend. They say where to look.
    """
    tried = [await try_profile(format_title(name, profile), profile, read_secret) for name, profile in profiles.items()]
    used = {get_backend_class(profile).name for profile in profiles.values()}
    others = [kind for name, kind in BACKENDS.items() if name not in used]
    return [*tried, *[await _look(kind, sections.get(kind.name)) for kind in others]]


async def _look(kind: type[Backend[Any]], settings: BackendSettings | None) -> BackendFinding:
    try:
        return await (kind.look() if settings is None else kind.look_with(settings))
    except Exception as error:  # an odd machine must not hide what is known about the other backends
        return BackendFinding(kind.name, "broken", f"it cannot be looked at: {describe_error(error)}")


def format_title(name: str, profile: Profile) -> str:
    """The backend of a profile and, except for the default one, the profile's name."""
    backend = get_backend_class(profile).name
    return f"{backend}, profile {name}" if name else backend


async def try_profile(title: str, profile: Profile, read_secret: ReadSecret) -> BackendFinding:
    """Make a slot of a profile, if that works. A backend may raise anything: it is broken then."""
    try:
        source = open_slot_source(profile, read_secret)
    except LudusError as error:
        return BackendFinding(title, "broken", str(error))
    finding = await _try_source(title, source)
    try:
        await source.close()
    except Exception as error:
        return BackendFinding(title, "broken", f"close raised {describe_error(error)}")
    return finding


async def _try_source(title: str, source: SlotSource) -> BackendFinding:
    try:
        async with asyncio.timeout(_TRIAL_SECONDS):
            return msgspec.structs.replace(await source.try_out(), backend=title)
    except LudusError as error:
        return BackendFinding(title, "broken", str(error))
    except TimeoutError:
        return BackendFinding(title, "broken", f"no slot within {_TRIAL_SECONDS:g} s")
    except Exception as error:
        return BackendFinding(title, "broken", f"no slot could be made: {describe_error(error)}")
