"""A training run in SkillOpt's layout."""

import json
from typing import Any

from msgspec.structs import replace

from ludus.compat.skillopt.run_layout import build_layout
from ludus.reflact.gate import Gate, Mark, Measure
from ludus.reflact.items import Document, Suggestion
from ludus.reflact.records import (
    Baseline,
    BatchReport,
    BudgetDecision,
    Digest,
    EpochEnd,
    Fate,
    MeasuredSkill,
    Product,
    Record,
    Reflection,
    RunState,
    ScoreBucket,
    SlowReport,
    SplitScores,
    StageCost,
    Step,
    Summary,
)
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Edit, Skill, add_notes
from ludus.types import Usage

FIRST, SECOND = Skill("Be brief."), Skill("Be brief.\nShow the sum.")
SETTINGS = TrainSettings(recipe="reflact", batch_size=4, epochs=2, gate=Gate(metric="hard"))
SPENT = (
    StageCost("agent", "rollout", 4, Usage(40, 4)),
    StageCost("agent", "slow", 2, Usage(20, 2)),
    StageCost("optimizer", "rank", 1, Usage(10, 1)),
    StageCost("optimizer", "slow", 1, Usage(10, 1)),
)
ALWAYS = """
    step epoch step_in_epoch timing tokens rollout_hard rollout_soft rollout_n accumulation_batches n_patches
    n_failure_patches n_success_patches n_edits_merged n_edits_ranked edit_budget lr_control_mode support_counts
    candidate_hash candidate_skill_len selection_hard selection_soft gate_metric candidate_gate_score action
    current_score best_score best_step current_origin best_origin skill_len wall_time_s
"""
"""The fields of every row of SkillOpt's history."""
SUMMARY = """
    version config baseline_selection_hard best_selection_hard final_selection_hard final_selection_soft best_step
    current_origin best_origin total_steps total_accepts total_rejects total_skips epoch_stats baseline_test_hard
    baseline_test_soft test_hard test_soft final_test_hard final_test_soft test_delta_hard final_test_delta_hard
    total_wall_time_s token_summary
"""


def measure(skill: Skill, hard: float) -> Measure:
    return Measure(skill.hash, {"a": Mark(hard, hard)})


def make_step(**more: Any) -> Step:
    initial = MeasuredSkill(FIRST, "initial_skill", 0, measure(FIRST, 0.0))
    better = MeasuredSkill(SECOND, "step_0001", 1, measure(SECOND, 1.0))
    step = Step(
        number=1,
        epoch=1,
        place=1,
        batches=(BatchReport(7, 4, 1, 0.5, 0.75),),
        reflections=(
            Reflection("failure", ("a", "b"), (Edit("append", "Show the sum."), Edit("append", "Sing."))),
            Reflection("failure", ("c",)),
            Reflection("success", ("d",)),
        ),
        fates=(
            Fate(Edit("append", "Show the sum.", support=2, level=1), "applied_append"),
            Fate(Edit("delete", target="Shout.", support=1), "skipped_delete_target_not_found"),
            Fate(Edit("append", "Sing."), "not_selected"),
        ),
        budget=BudgetDecision("scheduled", 2, 3),
        candidate=SECOND,
        measure=measure(SECOND, 1.0),
        action="accept_new_best",
        spent=SPENT,
        seconds={"rollout": 1.0, "appendix": 0.25},
        state=RunState(epoch=1, step=1, initial=initial, current=better, best=better, spent=SPENT),
    )
    return replace(step, **more)


def make_records(step: Step | None = None) -> list[Record]:
    step = step or make_step()
    initial = step.state.initial
    before = RunState(initial=initial, current=initial, best=initial)
    return [Baseline(measure=measure(FIRST, 0.0), spent=(), seconds={}, state=before), step]


def lay_out(records: list[Record], settings: TrainSettings = SETTINGS) -> dict[str, Any]:
    files = dict(build_layout(records, settings, {"env": {"name": "gsm8k"}, "model": {"name": "m"}}))
    return {name: json.loads(text) if name.endswith(".json") else text for name, text in files.items()}


def test_the_files_of_a_run():
    files = lay_out(make_records())
    assert files["skills/skill_v0000.md"] == FIRST.text
    assert files["skills/skill_v0001.md"] == files["best_skill.md"] == SECOND.text
    assert files["steps/step_0001/candidate_skill.md"] == SECOND.text
    (row,) = files["history.json"]
    assert row == files["steps/step_0001/step_record.json"]
    assert {*ALWAYS.split()} | {"edit_apply_summary"} == row.keys()
    assert (row["step"], row["step_in_epoch"], row["action"]) == (1, 0, "accept_new_best")
    assert (row["rollout_n"], row["rollout_hard"], row["selection_hard"]) == (3, 0.5, 1.0)
    assert (row["n_edits_merged"], row["n_edits_ranked"], row["best_origin"]) == (3, 2, "step_0001")
    assert (row["edit_budget"], row["lr_control_mode"], row["wall_time_s"]) == (2, "fixed", 1.2)
    assert files["runtime_state.json"]["last_completed_step"] == 1
    assert "summary.json" not in files, "the run has not ended"


