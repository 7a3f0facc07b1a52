"""Kept groups as the JSON that is posted to a trajectory server.

A group without branches is one wire group with one row for each rollout; the trainer centres its scores. Where a
rollout has several rows, centring over rows would count it several times. Then every row is a wire group of its own,
whose score is the advantage of its rollout, centred and scaled over the rollouts of the group. Atropos' example trainer
takes the score of a group of one row as its advantage, as it is. Trainers that read `advantages` find the same number
on every sampled id.

The version of the policy is in `generation_params.policy_version`: the wire has no field for it, and passes that object
through unchanged.
"""

from typing import Any

from ludus.chat_form import write_message
from ludus.rl.advantages import compute_advantages
from ludus.rl.group_filters import GroupMember, KeptGroup
from ludus.rl.row_checks import NO_LOGPROB, NOT_TRAINED
from ludus.types import Sampling


def build_wire_groups(kept: KeptGroup, version: int, *, messages: bool = True) -> list[dict[str, Any]]:
    """The wire groups of a kept group, without the id of the worker."""
    params = _list_params(kept.members[0].rollout.provenance.sampling, version)
    if not kept.branched:
        return [_build_wire_group(list(kept.members), params, messages=messages)]
    advantages = compute_advantages(kept.scores, "std")
    return [
        {
            **_build_wire_group([member], params, messages=messages),
            "scores": [advantages[member.replicate]],
            "advantages": [_spread(member, advantages[member.replicate])],
            "overrides": [{**_list_overrides(member), "replicate": member.replicate, "reward": member.score}],
        }
        for member in kept.members
    ]


def _build_wire_group(members: list[GroupMember], params: dict[str, Any], *, messages: bool) -> dict[str, Any]:
    return {
        "tokens": [list(member.tokens.ids) for member in members],
        "masks": [_build_mask(member) for member in members],
        "scores": [member.score for member in members],
        "inference_logprobs": [_fill_logprobs(member) for member in members],
        "messages": [[write_message(m) for m in member.rollout.messages] for member in members] if messages else None,
        "generation_params": params,
        "overrides": [_list_overrides(member) for member in members] if any(m.masked for m in members) else None,
        "advantages": None,
        "ref_logprobs": None,
        "group_overrides": None,
        "images": None,
        "distill_token_ids": None,
        "distill_logprobs": None,
    }


def _list_params(sampling: Sampling, version: int) -> dict[str, Any]:
    """How the rows were sampled, as trainers read it."""
    named = {name: getattr(sampling, name) for name in ("temperature", "top_p", "max_tokens")}
    return {**{name: value for name, value in named.items() if value is not None}, "policy_version": version}


def _list_overrides(member: GroupMember) -> dict[str, Any]:
    return {"set_advantage_to_zero": True} if member.masked else {}


def _build_mask(member: GroupMember) -> list[int]:
    pairs = zip(member.tokens.ids, member.tokens.sampled, strict=True)
    return [id if sampled else NOT_TRAINED for id, sampled in pairs]


def _fill_logprobs(member: GroupMember) -> list[float]:
    return [NO_LOGPROB if value is None else value for value in member.tokens.logprobs]


def _spread(member: GroupMember, advantage: float) -> list[float]:
    """The advantage on every sampled id."""
    return [advantage if sampled and not member.masked else 0.0 for sampled in member.tokens.sampled]
