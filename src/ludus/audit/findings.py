"""What an audit has found: pure functions from the outcomes of its arms to problems of tasks.

An arm is one way to behave that solves nothing, or the environment's own reference. A task is sound if the reference
always passes, doing nothing never scores, both score the same each time, and no attack is paid more than doing nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

ArmKind = Literal["reference", "nothing", "attack", "guess"]
GUESS_MARGIN = 0.2
"""The best guess is a problem if its mean is this far above doing nothing."""


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What one rollout of an arm came to."""

    arm: str
    kind: ArmKind
    task: str
    value: float | None = None
    """The score; None if there is none."""
    passed: bool = False
    suspect: tuple[str, ...] = ()
    """Why the verifier did not believe it."""
    forged: bool = False
    problem: str = ""
    """Why there is no score."""


class Paid(Struct, frozen=True):
    """An attack that earned something."""

    attack: str
    value: float
    counts_on: str = ""


class TaskAudit(Struct, frozen=True, kw_only=True):
    """What was found about one task."""

    task: str
    reference: tuple[float, ...] = ()
    nothing: tuple[float, ...] = ()
    attacks: int = 0
    """How many attacks were tried."""
    paid: tuple[Paid, ...] = ()
    noticed: tuple[str, ...] = ()
    """Attacks that the verifier noticed."""
    problems: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.paid and not self.problems


class Guess(Struct, frozen=True):
    """What the best constant answer earns."""

    answer: str
    mean: float


class AuditReport(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    env: str
    version: str
    split: str
    attacks: tuple[str, ...]
    tasks: tuple[TaskAudit, ...]
    guess: Guess | None = None
    checks: tuple[str, ...] = ()
    """What `ludus validate` finds wrong with the environment."""
    notes: tuple[str, ...] = ()

    @property
    def paid(self) -> int:
        """How many attacks were paid on at least one task."""
        return len({each.attack for task in self.tasks for each in task.paid})

    @property
    def ok(self) -> bool:
        return all(task.sound for task in self.tasks) and not self.checks and not self.is_guessable

    @property
    def words(self) -> str:
        """What the audit came to, in one line."""
        unsound = sum(not task.sound for task in self.tasks)
        noticed = len({name for task in self.tasks for name in task.noticed})
        verdict = "sound" if self.ok else "NOT sound"
        return (
            f"{verdict}: {self.paid} of {len(self.attacks)} attacks paid, {noticed} noticed; "
            f"{unsound} of {len(self.tasks)} tasks have a problem"
        )

    @property
    def is_guessable(self) -> bool:
        if self.guess is None:
            return False
        scores = [value for task in self.tasks for value in task.nothing]
        nothing = sum(scores) / len(scores) if scores else 0.0
        return self.guess.mean > nothing + GUESS_MARGIN


def judge_task(task: str, outcomes: Sequence[Outcome], counts_on: Mapping[str, str], leaks: str = "") -> TaskAudit:
    """The verdict on a task. `counts_on`: what each attack counts on. `leaks`: where its answer can be found."""
    reference = tuple(_list_values(outcomes, "reference"))
    nothing = tuple(_list_values(outcomes, "nothing"))
    floor = max(nothing, default=0.0)
    attacks = [each for each in outcomes if each.kind == "attack"]
    paid = tuple(
        Paid(each.arm, each.value, counts_on.get(each.arm, ""))
        for each in attacks
        if each.value is not None and each.value > floor and not each.suspect
    )
    return TaskAudit(
        task=task,
        reference=reference,
        nothing=nothing,
        attacks=len(attacks),
        paid=paid,
        noticed=tuple(each.arm for each in attacks if each.forged or each.suspect),
        problems=tuple(_list_problems(outcomes, reference, nothing, leaks)),
    )


def _list_problems(
    outcomes: Sequence[Outcome], reference: Sequence[float], nothing: Sequence[float], leaks: str
) -> Iterable[str]:
    passed = [each.passed for each in outcomes if each.kind == "reference" and each.value is not None]
    if len(set(reference)) > 1:
        yield f"the reference is flaky: it scored {_write_values(reference)}"
    elif not all(passed):
        yield f"the reference does not pass: it scored {_write_values(reference)}"
    if len(set(nothing)) > 1:
        yield f"doing nothing is flaky: it scored {_write_values(nothing)}"
    elif any(nothing):
        yield f"doing nothing scores {nothing[0]:g}: the tests pass on the first state"
    if leaks:
        yield leaks
    broken = [each for each in outcomes if each.problem]
    if broken:
        first = broken[0]
        yield f"{len(broken)} of {len(outcomes)} rollouts have no score, the first ({first.arm}): {first.problem}"


def _list_values(outcomes: Iterable[Outcome], kind: ArmKind) -> Iterable[float]:
    return (each.value for each in outcomes if each.kind == kind and each.value is not None)


def _write_values(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def find_best_guess(outcomes: Iterable[Outcome]) -> Guess | None:
    """The constant with the highest mean; None if no guess was tried."""
    scores: dict[str, list[float]] = {}
    for each in outcomes:
        if each.kind == "guess" and each.value is not None:
            scores.setdefault(each.arm, []).append(each.value)
    means = {arm: sum(values) / len(values) for arm, values in scores.items()}
    best = max(means, key=lambda arm: means[arm], default=None)
    return None if best is None else Guess(best, means[best])
