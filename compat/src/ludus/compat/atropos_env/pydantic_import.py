"""The one place that imports pydantic, which is an extra of the package: other systems need the package without it."""

from ludus.errors import ConfigError

try:
    from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
except ModuleNotFoundError as missing:
    raise ConfigError(
        "environments of Atropos and Hermes need the extra 'atropos' or 'hermes': pip install 'ludus-train[atropos]' "
        "or pip install 'ludus-train[hermes]'"
    ) from missing

__all__ = ["BaseModel", "ConfigDict", "Field", "TypeAdapter", "ValidationError"]
