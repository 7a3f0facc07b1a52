"""A proposer without a model: worked examples and rules, made from rollouts and reference answers.

    a failure whose task has a reference in words ──> an example: the question and the reference
    a success                                     ──> an example: the question and the agent's answer
    a form that all right answers share           ──> a rule, if failed answers break it

Examples that differ most from those in the skill come first. Near-duplicates are left out. The number of examples is
limited: above the limit, a failure's example replaces the example that is most similar to another. Every proposal is an
ordinary edit. Its evidence are the tasks it comes from; the run's budget and the gate apply to it.

Like every proposer it sees train rollouts only. It keeps nothing between steps, and proposes the same for the same
rollouts and seed. If the agent used tools, its answer alone does not show how, so no example is made of it. References
are used only if the run shows them to analysts (`show_reference`).
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from msgspec.structs import replace

from ludus.reflact.items import Item, credit_item
from ludus.reflact.measure import is_success
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.proposers.answer_forms import find_shared_form
from ludus.reflact.records import Pattern, Reflection
from ludus.reflact.train_settings import ExemplarsSettings
from ludus.skill import Edit, Skill, Source, remove_markers
from ludus.skill_examples import Example, parse_examples, render_example
from ludus.types import Rollout


@dataclass(frozen=True)
class Exemplars(Proposer):
    """Proposes worked examples and rules, without any model."""

    name: ClassVar[str] = "exemplars"

    settings: ExemplarsSettings = ExemplarsSettings()

    @property
    def identity(self) -> str:
        settings = self.settings
        return f"{self.name}@{self.version}/{settings.most}/{settings.chars}/{settings.alike}"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        settings = view.settings
        judged = [rollout async for rollout in rollouts if rollout.score is not None]
        Random(f"{settings.seed}/{view.epoch}/{view.step}/{batch}").shuffle(judged)
        passed = [rollout for rollout in judged if is_success(rollout, settings.success_at)]
        failed = [rollout for rollout in judged if not is_success(rollout, settings.success_at)]
        reflections = [self._make_reflection(view, "failure", failed, _propose_rules(view, failed, passed))]
        if not settings.failure_only:
            reflections.append(self._make_reflection(view, "success", passed, ()))
        return tuple(reflection for reflection in reflections if reflection.tasks)

    def _make_reflection(
        self, view: View, source: Source, rollouts: Sequence[Rollout], rules: Sequence[Edit]
    ) -> Reflection:
        """Rules, then examples, from rollouts of one source: at most `edit_budget` of them."""
        drafts = [(rollout, draft) for rollout in rollouts if (draft := self._make_example(view, source, rollout))]
        order = order_by_difference(
            [draft for _, draft in drafts], parse_examples(view.skill.text), self.settings.alike
        )
        examples = [
            credit_item(Edit("append", render_example(draft)), source, [rollout.task.id])
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

    def _make_example(self, view: View, source: Source, rollout: Rollout) -> Example | None:
        """Make a worked example of a rollout; None if that is not possible."""
        output = _find_right_answer(view, source, rollout)
        question = rollout.task.prompt.strip()
        if not output or not question or len(question) + len(output) > self.settings.chars or _has_tool_calls(rollout):
            return None
        example = Example(question, output)
        return example if remove_markers(render_example(example)) == render_example(example) else None

    async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> tuple[Item, ...]:
        """Rules, then examples within the limit, then replacements of examples."""
        edits = [item for item in await super().aggregate(view, reflections) if isinstance(item, Edit)]
        rules = [edit for edit in edits if not parse_examples(edit.content)]
        known = parse_examples(view.skill.text)
        examples: list[Edit] = []
        for from_success in (False, True):
            drafts = [edit for edit in edits if (edit.source == "success") is from_success and edit not in rules]
            taken = [*known, *(parse_examples(edit.content)[0] for edit in examples)]
            examples += [
                drafts[n]
                for n in order_by_difference([parse_examples(d.content)[0] for d in drafts], taken, self.settings.alike)
            ]
        free = max(0, self.settings.most - len(known))
        left_over = [edit for edit in examples[free:] if edit.source != "success"]
        replacements = zip(left_over, list_replaceable(view.skill), strict=False)
        return (
            *rules,
            *examples[:free],
            *(replace(edit, op="replace", target=render_example(old)) for edit, old in replacements),
        )

    async def select(self, view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
        """The first items: they are in order already."""
        return tuple(range(min(budget, len(items))))


def _propose_rules(view: View, failed: Sequence[Rollout], passed: Sequence[Rollout]) -> tuple[Edit, ...]:
    """The form that right answers share, unless the skill has it, this epoch tried it, or no failure breaks it."""
    answers = [_find_right_answer(view, "failure", rollout) for rollout in failed]
    answers += [_find_right_answer(view, "success", rollout) for rollout in passed]
    form = find_shared_form([answer for answer in answers if answer])
    if form is None or form.rule in view.skill.text or form.rule in view.history:
        return ()
    breaking = tuple(rollout.task.id for rollout in failed if not form.matches(rollout.answer.strip()))
    return (Edit("append", form.rule, support=len(breaking), evidence=breaking),) if breaking else ()


def _find_right_answer(view: View, source: Source, rollout: Rollout) -> str:
    """The right answer: the agent's own, or the reference if the run shows it; empty if neither is known."""
    if source == "success":
        return rollout.answer.strip()
    reference = rollout.task.answer
    return reference.strip() if view.settings.show_reference and isinstance(reference, str) else ""


def _has_tool_calls(rollout: Rollout) -> bool:
    return any(turn.completion.message.calls for turn in rollout.turns)


# ---- similarity -----------------------------------------------------------------------------------------------------


def order_by_difference(candidates: Sequence[Example], known: Sequence[Example], alike: float) -> list[int]:
    """The indices of the candidates, without near-duplicates, those least similar to known and chosen ones first."""
    words = [_collect_words(candidate) for candidate in candidates]
    nearest = [max((compute_similarity(own, _collect_words(other)) for other in known), default=0.0) for own in words]
    chosen: list[int] = []
    while fresh := [place for place, near in enumerate(nearest) if near < alike and place not in chosen]:
        first = min(fresh, key=nearest.__getitem__)
        chosen.append(first)
        nearest = [max(near, compute_similarity(own, words[first])) for near, own in zip(nearest, words, strict=True)]
    return chosen


def list_replaceable(skill: Skill) -> list[Example]:
    """The examples of a skill that an edit can target, the one most similar to another first."""
    examples = parse_examples(skill.text)

    def measure_closeness(place: int) -> float:
        others = (other for n, other in enumerate(examples) if n != place)
        return max(
            (compute_similarity(_collect_words(examples[place]), _collect_words(other)) for other in others),
            default=0.0,
        )

    order = sorted(range(len(examples)), key=lambda place: -measure_closeness(place))
    return [examples[place] for place in order if skill.text.count(render_example(examples[place])) == 1]


def compute_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of words that both sets have."""
    return len(one & other) / len(one | other) if one | other else 1.0


def _collect_words(example: Example) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", f"{example.input} {example.output}".casefold()))
