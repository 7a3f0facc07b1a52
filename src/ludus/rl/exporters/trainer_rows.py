"""Rows for trainers: TRL, verl, SkyRL, prime-rl, OpenRLHF and Tinker, with the field names of each.

Everything before the first sampled id of a row is its prompt. What follows is the completion (or response), with a mask
that is 1 where an id was sampled.
"""

from collections.abc import Iterator

from ludus.rl.exporters import ExportedGroup, JsonRow
from ludus.rl.group_filters import GroupMember
from ludus.rl.prompt_split import FILLER, split_prompt
from ludus.rl.tinker_data import build_datum
from ludus.types import Tokens


def export_trl(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One sample of TRL's `rollout_func`. Further keys go to its reward functions."""
    for member in exported.members:
        row = split_prompt(member.tokens)
        yield {
            "prompt_ids": row.prompt,
            "completion_ids": row.completion,
            "logprobs": row.logprobs,
            "env_mask": row.mask,
            **exported.describe(member),
        }


def export_verl(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One `AgentLoopOutput` of verl."""
    for member in exported.members:
        row = split_prompt(member.tokens)
        yield {
            "prompt_ids": row.prompt,
            "response_ids": row.completion,
            "response_mask": row.mask,
            "response_logprobs": row.logprobs,
            "reward_score": member.score,
            "num_turns": len(member.rollout.messages),
            "metrics": {"generate_sequences": member.rollout.seconds, "tool_calls": _sum_tool_seconds(member)},
            "extra_fields": exported.describe(member),
        }


def _sum_tool_seconds(member: GroupMember) -> float:
    return sum(result.seconds for turn in member.rollout.turns for result in turn.results)


def export_skyrl(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One `GeneratorOutput` of SkyRL for the whole group. Several rows of one rollout are its steps."""
    members = exported.members
    rows = [split_prompt(member.tokens) for member in members]
    following = [*(member.replicate for member in members[1:]), None]
    yield {
        "prompt_token_ids": [row.prompt for row in rows],
        "response_ids": [row.completion for row in rows],
        "rewards": [member.score for member in members],
        "loss_masks": [row.mask for row in rows],
        "stop_reasons": [member.rollout.stop.value for member in members],
        "rollout_metrics": None,
        "rollout_logprobs": [row.logprobs for row in rows],
        "trajectory_ids": [
            {"instance_id": member.rollout.task.id, "repetition_id": member.replicate} for member in members
        ],
        "is_last_step": [member.replicate != next for member, next in zip(members, following, strict=True)],
        "env_metrics": [exported.describe(member) for member in members],
    }


def export_prime(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One `TrainingSample` of prime-rl, as an object. (On its own wire it is an array of these fields.)"""
    for member in exported.members:
        row = split_prompt(member.tokens)
        yield {
            "prompt_ids": row.prompt,
            "prompt_mask": [False] * len(row.prompt),
            "completion_ids": row.completion,
            "completion_mask": [bool(sampled) for sampled in row.mask],
            "completion_logprobs": row.logprobs,
            **exported.describe(member),
        }


def export_openrlhf(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One response of an agent executor of OpenRLHF: the ids, and the ranges that were sampled."""
    for member in exported.members:
        tokens = member.tokens
        described = exported.describe(member)
        yield {
            "prompt": member.rollout.task.prompt,
            "label": "",
            "observation_tokens": list(tokens.ids),
            "action_ranges": find_ranges(tokens),
            "rollout_log_probs": [FILLER if value is None else value for value in tokens.logprobs],
            "scores": member.score,
            "extra_logs": {"advantage": described["advantage"]},
            **described,
        }


def find_ranges(tokens: Tokens) -> list[list[int]]:
    """The ranges of sampled ids: the first, and the one after the last."""
    ranges: list[list[int]] = []
    for place, sampled in enumerate(tokens.sampled):
        if sampled and ranges and ranges[-1][1] == place:
            ranges[-1][1] = place + 1
        elif sampled:
            ranges.append([place, place + 1])
    return ranges


def export_tinker(exported: ExportedGroup) -> Iterator[JsonRow]:
    """One `Datum` of Tinker, as its API has it. Rows of a single id have nothing to predict and are left out."""
    for member in exported.members:
        if len(member.tokens) < 2:
            continue
        datum = build_datum(member.tokens, exported.advantages[member.replicate])
        inputs = {
            "target_tokens": ("int64", datum.target_tokens),
            "logprobs": ("float32", datum.logprobs),
            "advantages": ("float32", datum.advantages),
        }
        yield {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": datum.model_input}]},
            "loss_fn_inputs": {
                name: {"data": data, "dtype": kind, "shape": [len(data)]} for name, (kind, data) in inputs.items()
            },
            **exported.describe(member),
        }
