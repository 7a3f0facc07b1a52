"""A training run in the layout of SkillOpt's runs, for scripts that read those.

    best_skill.md                     the skill that is shipped
    history.json                      a row for each step, with SkillOpt's field names
    runtime_state.json, summary.json  the last state and the result
    skills/skill_vNNNN.md             the current skill after each step; 0000 is the initial one
    steps/step_NNNN/                  step_record.json, ranked_edits.json and candidate_skill.md of each step

Numbers that were not measured are null. SkillOpt's folders of rollouts are not written: `ludus export` and the pages
have the rollouts.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ludus.reflact.gate import Gate
from ludus.reflact.records import Baseline, EpochEnd, MeasuredSkill, Record, StageCost, Step, Summary
from ludus.reflact.stages.evaluate import compute_score
from ludus.skill import Edit
from ludus.types import JsonObject, to_json

_CONTROLS = {"scheduled": "fixed"}
"""Ways to decide the budget that have another name there."""


class LayoutFile(NamedTuple):
    """A file of the layout: its path below the folder, and its content."""

    path: str
    content: str


def build_layout(records: Sequence[Record], gate: Gate) -> Iterator[LayoutFile]:
    """The files of a run. The gate computes the scores of skills."""
    steps = [record for record in records if isinstance(record, Step)]
    for name, text in _list_skills(records).items():
        yield LayoutFile(name, text)
    for step in steps:
        yield from _build_step(step, gate)
    yield LayoutFile("history.json", _dump([_build_row(step, gate) for step in steps]))
    if records:
        state = records[-1].state
        summaries = [record for record in records if isinstance(record, Summary)]
        best = summaries[-1].best.skill if summaries else state.best.skill
        yield LayoutFile("best_skill.md", best.text)
        yield LayoutFile("runtime_state.json", _dump(_build_state(records[-1], gate)))
        for each in summaries[-1:]:
            yield LayoutFile("summary.json", _dump({**_build_summary(each, records), **_build_epochs(steps, gate)}))


def _dump(value: Any) -> str:
    return json.dumps(json.loads(to_json(value)), indent=2, ensure_ascii=False) + "\n"


def _list_skills(records: Iterable[Record]) -> dict[str, str]:
    """The current skill after each step, by its file. The end of an epoch replaces that of its last step."""
    found: dict[str, str] = {}
    for record in records:
        if isinstance(record, Baseline):
            found[_name_skill(0)] = record.state.initial.skill.text
        elif isinstance(record, Step | EpochEnd):
            found.setdefault(_name_skill(0), record.state.initial.skill.text)
            found[_name_skill(record.state.step)] = record.state.current.skill.text
    return found


def _name_skill(step: int) -> str:
    return f"skills/skill_v{step:04d}.md"


def _build_step(step: Step, gate: Gate) -> Iterator[LayoutFile]:
    folder = f"steps/step_{step.number:04d}"
    yield LayoutFile(f"{folder}/step_record.json", _dump(_build_row(step, gate)))
    chosen = [fate.item for fate in step.fates if fate.status != "not_selected"]
    edits = [
        {"op": item.op, "content": item.content, "target": item.target} for item in chosen if isinstance(item, Edit)
    ]
    yield LayoutFile(f"{folder}/ranked_edits.json", _dump({"edits": edits}))
    if step.candidate is not None:
        yield LayoutFile(f"{folder}/candidate_skill.md", step.candidate.text)


def _build_row(step: Step, gate: Gate) -> JsonObject:
    """A step as a row of SkillOpt's history."""
    reflections = step.reflections
    return {
        "step": step.number,
        "epoch": step.epoch,
        "step_in_epoch": step.place - 1,
        "timing": {f"{stage}_s": seconds for stage, seconds in step.seconds.items()},
        "tokens": _count_tokens(step.spent),
        "rollout_hard": step.hard,
        "rollout_soft": step.soft,
        "rollout_n": sum(batch.tasks - batch.failed for batch in step.batches),
        "accumulation_batches": [
            {
                "batch_idx": index,
                "batch_seed": batch.seed,
                "n_envs": batch.tasks,
                "hard": batch.hard,
                "soft": batch.soft,
            }
            for index, batch in enumerate(step.batches)
        ],
        "n_patches": len(reflections),
        "n_failure_patches": sum(reflection.source == "failure" for reflection in reflections),
        "n_success_patches": sum(reflection.source == "success" for reflection in reflections),
        "n_edits_merged": len(step.fates),
        "n_edits_ranked": sum(fate.status != "not_selected" for fate in step.fates),
        "edit_budget": None if step.budget is None else step.budget.value,
        "lr_control_mode": None if step.budget is None else _CONTROLS.get(step.budget.control, step.budget.control),
        "candidate_hash": None if step.candidate is None else step.candidate.hash,
        "candidate_skill_len": None if step.candidate is None else len(step.candidate.text),
        "selection_hard": None if step.measure is None else step.measure.hard,
        "selection_soft": None if step.measure is None else step.measure.soft,
        "gate_metric": gate.metric,
        "candidate_gate_score": None if step.verdict is None else step.verdict.candidate,
        "action": step.action,
        **_describe_state(step.state.current, step.state.best, gate),
        "skill_len": len(step.state.current.skill.text),
        "wall_time_s": sum(step.seconds.values()),
    }


