"""A file that was written for atroposlib, as an environment of Ludus.

`ludus process atropos:FILE.py` names it; the settings of a run record it as `AtroposFileEnv` with the file and the
values of the file's own configuration. The file acts and scores, so there are neither tasks nor `verify` here: groups
are made by `group_run`. To train a skill, each item is a task (`file_tasks`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ludus.env import Env
from ludus.errors import VerifierError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task

if TYPE_CHECKING:
    from ludus.compat.atropos_env.file_host import LoadedFile


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
        """The items of the file. Only a training run needs them as tasks. They are all in the split `train`."""
        from ludus.compat.atropos_env.file_tasks import list_tasks

        if split != "train":
            return []
        loaded = self.load_file()
        try:
            return list_tasks(loaded, self.settings, split)
        finally:
            loaded.close()

    def load_file(self) -> "LoadedFile":
        """The file, imported."""
        from ludus.compat.atropos_env.base_env import BaseEnv
        from ludus.compat.atropos_env.file_host import load_file
        from ludus.compat.atropos_env.file_modules import list_atropos_modules

        return load_file(Path(self.file), self.class_name, list_atropos_modules(), (BaseEnv,))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The score that the file gave."""
        value = (rollout.details or {}).get("score")
        if value is None:
            raise VerifierError("the file gave no score", retryable=False)
        return Score.of(float(value))
