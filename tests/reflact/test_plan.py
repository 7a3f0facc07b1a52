"""The plan of a training run: what is wrong with settings and data is found before anything runs."""

from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    train_words,
    write_rules,
)

from ludus.cli import main
from ludus.config import load
from ludus.envs.gsm8k import Gsm8k
from ludus.reflact.command import make_plan
from ludus.reflact.plan import make_skill_head

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_rules(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.epoch", "3"], "did you mean 'train.epochs'?"),
        (["--train.gate.metrik", "hard"], "did you mean 'train.gate.metric'?"),
        (["--data.ratios", "1:1:1"], "did you mean 'data.ratio'?"),
        (["--train.batch_size", "0"], "train.batch_size: expected a whole number of at least 1"),
        (["--train.proposer", "magic"], "train.proposer: unknown proposer 'magic'; known: analysts, exemplars"),
        (["--data.ratio", "1:1"], "data.ratio"),
        (["--train.min_edit_budget", "9"], "train.min_edit_budget is 9"),
        (["--env.split", "test"], "env.split is for process and evaluate"),
        (["--env.limit", "3"], "data.limit"),
        (["--env.group_size", "3"], "train.selection_replicates"),
        (["--run.seed", "3"], "train.seed"),
        (["--tools.distribution", "default"], "tools.distribution"),
        (["--train.prompts", "nowhere"], "nowhere is not a folder"),
        (["--agent.skill", "nowhere.md"], "agent.skill: there is no file nowhere.md"),
        (["--agent.skill", "bad.md"], "agent.skill: the front matter is not in the Agent Skills form"),
        (["--agent.skill_as", "file"], "rules has no slot to put a file in"),
        (["--optimizer.script", ""], "optimizer.script: which function?"),
        (["--data.limit", "1", "--data.ratio", "1:1:99"], "data: the"),
        (["--train.proposer", "exemplars", "--train.update_mode", "full_rewrite_minibatch"], "cannot do"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(ludus: Ludus, words: list[str], message: str):
    Path("bad.md").write_text("---\nname: x\n---\n\nBe brief.\n")
    done = ludus(*train_words("--out", "run", *words))
    assert done.code == 2
    assert message in done.err
    assert not Path("calls").exists() and not Path("run").exists()


def test_other_files_behind_the_same_settings_are_refused(ludus: Ludus, folder: Path):
    Path("SKILL.md").write_text("Be brief.\n")
    Path("prompts").mkdir()
    words = ["--agent.skill", "SKILL.md", "--train.prompts", "prompts"]
    assert ludus(*train_words("--out", "run", "--quiet", *words)).code == 0
    Path("SKILL.md").write_text("Be long.\n")
    changed = ludus("train", "--resume", "--out", "run")
    assert changed.code == 2 and "content.skill" in changed.err
    Path("SKILL.md").write_text("Be brief.\n")
    ours = Path(main.__code__.co_filename).parent.parent / "reflact" / "prompts" / "reask.md"
    Path("prompts/reask.md").write_text(ours.read_text() + "\nPlease.\n")
    changed = ludus("train", "--resume", "--out", "run")
    assert changed.code == 2 and "content.prompts" in changed.err


def test_a_plan_counts_the_tasks_that_a_run_uses():
    flags = [("train.selection_size", "4"), ("train.test_size", "99")]
    plan = make_plan(load([Path("config.yaml")], flags))
    assert (plan.sizes.train, plan.sizes.selection, plan.sizes.test) == (6, 4, 6)
    assert plan.proposer.name == "analysts"


def test_a_trained_skill_is_named_after_its_environment():
    head = make_skill_head(Gsm8k())
    assert head.name == "gsm8k"
    assert head.description.startswith("What to know and do for gsm8k tasks, learned by training on them. ")


def test_a_marker_without_its_other_half_is_told(ludus: Ludus):
    Path("SKILL.md").write_text("<!-- KEEP_START -->\n- Be brief.\n")
    words = ["--agent.skill", "SKILL.md", "--out", "run"]
    assert "<!-- KEEP_START --> has no other half" in ludus(*train_words(*words)).err
    Path("SKILL.md").write_text("<!-- KEEP_START -->\n- Be brief.\n<!-- KEEP_END -->\n")
    assert "other half" not in ludus(*train_words("--agent.skill", "SKILL.md", "--out", "other")).err
