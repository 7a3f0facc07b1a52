"""A file as the agent of a training run: it acts on one item, with the skill in the system message of every call."""

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from ludus.command.terminal import print_notice
from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.atropos_env.command_settings import read_keys
from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.compat.atropos_env.file_host import describe_trace
from ludus.compat.atropos_env.file_session import FileSession, open_file
from ludus.compat.atropos_env.file_tasks import SampledItem, sample_items
from ludus.compat.atropos_env.group_run import FileParts, collect_groups
from ludus.compat.atropos_env.row_rollouts import list_scores, make_row_rollouts
from ludus.compat.atropos_env.state_watch import act_as
from ludus.config import Config
from ludus.config.build_sandboxes import change_spec, open_slots
from ludus.config.build_tools import open_registry
from ludus.errors import ConfigError, HarnessError, LudusError, ModelError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent, AgentResult, Policy, Scene, seed_sampling
from ludus.store import RunDir
from ludus.trackers import TrackerSet
from ludus.types import StopReason, Task


async def open_file_agent(
    config: Config, env: AtroposFileEnv, model: Model, ledger: Ledger, stack: AsyncExitStack
) -> "FileAgent":
    """Load and set up a file for a training run. What it keeps besides rollouts is dropped with the stack."""
    loaded = env.load_file()
    stack.callback(loaded.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    run = stack.enter_context(RunDir.open(Path(folder), {}, resume=False))
    policy = Policy(model, sampling=config.sampling)
    quiet = TrackerSet([], lambda _: None, print_notice)
    keys = read_keys(len(env.servers))
    session = FileSession(config, env, loaded, policy, ledger, run, quiet, print_notice, keys=keys)
    parts = await stack.enter_async_context(open_file(session, await _open_slots(config, env, stack)))
    items = await sample_items(parts.host, parts.env, int(env.settings["total_steps"]), parts.turns.read_state)
    return FileAgent(parts, f"{loaded.kind.__name__}/{model.name}", items)


async def _open_slots(config: Config, env: AtroposFileEnv, stack: AsyncExitStack) -> object:
    """Slots that the file leases itself: a rollout of the training run has none."""
    if env.leased is None:
        return None
    registry = await stack.enter_async_context(open_registry(config.tools))
    spec = change_spec(env.leased, config.sandbox)
    return env.make_slots(config, registry, await stack.enter_async_context(open_slots(config, spec)), spec)


class FileAgent(Agent):
    """Runs the file. A rollout is one group of it, whose score is the mean of its rows."""

    def __init__(self, parts: FileParts, name: str, items: dict[str, SampledItem]) -> None:
        self._parts = parts
        self._name = name
        self._items = items

    @property
    def name(self) -> str:
        return self._name

    @property
    def brings_model(self) -> bool:
        return True

    async def act(self, scene: Scene) -> StopReason:
        task, opening = scene.task, scene.opening
        skill = opening[0].content if opening and opening[0].role == "system" else ""
        seed = seed_sampling(scene.policy.sampling, scene.seed).seed or 0
        scope = CallScope(f"act/{task.id}/{seed}", seed, skill)
        SCOPE.set(scope)
        groups = await self._take_turn(task, scope)
        scores = [score for group in groups for score in list_scores(group)]
        parts = self._parts
        made = make_row_rollouts(groups[0], task, parts.provenance, lambda ids: str(len(ids)), first=0, seconds=0.0)
        failed = next((each.failure for each in made if each.failure), None)
        if failed is not None:
            raise HarnessError(f"{self._name}: item '{task.id}': {failed.message}", retryable=False)
        turns = tuple(_drop_tokens(turn) for turn in made[0].turns)
        details = {"score": sum(scores) / len(scores), "rows": len(scores)}
        first = made[0].opening
        return scene.keep(AgentResult(first, (), turns, StopReason.FINISHED, exit=None, error=None, details=details))

    async def _take_turn(self, task: Task, scope: CallScope) -> list[dict[str, Any]]:
        """Run the file beside other rollouts, or alone if it keeps state from its item to its scores."""

        async def work() -> list[dict[str, Any]]:
            with act_as(scope.name):
                return await self._collect(task, scope)

        async def finish(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return groups

        return await self._parts.turns.run(scope.name, work, finish, (HarnessError,))

    async def _collect(self, task: Task, scope: CallScope) -> list[dict[str, Any]]:
        parts, item = self._parts, self._items[task.id]
        try:
            item.restore(parts.env)
            groups, _ = await parts.host.run(lambda: collect_groups(parts.env, item.value))
        except LudusError:
            raise
        except Exception as error:  # foreign code
            raise HarnessError(f"the file raised:\n{describe_trace(error)}", retryable=bool(scope.failures)) from error
        if parts.fatal.error is not None:
            raise parts.fatal.error
        if groups:
            return groups
        failure = next(iter(scope.failures), None)
        if isinstance(failure, LudusError):
            raise ModelError(f"{self._name}: {failure}")
        raise HarnessError(
            f"{self._name}: the file returned no group for item '{task.id}', so it has no score. A file that drops "
            "groups of equal scores cannot be measured rollout by rollout",
            retryable=False,
        )

    def use_model(self, model: Model) -> "FileAgent":
        raise ConfigError("env.name: the model of a file is that of its session: feed a trainer with `ludus serve`")


def _drop_tokens(turn: Any) -> Any:
    """A turn without ids: skill training reads the text."""
    return msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, tokens=None))
