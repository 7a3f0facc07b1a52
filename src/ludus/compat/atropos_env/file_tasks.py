"""The items of a file as tasks, to train a skill on.

Items are drawn with `get_next_item`, `total_steps` of them; one that was drawn before is left out. They are drawn again
in every process, in the same order, so a task is known by its number. The model is not there yet: a file that calls it
in `setup` cannot be trained on.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, cast

from ludus.compat.atropos_env.base_env import BaseEnv, FileServices
from ludus.compat.atropos_env.env_config import APIServerConfig
from ludus.compat.atropos_env.file_host import FileHost, LoadedFile
from ludus.compat.atropos_env.group_run import make_task_id
from ludus.compat.atropos_env.row_rollouts import encode_group
from ludus.compat.atropos_env.server_view import FileServer, FileServers, Thinking
from ludus.errors import ConfigError
from ludus.types import Task

QUESTIONS = ("prompt", "question", "problem", "instruction")
"""Keys of an item that hold what is asked."""


def list_tasks(loaded: LoadedFile, settings: Mapping[str, Any], split: str) -> list[Task]:
    """The items of a file as tasks."""
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop that runs
        return thread.submit(asyncio.run, _read_tasks(loaded, settings, split)).result()


async def _read_tasks(loaded: LoadedFile, settings: Mapping[str, Any], split: str) -> list[Task]:
    config = type(loaded.kind.config_init()[0])(**settings)
    server = FileServer(cast(Any, _NoDesk()), APIServerConfig(), asyncio.get_running_loop(), Thinking())
    with tempfile.TemporaryDirectory() as folder, FileHost() as host:
        services = FileServices(FileServers([server]), asyncio.get_running_loop(), Path(folder), _drop, _drop)
        env = await host.make_env(loaded.kind, services, config, [server.config], {})
        items = await draw_items(host, env, int(settings["total_steps"]))
        return [Task(id=id, prompt=_find_prompt(env, item, id), split=split) for id, item in items.items()]


async def draw_items(host: FileHost, env: BaseEnv, most: int) -> dict[str, Any]:
    """The items of a file by task id."""
    seen: set[bytes] = set()
    found: dict[str, Any] = {}
    for number in range(max(1, most)):
        item = await host.run(env.get_next_item)
        if item is None:
            break
        if (key := encode_group(item)) not in seen:
            seen.add(key)
            found[make_task_id(number)] = item
    return found


def _find_prompt(env: BaseEnv, item: Any, id: str) -> str:
    ask = getattr(env, "format_prompt", None)
    if ask is not None:
        return str(ask(item))
    given: Mapping[str, Any] = cast(dict[str, Any], item) if isinstance(item, dict) else dict[str, Any]()
    return next((str(given[key]) for key in QUESTIONS if isinstance(given.get(key), str)), id)


def _drop(_: Any) -> None:
    """Nothing is kept while tasks are listed."""


class _NoDesk:
    """In place of a model, while tasks are listed."""

    token_model = None
    name = "none"

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError(
            "the file calls its model while its items are listed: use process, which starts the model first"
        )
