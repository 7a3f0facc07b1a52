"""The measure of a reviewed skill: on the sealed test tasks, paired with the initial and the shipped skill.

Scripts that are not those of the initial skill are checked first, in slots, as training does: a person may have changed
them. The rollouts have the seeds of the run's own test. What was run there is found in the store, so usually only the
reviewed skill is run. Each skill that is tested counts as a use of the test split. The result says that a person chose
the skill: nothing chose it by its score.
"""

import time

from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.gate import pair_marks
from ludus.reflact.records import Record, Summary
from ludus.reflact.review import MeasuredDifference, ReviewMeasure, SkillReview
from ludus.reflact.script_checks import check_script, list_changed_scripts
from ludus.reflact.shipping import compute_claim_interval, count_test_uses, format_points
from ludus.reflact.splits import FinishedSkills
from ludus.reflact.stages.evaluate import TestResult, run_test
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill
from ludus.stats import PairedStats, compare_pairs


def require_summary(record: Record | None) -> Summary:
    """The summary of a run whose training is over. Raises `ConfigError`: until then its test split is sealed."""
    if not isinstance(record, Summary):
        raise ConfigError(
            "--measure: training is not over, so the test tasks are sealed; finish the run first "
            "(ludus train --resume --out RUN)"
        )
    return record


async def measure_review(run: TrainingRun, summary: Summary, review: SkillReview) -> ReviewMeasure:
    """Test the reviewed skill beside the initial and the shipped one."""
    if not len(run.splits.test):
        raise ConfigError("--measure: the test split of this run is empty, so there is nothing to measure on")
    initial, shipped = summary.state.initial.skill, summary.state.best.skill
    scripts = await check_reviewed_scripts(run, initial, review.skill)
    tested: dict[Skill, TestResult] = {}
    for skill in (shipped, review.skill):
        tested |= await run_test(run, FinishedSkills(initial, skill, skill))
    own, first, second = tested[review.skill], tested[initial], tested[shipped]
    to_initial = _compare(run, own, first) if review.skill != initial else None
    to_shipped = _compare(run, own, second) if review.skill != shipped else None
    uses = count_test_uses(run, review.skill)
    return ReviewMeasure(
        review=review.number,
        skill=review.skill.hash,
        sentence=write_sentence(to_initial, to_shipped, is_shipped=review.skill == shipped, uses=uses),
        passed={"initial": first.measure.hard, "shipped": second.measure.hard, "reviewed": own.measure.hard},
        to_initial=to_initial,
        to_shipped=to_shipped,
        test_split=run.splits.test.digest,
        test_uses=uses,
        failed=sum(result.measure.failed for result in tested.values()),
        scripts=scripts,
        time=time.time(),
    )


async def check_reviewed_scripts(run: TrainingRun, initial: Skill, reviewed: Skill) -> tuple[str, ...]:
    """Run the check of each script that is not as in the initial skill. Raises `ConfigError` if one fails."""
    paths = list_changed_scripts(initial, reviewed)
    runner, settings = run.runner.runner, run.settings.package
    failed = [check for path in paths if (check := await check_script(reviewed, path, runner, settings)).reason]
    if failed:
        reasons = "; ".join(f"{check.path}: {check.reason}" for check in failed)
        raise ConfigError(f"--measure: a script of the reviewed package fails its check, so nothing was run: {reasons}")
    return paths


def _compare(run: TrainingRun, one: TestResult, other: TestResult) -> MeasuredDifference | None:
    """The paired difference in passed tasks."""
    hard = replace(run.settings.gate, metric="hard")
    found = compare_pairs(pair_marks(hard, one.measure, other.measure), compute_claim_interval)
    return None if found is None else _shorten(found)


def _shorten(found: PairedStats) -> MeasuredDifference:
    return MeasuredDifference(found.difference, found.interval, found.tasks, found.wins, found.losses)


def write_sentence(
    to_initial: MeasuredDifference | None, to_shipped: MeasuredDifference | None, *, is_shipped: bool, uses: int
) -> str:
    """The result in words."""
    parts = [
        f"{_describe(to_initial)} compared with the initial skill"
        if to_initial
        else "no difference to the initial skill"
    ]
    if is_shipped:
        parts.append("it is the skill that the run shipped")
    elif to_shipped:
        parts.append(f"{_describe(to_shipped)} compared with the shipped one")
    times = f" (test split used {uses} times)" if uses > 1 else ""
    return f"a person chose this skill: {'; '.join(parts)}{times}"


def _describe(found: MeasuredDifference) -> str:
    low, high = format_points(found.interval.low), format_points(found.interval.high)
    chance = " (within chance)" if found.interval.low <= 0 <= found.interval.high else ""
    tasks = f"{found.tasks} test task{'' if found.tasks == 1 else 's'}"
    return f"{format_points(found.difference)} points [{low}, {high}] on {tasks}{chance}"
