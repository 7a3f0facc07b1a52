"""`BaseEnv`: the base class of files that were written for atroposlib.

A file says what is asked, acts and scores. Ludus runs it (`file_host`, `group_run`): it calls the hooks, keeps what
they return, and gives the file its servers, its tokenizer and its place for files. Ludus alone makes instances.
"""

import asyncio
import contextvars
import importlib
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from ludus.compat.atropos_env.env_config import BaseEnvConfig, ServerBaseline
from ludus.compat.atropos_env.scored_data import Item, ScoredDataItem, join_items
from ludus.compat.atropos_env.server_view import FileServers
from ludus.compat.atropos_env.tokenizer_view import TokenizerView
from ludus.errors import ConfigError


@dataclass
class FileServices:
    """What Ludus gives to a file."""

    servers: FileServers
    loop: asyncio.AbstractEventLoop
    """The loop of Ludus."""
    out: Path
    """The run directory."""
    log_metrics: Callable[[dict[str, Any]], None]
    write_eval: "Callable[[EvalReport], None]"
    tokenizer: str = ""
    """The tokenizer of the model in token mode; empty: the one that the file names."""
    slots: object = None
    """The slots of the run, for files that use some."""
    retries: int = 2
    """How often a rollout is run again after a failure that is not the agent's."""
    tell: Callable[[str], None] = lambda _: None
    """Shows a message to the user."""
    command: str = ""
    """`process`, `serve` or `evaluate`; empty in a training run."""


@dataclass(frozen=True)
class EvalReport:
    """What a file's `evaluate_log` reports."""

    metrics: dict[str, Any]
    task: str
    model: str
    seconds: float
    parameters: dict[str, Any]
    samples: list[Any]


SERVICES: contextvars.ContextVar[FileServices | None] = contextvars.ContextVar("ludus_file_services", default=None)
"""The services for the instance that is being made."""


