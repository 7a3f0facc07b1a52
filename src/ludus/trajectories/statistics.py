"""The statistics of a batch: tools, thinking, how trajectories ended. Pure, one trajectory after the other.

A tool that was offered and never called is in the table with zeros. A call succeeds if its result is no error: what the
model did wrong, an exception in the tool, and a time-out are errors; a command that ends with another exit code than 0
is not.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from ludus.stats import ToolUse
from ludus.trajectories.filters import has_reasoning
from ludus.types import Rollout, Usage

STATISTICS = "statistics.json"


class ReasoningCount(Struct, frozen=True):
    """How many replies have thinking."""

    turns: int = 0
    with_reasoning: int = 0
    rollouts_without: int = 0
    """Trajectories in which no reply has any."""

    @property
    def share(self) -> float | None:
        return self.with_reasoning / self.turns if self.turns else None


class BatchStatistics(Struct, frozen=True, kw_only=True):
    """The numbers of a batch, written as `statistics.json`. `schema` is raised when a field changes its meaning."""

    schema: int = 1
    rows: int
    """Rows of the file that are run, times the rollouts of each."""
    bad_rows: int
    repeated_rows: int
    rollouts: int
    """Those that have ended."""
    written: int
    """Trajectories in the shards."""
    dropped: Mapping[str, int]
    """Trajectories that are not, by filter; `failed`: rollouts that the world broke."""
    failures: Mapping[str, int]
    """Failed rollouts by the boundary that failed."""
    checked: int
    passed: int
    mean: float | None
    """The mean score; None if nothing was checked."""
    tools: tuple[ToolUse, ...]
    reasoning: ReasoningCount
    toolsets: Mapping[str, int]
    """How many rollouts had each toolset."""
    stops: Mapping[str, int]
    usage: Usage
    left_over: int = 0
    """Rollouts in the store whose rows are no longer in the file. They are not in the shards."""


@dataclass
class StatisticsCounter:
    """Counts rollouts as they are read. Those that are dropped count, too: the numbers describe the run."""

    rollouts: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    checked: int = 0
    passed: int = 0
    total: float = 0.0
    """Of all scores."""
    calls: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    toolsets: Counter[str] = field(default_factory=Counter[str])
    stops: Counter[str] = field(default_factory=Counter[str])
    reasoning: ReasoningCount = ReasoningCount()
    usage: Usage = Usage()

    def add(self, rollout: Rollout) -> None:
        self.rollouts += 1
        self.stops[rollout.stop.value] += 1
        self.toolsets.update(rollout.provenance.toolsets)
        self.usage += rollout.usage
        if rollout.failure is not None:
            self.failures[rollout.failure.boundary] += 1
            return
        if rollout.score is not None:
            self.checked += 1
            self.passed += rollout.score.passed
            self.total += rollout.score.value
        self.calls.update(dict.fromkeys(rollout.provenance.tools, 0))
        for turn in rollout.turns:
            self.calls.update(result.call.name for result in turn.results)
            self.errors.update(result.call.name for result in turn.results if result.error)
        self._add_reasoning(rollout)

    def _add_reasoning(self, rollout: Rollout) -> None:
        found, before = sum(has_reasoning(turn.completion.message) for turn in rollout.turns), self.reasoning
        self.reasoning = ReasoningCount(
            before.turns + len(rollout.turns),
            before.with_reasoning + found,
            before.rollouts_without + (not found),
        )

    def list_tools(self) -> tuple[ToolUse, ...]:
        """The tools, the most used first."""
        ranked = sorted(self.calls.items(), key=lambda item: (-item[1], item[0]))
        return tuple(ToolUse(tool, calls, self.errors[tool]) for tool, calls in ranked)
