"""Rollouts of Ludus inside TRL's `GRPOTrainer`: TRL drives, and asks here for rollouts and their scores.

    rollouts = TrlRollouts(env, tasks, codec, Policy(...))
    GRPOTrainer(model, reward_funcs=read_rewards, rollout_func=rollouts, train_dataset=Dataset.from_list(rollouts.rows))

The prompt of a dataset row is the id of a task: TRL gives a rollout function nothing else. A rollout becomes one row:
everything before the first sampled id is the prompt, the rest is the completion, and `env_mask` is 0 where ids were not
sampled. A rollout that failed has no reward (None), which TRL leaves out of its group's mean.

What TRL does not do: without `use_vllm` it ignores the recorded logprobs, and takes those that its own model computes
after the rollouts as those of the sampler. So rows must be sampled from the weights that it has when it asks for them,
as they are here; older rows are not corrected for. TRL takes one row for each rollout: if the history of one branched,
the row with the most sampled ids is used, and `rows_left_out` counts the others.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from msgspec import Struct

from ludus.engine import derive_seed, run_many
from ludus.errors import ConfigError
from ludus.policy import Policy
from ludus.rl.prompt_split import split_prompt
from ludus.rl.row_checks import check_rollout
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool
from ludus.suspects import weigh_suspect
from ludus.tokens import Engine
from ludus.tokens.codec import Codec
from ludus.tokens.model import TokenModel
from ludus.types import Rollout, Task

OpenPool = Callable[[], AbstractAsyncContextManager[Pool | None]]


class TrlRow(Struct, frozen=True, kw_only=True):
    """One rollout as TRL takes it. The fields have TRL's names; the last two go to reward functions."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    """1 where the id was sampled, 0 elsewhere."""
    reward: float | None
    """None if the rollout has no score or nothing to train on."""
    rows_left_out: int = 0


class TrlRollouts:
    """A `rollout_func` for TRL. `policy.model` is replaced by the model that TRL trains.

    `open_pool` opens the slots for one batch; not needed for environments without a sandbox. `make_engine` makes the
    engine from TRL's trainer, for example one on a server that has the same weights; by default the model is sampled in
    this process. `context` is the longest conversation in tokens.
    """

    def __init__(
        self,
        runner: Runner,
        tasks: Sequence[Task],
        codec: Codec,
        policy: Policy,
        *,
        context: int = 2048,
        seed: int = 0,
        open_pool: OpenPool | None = None,
        make_engine: Callable[[Any], Engine] | None = None,
    ) -> None:
        self._runner = runner
        self._tasks = {task.id: task for task in tasks}
        self._codec = codec
        self._policy = policy
        self._context = context
        self._seed = seed
        self._open_pool = open_pool or _open_no_pool
        self._make_engine = make_engine or self._make_own_engine
        self.__name__ = "TrlRollouts"

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of TRL's dataset, one for each task."""
        return [{"prompt": id} for id in self._tasks]

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run one rollout for each prompt. TRL repeats a prompt for each rollout of its group."""
        rollouts = asyncio.run(self._run(self._plan(prompts, trainer), trainer))
        rows = [build_trl_row(weigh_suspect(each, self._runner.suspects), self._make_filler()) for each in rollouts]
        return {name: [getattr(row, name) for row in rows] for name in TrlRow.__struct_fields__}

    def _plan(self, prompts: Sequence[Any], trainer: Any) -> list[tuple[Task, int, int]]:
        """Task, replicate and seed of each rollout. The seeds differ between steps and processes."""
        place = f"{trainer.state.global_step}/{trainer.accelerator.process_index}"
        seen = Counter[str]()
        planned: list[tuple[Task, int, int]] = []
        for prompt in prompts:
            task = self._tasks.get(prompt) if isinstance(prompt, str) else None
            if task is None:
                raise ConfigError(f"the prompt {prompt!r} is no task id; make the dataset from TrlRollouts.rows")
            planned.append((task, seen[task.id], derive_seed(self._seed, f"{task.id}/{place}", seen[task.id])))
            seen[task.id] += 1
        return planned

    async def _run(self, planned: Sequence[tuple[Task, int, int]], trainer: Any) -> list[Rollout]:
        model = TokenModel(self._make_engine(trainer), self._codec)
        policy = self._policy.use_model(model)
        jobs = [Job(task, policy, replicate, seed) for task, replicate, seed in planned]
        found: dict[int, Rollout] = {}
        try:
            async with self._open_pool() as pool:
                runner = replace(self._runner, pool=pool)
                await run_many(jobs, runner, lambda job, rollout: found.update({id(job): rollout}))
        finally:
            await model.close()
        return [found[id(job)] for job in jobs]

    def _make_own_engine(self, trainer: Any) -> Engine:
        from ludus.rl.transformers_engine import TransformersEngine

        model = trainer.accelerator.unwrap_model(trainer.model)
        stops = list(self._codec.tokenizer.stop_tokens)
        return TransformersEngine(model, name="trl", stop_ids=stops, context=self._context)

    def _make_filler(self) -> int:
        """An id for a rollout without any: TRL needs a prompt and a completion."""
        return next(iter(self._codec.tokenizer.stop_tokens), 0)


def build_trl_row(rollout: Rollout, filler: int) -> TrlRow:
    """A rollout as one row. Without a score, or without a row to train on, the row has no reward and no sampled id.

    Raises:
        NotExact: it was run in chat mode.
    """
    rows = check_rollout(rollout)[0] if rollout.score is not None else []
    if not rows or rollout.score is None:
        return TrlRow(prompt_ids=[filler], completion_ids=[filler], logprobs=[0.0], env_mask=[0], reward=None)
    longest = max(rows, key=lambda row: sum(row.tokens.sampled))
    made = split_prompt(longest.tokens)
    return TrlRow(
        prompt_ids=made.prompt,
        completion_ids=made.completion,
        logprobs=made.logprobs,
        env_mask=made.mask,
        reward=rollout.score.value,
        rows_left_out=len(rows) - 1,
    )


def read_rewards(completions: Sequence[Any], reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function for TRL: the scores of the rollouts, which the verifier has already given."""
    return list(reward)


@asynccontextmanager
async def _open_no_pool() -> AsyncGenerator[None, None]:
    yield None
