"""The base class of settings.

Each group of settings is defined beside the code that it configures and goes into the tree of `ludus.config` as it is.
A field's default is the setting's default. The string below a field documents it: `ludus config` prints it.

Settings never hold a secret. A field that ends in `_var` or `_vars` names the environment variables that hold secrets.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct


class UsedIf(NamedTuple):
    """A condition under which a setting has an effect: another field of the group has one of some values, or one that
    is not among some."""

    field: str
    values: tuple[Any, ...] = ()
    other_than: tuple[Any, ...] = ()

    def holds(self, settings: Struct) -> bool:
        value = getattr(settings, self.field)
        return value in self.values if self.values else value not in self.other_than


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings. Unknown names are refused."""

    may_change: ClassVar[tuple[str, ...]] = ()
    """Fields that may change when a run is resumed: they decide how fast and how far it goes, not its results."""
    added_later: ClassVar[tuple[str, ...]] = ()
    """Fields that were added after runs had been recorded. They are left out of records and hashes while they have
    their default, so that older runs can be resumed."""
    assumed_before: ClassVar[Mapping[str, Any]] = {}
    """For fields in `added_later` whose default is not what older runs did: what these did. Such a field is left out of
    records and hashes while it has this value, and a resumed run without it gets this value."""
    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = {}
    """Fields, or fields of theirs (`gate.rule`), that have an effect only under one of some conditions. One that is
    given and has none is refused (`ludus.config.unused`)."""


def get_recorded(settings: Struct) -> dict[str, Any]:
    """The fields that are recorded: all but those in `added_later` that have the value of older runs."""
    added, assumed = getattr(settings, "added_later", ()), getattr(settings, "assumed_before", {})
    fields = msgspec.structs.fields(type(settings))
    before = {f.name: assumed[f.name] if f.name in assumed else _get_default(f) for f in fields if f.name in added}
    unset = {name for name, value in before.items() if getattr(settings, name) == value}
    return {name: value for name, value in msgspec.structs.asdict(settings).items() if name not in unset}


def _get_default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