def _describe_state(current: MeasuredSkill, best: MeasuredSkill, gate: Gate) -> JsonObject:
    return {
        "current_score": compute_score(gate, current),
        "current_origin": current.origin,
        "best_score": compute_score(gate, best),
        "best_origin": best.origin,
        "best_step": best.step,
    }


def _count_tokens(spent: Iterable[StageCost]) -> JsonObject:
    return {
        entry.stage: {
            "calls": entry.calls,
            "prompt_tokens": entry.usage.prompt_tokens,
            "completion_tokens": entry.usage.completion_tokens,
        }
        for entry in spent
    }


def _build_state(last: Record, gate: Gate) -> JsonObject:
    state = last.state
    return {
        "last_completed_step": state.step,
        "current_skill_path": _name_skill(state.step),
        "best_skill_path": "best_skill.md",
        **_describe_state(state.current, state.best, gate),
    }


def _build_summary(summary: Summary, records: Sequence[Record]) -> JsonObject:
    initial, best, final = summary.initial, summary.best, summary.final
    scores = {
        name: None if product.test is None else product.test.overall
        for name, product in (("baseline_test", initial), ("test", best), ("final_test", final))
    }
    hard = {name: None if found is None else found.hard for name, found in scores.items()}
    return {
        "baseline_selection_hard": initial.hard,
        "best_selection_hard": best.hard,
        "final_selection_hard": final.hard,
        "final_selection_soft": final.soft,
        "best_step": best.step,
        "best_origin": best.origin,
        "current_origin": final.origin,
        "total_steps": summary.steps,
        "total_accepts": summary.accepted,
        "total_rejects": summary.rejected,
        "total_skips": summary.skipped,
        **{f"{name}_hard": value for name, value in hard.items()},
        **{f"{name}_soft": None if found is None else found.soft for name, found in scores.items()},
        "test_delta_hard": _subtract(hard["test"], hard["baseline_test"]),
        "final_test_delta_hard": _subtract(hard["final_test"], hard["baseline_test"]),
        "total_wall_time_s": sum(sum(record.seconds.values()) for record in records),
        "token_summary": _count_tokens(summary.spent),
    }


def _build_epochs(steps: Sequence[Step], gate: Gate) -> JsonObject:
    """What became of the steps of each epoch."""
    found: list[JsonObject] = []
    for epoch in sorted({step.epoch for step in steps}):
        own = [step for step in steps if step.epoch == epoch]
        state = own[-1].state
        found.append(
            {
                "epoch": epoch,
                "steps": [step.number for step in own],
                "accepts": sum("accept" in step.action for step in own),
                "rejects": sum(step.action == "reject" for step in own),
                "skips": sum(step.action.startswith("skip") for step in own),
                "best_score_at_epoch_end": compute_score(gate, state.best),
                "current_score_at_epoch_end": compute_score(gate, state.current),
            }
        )
    return {"epoch_stats": found}


def _subtract(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
