"""A training run in the layout of SkillOpt's runs, for scripts that read those.

    config.json                       the settings by SkillOpt's flat names
    best_skill.md                     the skill that is shipped
    history.json                      a row for each step, with SkillOpt's field names
    runtime_state.json, summary.json  the last state and the result
    lr_history.jsonl                  the optimizer's decisions on the budget, if it decides
    skills/skill_vNNNN.md             the current skill after each step; 0000 is the initial one
    steps/step_NNNN/                  step_record.json, patches/, merged_patch.json, ranked_edits.json,
                                      candidate_skill.md, and what its mode has: edit_apply_report.json, …
    slow_update/epoch_NN/             slow_result.json, candidate_skill.md
    meta_skill/epoch_NN/              meta_skill_result.json
    test_eval_baseline/, test_eval/, test_eval_final/    summary.json: the test of initial, best and final skill

Numbers that were not measured are null. SkillOpt's folders of rollouts and its pairs of the slow update are not
written: `ludus export` and the pages have the rollouts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ludus.compat.skillopt.history_rows import (
    build_row,
    describe_budget,
    describe_items,
    describe_notes,
    describe_reflection,
    describe_state,
    list_chosen,
    list_edit_reports,
    name_action,
    sum_tokens,
)
from ludus.compat.skillopt.verdicts import KEYS
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.items import Document
from ludus.reflact.records import Baseline, Digest, EpochEnd, Product, Record, ScoreBucket, Step, Summary
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_records
from ludus.reflact.training_tables import read_train_settings
from ludus.run_info import find_kind
from ludus.store import RunDir
from ludus.types import JsonObject

_VERSION = "skillopt-0.1.0"
"""What runs of SkillOpt 0.2.0 have as their version."""
_CONTROLS = {"scheduled": "fixed"}


class LayoutFile(NamedTuple):
    """A file of the layout: its path below the folder, and its content."""

    path: str
    content: str


def list_layout(directory: RunDir) -> Iterator[LayoutFile]:
    """The files of a run of `ludus train`.

    Raises:
        ConfigError: it is another run.
    """
    if find_kind(directory) != "train":
        raise ConfigError(f"{directory.path} is not a run of `ludus train`: --format skillopt is for those")
    return build_layout(list(read_records(directory)), read_train_settings(directory), directory.config)


def build_layout(
    records: Sequence[Record], settings: TrainSettings, recorded: Mapping[str, Any]
) -> Iterator[LayoutFile]:
    """The files of a run. `recorded`: all its settings, as they are in its directory."""
    steps = [record for record in records if isinstance(record, Step)]
    config = _build_config(settings, recorded, steps)
    yield LayoutFile("config.json", _dump(config))
    for name, text in _list_skills(records).items():
        yield LayoutFile(name, text)
    for step in steps:
        yield from _build_step(step, settings)
    for end in records:
        if isinstance(end, EpochEnd):
            yield from _build_epoch_end(end)
    yield LayoutFile("history.json", _dump([build_row(step, settings.gate) for step in steps]))
    if decisions := "".join(_list_decisions(steps)):
        yield LayoutFile("lr_history.jsonl", decisions)
    if records:
        yield from _build_end(records, steps, settings, config)


def _build_end(
    records: Sequence[Record], steps: Sequence[Step], settings: TrainSettings, config: JsonObject
) -> Iterator[LayoutFile]:
    last = records[-1]
    best = last.best.skill if isinstance(last, Summary) else last.state.best.skill
    yield LayoutFile("best_skill.md", best.text)
    yield LayoutFile("runtime_state.json", _dump(_build_state(last, settings)))
    if isinstance(last, Summary):
        summary = {
            "version": _VERSION,
            "config": config,
            **_build_summary(last, records, steps),
            "epoch_stats": _build_epochs(steps, settings),
        }
        yield LayoutFile("summary.json", _dump(summary))
        yield from _build_tests(last)


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


# ---- settings -------------------------------------------------------------------------------------------------------


def _build_config(settings: TrainSettings, recorded: Mapping[str, Any], steps: Sequence[Step]) -> JsonObject:
    """The settings of the run by SkillOpt's flat names, with what its trainer derives."""
    tree = {**recorded, "train": _list_fields(settings)}
    config: JsonObject = {
        verdict.name: _look_up(tree, verdict.becomes)
        for verdict in KEYS
        if verdict.outcome == "honoured" and verdict.becomes.startswith(("train.", "env.", "run.out", "agent.skill"))
    }
    config["lr_control_mode"] = _CONTROLS.get(settings.control, settings.control)
    models = ("target_model", "model.name"), ("optimizer_model", "optimizer.name")
    config |= {name: _look_up(tree, path) for name, path in (*models, ("analyst_workers", "optimizer.concurrency"))}
    if adapter := _look_up(tree, "env.adapter"):
        config |= {**(_look_up(tree, "env.settings") or {}), "env": adapter}
    first = [step for step in steps if step.epoch == 1]
    per_epoch = len(first) or None
    size = sum(batch.tasks for step in first for batch in step.batches) or None
    return config | {
        "train_size": size,
        "samples_per_epoch": size,
        "steps_per_epoch": per_epoch,
        "batches_per_epoch": per_epoch and per_epoch * settings.accumulation,
    }