def test_empty_patches_are_not_counted_but_kept():
    files = lay_out(make_records())
    (row,) = files["history.json"]
    assert (row["n_patches"], row["n_failure_patches"], row["n_success_patches"]) == (1, 1, 0)
    (batch,) = row["accumulation_batches"]
    assert (batch["n_envs"], batch["n_failure_patches"], batch["n_success_patches"]) == (3, 1, 0)
    names = [name.rpartition("/")[2] for name in files if "/patches/" in name]
    assert names == ["minibatch_fail_000.json", "minibatch_fail_001.json", "minibatch_succ_000.json"]
    patch = files["steps/step_0001/patches/minibatch_fail_000.json"]
    assert (patch["batch_size"], patch["source_type"], len(patch["patch"]["edits"])) == (2, "failure", 2)


def test_edits_are_ranked_and_reported():
    files = lay_out(make_records())
    (row,) = files["history.json"]
    assert row["support_counts"] == [2, 1]
    assert row["edit_apply_summary"] == {"total": 2, "applied": 1, "skipped": 1, "errors": 0}
    first, second = files["steps/step_0001/ranked_edits.json"]["edits"]
    fields = {"op": "append", "content": "Show the sum.", "target": "", "support_count": 2, "source_type": "failure"}
    assert first == fields | {"merge_level": 1}
    assert len(files["steps/step_0001/merged_patch.json"]["edits"]) == 3
    reports = files["steps/step_0001/edit_apply_report.json"]
    assert [(each["index"], each["status"]) for each in reports] == [
        (1, "applied_append"),
        (2, "skipped_delete_target_not_found"),
    ]
    assert second["op"] == "delete"


def test_rewrites_have_their_own_items_and_results():
    suggestion = Suggestion("add_rule", "Show it.", title="sum", priority="high", support=3)
    step = make_step(fates=(Fate(suggestion, "used"),), changes=("added a rule",))
    files = lay_out(make_records(step), replace(SETTINGS, update_mode="rewrite_from_suggestions"))
    (chosen,) = files["steps/step_0001/ranked_edits.json"]["revise_suggestions"]
    assert (chosen["type"], chosen["priority_hint"], chosen["support_count"]) == ("add_rule", "high", 3)
    (row,) = files["history.json"]
    assert (row["rewrite_change_summary"], "edit_apply_summary" in row) == (["added a rule"], False)
    assert files["steps/step_0001/rewrite_result.json"]["new_skill"] == SECOND.text

    documents = (Fate(Document(SECOND.text, "new", ("all",)), "used"), Fate(Document("Other."), "not_selected"))
    step = make_step(fates=documents, budget=None, changes=("all",))
    files = lay_out(make_records(step), replace(SETTINGS, update_mode="full_rewrite_minibatch"))
    (row,) = files["history.json"]
    assert (row["n_edits_ranked"], row["edit_budget"], row["lr_control_mode"]) == (2, None, "none")
    assert len(files["steps/step_0001/ranked_edits.json"]["skill_candidates"]) == 2
    assert files["steps/step_0001/full_rewrite_result.json"]["selected_candidate"]["change_summary"] == ["all"]


def test_the_optimizers_decision_notes_and_digests_are_there():
    noted = add_notes(SECOND, ["Look twice."])
    state = replace(
        make_step().state, current=MeasuredSkill(noted, "appendix_step_0001", 1), buffer=(Digest(1, "reject", 4, 2),)
    )
    step = make_step(
        budget=BudgetDecision("autonomous", 2, 3, 5, "few", "high", ("none",)),
        reflections=(Reflection("failure", ("a",), notes=("Look twice.", "look twice")),),
        notes_added=1, notes=1, consolidated=True, action="skip_no_updates", state=state,
    )  # fmt: skip
    files = lay_out(make_records(step))
    (row,) = files["history.json"]
    assert row["action"] == "skip_no_patches"
    assert row["lr_decision"] == files["steps/step_0001/lr_decision.json"]
    assert (row["lr_decision"]["raw_learning_rate"], row["lr_decision"]["clamped"]) == (5, True)
    assert json.loads(files["lr_history.jsonl"])["learning_rate"] == 2
    names = ("execution_lapse_notes", "appendix_notes_added", "appendix_notes_total", "appendix_notes_consolidated")
    assert [row[f"n_{name}"] for name in names] == [2, 1, 1, 1]
    notes = files["steps/step_0001/appendix_notes.json"]
    assert notes == {"step_notes": ["Look twice.", "look twice"], "appendix_after": ["Look twice."]}
    assert files["steps/step_0001/trajectory_digest.json"]["n_fail"] == 2


