"""Training data in the forms of other systems. An exporter is a pure function: a group ──> rows of plain JSON values.

`trainer_rows` has the RL formats: they are made of the exact ids that were sampled, and refuse rollouts of chat mode.
`chat_data` has the chat formats for supervised fine-tuning and preferences: they are made of messages, and take both.
`selection` decides which rollouts are imitated, and `tool_list` finds the definitions of their tools.
`export_files` writes rows to files.

Every row says where it comes from: task, replicate, split, stage, policy and skill. In RL formats it also has the
reward of its rollout, and its advantage, which is computed over the rollouts of the group: a rollout whose history
branched has several rows and counts once. Trainers that compute advantages themselves take the mean over rows; for them
export one row of each rollout (`branches` is `longest`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ludus.rl.advantages import compute_advantages
from ludus.rl.group_filters import GroupMember, list_members, pick_longest
from ludus.rl.row_checks import RowReport, Vocabulary
from ludus.rl.worker_settings import BranchPolicy
from ludus.types import Group, Rollout, ToolSpec

JsonRow = dict[str, Any]


class GroupSource(Struct, frozen=True):
    """Where a group comes from."""

    split: str
    stage: str = ""
    """The stage of a training run; empty for other runs."""


class ExportedGroup(Struct, frozen=True, kw_only=True):
    """A group with its rows, for an RL format."""

    group: Group
    source: GroupSource
    members: tuple[GroupMember, ...]
    advantages: Mapping[int, float]
    """By replicate."""

    def describe(self, member: GroupMember) -> JsonRow:
        """Where a row comes from, and what its rollout was worth."""
        return {
            "reward": member.score,
            "advantage": self.advantages[member.replicate],
            **describe_source(self.group.rollouts[0], self.source),
            "replicate": member.replicate,
        }


RowExporter = Callable[[ExportedGroup], Iterator[JsonRow]]
ChatExporter = Callable[[Rollout, Sequence[ToolSpec], GroupSource], JsonRow]


def describe_source(rollout: Rollout, source: GroupSource) -> JsonRow:
    """Where a rollout comes from. Policy and skill are the same in its whole group."""
    provenance = rollout.provenance
    return {
        "task": rollout.task.id,
        "split": source.split,
        "stage": source.stage,
        "policy": provenance.policy,
        "skill": provenance.skill,
    }


def collect_rows(
    group: Group, source: GroupSource, vocabulary: Vocabulary = Vocabulary(), branches: BranchPolicy = "rows"
) -> tuple[ExportedGroup | None, RowReport]:
    """The rows of a group that may be trained on, and a report on all. None if there is no such row.

    Raises:
        NotExact: a rollout was run in chat mode.
    """
    members, report = list_members(group, vocabulary)
    if branches == "longest":
        members = pick_longest(members)
    if not members:
        return None, report
    advantages = compute_advantages({member.replicate: member.score for member in members}, "std")
    return ExportedGroup(group=group, source=source, members=tuple(members), advantages=advantages), report