def _list_fields(settings: msgspec.Struct) -> dict[str, Any]:
    """All fields of settings, those with their defaults too."""
    found = msgspec.structs.asdict(settings)
    return {name: _list_fields(value) if isinstance(value, msgspec.Struct) else value for name, value in found.items()}


def _look_up(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return tree  # pyright: ignore[reportUnknownVariableType]


# ---- steps ----------------------------------------------------------------------------------------------------------


def _build_step(step: Step, settings: TrainSettings) -> Iterator[LayoutFile]:
    folder, mode = f"steps/step_{step.number:04d}", settings.update_mode
    yield LayoutFile(f"{folder}/step_record.json", _dump(build_row(step, settings.gate)))
    for name, content in _list_patches(step, settings).items():
        yield LayoutFile(f"{folder}/patches/{name}", _dump(content))
    if step.fates:
        merged = describe_items([fate.item for fate in step.fates], mode)
        yield LayoutFile(f"{folder}/merged_patch.json", _dump(merged))
        ranked = describe_items([fate.item for fate in list_chosen(step)], mode)
        yield LayoutFile(f"{folder}/ranked_edits.json", _dump(ranked))
    for name, content in _list_results(step, settings).items():
        yield LayoutFile(f"{folder}/{name}", _dump(content))
    if step.candidate is not None:
        yield LayoutFile(f"{folder}/candidate_skill.md", step.candidate.text)


def _list_patches(step: Step, settings: TrainSettings) -> dict[str, JsonObject]:
    """The analysts' replies, by file."""
    found: dict[str, JsonObject] = {}
    for source, name in (("failure", "fail"), ("success", "succ")):
        own = [reflection for reflection in step.reflections if reflection.source == source]
        for index, reflection in enumerate(own):
            found[f"minibatch_{name}_{index:03d}.json"] = describe_reflection(reflection, settings.update_mode)
    return found


def _list_results(step: Step, settings: TrainSettings) -> dict[str, Any]:
    """What the stages of a step leave, by file."""
    found: dict[str, Any] = {}
    if step.budget is not None and step.budget.control == "autonomous":
        found["lr_decision.json"] = describe_budget(step.budget)
    if reports := list_edit_reports(step):
        found["edit_apply_report.json"] = reports
    if step.candidate is not None and settings.update_mode == "rewrite_from_suggestions":
        text = step.candidate.text
        found["rewrite_result.json"] = {"reasoning": "", "change_summary": list(step.changes), "new_skill": text}
    if settings.update_mode == "full_rewrite_minibatch":
        found |= _describe_full_rewrite(step)
    if any(reflection.notes for reflection in step.reflections):
        found["appendix_notes.json"] = describe_notes(step)
    if digest := next((each for each in step.state.buffer if each.step == step.number), None):
        found["trajectory_digest.json"] = _describe_digest(digest)
    return found


def _describe_full_rewrite(step: Step) -> dict[str, Any]:
    used = [fate.item for fate in step.fates if fate.status == "used" and isinstance(fate.item, Document)]
    if not used:
        return {}
    merged = describe_items([fate.item for fate in step.fates], "full_rewrite_minibatch")
    chosen = describe_items(used[:1], "full_rewrite_minibatch")["skill_candidates"][0]
    return {"full_rewrite_result.json": {"selected_candidate": chosen, "merged_patch": merged}}


def _describe_digest(digest: Digest) -> JsonObject:
    """What the next steps of the epoch are told about a step."""
    patterns = [
        {"pattern": f"{each.name}: {each.description}", "count": len(each.tasks), "task_ids": list(each.tasks)}
        for each in digest.patterns
    ]
    found: JsonObject = {
        "step": digest.step,
        "action": digest.decision,
        "n_total": digest.tasks,
        "n_fail": digest.failed,
        "failure_patterns": patterns,
    }
    if "reject" in digest.decision:
        found |= {"score_before": digest.before, "score_after": digest.after, "rejected_edits": list(digest.tried)}
    return found


def _list_decisions(steps: Iterable[Step]) -> Iterator[str]:
    """The optimizer's decisions on the budget, a line each."""
    for step in steps:
        if step.budget is not None and step.budget.control == "autonomous":
            line = {"step": step.number, "epoch": step.epoch, **describe_budget(step.budget)}
            yield to_json(line).decode() + "\n"


# ---- ends of epochs -------------------------------------------------------------------------------------------------


def _build_epoch_end(end: EpochEnd) -> Iterator[LayoutFile]:
    if end.slow.action != "off":
        folder = f"slow_update/epoch_{end.epoch:02d}"
        yield LayoutFile(f"{folder}/slow_result.json", _dump(_describe_slow(end)))
        if end.slow.candidate is not None:
            yield LayoutFile(f"{folder}/candidate_skill.md", end.slow.candidate.text)
    if end.memory_action != "off":
        yield LayoutFile(f"meta_skill/epoch_{end.epoch:02d}/meta_skill_result.json", _dump(_describe_memory(end)))


def _describe_slow(end: EpochEnd) -> JsonObject:
    """The slow update. In the first epoch nothing is put into the document, so its action is another one than there."""
    slow, seconds = end.slow, round(sum(end.seconds.values()), 1)
    if slow.action == "skip_first_epoch":
        return {"action": slow.action, "epoch": end.epoch}
    if slow.candidate is None:
        return {"action": "no_content", "time_s": seconds}
    found: JsonObject = {
        "reasoning": slow.reasoning,
        "slow_update_content": slow.guidance,
        "time_s": seconds,
        "prev_hard": slow.previous_hard,
        "curr_hard": slow.current_hard,
        "candidate_hash": slow.candidate.hash,
        "update_origin": "slow_update_momentum",
        "update_target": "tasks of which the skills of two epochs were compared",
    }
    if slow.measure is not None:
        found |= {"selection_hard": slow.measure.hard, "selection_soft": slow.measure.soft}
    return found | {"action": slow.action}


def _describe_memory(end: EpochEnd) -> JsonObject:
    if end.memory_action == "skip_first_epoch":
        return {"action": end.memory_action, "epoch": end.epoch}
    seconds = round(sum(end.seconds.values()), 1)
    if end.memory_action != "write":
        return {"action": "no_content", "time_s": seconds}
    return {"reasoning": "", "meta_skill_content": end.memory, "time_s": seconds, "action": "write_meta_skill"}


# ---- the end of a run -----------------------------------------------------------------------------------------------


def _build_state(last: Record, settings: TrainSettings) -> JsonObject:
    state = last.state
    return {
        "last_completed_step": state.step,
        "current_skill_path": _name_skill(state.step),
        "best_skill_path": "best_skill.md",
        **describe_state(state.current, state.best, settings.gate),
    }


def _build_summary(summary: Summary, records: Sequence[Record], steps: Sequence[Step]) -> JsonObject:
    initial, best, final = summary.initial, summary.best, summary.final
    scores = {
        name: None if product.test is None else product.test.overall
        for name, product in (("baseline_test", initial), ("test", best), ("final_test", final))
    }
    hard = {name: None if found is None else found.hard for name, found in scores.items()}
    actions = [name_action(step) for step in steps]
    return {
        "baseline_selection_hard": initial.hard,
        "best_selection_hard": best.selection,
        "final_selection_hard": final.hard,
        "final_selection_soft": final.soft,
        "best_step": best.step,
        "current_origin": final.origin,
        "best_origin": best.origin,
        "total_steps": len(steps),
        **_count_actions(actions, "total_"),
        **{f"{name}_hard": value for name, value in hard.items()},
        **{f"{name}_soft": None if found is None else found.soft for name, found in scores.items()},
        "test_delta_hard": _subtract(hard["test"], hard["baseline_test"]),
        "final_test_delta_hard": _subtract(hard["final_test"], hard["baseline_test"]),
        "total_wall_time_s": round(sum(sum(record.seconds.values()) for record in records), 1),
        "token_summary": sum_tokens(summary.spent),
    }


def _count_actions(actions: Sequence[str], prefix: str = "") -> JsonObject:
    """How many steps were accepted, rejected and skipped, as SkillOpt counts them."""
    return {
        f"{prefix}accepts": sum("accept" in action for action in actions),
        f"{prefix}rejects": actions.count("reject"),
        f"{prefix}skips": actions.count("skip_no_patches"),
    }


def _build_epochs(steps: Sequence[Step], settings: TrainSettings) -> list[JsonObject]:
    """What became of the steps of each epoch."""
    found: list[JsonObject] = []
    for epoch in sorted({step.epoch for step in steps}):
        own = [step for step in steps if step.epoch == epoch]
        state = own[-1].state
        found.append(
            {
                "epoch": epoch,
                "steps": [step.number for step in own],
                **_count_actions([name_action(step) for step in own]),
                "best_score_at_epoch_end": compute_score(settings.gate, state.best),
                "current_score_at_epoch_end": compute_score(settings.gate, state.current),
            }
        )
    return found


def _subtract(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _build_tests(summary: Summary) -> Iterator[LayoutFile]:
    folders = {
        "test_eval_baseline": summary.initial,
        "test_eval": summary.best,
        "test_eval_final": summary.final,
    }
    for folder, product in folders.items():
        if product.test is not None:
            yield LayoutFile(f"{folder}/summary.json", _dump(_describe_test(product)))


def _describe_test(product: Product) -> JsonObject:
    """The test of a skill by type of task. A run with one type has only the sum."""
    assert product.test is not None
    buckets: dict[str, ScoreBucket] = {**product.test.kinds, "overall": product.test.overall}
    return {kind: {"total": bucket.scored, "hard_acc": bucket.hard} for kind, bucket in buckets.items()}