def make_summary(step: Step) -> Summary:
    bucket = ScoreBucket(2, 2, 0.5, 0.5, None)
    scores = SplitScores(bucket, {"easy": ScoreBucket(1, 1, 1.0, 1.0, None)}, 0)
    initial, best = (
        Product(skill, origin, number, hard, hard, hard, scores)
        for skill, origin, number, hard in ((FIRST, "initial_skill", 0, 0.0), (SECOND, "step_0001", 1, 1.0))
    )
    return Summary(
        steps=1, accepted=1, rejected=0, undecided=0, skipped=0, epochs=(), promoted=False, initial=initial, best=best,
        final=best, spent=SPENT, seconds={}, state=step.state,
    )  # fmt: skip


def test_the_end_of_a_run_has_its_config_version_totals_and_tests():
    files = lay_out([*make_records(), make_summary(make_step())])
    summary = files["summary.json"]
    assert summary.keys() == {*SUMMARY.split()}
    assert summary["config"] == files["config.json"]
    config = summary["config"]
    assert (config["num_epochs"], config["edit_budget"], config["lr_control_mode"]) == (2, 4, "fixed")
    assert (config["env"], config["target_model"], config["train_size"], config["steps_per_epoch"]) == (
        "gsm8k",
        "m",
        4,
        1,
    )
    tokens = summary["token_summary"]
    assert tokens["rollout"] == {"calls": 6, "prompt_tokens": 60, "completion_tokens": 6, "total_tokens": 66}
    assert tokens["_total"] == {"calls": 8, "prompt_tokens": 80, "completion_tokens": 8, "total_tokens": 88}
    assert tokens.keys() == {"rollout", "ranking", "slow_update", "_total"}
    assert (summary["total_accepts"], summary["total_skips"], summary["test_delta_hard"]) == (1, 0, 0.0)
    for name in ("test_eval_baseline", "test_eval", "test_eval_final"):
        assert files[f"{name}/summary.json"] == {
            "easy": {"total": 1, "hard_acc": 1.0},
            "overall": {"total": 2, "hard_acc": 0.5},
        }


def test_ends_of_epochs_have_their_folders():
    step = make_step()
    first = EpochEnd(
        epoch=1, slow=SlowReport(action="skip_first_epoch"), memory_action="skip_first_epoch", state=step.state
    )
    slow = SlowReport(
        action="accept", guidance="Take care.", candidate=SECOND, measure=measure(SECOND, 1.0), previous_hard=0.5
    )
    second = EpochEnd(epoch=2, slow=slow, memory="Edits help.", memory_action="write", state=step.state)
    files = lay_out([*make_records(step), first, second])
    assert files["slow_update/epoch_01/slow_result.json"] == {"action": "skip_first_epoch", "epoch": 1}
    result = files["slow_update/epoch_02/slow_result.json"]
    assert (result["action"], result["slow_update_content"], result["selection_hard"]) == ("accept", "Take care.", 1.0)
    assert (result["prev_hard"], result["candidate_hash"]) == (0.5, SECOND.hash)
    assert files["slow_update/epoch_02/candidate_skill.md"] == SECOND.text
    assert files["meta_skill/epoch_01/meta_skill_result.json"]["action"] == "skip_first_epoch"
    memory = files["meta_skill/epoch_02/meta_skill_result.json"]
    assert (memory["meta_skill_content"], memory["action"]) == ("Edits help.", "write_meta_skill")


def test_a_skipped_step_has_nulls():
    batches = (BatchReport(7, 4, 1, 0.5, 0.75), BatchReport(8, 4, 4, None, None))
    step = make_step(batches=batches, fates=(), candidate=None, measure=None, budget=None, action="skip_refused")
    (row,) = lay_out(make_records(step))["history.json"]
    names = ("candidate_hash", "selection_hard", "candidate_gate_score", "edit_budget", "lr_control_mode")
    assert [row[name] for name in names] == [None] * 5
    assert [batch["n_failure_patches"] for batch in row["accumulation_batches"]] == [None, None]
    assert row["action"] == "skip_refused", "a decision that they do not know keeps its name"


def test_a_run_without_a_part_has_an_empty_history():
    files = lay_out([])
    assert (files.keys(), files["history.json"]) == ({"config.json", "history.json"}, [])


def test_the_config_of_an_adapter_is_what_it_was_given():
    env = {"name": "x:AdapterEnv", "adapter": "mine:Mine", "settings": {"data_path": "items.json", "target_model": "m"}}
    files = dict(build_layout([], SETTINGS, {"env": env, "model": {"name": "acts"}}))
    config = json.loads(files["config.json"])
    assert (config["env"], config["data_path"], config["target_model"]) == ("mine:Mine", "items.json", "m")
