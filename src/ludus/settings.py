"""The base class of settings.

Each group of settings is defined beside the code that it configures and goes into the tree of `ludus.config` as it is.
A field's default is the setting's default. The string below a field documents it: `ludus config` prints it.

Settings never hold a secret. A field that ends in `_var` or `_vars` names the environment variables that hold secrets.
"""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings. Unknown names are refused."""
