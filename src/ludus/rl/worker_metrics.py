"""The metrics of a worker, under the names that Atropos' and Hermes' environments use.

`WorkerMetrics` collects what happens during a step of the trainer. `take` returns it as values for the trackers and
begins again.

| name | what it is |
|---|---|
| `train/completion_lengths`, `_std`, `_max`, `_min` | sampled ids per row |
| `train/completion_lengths_p95` | the share of rows with more than 95 % of the allowed ids (the original's name) |
| `train/items_sent_to_api`, `train/items_rejected` | groups that the server took, and groups that were not sent |
| `train/rejected_<reason>` | the latter by reason: `partial`, `too_long`, `equal_scores`, `no_rows`, `refused` |
| `train/reward`, `train/reward_std` | scores of rollouts, of groups that were dropped too |
| `train/suspects` | rollouts whose verdict the agent may have changed |
| `train/policy_lag` | how many steps old the policy of a group was when it was sent |
| `train/tool_errors_count`, `train/tool_error_rate` | failed tool calls, and their share of all calls |
| `train/tool_error_details` | a table of them |
| `train/rollouts` | a table of readable rollouts with their scores |
| `train_perf/{task,succeeded_task,failed_task}_duration_{mean,std,max,min}` | seconds per group |
| `train_perf/{mainloop_timings,workers_added_per_attempt}_{mean,…}` | seconds per look at the server; groups begun |
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from ludus.rl.group_filters import KeptGroup
from ludus.suspects import count_suspects
from ludus.trackers import Table
from ludus.types import Group, Message, Rollout

MAX_REASONING, MAX_ARGUMENTS, MAX_RESULT = 300, 200, 500
"""The longest texts of each kind in a readable rollout."""
MAX_ERRORS = 100
"""The longest table of tool errors."""


class WorkerMetrics:
    """What happened since the last `take`."""

    def __init__(self, shown: int, *, counts_tools: bool = True) -> None:
        self._shown = shown
        self._counts_tools = counts_tools
        """Whether tool errors are counted here. A file of another system logs its own."""
        self._clear()

    def _clear(self) -> None:
        self.sent = 0
        """Groups that the server took."""
        self._rejected: Counter[str] = Counter()
        self._lengths: list[int] = []
        self._row_lengths: list[int] = []
        self._rewards: list[float] = []
        self._suspects = 0
        self._lags: list[int] = []
        self._durations: dict[str, list[float]] = {}
        self._calls = 0
        self._errors: list[tuple[str | int, ...]] = []
        self._rollouts: list[tuple[str, float]] = []

    # ---- what happens ---------------------------------------------------------------------------------------------

    def add_group(self, group: Group, seconds: float) -> None:
        """A group has ended."""
        self.add_duration("task_duration", seconds)
        self.add_duration("succeeded_task_duration" if group.scored else "failed_task_duration", seconds)
        self._suspects += count_suspects(group.rollouts)
        self._rewards += [rollout.score.value for rollout in group.scored if rollout.score is not None]
        for rollout in group.rollouts:
            self._calls += sum(len(turn.results) for turn in rollout.turns)
            self._errors += [
                (rollout.task.id, each.turn, each.tool, _shorten(each.arguments, MAX_ARGUMENTS), each.error)
                for each in rollout.tool_errors
            ]

    def add_kept(self, kept: KeptGroup) -> None:
        """A group is about to be sent."""
        self._lengths += [sum(member.tokens.sampled) for member in kept.members]
        self._row_lengths += [len(member.tokens) for member in kept.members]
        best = max(kept.group.scored, key=lambda rollout: rollout.score.value if rollout.score else 0.0)
        if len(self._rollouts) < self._shown and best.score is not None:
            self._rollouts.append((format_rollout(best), best.score.value))

    def add_sent(self, lag: int) -> None:
        self.sent += 1
        self._lags.append(lag)

    def add_rejected(self, reason: str) -> None:
        self._rejected[reason] += 1

    def add_duration(self, name: str, value: float) -> None:
        self._durations.setdefault(name, []).append(value)

    # ---- values ---------------------------------------------------------------------------------------------------

    def take(self, row_tokens: int | None) -> dict[str, float | Table]:
        """The values of the step, by name. `row_tokens` is the longest row that is allowed."""
        values = dict(self._list_values(row_tokens))
        self._clear()
        return values

    def _list_values(self, row_tokens: int | None) -> Iterator[tuple[str, float | Table]]:
        yield "train/items_sent_to_api", self.sent
        yield "train/items_rejected", self._rejected.total()
        yield from ((f"train/rejected_{reason}", count) for reason, count in sorted(self._rejected.items()))
        if self._lengths:
            yield "train/completion_lengths", statistics.fmean(self._lengths)
            yield "train/completion_lengths_std", statistics.pstdev(self._lengths)
            yield "train/completion_lengths_max", max(self._lengths)
            yield "train/completion_lengths_min", min(self._lengths)
        if self._lengths and row_tokens:
            long = sum(length > 0.95 * row_tokens for length in self._row_lengths)
            yield "train/completion_lengths_p95", long / len(self._row_lengths)
        if self._rewards:
            yield "train/reward", statistics.fmean(self._rewards)
            yield "train/reward_std", statistics.pstdev(self._rewards)
        yield "train/suspects", self._suspects
        if self._lags:
            yield "train/policy_lag", statistics.fmean(self._lags)
        if self._counts_tools:
            yield "train/tool_errors_count", len(self._errors)
            yield "train/tool_error_rate", len(self._errors) / self._calls if self._calls else 0.0
        if self._errors:
            columns = ("task", "turn", "tool", "arguments", "error")
            yield "train/tool_error_details", Table(columns, tuple(self._errors[:MAX_ERRORS]))
        if self._rollouts:
            yield "train/rollouts", Table(("text", "score"), tuple(self._rollouts))
        for name, numbers in self._durations.items():
            yield from _summarize(f"train_perf/{name}", numbers)


def _summarize(name: str, numbers: Sequence[float]) -> Iterator[tuple[str, float]]:
    yield f"{name}_mean", statistics.fmean(numbers)
    yield f"{name}_std", statistics.pstdev(numbers)
    yield f"{name}_max", max(numbers)
    yield f"{name}_min", min(numbers)


# ---- readable rollouts --------------------------------------------------------------------------------------------


def format_rollout(rollout: Rollout) -> str:
    """A rollout as text, with the role before each message. Long parts are shortened."""
    return "\n".join(line for message in rollout.messages for line in _format_message(message))


def _format_message(message: Message) -> Iterator[str]:
    if message.role == "tool":
        yield f"[tool] {_shorten(message.content, MAX_RESULT)}"
        return
    if message.reasoning is not None and message.reasoning.text:
        yield f"[{message.role} thinking] {_shorten(message.reasoning.text, MAX_REASONING)}"
    if message.content:
        yield f"[{message.role}] {message.content}"
    for call in message.calls:
        yield f"[{message.role} calls {call.name}] {_shorten(call.arguments, MAX_ARGUMENTS)}"


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
