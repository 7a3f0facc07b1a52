"""A step of a training run in the words of SkillOpt: the row of its history, and its patches. Pure.

Numbers that were not measured are null. `n_patches` counts the analysts' replies that propose something, as there. A
decision that SkillOpt does not know keeps its name here: `undecided`, `skip_none_selected`, `skip_refused`, and those
of the recipe `ledger`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ludus.reflact.gate import Gate, resolve_metric
from ludus.reflact.items import Document, Item, Suggestion
from ludus.reflact.records import BudgetDecision, Fate, MeasuredSkill, Reflection, StageCost, Step
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import UpdateMode
from ludus.skill import Edit, read_notes
from ludus.types import JsonObject, Usage

PAYLOADS: Mapping[UpdateMode, str] = {
    "patch": "edits",
    "rewrite_from_suggestions": "revise_suggestions",
    "full_rewrite_minibatch": "skill_candidates",
}
"""The key with the items of a patch, by update mode."""
FIELDS: Mapping[type[Item], Mapping[str, str]] = {
    Edit: {"op": "op", "content": "content", "target": "target"},
    Suggestion: {
        "type": "kind",
        "title": "title",
        "motivation": "motivation",
        "instruction": "instruction",
        "priority_hint": "priority",
    },
    Document: {"title": "title", "change_summary": "changes", "new_skill": "text"},
}
"""The fields of items there, and their names here."""
_ACTIONS = {"skip_no_updates": "skip_no_patches"}
_CONTROLS = {"scheduled": "fixed"}
"""Decisions, and ways to decide the budget, that have another name there."""
_STAGES = {
    "rank": "ranking",
    "budget": "lr_autonomous",
    "slow": "slow_update",
    "meta": "meta_skill",
    "consolidate": "appendix_consolidate",
}
"""Stages of the optimizer that have another name there. All rollouts of the agent are `rollout`."""
_STAGE_TIMES = ("rollout", "reflect", "aggregate", "select", "update", "evaluate")
_PREVIEW = 200


def build_row(step: Step, gate: Gate) -> JsonObject:
    """A step as a row of the history."""
    candidate, verdict, measure = step.candidate, step.verdict, step.measure
    return {
        "step": step.number,
        "epoch": step.epoch,
        "step_in_epoch": step.place - 1,
        "timing": {f"{stage}_s": round(step.seconds.get(stage, 0.0), 1) for stage in _STAGE_TIMES},
        "tokens": count_tokens(step.spent),
        **_describe_rollouts(step),
        **_count_patches(step.reflections),
        **_describe_selection(step),
        "candidate_hash": candidate.hash if candidate else None,
        "candidate_skill_len": len(candidate.text) if candidate else None,
        **_describe_update(step),
        "selection_hard": measure.hard if measure else None,
        "selection_soft": measure.soft if measure else None,
        "gate_metric": resolve_metric(gate).metric,
        "candidate_gate_score": verdict.candidate if verdict else None,
        "action": name_action(step),
        **_count_notes(step),
        **describe_state(step.state.current, step.state.best, gate),
        "skill_len": len(step.state.current.skill.text),
        "wall_time_s": round(sum(step.seconds.values()), 1),
    }


def name_action(step: Step) -> str:
    """What a step did, by SkillOpt's name if it has one."""
    return _ACTIONS.get(step.action, step.action)


def describe_state(current: MeasuredSkill, best: MeasuredSkill, gate: Gate) -> JsonObject:
    return {
        "current_score": compute_score(gate, current),
        "current_origin": current.origin,
        "best_score": compute_score(gate, best),
        "best_origin": best.origin,
        "best_step": best.step,
    }


