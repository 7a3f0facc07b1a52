"""Which rows of a group go to the trainer. Everything here is a pure function of the group and the rules.

    Group ──> checked rows ──> partial? too long? branched? equal scores? ──> KeptGroup | DroppedGroup

A group is dropped as a whole, with a reason, or kept with its rows. A rollout whose history branched has several rows.
They share its score and its advantage, which is computed over rollouts and never over rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from ludus.rl.row_checks import RowFinding, RowReport, Vocabulary, check_rollout
from ludus.rl.worker_settings import BranchPolicy, LengthPolicy, PartialPolicy
from ludus.types import Group, Rollout, Tokens

DropReason = Literal["partial", "too_long", "equal_scores", "no_rows"]


@dataclass(frozen=True)
class GroupRules:
    """The rules by which groups are kept, dropped and cut."""

    row_tokens: int | None = None
    """The longest row; None: no limit."""
    too_long: LengthPolicy = "group"
    equal_scores: PartialPolicy = "drop"
    partial: PartialPolicy = "drop"
    branches: BranchPolicy = "rows"


class GroupMember(Struct, frozen=True):
    """One row of a group, and the rollout that it belongs to."""

    rollout: Rollout
    tokens: Tokens
    masked: bool = False
    """It was cut, and must give no gradient."""

    @property
    def replicate(self) -> int:
        return self.rollout.provenance.replicate

    @property
    def score(self) -> float:
        assert self.rollout.score is not None
        return self.rollout.score.value


class KeptGroup(Struct, frozen=True, kw_only=True):
    """The rows of a group that are sent, in the order of their rollouts."""

    group: Group
    members: tuple[GroupMember, ...]
    findings: tuple[RowFinding, ...] = ()
    """What was found about the rows. Rows with a fatal finding are not among the members."""

    @property
    def scores(self) -> dict[int, float]:
        """The score of each rollout that has a row, by replicate."""
        return {member.replicate: member.score for member in self.members}

    @property
    def branched(self) -> bool:
        """Whether a rollout has several rows."""
        return len(self.scores) < len(self.members)


class DroppedGroup(Struct, frozen=True):
    """A group that is not sent."""

    group: Group
    reason: DropReason
    message: str


def filter_group(group: Group, rules: GroupRules, vocabulary: Vocabulary = Vocabulary()) -> KeptGroup | DroppedGroup:
    """Apply the rules to a group.

    Raises:
        NotExact: a rollout was run in chat mode, so that it is no data for RL.
    """
    members, report = list_members(group, vocabulary)
    if (found := _count_rollouts(members)) < group.size and rules.partial == "drop":
        return DroppedGroup(group, "partial", f"{group.size - found} of {group.size} rollouts have no score or no row")
    limit = rules.row_tokens
    if limit is not None and any(len(member.tokens) > limit for member in members):
        longest = max(len(member.tokens) for member in members)
        if rules.too_long == "group":
            return DroppedGroup(group, "too_long", f"a row has {longest} tokens; {limit} are allowed")
        before = _count_rollouts(members)
        members = _shorten(members, limit, rules.too_long)
        if _count_rollouts(members) < before and rules.partial == "drop":
            return DroppedGroup(group, "too_long", f"a rollout has no row within {limit} tokens")
    if rules.branches == "longest":
        members = pick_longest(members)
    if not members:
        return DroppedGroup(group, "no_rows", "no rollout has a row that can be trained on")
    if rules.equal_scores == "drop" and len({member.score for member in members}) == 1:
        return DroppedGroup(group, "equal_scores", f"all scores are {members[0].score}")
    return KeptGroup(group=group, members=tuple(members), findings=tuple(report.findings))


def list_members(group: Group, vocabulary: Vocabulary = Vocabulary()) -> tuple[list[GroupMember], RowReport]:
    """The rows of a group that may be trained on, and a report on all. A row without a sampled id has nothing to train.

    Raises:
        NotExact: a rollout was run in chat mode.
    """
    members: list[GroupMember] = []
    report = RowReport(groups=1)
    for rollout in group.scored:
        rows, own = check_rollout(rollout, vocabulary)
        members += [GroupMember(rollout, row.tokens) for row in rows if any(row.tokens.sampled)]
        report.merge(own)
    return members, report


def _count_rollouts(members: Sequence[GroupMember]) -> int:
    return len({member.replicate for member in members})


def _shorten(members: Sequence[GroupMember], limit: int, policy: LengthPolicy) -> list[GroupMember]:
    """The rows within the limit. A row that is cut before its first sampled id is dropped: nothing is left to train."""
    if policy == "row":
        return [member for member in members if len(member.tokens) <= limit]
    cut = [
        member
        if len(member.tokens) <= limit
        else msgspec.structs.replace(member, tokens=cut_tokens(member.tokens, limit), masked=policy == "mask")
        for member in members
    ]
    return [member for member in cut if any(member.tokens.sampled)]


def cut_tokens(tokens: Tokens, limit: int) -> Tokens:
    """The first ids of a row. What is left was sampled in exactly that context, so it stays exact."""
    return Tokens(tokens.ids[:limit], tokens.sampled[:limit], tokens.logprobs[:limit])


def pick_longest(members: Sequence[GroupMember]) -> list[GroupMember]:
    """Of each rollout the row with the most sampled ids; the first of equals."""
    best: dict[int, GroupMember] = {}
    for member in members:
        other = best.get(member.replicate)
        if other is None or sum(member.tokens.sampled) > sum(other.tokens.sampled):
            best[member.replicate] = member
    return list(best.values())
