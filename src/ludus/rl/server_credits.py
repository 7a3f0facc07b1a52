"""How many groups the worker may have under way, by what the server reports. All functions are pure.

The original environments start more groups than the server wants, and cancel those that are too many. The work is lost.
Here a group is begun only if the server still has room for it: its *credit*. A group that has begun is always finished.
"""

import math

from msgspec import Struct

from ludus.rl.worker_settings import EvalPolicy


class ServerStatus(Struct, frozen=True, kw_only=True):
    """The reply to `/status-env`. Queue sizes are in groups of the asking worker."""

    current_step: int
    queue_size: int
    unallocated_fraction: float = 1.0
    self_queue_size: int = 0
    max_group_size: int = 1
    env_weight: float = 1.0


class CreditRules(Struct, frozen=True, kw_only=True):
    """What the number of groups depends on beside the server's state."""

    group_size: int
    batch_size: int
    """The server's, in rows; below 1 while no trainer has registered."""
    max_batches_offpolicy: int
    min_batch_allocation: float | None
    most: int
    """The most groups that this worker can run at once."""
    steps: int | None = None
    """The trainer's last step; None: no end."""


def compute_credits(status: ServerStatus, rules: CreditRules) -> int:
    """The number of groups that may be under way: those that run, and those that wait to be sent."""
    if rules.batch_size < 1:
        return 0
    minimum = rules.min_batch_allocation or 0.0
    batches = rules.max_batches_offpolicy
    if rules.steps is not None:  # one more than is needed: the server may leave rows out
        batches = min(batches, rules.steps - status.current_step + 1)
    own = int(rules.batch_size * min(1.0, status.unallocated_fraction + minimum))
    wanted = math.ceil(batches * own / rules.group_size) - status.queue_size
    if minimum:
        promised = math.ceil(minimum * rules.batch_size * batches / rules.group_size)
        wanted = max(wanted, promised - status.self_queue_size)
    return 0 if is_finished(status, rules) else max(0, min(wanted, rules.most))


def limit_for_eval(groups: int, policy: EvalPolicy, ratio: float, *, evaluating: bool) -> int:
    """The number of groups that may be under way while an evaluation runs."""
    if not evaluating or policy == "none":
        return groups
    return 0 if policy == "stop" else int(groups * ratio)


def has_crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies between two steps, the later one included. 0: never."""
    return every > 0 and now // every > before // every


def is_finished(status: ServerStatus, rules: CreditRules) -> bool:
    """Whether the trainer has taken all its steps."""
    return rules.steps is not None and status.current_step >= rules.steps
