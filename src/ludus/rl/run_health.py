"""What went wrong in an RL run that ended without an error: pure functions over its records.

A run can take all its steps and still have nothing to show for it: no reward ever, no group from which anything can be
learned, or a policy that is worse than at the start. Such a run says so, and its command ends with exit code 1.
"""

from collections.abc import Sequence

from ludus.rl.records import RlStep, find_best_step

_SOME = 3
"""Steps before a run is judged: the first ones may have had bad luck."""


def find_troubles(records: Sequence[RlStep]) -> list[str]:
    """What is wrong with a run, in sentences with what to do. Empty: nothing."""
    updates = [record for record in records if record.step]
    if len(updates) < _SOME:
        return []
    if decline := _find_decline(records):
        return [decline]
    return [trouble for trouble in (_find_no_learning(updates), _find_loss(updates)) if trouble]


def _find_no_learning(updates: Sequence[RlStep]) -> str:
    rewards = [record.reward for record in updates if record.reward is not None]
    if not rewards:
        return "no rollout has a score, so nothing was learned: see the failures with `ludus show RUN`"
    if not any(rewards):
        return (
            "every reward was 0, so nothing was learned: the tasks are too hard for this policy, or the environment "
            "pays nothing. Look at a rollout (`ludus show RUN TASK`), and try the environment: ludus validate ENV"
        )
    if any(record.rows for record in updates):
        return ""
    return (
        "no update was made: the scores of each group were all equal, or its rows were dropped. Use tasks that the "
        "policy solves at times, or a larger rl.group_size"
    )


def _find_decline(records: Sequence[RlStep]) -> str:
    held = [(record.step, record.held_out) for record in records if record.held_out is not None]
    if len(held) < 2:
        return ""
    (_, first), (_, last) = held[0], held[-1]
    if first.interval is None or last.interval is None or last.interval.high >= first.interval.low:
        return ""
    return (
        f"the policy got worse: {last.split} {first.mean:.3f} at first, {last.mean:.3f} in the end. "
        f"{_describe_best(records)} Lower trainer.learning_rate, or set trainer.kl"
    )


def _describe_best(records: Sequence[RlStep]) -> str:
    """Which weights to use after a decline."""
    best = find_best_step(records)
    if best is None or not best.step:
        return "No checkpoint is better than the weights that it began with: use none of them."
    return f"The best score was at step {best.step}."


def _find_loss(updates: Sequence[RlStep]) -> str:
    rewards = [(record.step, record.reward) for record in updates if record.reward is not None]
    paid = [step for step, reward in rewards if reward]
    if not paid or any(reward for _, reward in rewards[-_SOME:]):
        return ""
    return (
        f"the reward fell to 0: the last step with any was {paid[-1]}. Lower trainer.learning_rate, or set trainer.kl"
    )
