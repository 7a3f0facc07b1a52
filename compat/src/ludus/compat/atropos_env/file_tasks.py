"""The items of a file as tasks, to train a skill on.

Items are sampled with `get_next_item`, `total_steps` of them; one that was sampled before is left out. They are sampled
again in every process, in the same order, so a task is known by its number. The model is not there yet: a file that
calls it in `setup` cannot be trained on. Attributes that a file sets with its item are kept beside it.
"""

import asyncio
import copy
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from ludus.compat.atropos_env.base_env import BaseEnv, FileServices
from ludus.compat.atropos_env.env_config import APIServerConfig
from ludus.compat.atropos_env.file_host import FileHost, LoadedFile
from ludus.compat.atropos_env.group_run import make_task_id
from ludus.compat.atropos_env.row_rollouts import encode_group
from ludus.compat.atropos_env.server_view import FileServer, FileServers, Thinking
from ludus.compat.atropos_env.state_watch import act_as
from ludus.errors import ConfigError
from ludus.types import Task

QUESTIONS = ("prompt", "question", "problem", "instruction")
"""Keys of an item that hold what is asked."""


@dataclass(frozen=True)
class SampledItem:
    """An item of a file, and the attributes that the file's object had when it was sampled."""

    value: Any
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def restore(self, env: BaseEnv) -> None:
        """Give the file's object these attributes again."""
        for name, value in self.state.items():
            setattr(env, name, copy.copy(value))


def list_tasks(loaded: LoadedFile, settings: Mapping[str, Any], split: str) -> list[Task]:
    """The items of a file as tasks."""
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop that runs
        return thread.submit(asyncio.run, _read_tasks(loaded, settings, split)).result()


async def _read_tasks(loaded: LoadedFile, settings: Mapping[str, Any], split: str) -> list[Task]:
    config = type(loaded.kind.config_init()[0])(**settings)
    server = FileServer(cast(Any, _NoModel()), APIServerConfig(), asyncio.get_running_loop(), Thinking())
    with tempfile.TemporaryDirectory() as folder, FileHost() as host:
        services = FileServices(FileServers([server]), asyncio.get_running_loop(), Path(folder), _drop, _drop)
        env = await host.make_env(loaded.kind, services, config, [server.config], {})
        items = await sample_items(host, env, int(settings["total_steps"]))
        await host.run(env.end_run)
        return [Task(id=id, prompt=_find_prompt(env, item.value, id), split=split) for id, item in items.items()]


async def sample_items(
    host: FileHost, env: BaseEnv, most: int, read_state: Callable[[str], Mapping[str, Any]] = lambda _: {}
) -> dict[str, SampledItem]:
    """The items of a file by task id. `read_state`: what the file has set with the item of an id."""
    seen: set[bytes] = set()
    found: dict[str, SampledItem] = {}
    for id in map(make_task_id, range(max(1, most))):
        with act_as(id, taking=True):
            item = await host.run(env.get_next_item)
        if item is None:
            break
        state = read_state(id)
        if (key := encode_group(item)) not in seen:
            seen.add(key)
            found[id] = SampledItem(item, state)
    return found


def _find_prompt(env: BaseEnv, item: Any, id: str) -> str:
    ask = getattr(env, "format_prompt", None)
    if ask is not None:
        return str(ask(item))
    given: Mapping[str, Any] = cast(dict[str, Any], item) if isinstance(item, dict) else dict[str, Any]()
    return next((str(given[key]) for key in QUESTIONS if isinstance(given.get(key), str)), id)


def _drop(_: Any) -> None:
    """Nothing is kept while tasks are listed."""


class _NoModel:
    """In place of a model, while tasks are listed."""

    token_model = None
    name = "none"

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError(
            "the file calls its model while its items are listed: use process, which starts the model first"
        )
