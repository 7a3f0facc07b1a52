"""The overview has the numbers that the rollouts themselves give, for every kind of run."""

from pathlib import Path

import pytest
from tests.view_kit import make_runs

from ludus.batch import group_outcomes
from ludus.comparison import compare_runs
from ludus.reflact.training_run import read_records
from ludus.rl.records import read_steps
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.types import Group
from ludus.view.overview import describe_run
from ludus.view.paging import Parameters
from ludus.view.run_folder import RunFolder
from ludus.view.skills import blame_skill, compare_skills, list_skills
from ludus.view.versus import compare_folder_runs
from ludus.view.weights import list_groups, list_steps


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    return make_runs(tmp_path_factory.mktemp("view"))


def read_groups(path: Path) -> list[Group]:
    with RunDir.read(path) as directory:
        return group_outcomes(directory, directory.config.get("env", {}).get("group_size", 1))


@pytest.mark.parametrize("name", ["notes-a", "notes-b", "exact", "branches"])
def test_the_numbers_are_those_of_the_rollouts(runs: Path, name: str):
    summary = summarize(read_groups(runs / name))
    with RunFolder([runs]) as folder, folder.facts.open(runs / name) as facts:
        card = folder.get_card(name)
        found = describe_run(facts, card)
    overall = summary.overall
    assert (found.tasks, card.rollouts, card.scored) == (overall.tasks, overall.rollouts, overall.scored)
    assert card.score == pytest.approx(overall.mean) and card.mean == card.score
    assert card.interval is not None and overall.interval is not None
    assert (card.interval.low, card.interval.high) == pytest.approx((overall.interval.low, overall.interval.high))
    assert found.mean_with_zeros == pytest.approx(overall.mean_with_zeros)
    assert found.mean_without_suspects == pytest.approx(overall.mean_without_suspects)
    assert [(p.k, p.tasks) for p in found.pass_at] == [(p.k, p.tasks) for p in overall.pass_at]
    assert [p.value for p in found.pass_at] == pytest.approx([p.value for p in overall.pass_at])
    assert found.failures.causes == summary.failures.causes and found.failures.lost == summary.failures.lost
    assert found.failures.lowest == pytest.approx(summary.failures.lowest)
    assert found.failures.highest == pytest.approx(summary.failures.highest)
    assert found.stops == summary.stops
    assert sorted((t.tool, t.calls, t.errors) for t in found.tools) == sorted(
        (t.tool, t.calls, t.errors) for t in summary.tools
    )
    assert found.turns is not None and summary.turns is not None and found.seconds is not None and summary.seconds
    assert (found.turns.mean, found.turns.median, found.turns.p95, found.turns.most) == pytest.approx(
        (summary.turns.mean, summary.turns.median, summary.turns.p95, summary.turns.most)
    )
    assert found.seconds.total == pytest.approx(summary.seconds.total)
    assert set(found.kinds) == set(summary.kinds)
    for kind, each in found.kinds.items():
        assert each.mean == pytest.approx(summary.kinds[kind].mean) and each.tasks == summary.kinds[kind].tasks


def test_a_comparison_is_that_of_the_command(runs: Path):
    names = ("notes-a", "notes-b")
    (expected,) = compare_runs({name: read_groups(runs / name) for name in names}).pairs
    with RunFolder([runs]) as folder:
        found = compare_folder_runs(folder, Parameters({"run": list(names), "limit": ["500"]}))
    (pair,) = found.pairs
    assert (pair.tasks, pair.won, pair.lost, pair.tied) == (expected.tasks, expected.won, expected.lost, expected.tied)
    assert pair.difference == pytest.approx(expected.difference) and pair.verdict == expected.verdict
    assert [task.task for task in pair.won_tasks] == [task.task for task in expected.won_tasks]
    assert found.total == len(found.grid) == 6 and all(len(row.cells) == 2 for row in found.grid)
    assert {"model.name", "model.script"} <= {each.key for each in found.settings}
    assert found.runs[0].mean == pytest.approx(summarize(read_groups(runs / "notes-a")).overall.mean)


def test_a_training_run_has_curves_a_claim_and_versions(runs: Path):
    with RunFolder([runs]) as folder, folder.facts.open(runs / "lines") as facts:
        found = describe_run(facts, folder.get_card("lines"))
        records = list(read_records(facts.directory))
        blame = blame_skill(runs / "lines", "shipped", folder.facts)
    assert found.has_skill and found.claim == records[-1].claim.sentence  # pyright: ignore
    assert {"current", "train", "decisions"} <= {curve.name for curve in found.curves}
    listed = list_skills(runs / "lines")
    assert listed.shipped == records[-1].state.best.skill.hash and listed.versions[0].decision == "initial"
    shipped = next(version for version in listed.versions if version.hash == listed.shipped)
    assert "\n".join(line.text for line in blame.lines) == records[-1].state.best.skill.text.rstrip("\n")
    assert shipped.lines == len(blame.lines)
    lines = [line for line in blame.lines if line.line]
    assert lines and all(line.step and line.evidence_for and line.interval for line in lines)
    refs = [ref for line in lines for ref in line.evidence_for]
    with RunDir.read(runs / "lines") as directory:
        for ref in refs:
            assert ref.id is not None
            body = directory.read_body(ref.id)
            assert body is not None and f'"id":"{ref.task}"'.encode() in body
    diff = compare_skills(runs / "lines", Parameters({"left": [listed.initial], "right": [listed.shipped]}))
    assert diff.added == shipped.lines and diff.removed == 0


def test_an_rl_run_has_its_steps_and_groups(runs: Path):
    with RunFolder([runs]) as folder:
        page = list_steps(runs / "letters", Parameters({"limit": ["500"]}))
        with RunDir.read(runs / "letters") as directory:
            steps = read_steps(directory)
        assert sorted(step.step for step in page.steps) == [step.step for step in steps] == list(range(7))
        assert {step.step: step.reward for step in page.steps} == {step.step: step.reward for step in steps}
        groups = list_groups(runs / "letters", folder.facts, Parameters({"limit": ["500"]}))
    taken = [group for group in groups.rows if group.step is not None]
    assert len(taken) == sum(len(step.groups) for step in steps) == 18
    for group in taken:
        scores = [score for score in group.scores if score is not None]
        assert [a for a in group.advantages if a is not None] == pytest.approx(
            [s - sum(scores) / len(scores) for s in scores]
        )


def test_many_runs_are_listed_at_once_and_read_in_pieces(tmp_path: Path):
    from tests.build import make_rollout
    from tests.view_kit import write_rollouts

    first = write_rollouts(tmp_path / "runs" / "run-0", [make_rollout(1.0)])
    for n in range(1, 60):
        other = tmp_path / "runs" / f"run-{n}"
        other.mkdir()
        for file in first.iterdir():
            if file.is_file():
                (other / file.name).write_bytes(file.read_bytes())
    with RunFolder([tmp_path / "runs"], tmp_path / "cache") as folder:
        page = folder.list_runs(wait=0.0)
        assert page.total == 60 and page.pending == 60
        assert folder.list_runs(wait=600.0).pending == 0
    with RunFolder([tmp_path / "runs"], tmp_path / "cache") as folder:
        page = folder.list_runs(Parameters({"limit": ["7"]}), wait=0.0)
        assert page.pending == 0, "cards of an earlier process are still true"
        ids = [row.id for row in page.rows]
        while page.next:
            page = folder.list_runs(Parameters({"limit": ["7"], "cursor": [page.next]}))
            ids += [row.id for row in page.rows]
    assert sorted(ids) == sorted(f"run-{n}" for n in range(60))
