"""A proposer without a model: worked examples and rules, out of rollouts and what the verifier knows.

    a failure whose task has a reference in words ──> an example: what was asked, and the reference
    a success                                     ──> an example: what was asked, and what the agent answered
    a form that all right answers share           ──> a rule, if failed answers break it

Examples that are least like those at hand come first, and near-duplicates not at all. There is a cap on their number:
past it a failure's example takes the place of the one that most resembles another. Everything proposed is an edit like
any other, with the tasks it comes from as its evidence, within the run's budget and judged by the gate.

It sees train rollouts only, as every proposer does, keeps nothing between steps, and proposes the same for the same
rollouts and seed. Where an agent used tools the answer alone does not show how, so no example is made of it. References
are used only where the run lets analysts see them (`show_reference`).
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from msgspec.structs import replace

from ludus.reflact.items import Item, credited
from ludus.reflact.lab import succeeded
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.proposers.answer_forms import shared_form
from ludus.reflact.records import Pattern, Reflection
from ludus.skill import Edit, Skill, Source, without_markers
from ludus.skill_examples import Example, parse, render
from ludus.types import Rollout


@dataclass(frozen=True)
class Exemplars(Proposer):
    """Worked examples and rules, without any model."""

    name: ClassVar[str] = "exemplars"

    most: int = 12
    """Examples that a skill may have."""
    chars: int = 1_200
    """How long an example may be, question and answer together."""
    alike: float = 0.7
    """Share of common words from which two examples are near-duplicates."""

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.version}/{self.most}/{self.chars}/{self.alike}"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        settings = view.settings
        judged = [rollout async for rollout in rollouts if rollout.score is not None]
        Random(f"{settings.seed}/{view.epoch}/{view.step}/{batch}").shuffle(judged)
        passed = [rollout for rollout in judged if succeeded(rollout, settings.success_at)]
        failed = [rollout for rollout in judged if not succeeded(rollout, settings.success_at)]
        reflections = [self._reflection(view, "failure", failed, _rules(view, failed, passed))]
        if not settings.failure_only:
            reflections.append(self._reflection(view, "success", passed, ()))
        return tuple(reflection for reflection in reflections if reflection.tasks)

    def _reflection(self, view: View, source: Source, rollouts: Sequence[Rollout], rules: Sequence[Edit]) -> Reflection:
        """What rollouts of one kind teach: rules, then examples, no more than one analyst may propose."""
        drafts = [(rollout, draft) for rollout in rollouts if (draft := self._example(view, source, rollout))]
        order = spread([draft for _, draft in drafts], parse(view.skill.text), self.alike)
        examples = [
            credited(Edit("append", render(draft)), source, [rollout.task.id])
            for rollout, draft in (drafts[place] for place in order)
        ]
        items = [*rules, *examples]
        budget = view.settings.edit_budget
        return Reflection(
            source,
            tuple(rollout.task.id for rollout in rollouts),
            tuple(items[:budget]),
            tuple(Pattern("not in the form of right answers", rule.content, rule.evidence) for rule in rules),
            cut=len(items[budget:]),
        )

    def _example(self, view: View, source: Source, rollout: Rollout) -> Example | None:
        """A rollout as a worked example; None if it does not make one."""
        output = _right_answer(view, source, rollout)
        asked = rollout.task.prompt.strip()
        if not output or not asked or len(asked) + len(output) > self.chars or _used_tools(rollout):
            return None
        example = Example(asked, output)
        return example if without_markers(render(example)) == render(example) else None

    async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> tuple[Item, ...]:
        """Rules, then examples that fit the cap, then exchanges."""
        edits = [item for item in await super().aggregate(view, reflections) if isinstance(item, Edit)]
        rules = [edit for edit in edits if not parse(edit.content)]
        known = parse(view.skill.text)
        examples: list[Edit] = []
        for of_success in (False, True):
            drafts = [edit for edit in edits if (edit.source == "success") is of_success and edit not in rules]
            taken = [*known, *(parse(edit.content)[0] for edit in examples)]
            examples += [drafts[n] for n in spread([parse(d.content)[0] for d in drafts], taken, self.alike)]
        free = max(0, self.most - len(known))
        lacking = [edit for edit in examples[free:] if edit.source != "success"]
        exchanges = zip(lacking, replaceable(view.skill), strict=False)
        return (
            *rules,
            *examples[:free],
            *(replace(edit, op="replace", target=render(old)) for edit, old in exchanges),
        )

    async def select(self, view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
        """The first ones: they are in order."""
        return tuple(range(min(budget, len(items))))


def _rules(view: View, failed: Sequence[Rollout], passed: Sequence[Rollout]) -> tuple[Edit, ...]:
    """The form that right answers share, unless the skill has it, this epoch tried it, or no failure breaks it."""
    answers = [_right_answer(view, "failure", rollout) for rollout in failed]
    answers += [_right_answer(view, "success", rollout) for rollout in passed]
    form = shared_form([answer for answer in answers if answer])
    if form is None or form.rule in view.skill.text or form.rule in view.history:
        return ()
    breaking = tuple(rollout.task.id for rollout in failed if not form.kept_by(rollout.answer.strip()))
    return (Edit("append", form.rule, support=len(breaking), evidence=breaking),) if breaking else ()


def _right_answer(view: View, source: Source, rollout: Rollout) -> str:
    """The answer that is known to be right: the agent's own, or the reference if the run shows it; empty if none is."""
    if source == "success":
        return rollout.answer.strip()
    reference = rollout.task.answer
    return reference.strip() if view.settings.show_reference and isinstance(reference, str) else ""


def _used_tools(rollout: Rollout) -> bool:
    return any(turn.completion.message.calls for turn in rollout.turns)


# ---- likeness -----------------------------------------------------------------------------------------------------


def spread(candidates: Sequence[Example], known: Sequence[Example], alike: float) -> list[int]:
    """The places of the candidates, those least like the known and the chosen ones first, without near-duplicates."""
    words = [_words(candidate) for candidate in candidates]
    nearest = [max((likeness(own, _words(other)) for other in known), default=0.0) for own in words]
    chosen: list[int] = []
    while fresh := [place for place, near in enumerate(nearest) if near < alike and place not in chosen]:
        first = min(fresh, key=nearest.__getitem__)
        chosen.append(first)
        nearest = [max(near, likeness(own, words[first])) for near, own in zip(nearest, words, strict=True)]
    return chosen


def replaceable(skill: Skill) -> list[Example]:
    """The examples of a skill that an edit can name, the one that most resembles another first."""
    examples = parse(skill.text)

    def closest(place: int) -> float:
        others = (other for n, other in enumerate(examples) if n != place)
        return max((likeness(_words(examples[place]), _words(other)) for other in others), default=0.0)

    order = sorted(range(len(examples)), key=lambda place: -closest(place))
    return [examples[place] for place in order if skill.text.count(render(examples[place])) == 1]


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of words that two sets have in common."""
    return len(one & other) / len(one | other) if one | other else 1.0


def _words(example: Example) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", f"{example.input} {example.output}".casefold()))
