"""A training run in SkillOpt's layout."""

import json

from ludus.compat.skillopt.run_layout import build_layout
from ludus.reflact.gate import Gate, Mark, Measure
from ludus.reflact.records import Baseline, BatchReport, Fate, MeasuredSkill, RunState, Step
from ludus.skill import Edit, Skill

FIRST, SECOND = Skill("Be brief."), Skill("Be brief.\nShow the sum.")


def measure(skill: Skill, hard: float) -> Measure:
    return Measure(skill.hash, {"a": Mark(hard, hard)})


def make_records() -> list[Baseline | Step]:
    initial = MeasuredSkill(FIRST, "initial_skill", 0, measure(FIRST, 0.0))
    before = RunState(initial=initial, current=initial, best=initial)
    better = MeasuredSkill(SECOND, "step_0001", 1, measure(SECOND, 1.0))
    step = Step(
        number=1,
        epoch=1,
        place=1,
        batches=(BatchReport(7, 4, 1, 0.5, 0.75),),
        fates=(
            Fate(Edit("append", "Show the sum."), "applied_append"),
            Fate(Edit("append", "Sing."), "not_selected"),
        ),
        candidate=SECOND,
        measure=measure(SECOND, 1.0),
        action="accept_new_best",
        state=RunState(epoch=1, step=1, initial=initial, current=better, best=better),
    )
    return [Baseline(measure=measure(FIRST, 0.0), spent=(), seconds={}, state=before), step]


def test_the_files_of_a_run():
    files = dict(build_layout(make_records(), Gate()))
    assert files["skills/skill_v0000.md"] == FIRST.text
    assert files["skills/skill_v0001.md"] == files["best_skill.md"] == SECOND.text
    assert files["steps/step_0001/candidate_skill.md"] == SECOND.text
    (row,) = json.loads(files["history.json"])
    assert row == json.loads(files["steps/step_0001/step_record.json"])
    assert (row["step"], row["step_in_epoch"], row["action"]) == (1, 0, "accept_new_best")
    assert (row["rollout_n"], row["rollout_hard"], row["selection_hard"]) == (3, 0.5, 1.0)
    assert (row["n_edits_merged"], row["n_edits_ranked"], row["best_origin"]) == (2, 1, "step_0001")
    assert row["accumulation_batches"] == [{"batch_idx": 0, "batch_seed": 7, "n_envs": 4, "hard": 0.5, "soft": 0.75}]
    edits = json.loads(files["steps/step_0001/ranked_edits.json"])["edits"]
    assert edits == [{"op": "append", "content": "Show the sum.", "target": ""}]
    assert json.loads(files["runtime_state.json"])["last_completed_step"] == 1
    assert "summary.json" not in files  # the run has not ended


def test_a_run_without_a_part_has_an_empty_history():
    assert dict(build_layout([], Gate())) == {"history.json": "[]\n"}
