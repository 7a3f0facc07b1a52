"""A file that was written for atroposlib, as an environment of Ludus.

`ludus process atropos:FILE.py` names it; the settings of a run record it as `AtroposFileEnv` with the file and the
values of the file's own configuration. The file acts and scores, so there are neither tasks nor `verify` here: groups
are made by `group_run`. To train a skill, each item is a task (`file_tasks`).
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from ludus.env import Env
from ludus.errors import ConfigError, VerifierError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task


class AtroposFileEnv(Env, frozen=True, kw_only=True):
    """`atropos:FILE.py`."""

    name: ClassVar[str] = "atropos"
    sandbox: ClassVar[SandboxSpec | None] = None
    file: str
    """The file."""
    class_name: str = ""
    """The class in the file; empty: the only one."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """The values of the file's configuration class, by its names."""
    servers: tuple[dict[str, Any], ...] = ()
    """The server configs of the file, without keys. The first one is `model`."""
    slurm: bool = False
    testing: bool = False

    def tasks(self, split: str) -> Iterable[Task]:
        """The items of the file. Only a training run needs them as tasks."""
        raise ConfigError(f"{self.file}: a file makes its own items: run it with process, evaluate, serve or train")

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The score that the file gave."""
        value = (rollout.details or {}).get("score")
        if value is None:
            raise VerifierError("the file gave no score", retryable=False)
        return Score.of(float(value))
