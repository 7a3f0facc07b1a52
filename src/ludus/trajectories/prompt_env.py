"""The environment of prompts: one task for each row of a file (`prompt_rows`), and a checker if there is one.

Without a checker nothing judges: a rollout is done when its agent has ended, and has neither a score nor a failure.
`ludus batch` runs it so. With `env.check` it is an environment like any other, also for `evaluate`, `train` and `rl`.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from ludus.chat_form import read_messages
from ludus.env import Env, EnvFacts
from ludus.errors import ConfigError, SetupError
from ludus.sandbox import ImageSpec, ImageSupport, Sandbox, SandboxSpec
from ludus.trajectories.checks import Check, describe_row, load_check
from ludus.trajectories.prompt_rows import PromptFile, get_details
from ludus.types import Message, Rollout, Score, Task


class PromptEnv(Env, frozen=True):
    """Prompts of your own, from a JSONL file; scored by a checker of your own, or not at all."""

    name: ClassVar[str] = "prompts"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path",
        licence="that of your file",
        runs="agent in slots; checker here",
        scored="`env.check`; without it, nothing is",
        speed="that of a slot and of your check",
    )

    path: str = ""
    """A JSONL file: in each row a `prompt` or `messages`, and what else a row may have (docs/batch.md)."""
    check: str = ""
    """What scores a rollout: a function (`file.py:name`, `module:name`) or an environment. Empty: nothing."""
    slots: Literal["plain", "images", "none"] = "plain"
    """`images`: rows name the images of their slots, for backends that have images. `none`: the agent has no slot, and
    only tools that need none."""

    @property
    def sandbox(self) -> SandboxSpec | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # an option decides
        if self.slots == "none":
            return None
        return SandboxSpec(image=ImageSpec()) if self.slots == "images" else SandboxSpec()

    @property
    def toolsets(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return () if self.slots == "none" else ("terminal", "file")

    @property
    def verify_in(self) -> Literal["fresh", "same"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A check that looks at no files needs no fresh slot."""
        check = self._load_check()
        return "fresh" if check is None or check.uses_box else "same"

    @property
    def scores_rollouts(self) -> bool:
        return bool(self.check)

    def tasks(self, split: str) -> Iterator[Task]:
        """Every row is in every split: a file of prompts has none."""
        if not self.path:
            raise ConfigError("env.path: which prompts? Name a JSONL file")
        for task in PromptFile.scan(Path(self.path)).read_tasks():
            yield msgspec.structs.replace(task, split=split)

    def list_code(self) -> Iterable[Path]:
        check = self._load_check()
        return check.files if check is not None else ()

    def make_system(self, task: Task) -> str:
        return get_details(task).get("system", "")

    def opening(self, task: Task) -> tuple[Message, ...]:
        messages = get_details(task).get("messages")
        return tuple(read_messages(messages)) if messages else super().opening(task)

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        image = get_details(task).get("image")
        if not image:
            return msgspec.structs.replace(default, image=None)
        return msgspec.structs.replace(default, image=ImageSpec(name=image))

    def use_images(self, support: ImageSupport) -> Self:
        if support not in ("named", "any"):
            raise ConfigError("sandbox.backend: rows name images, which this backend cannot pull: use docker or podman")
        return self

    async def setup(self, task: Task, box: Sandbox) -> None:
        await super().setup(task, box)
        if folder := get_details(task).get("cwd"):
            path = shlex.quote(box.resolve(folder))
            done = await box.exec(f"mkdir -p {path} && cd {path}")
            if done.exit_code:
                raise SetupError(f"cwd: {folder} cannot be used: {done.text.strip()}", retryable=False)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        check = self._load_check()
        if check is None:
            raise ConfigError("env.check: nothing scores a rollout; name a function or an environment")
        return await check.score(rollout, describe_row(rollout), box)

    def _load_check(self) -> Check | None:
        return load_check(self.check) if self.check else None