def _describe_rollouts(step: Step) -> JsonObject:
    # Records do not say from which batch a patch is, unless there is only one.
    alone = _count_patches(step.reflections) if len(step.batches) == 1 else {}
    counts = {name: alone.get(name) for name in ("n_failure_patches", "n_success_patches")}
    return {
        "rollout_hard": _round(step.hard),
        "rollout_soft": _round(step.soft),
        "rollout_n": sum(batch.tasks - batch.failed for batch in step.batches),
        "accumulation_batches": [
            {
                "batch_idx": index,
                "batch_seed": batch.seed,
                "n_envs": batch.tasks - batch.failed,
                "hard": batch.hard,
                "soft": batch.soft,
                **counts,
            }
            for index, batch in enumerate(step.batches)
        ],
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _count_patches(reflections: Iterable[Reflection]) -> JsonObject:
    sources = [reflection.source for reflection in reflections if reflection.items]
    return {
        "n_patches": len(sources),
        "n_failure_patches": sources.count("failure"),
        "n_success_patches": sources.count("success"),
    }


def _describe_selection(step: Step) -> JsonObject:
    chosen, budget = list_chosen(step), step.budget
    row: JsonObject = {
        "n_edits_merged": len(step.fates),
        "n_edits_ranked": len(chosen),
        "edit_budget": budget.value if budget else None,
        "lr_control_mode": _name_control(step),
        "support_counts": [fate.item.support for fate in chosen],
    }
    if budget is not None and budget.control == "autonomous":
        row["lr_decision"] = describe_budget(budget)
    return row


def _name_control(step: Step) -> str | None:
    """How the budget was decided. Whole documents have none, and nor has a step with nothing to choose from."""
    if step.budget is not None:
        return _CONTROLS.get(step.budget.control, step.budget.control)
    return "none" if step.fates else None


def list_chosen(step: Step) -> list[Fate]:
    """The items that were chosen. Whole documents are not chosen among: all of them count."""
    return [fate for fate in step.fates if isinstance(fate.item, Document) or fate.status != "not_selected"]


def describe_budget(budget: BudgetDecision) -> JsonObject:
    """The optimizer's decision on how many items are applied."""
    return {
        "learning_rate": budget.value,
        "raw_learning_rate": budget.asked,
        "available_update_items": budget.available,
        "clamped": budget.asked is not None and budget.asked != budget.value,
        "fallback": budget.asked is None,
        "reasoning": budget.reasoning,
        "confidence": budget.confidence,
        "risk_notes": list(budget.risks),
    }


def _describe_update(step: Step) -> JsonObject:
    report = list_edit_reports(step)
    row: JsonObject = {}
    if step.changes or (step.candidate is not None and not report):
        row["rewrite_change_summary"] = list(step.changes)
    if report:
        statuses = [str(entry["status"]) for entry in report]
        row["edit_apply_summary"] = {
            "total": len(statuses),
            "applied": sum(status.startswith("applied") for status in statuses),
            "skipped": sum(status.startswith("skipped") for status in statuses),
            "errors": statuses.count("error"),
        }
    return row


def list_edit_reports(step: Step) -> list[JsonObject]:
    """What became of each edit that was chosen."""
    edits = [(fate.item, fate.status) for fate in list_chosen(step) if isinstance(fate.item, Edit)]
    return [
        {
            "index": index,
            "op": edit.op,
            "target": edit.target[:_PREVIEW],
            "content_preview": edit.content[:_PREVIEW],
            "status": status,
        }
        for index, (edit, status) in enumerate(edits, 1)
    ]


def _count_notes(step: Step) -> JsonObject:
    written = sum(len(reflection.notes) for reflection in step.reflections)
    if not written:
        return {}
    row: JsonObject = {
        "n_execution_lapse_notes": written,
        "n_appendix_notes_added": step.notes_added,
        "n_appendix_notes_total": step.notes,
    }
    return row | ({"n_appendix_notes_consolidated": step.notes} if step.consolidated else {})


def describe_notes(step: Step) -> JsonObject:
    """The notes of a step, and those of the appendix after it."""
    notes = [note for reflection in step.reflections for note in reflection.notes]
    return {"step_notes": notes, "appendix_after": list(read_notes(step.state.current.skill))}


# ---- patches --------------------------------------------------------------------------------------------------------


def describe_items(items: Sequence[Item], mode: UpdateMode) -> JsonObject:
    """Items as a patch."""
    return {"reasoning": "", PAYLOADS[mode]: [_describe_item(item) for item in items]}


def _describe_item(item: Item) -> JsonObject:
    fields: JsonObject = {theirs: getattr(item, ours) for theirs, ours in FIELDS[type(item)].items()}
    origin = {"support_count": item.support, "source_type": item.source}
    return fields | origin | ({"merge_level": item.level} if item.level else {})


def describe_reflection(reflection: Reflection, mode: UpdateMode) -> JsonObject:
    """An analyst's reply as a raw patch."""
    patch = describe_items(reflection.items, mode) | {"reasoning": reflection.reasoning}
    raw: JsonObject = {"batch_size": len(reflection.tasks), "patch": patch, "source_type": reflection.source}
    if reflection.source == "failure":
        raw["failure_summary"] = [
            {"failure_type": each.name, "count": len(each.tasks), "description": each.description}
            for each in reflection.patterns
        ]
    else:
        raw["success_patterns"] = [each.description or each.name for each in reflection.patterns]
    return raw | ({"appendix_notes": list(reflection.notes)} if reflection.notes else {})


# ---- tokens ---------------------------------------------------------------------------------------------------------


def count_tokens(spent: Iterable[StageCost]) -> dict[str, Any]:
    """Calls and tokens by SkillOpt's stages."""
    sums: dict[str, tuple[int, Usage]] = {}
    for entry in spent:
        stage = "rollout" if entry.role == "agent" else _STAGES.get(entry.stage, entry.stage)
        calls, usage = sums.get(stage, (0, Usage()))
        sums[stage] = (calls + entry.calls, usage + entry.usage)
    return {
        stage: {
            "calls": calls,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        for stage, (calls, usage) in sorted(sums.items())
    }


def sum_tokens(spent: Iterable[StageCost]) -> dict[str, Any]:
    """The same for a whole run, with totals."""
    stages = count_tokens(spent)
    names = ("calls", "prompt_tokens", "completion_tokens")
    stages["_total"] = {name: sum(counts[name] for counts in stages.values()) for name in names}
    return {
        stage: {**counts, "total_tokens": counts["prompt_tokens"] + counts["completion_tokens"]}
        for stage, counts in stages.items()
    }
