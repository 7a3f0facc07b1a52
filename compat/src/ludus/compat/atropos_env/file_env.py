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
    from ludus.config import Config
    from ludus.sandbox.pool import Pool
    from ludus.tools.toolsets import Registry


class AtroposFileEnv(Env, frozen=True, kw_only=True):
    """`atropos:FILE.py`."""

    name: ClassVar[str] = "atropos"
    sandbox: ClassVar[SandboxSpec | None] = None
    leased: ClassVar[SandboxSpec | None] = None
    """The slots that the file leases for its rollouts, if it uses some."""
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
    sampling_set: tuple[str, ...] = ()
    """The settings of `sampling` that the user gave. They win over what the calls of the file say."""

    def list_code(self) -> Iterable[Path]:
        return (Path(self.file),)

    @property
    def title(self) -> str:
        return self.class_name or Path(self.file).stem

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

    def make_slots(self, config: "Config", registry: "Registry", pool: "Pool", spec: SandboxSpec | None) -> object:
        """The slots of a run as the file gets them; None: it uses none."""
        return None

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The score that the file gave."""
        value = (rollout.details or {}).get("score")
        if value is None:
            raise VerifierError("the file gave no score", retryable=False)
        return Score.of(float(value))
