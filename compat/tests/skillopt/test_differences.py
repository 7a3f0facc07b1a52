"""Every numbered row of the pages about SkillOpt has a test, which is named here; those that had none are below."""

import re
from pathlib import Path

import pytest
from tests.build import make_rollout

from ludus.compat.skillopt.adapters import AdapterEnv
from ludus.compat.skillopt.config_file import read_config
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Edit, Skill, add_notes, apply_edits, set_guidance
from ludus.types import Completion, Message, Turn

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "docs" / "differences.md", ROOT / "compat" / "docs" / "skillopt.md")
HERE = "compat/tests/skillopt"
TESTS = {
    1: "tests/test_skill.py::test_a_target_that_overlaps_a_protected_region_in_part_is_refused",
    2: f"{HERE}/test_differences.py::test_an_append_has_no_target",
    3: f"{HERE}/test_differences.py::test_an_append_to_an_empty_document_begins_with_no_blank_line",
    4: "tests/test_skill.py::test_an_edit_without_content_adds_nothing",
    5: "tests/test_skill.py::test_an_ambiguous_target_is_reported_and_nothing_is_changed",
    6: "tests/test_skill.py::test_an_insertion_after_a_text_that_is_not_there_is_reported_as_missing_and_not_appended",
    7: "tests/test_skill.py::test_a_target_that_is_also_in_a_protected_region_is_changed_where_it_is_free",
    8: "tests/test_skill.py::test_a_rewrite_that_lost_the_protected_parts_gets_them_back",
    9: "tests/test_skill.py::test_an_edit_cannot_touch_the_front_matter",
    10: "tests/test_skill.py::test_guidance_is_appended_once_and_then_replaced_where_it_is",
    11: f"{HERE}/test_differences.py::test_empty_regions_are_not_put_into_a_document",
    12: "tests/reflact/test_trainer.py::test_failures_are_retried_excluded_and_never_zeros",
    13: "tests/reflact/test_gate.py::test_candidate_and_current_are_compared_on_the_items_that_both_were_judged_on",
    14: "tests/reflact/test_trainer.py::"
    "test_forced_guidance_inherits_no_score_and_is_measured_before_the_next_decision",
    15: f"{HERE}/test_differences.py::test_guidance_is_gated_unless_a_file_of_theirs_says_otherwise",
    16: "tests/reflact/test_trainer.py::test_forced_guidance_that_helps_competes_for_best_at_the_end",
    17: "tests/reflact/stages/test_reflect.py::test_partial_credit_is_not_a_success_unless_a_threshold_says_so",
    18: "tests/reflact/test_gate.py::test_metrics",
    19: "tests/reflact/test_trainer.py::test_a_budget_of_zero_applies_nothing",
    20: "tests/reflact/test_trainer.py::test_every_way_to_control_the_budget",
    21: "tests/reflact/test_trainer.py::test_the_schedule_goes_by_selections_and_steps_without_any_do_not_advance_it",
    22: f"{HERE}/test_config_file.py::test_what_cannot_be_meant_is_refused",
    23: "tests/reflact/test_splits.py::test_an_empty_selection_split_is_refused_in_words",
    24: "tests/reflact/test_training_run.py::test_settings_with_a_mistake_are_refused_before_anything_runs",
    25: "tests/reflact/test_optimizer.py::test_a_bad_reply_is_sent_back_with_what_is_wrong_with_it",
    26: "tests/reflact/stages/test_reflect.py::"
    "test_support_is_the_minibatch_that_was_read_and_not_what_the_model_claims",
    27: "tests/reflact/stages/test_aggregate.py::test_a_merge_that_drops_everything_is_not_believed",
    28: "tests/reflact/stages/test_reflect.py::test_patterns_are_tied_to_the_tasks_that_were_shown",
    29: "tests/reflact/stages/test_reflect.py::test_prompts_are_bounded_whatever_the_rollouts_are",
    30: "tests/reflact/stages/test_reflect.py::test_the_same_rollouts_make_the_same_minibatches_whatever_ends_first",
    31: "tests/reflact/test_trainer.py::test_answers_of_train_tasks_can_be_kept_from_the_analysts",
    32: "tests/reflact/test_trainer.py::test_a_memory_that_cannot_be_had_leaves_the_earlier_one",
    33: "tests/reflact/stages/test_slow_update.py::"
    "test_pairs_are_categorized_and_tasks_that_were_not_judged_are_left_out",
    34: "tests/reflact/test_trainer.py::test_pair_policies",
    35: "tests/reflact/test_trainer.py::test_when_nothing_changed_there_is_nothing_to_say_about_changes",
    36: "tests/reflact/test_json_extract.py::test_what_is_refused_and_why",
    37: "tests/reflact/test_json_extract.py::test_what_is_found",
    38: "tests/reflact/test_json_extract.py::test_every_object_is_found_in_prose_and_in_a_fence",
    39: "tests/test_engine.py::test_a_key_changes_with_everything_that_decides_the_outcome",
    40: "tests/reflact/test_resume.py::test_a_run_that_was_killed_comes_to_the_same_end",
    41: "tests/reflact/test_command.py::test_killed_anywhere_it_comes_to_the_same_files",
    42: "tests/reflact/test_trainer.py::test_a_score_of_zero_is_a_score",
    43: "tests/reflact/stages/test_evaluate.py::test_the_tests_at_the_end_run_together",
    44: "tests/reflact/test_records.py::test_totals_add_up_by_role_and_stage",
    45: "tests/reflact/test_trainer.py::test_the_agent_sees_no_test_task_before_training_is_over",
    46: "tests/reflact/test_command.py::test_other_settings_are_refused_with_the_difference",
    47: "tests/config/test_build_agent.py::test_a_skill_is_read_from_its_file",
    48: "tests/reflact/test_optimizer.py::test_a_reply_is_found_again_and_not_asked_for",
    49: "tests/test_store.py::test_a_kill_right_after_put_loses_nothing",
    50: "tests/test_store.py::test_the_lock_names_its_owner_and_dies_with_it",
    51: "tests/test_store.py::test_secrets_are_masked_wherever_they_turn_up",
    52: "tests/test_rollout.py::test_a_rollout_past_its_time_limit_is_stopped_and_still_judged",
    53: "tests/test_rollout.py::test_a_failure_that_a_retry_cannot_fix_is_not_retried",
    54: "tests/reflact/test_trainer.py::test_the_agent_and_the_optimizer_are_two_models",
    55: "tests/reflact/test_trainer.py::test_several_runs_fit_in_one_process",
    56: "tests/reflact/stages/test_evaluate.py::test_scores_by_task_type_and_rollouts_that_failed",
    57: "tests/reflact/test_records.py::test_the_history_is_counted_epoch_by_epoch",
    58: "tests/reflact/test_trainer.py::test_the_prompt_of_the_slow_update_states_how_many_tasks_there_are",
    59: "tests/reflact/test_trainer.py::test_a_spent_budget_stops_the_run_which_goes_on_with_a_larger_one",
    60: f"{HERE}/test_adapters.py::test_an_id_is_no_path_to_somewhere_else",
    61: "tests/test_skill.py::test_a_file_has_a_head_and_gives_back_the_very_text",
    62: f"{HERE}/test_adapters.py::test_the_record_has_what_the_adapter_said",
    63: f"{HERE}/test_adapters.py::test_what_could_not_be_measured_is_a_failure_and_not_a_zero",
    64: f"{HERE}/test_differences.py::test_a_fraction_of_hard_has_not_passed",
    65: f"{HERE}/test_adapters.py::test_a_simulator_has_seeds_for_tasks",
    66: f"{HERE}/test_adapters.py::test_its_own_reflection_is_used",
    67: f"{HERE}/test_adapters.py::test_reference_and_diagnostic_hooks_are_not_called",
    68: f"{HERE}/test_adapters.py::test_a_file_of_theirs_ships_the_best_on_few_tasks_and_guards_warn",
    69: f"{HERE}/test_adapters.py::test_a_file_of_theirs_ships_the_best_on_few_tasks_and_guards_warn",
    70: f"{HERE}/test_config_file.py::test_a_run_selects_ships_and_guards_as_theirs",
    71: "tests/reflact/stages/test_evaluate.py::test_the_tests_at_the_end_run_together",
    72: f"{HERE}/test_benchmarks.py::test_a_benchmark_is_ludus_own_environment_with_their_data",
    73: f"{HERE}/test_adapters.py::test_only_named_parameters_are_passed_and_setup_gets_the_rest",
    74: f"{HERE}/test_verdicts.py::test_a_key_becomes_what_its_verdict_says",
    75: f"{HERE}/test_config_file.py::test_a_learning_rate_below_the_shipped_least_is_its_own_least",
    76: f"{HERE}/test_role_models.py::test_an_agent_runs_in_a_slot_with_the_model_of_the_run",
    77: f"{HERE}/test_run_layout.py::test_ends_of_epochs_have_their_folders",
    78: f"{HERE}/test_run_layout.py::test_a_skipped_step_has_nulls",
    79: f"{HERE}/test_run_layout.py::test_ends_of_epochs_have_their_folders",
    80: f"{HERE}/test_run_layout.py::test_a_skipped_step_has_nulls",
    81: f"{HERE}/test_run_layout.py::test_the_end_of_a_run_has_its_config_version_totals_and_tests",
}
"""The test of each row."""