class BaseEnv:
    """`atroposlib.envs.base.BaseEnv`."""

    scheme: ClassVar[str] = "atropos"
    """The source of such files: `SCHEME:FILE.py`."""
    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[Any] = BaseEnvConfig
    server_cls: ClassVar[Any] = None

    def __init__(
        self, config: Any, server_configs: Any = None, slurm: bool = False, testing: bool = False, **_: Any
    ) -> None:
        services = SERVICES.get()
        if services is None:
            raise ConfigError(
                f"{type(self).__name__} is run by Ludus: ludus process atropos:FILE.py, or python FILE.py process"
            )
        self.services = services
        self.config = config
        self.server_configs = server_configs
        self.slurm, self.testing = slurm, testing
        self.server = services.servers
        self._tokenizer: Any = None
        self.backlog: list[Any] = []
        self.rollouts_for_wandb: list[Any] = []
        self.completion_lengths: list[int] = []
        self.eval_runner: Any = None
        self.curr_step = 0
        self.max_token_len = -1
        self.env_id: int | None = None
        self.items_sent_this_step = 0
        self.wandb_prepend: str | None = config.wandb_name
        self.wandb_group: str | None = None
        self.wandb_project: str | None = None
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.process_mode = False
        self.last_completed_item: Any = None
        self.status_dict: dict[str, Any] = {}

    # ---- what Ludus calls -----------------------------------------------------------------------------------------

    def begin_run(self) -> Any:
        """Called before the first group: set the file up. It may be awaited."""
        return self.setup()

    async def end_run(self) -> None:
        """Called after the last group."""

    # ---- what files define ----------------------------------------------------------------------------------------

    @classmethod
    def config_init(cls) -> Any:
        """The defaults of the file's configuration class. Some files name it with `config_cls`."""
        named = getattr(cls, "config_cls", None)
        kind = named() if inspect.ismethod(named) else named
        return (kind if inspect.isclass(kind) else cls.env_config_cls)(), ServerBaseline()

    async def setup(self) -> None:
        """Nothing by default: files call `super().setup()`."""

    async def get_next_item(self) -> Item:
        raise NotImplementedError(f"{type(self).__name__} does not define get_next_item()")

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        raise NotImplementedError(
            f"{type(self).__name__} defines neither collect_trajectories(item) nor collect_trajectory(item)"
        )

    async def collect_trajectories(self, item: Item) -> Any:
        """`group_size` rollouts at once. Those that return no row are left out."""
        done = await asyncio.gather(*(self.collect_trajectory(item) for _ in range(self.config.group_size)))
        rows = [row for row, _ in done if row]
        backlog = [each for _, more in done for each in more or ()]
        return (join_items(rows) if rows else None), backlog

    async def postprocess_histories(self, trajectories: Any) -> Any:
        return trajectories

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate()")

    async def cleanup(self) -> None:
        """Called after every group."""

    # ---- what files use -------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = TokenizerView.load(self.services.tokenizer or self.config.tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self._tokenizer = value

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log metrics, with the table of rollouts and the lengths of replies."""
        metrics = dict(wandb_metrics or {})
        if self.completion_lengths:
            metrics |= _describe_lengths(self.completion_lengths, self.max_token_len)
            self.completion_lengths = []
        metrics = await self.create_rollout_table(metrics)
        self.services.loop.call_soon_threadsafe(self.services.log_metrics, metrics)

    def perf_stats(self, metrics_dict: dict[str, Any]) -> dict[str, Any]:
        """Files add times to their metrics. Here they are in the summary of the run."""
        return metrics_dict

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Put the kept rollouts into the metrics, as a table."""
        if self.rollouts_for_wandb:
            wandb = importlib.import_module("wandb")
            table = wandb.Table(columns=["text", "score"])
            for group in self.rollouts_for_wandb:
                for row in group:
                    table.add_data(*row[:2])
            wandb_metrics["train/rollouts"] = table
            self.rollouts_for_wandb = []
        return wandb_metrics

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Keep some rollouts of a group for the table."""
        count = self.config.num_rollouts_per_group_for_logging
        for group in cast(list[Any], scored_data) if isinstance(scored_data, list) else [scored_data]:
            rows = list(zip(group["tokens"], group["scores"], strict=False))
            shown = rows if count == -1 else rows[:count]
            self.rollouts_for_wandb.append([(self.tokenizer.decode(tokens), score) for tokens, score in shown])
        if len(self.rollouts_for_wandb) > self.config.num_rollouts_to_keep:
            self.rollouts_for_wandb = self.rollouts_for_wandb[-self.config.num_rollouts_to_keep :]

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: Sequence[Any] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write the numbers and samples of an evaluation."""
        now = time.time()
        report = EvalReport(
            dict(metrics),
            task_name or f"{self.name or type(self).__name__}_eval",
            model_name or self.server.servers[0].model.name,
            (end_time or now) - (start_time or now),
            {**(generation_parameters or {}), "max_new_tokens": self.config.max_token_length},
            list(samples or ()),
        )
        self.services.loop.call_soon_threadsafe(self.services.write_eval, report)

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write data of the file's own, such as its place in the data set."""
        if data is None:
            return
        path = self._get_checkpoint(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, default=str), "utf-8")

    def load_checkpoint(self) -> None:
        """Set what the last checkpoint has as attributes."""
        path = self._get_checkpoint(self.curr_step)
        if path.exists():
            for name, value in json.loads(path.read_text("utf-8")).items():
                setattr(self, name, value)

    def _get_checkpoint(self, step: int) -> Path:
        folder = Path(self.checkpoint_dir or self.services.out)
        return folder / "env_checkpoints" / str(self.config.wandb_name or self.name) / f"step-{step}.json"

    @classmethod
    def cli(cls) -> None:
        """`python FILE.py process …`: the same as `ludus process atropos:FILE.py …`."""
        from ludus.compat.atropos_env.file_commands import run_class

        sys.exit(run_class(cls, sys.argv, cls.scheme))


def _describe_lengths(lengths: Sequence[int], most: int) -> dict[str, float]:
    mean = sum(lengths) / len(lengths)
    found = {
        "train/completion_lengths": mean,
        "train/completion_lengths_std": math.sqrt(sum((n - mean) ** 2 for n in lengths) / len(lengths)),
        "train/completion_lengths_max": float(max(lengths)),
        "train/completion_lengths_min": float(min(lengths)),
    }
    if most > 0:
        found["train/completion_lengths_p95"] = sum(n >= 0.95 * most for n in lengths) / len(lengths)
    return found


def list_server_configs(found: Any) -> list[Any]:
    """The servers of `config_init`, which returns a list or one config."""
    return list(found) if isinstance(found, list | tuple) else [found]  # pyright: ignore[reportUnknownArgumentType]
