"""The `serve` section of the settings: which server the worker feeds, and which groups it sends."""

from typing import Annotated, Literal

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count, Positive, Whole

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
PartialPolicy = Literal["drop", "send"]
LengthPolicy = Literal["group", "row", "cut", "mask"]
BranchPolicy = Literal["rows", "longest"]
EvalPolicy = Literal["stop", "limit", "none"]


class ServeSettings(Settings, frozen=True):
    """Where and how `ludus serve` sends groups to a trajectory server (`docs/rl.md`)."""

    server: str = "http://127.0.0.1:8000"
    """The address of the server: `ludus api`, or Atropos' `run-api`."""
    token_var: str = ""
    """The NAME of the environment variable that holds the server's bearer token."""
    name: str = ""
    """The name under which the worker registers; empty: the environment's."""
    weight: Positive = 1.0
    """The share of the worker's rows among those of all workers, relative to the others."""
    min_batch_allocation: Share | None = None
    """The share of every batch that must come from this worker."""
    steps: Count | None = None
    """Stop when the trainer has taken this many steps; not set: when the trainer is done."""
    max_batches_offpolicy: Count = 3
    """The maximum number of batches that wait at the server. No group is begun beyond that."""
    row_tokens: Count | None = None
    """The longest row, in tokens; not set: what the server allows."""
    too_long: LengthPolicy = "group"
    """What to do with a longer row: drop its group (`group`); drop the row (`row`); cut it at its end (`cut`); or cut
    it and give it no advantage, so that it counts only for the mean of its group (`mask`)."""
    equal_scores: PartialPolicy = "drop"
    """Whether groups whose scores are all equal are sent. They give no gradient."""
    partial: PartialPolicy = "drop"
    """Whether groups are sent in which rollouts have no score, or no row."""
    branches: BranchPolicy = "rows"
    """What to send of rollouts whose history branched: every row with its advantage, which is computed over rollouts
    (`rows`), or of each rollout the row with the most sampled tokens (`longest`)."""
    messages: bool = True
    """Whether rows have the conversation as messages too."""
    eval_every: Whole = 0
    """Evaluate whenever the trainer has taken this many more steps; 0: never."""
    eval_split: str = "test"
    """The environment's split to evaluate on."""
    eval_limit: Count | None = None
    """Evaluate only on this many tasks: the first ones of the split."""
    eval_size: Count = 1
    """The number of rollouts of each task in an evaluation."""
    eval_handling: EvalPolicy = "stop"
    """During an evaluation, begin no groups (`stop`), fewer groups (`limit`, see `eval_limit_ratio`), or as many as
    ever (`none`). Groups that run are finished in any case."""
    eval_limit_ratio: Share = 0.5
    """The share of groups that run during an evaluation with `limit`."""
    poll_seconds: Positive = 0.5
    """How often the server is asked for its state."""
    drain_seconds: Positive = 30.0
    """How long finished groups are still sent, when the worker stops and the server does not answer. What is left is
    sent with --resume."""
    shown_rollouts: Whole = 32
    """The number of rollouts that the table `train/rollouts` shows for each step."""