def list_rows() -> list[int]:
    return [int(number) for page in PAGES for number in re.findall(r"^\| (\d+) \|", page.read_text(), re.MULTILINE)]


def test_every_row_has_a_number_of_its_own_and_a_test():
    assert sorted(list_rows()) == sorted(TESTS)


@pytest.mark.parametrize("row", sorted(TESTS))
def test_the_test_of_a_row_exists(row: int):
    file, _, name = TESTS[row].partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"row {row}: {name}"


# ---- rows whose tests are here --------------------------------------------------------------------------------------


def test_an_append_has_no_target():
    guided = set_guidance(Skill("Be brief.\n"), "Take care.")
    after, (report,) = apply_edits(guided, [Edit("append", "Count.", "Take care.")], lenient=True)
    assert report.applied and "Count." in after.text


def test_an_append_to_an_empty_document_begins_with_no_blank_line():
    after, _ = apply_edits(Skill(""), [Edit("append", "Count.")], lenient=True)
    assert after.text == "Count.\n"


def test_empty_regions_are_not_put_into_a_document():
    assert add_notes(Skill("Be brief.\n"), []) == Skill("Be brief.\n")


def test_guidance_is_gated_unless_a_file_of_theirs_says_otherwise(tmp_path: Path):
    path = tmp_path / "theirs.yaml"
    path.write_text("env: {name: gsm8k}\noptimizer: {use_slow_update: true}")
    assert TrainSettings().slow.gated is True
    assert read_config(path).tree["train"]["slow"]["gated"] is False
    path.write_text("env: {name: gsm8k}\noptimizer: {slow_update_gate_with_selection: true}")
    assert read_config(path).tree["train"]["slow"]["gated"] is True


@pytest.mark.parametrize(("hard", "passed"), [(0.5, False), (1, True), (0, False)])
async def test_a_fraction_of_hard_has_not_passed(hard: float, passed: bool):
    row = {"id": "a", "hard": hard, "soft": 0.75}
    rollout = make_rollout(turns=(Turn(Completion(Message("assistant", ""))),), details={"row": row})
    score = await AdapterEnv(adapter="x:Y").verify(rollout, None)
    assert (score.value, score.passed, score.soft) == (hard, passed, 0.75)
