"""`ludus train`, as a user meets it."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli_kit import (
    LUDUS,
    RULES_MODELS,
    Ludus,
    read_results,
    train_words,
    write_rules,
)
from tests.command_kit import TRACKER, read_lines

from ludus.cli import main
from ludus.reflact.records import Baseline
from ludus.reflact.training_run import read_records
from ludus.skill import Skill, parse_file, render_file
from ludus.store import RunDir

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_rules(folder)


# ---- a run --------------------------------------------------------------------------------------------------------


def test_a_skill_is_trained_and_all_files_are_written(ludus: Ludus):
    done = ludus(*train_words("--out", "run"))
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in Path("run/steps.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == ["baseline", "step", "step", "epoch", "step", "step", "epoch"]
    assert [line["number"] for line in lines if line["record"] == "step"] == [1, 2, 3, 4]
    summary = json.loads(Path("run/summary.json").read_text())
    for name in ("best", "final"):
        file = Path(f"run/{name}/SKILL.md").read_text()
        assert parse_file(file).text == summary[name]["skill"]["text"] != ""
        assert (front := Skill(file).front) is not None and front.name == "rules"
    assert sum(summary["seconds"].values()) > 0 and {"baseline", "rollout", "test"} <= set(summary["seconds"])
    assert summary["best"]["test"]["overall"]["hard"] > summary["initial"]["test"]["overall"]["hard"] == 0.0
    report = Path("run/report.html").read_text()
    for words in (
        'id="snapshot"',
        "/skills/",
        "accepted",
        "Obey RULE-",
        "skipped_replace_target_not_found",
        "optimizer",
    ):
        assert words in report
    assert "baseline: 0 [0, 0.39] on 6 selection tasks" in done.err
    assert "step 4/4 (epoch 2)" in done.err
    assert "step_0004" in done.out and "1 [0.61, 1] of 6 tasks" in done.out
    assert "run/best/SKILL.md" in done.out


def test_a_trained_skill_is_used_as_it_was_trained_without_the_head_of_its_file(ludus: Ludus):
    trained = Skill("Obey RULE-0.\n")
    Path("SKILL.md").write_text(render_file(trained, "rules", "How to obey."))
    assert ludus(*train_words("--out", "run", "--quiet", "--agent.skill", "SKILL.md", "--budget.calls", "2")).code == 3
    assert json.loads(Path("run/config.json").read_text())["content"]["skill"] == trained.hash


def test_for_machines_stdout_is_one_json(ludus: Ludus):
    done = ludus(*train_words("--out", "run", "--json"))
    report = json.loads(done.out)
    assert (report["status"], report["steps"], report["resume"]) == ("completed", 4, "")
    assert report["summary"]["best"]["selection"] > 0
    assert set(report["files"]) == {
        "steps", "summary", "report", "best", "best_on_selection", "final",
    }  # fmt: skip
    assert {"agent", "optimizer"} == set(report["ledger"])
    spent = {
        role: sum(e["calls"] for e in report["summary"]["spent"] if e["role"] == role) for role in report["ledger"]
    }
    assert spent["optimizer"] == report["ledger"]["optimizer"]["calls"]
    assert "step" not in done.err


def test_a_claim_is_compared_with_the_same_rollouts_as_samples(ludus: Ludus):
    plain = ludus(*train_words("--out", "run"))
    assert not re.search(r"\bgain", plain.out) and "ludus train --resume --claim --out run" in plain.err
    before = json.loads(Path("run/summary.json").read_text())
    assert before["claim"]["gain"] is False and before["arms"] is None
    done = ludus("train", "--resume", "--claim", "--out", "run")
    assert done.code == 0, done.err
    assert done.out.startswith("a gain of +100 points") and "initial skill, best of" in done.out
    after = json.loads(Path("run/summary.json").read_text())
    assert after["claim"]["gain"] is True and after["arms"]["best_of"]["tasks"] == 6
    assert after["arms"]["sentence"] in done.out and after["arms"]["sentence"] in ludus("show", "run").out
    assert json.loads(ludus("show", "run", "--json").out)["records"][-1]["arms"] == after["arms"]
    at_once = ludus(*train_words("--out", "once", "--claim", "--json"))
    report = json.loads(at_once.out)["summary"]
    assert (report["arms"], report["claim"]["sentence"]) == (after["arms"], after["claim"]["sentence"])
    again = ludus("train", "--resume", "--out", "run", "--json")
    assert json.loads(again.out)["summary"]["arms"] == after["arms"], "what was measured stays"


def test_a_dry_run_counts_the_rollouts_of_each_arm(ludus: Ludus):
    plain = json.loads(ludus(*train_words("--dry-run", "--json")).out)
    assert "best_of" not in {line["stage"] for line in plain["lines"]}
    model = ("--claim_model.type", "scripted", "--claim_model.script", "models.py:agent", "--claim_model.name", "other")
    words = train_words("--dry-run", "--json", "--claim", "--claim.best_of", "4", "--claim.split", "other", *model)
    calls = {line["stage"]: (line["role"], line["calls"]["likely"]) for line in json.loads(ludus(*words).out)["lines"]}
    assert calls["best_of"] == ("agent", 3 * 6) and calls["held_out"] == ("agent", 2 * 18)
    assert calls["other_model"] == ("claim_model", 2 * 6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--claim.best_of", "4"), "claim.best_of"),
        (("--claim", "--claim.best_of", "1"), "claim.best_of"),
        (
            ("--claim", "--claim.kinds", "refund"),
            "claim.kinds: no task is of the kind 'refund'; its tasks have no kinds",
        ),
        (("--claim", "--claim.split", "train"), "held_out"),
        (("--claim", "--train.test", "false"), "train.test"),
        (("--claim_model.name", "x", "--claim_model.base_url", "http://127.0.0.1:1/v1"), "add --claim"),
    ],
)
def test_arms_that_cannot_be_measured_are_refused_by_name(ludus: Ludus, words: tuple[str, ...], message: str):
    done = ludus(*train_words("--dry-run", *words))
    assert done.code == 2 and message in done.err, done.err


def test_a_limit_that_leaves_no_arm_is_told_before_it_is_spent(ludus: Ludus):
    claim = ("train", "--config", "lines.yaml", "--dry-run", "--claim", "--claim.rollouts")
    told = ludus(*claim, "3").err
    assert "claim.rollouts is 3, which leaves too few for the arm of equal budget of at least 4 tasks" in told
    assert "claim.rollouts" not in ludus(*claim, "9999").err
    assert "claim.rollouts" not in ludus(*claim, "8", "--claim.best_of", "2").err


def test_killed_in_the_arms_it_comes_to_the_same_claim(folder: Path, ludus: Ludus):
    assert ludus(*train_words("--out", "whole", "--claim", "--quiet")).code == 0
    calls = len(Path("calls").read_text())
    Path("calls").unlink()
    Path("kill").write_text(str(calls - 7))
    command = [*LUDUS, *train_words("--out", "killed", "--claim", "--quiet")]
    assert subprocess.run(command, cwd=folder, check=False).returncode == -signal.SIGKILL
    assert not Path("killed/summary.json").exists() or "best_of" not in Path("killed/summary.json").read_text()
    Path("kill").unlink()
    assert ludus("train", "--resume", "--out", "killed", "--quiet").code == 0
    assert read_results("killed") == read_results("whole")


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus(*train_words("--out", "run", "--quiet")) == (0, "run\n", "")


def test_the_settings_of_a_run_can_be_printed(ludus: Ludus):
    done = ludus(*train_words("--print-config", "--train.gate.metric", "soft"))
    assert "metric: soft" in done.out and "proposer: analysts" in done.out
    assert not Path("runs").exists()


def test_the_demo_prints_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its settings and its command, with a model that needs no weights."""
    config = Path(__file__).parents[2] / "configs" / "demo.yaml"
    script = tmp_path / "model.py"
    script.write_text(
        "from ludus.envs.orders import Orders\n"
        "TASKS = [task for split in ('train', 'validation', 'test') for task in Orders().tasks(split)]\n"
        "ANSWERS = {task.prompt: task.answer for task in TASKS}\n"
        "def reply(messages, tools, sampling):\n"
        "    return ANSWERS[messages[-1].content] if len(messages) > 8 else 'Hello!'\n"
    )
    out = tmp_path / "run"
    model = ["--model.type", "scripted", "--model.script", f"{script}:reply"]
    assert main(["train", "--config", str(config), "--out", str(out), *model]) == 0
    said = capsys.readouterr().out
    assert "accept new best" in said and "reject" in said and "from 1 failure: " in said
    assert "●" in said and "○" in said
    assert "0 [0, 0.05" in said and "1 [0.94" in said and "] of 64 tasks" in said, said
    assert (out / "best" / "SKILL.md").is_file() and (out / "report.html").is_file()
    assert str(out / "best" / "SKILL.md") in said and "report.html" in said


# ---- trackers -----------------------------------------------------------------------------------------------------


def read_values(path: str) -> list[tuple[int, dict[str, float]]]:
    """The values of each step, without times."""
    lines = [line for line in read_lines(path) if "step" in line]
    return [(line["step"], {key: line[key] for key in line if key not in ("step", "time")}) for line in lines]


def test_a_tracker_of_the_users_own_gets_the_values_of_each_part(ludus: Ludus):
    Path("mine.py").write_text(TRACKER)
    assert ludus(*train_words("--out", "run", "--quiet", "--tracking.use", "mine.py:Mine")).code == 0
    values = read_values("mine.jsonl")
    assert values == read_values("run/metrics.jsonl")
    summary = json.loads(Path("run/summary.json").read_text())
    assert values[0] == (0, {"selection/hard": 0.0, "selection/soft": 0.0})
    assert [step for step, found in values if "train/hard" in found] == [1, 2, 3, 4]
    tested = {f"test/{name}": summary[name]["test"]["overall"]["hard"] for name in ("initial", "best", "final")}
    assert values[-1] == (4, tested)
    lines = read_lines("mine.jsonl")
    assert (lines[0], lines[-1]) == ({"start": "run", "project": "ludus"}, {"close": True})


def test_a_resumed_run_logs_no_part_twice(ludus: Ludus):
    assert ludus(*train_words("--out", "whole", "--quiet")).code == 0
    codes = [ludus(*train_words("--out", "run", "--quiet", "--budget.calls", "60")).code]
    Path("mine.py").write_text(TRACKER)
    before = read_values("run/metrics.jsonl")
    codes.append(ludus("train", "--resume", "--out", "run", "--budget.calls", "9999", "--tracking.use", "mine.py").code)
    assert codes == [3, 0] and before
    assert (
        read_values("run/metrics.jsonl") == [*before, *read_values("mine.jsonl")] == read_values("whole/metrics.jsonl")
    )
    assert ludus("train", "--resume", "--out", "run").code == 0
    assert read_values("run/metrics.jsonl") == read_values("whole/metrics.jsonl")


def test_an_unknown_tracker_is_an_error_before_anything_runs(ludus: Ludus):
    done = ludus(*train_words("--out", "run", "--tracking.use", "wandbb"))
    assert done.code == 2 and "tracking.use: unknown tracker 'wandbb'; did you mean 'wandb'?" in done.err
    assert not Path("calls").exists() and not Path("run").exists()


# ---- resuming -----------------------------------------------------------------------------------------------------


def test_killed_anywhere_it_comes_to_the_same_files(folder: Path):
    def run(out: str, *words: str) -> int:
        command = [*LUDUS, *train_words("--out", out, "--quiet", *words)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    assert run("whole") == 0
    calls = len(Path("calls").read_text())
    for number, point in enumerate((2, calls // 2, calls - 3)):
        Path("calls").unlink()
        Path("kill").write_text(str(point))
        speed = ["--run.concurrency", str(1 + 7 * (number % 2))]
        assert run(f"killed-{number}", *speed) == -signal.SIGKILL
        assert len(Path("calls").read_text()) == point
        Path("kill").unlink()
        with Path(f"killed-{number}/steps.jsonl").open("ab") as file:
            file.write(b'{"record":"st')  # a line that was being written
        assert run(f"killed-{number}", "--resume", *speed) == 0
        if number % 2 == 0:
            assert len(Path("calls").read_text()) <= calls + 1  # the call that was cut off is the only one made twice
        assert read_results(f"killed-{number}") == read_results("whole")


def test_a_finished_run_is_resumed_without_a_call(ludus: Ludus):
    ludus(*train_words("--out", "run", "--quiet"))
    before, files = len(Path("calls").read_text()), read_results("run")
    Path("run/steps.jsonl").unlink()
    Path("run/best/SKILL.md").write_text("somebody's")
    done = ludus("train", "--resume", "--out", "run")
    assert done.code == 0
    assert len(Path("calls").read_text()) == before
    assert read_results("run") == files
    assert "step 1" not in done.err  # it was printed when it happened


def test_other_settings_are_refused_with_the_difference(ludus: Ludus):
    ludus(*train_words("--out", "run", "--quiet"))
    changes = {
        ("--train.epochs", "3"): "train.epochs: 2 → 3",
        ("--train.gate.metric", "soft"): 'train.gate.metric: "auto" → "soft"',
        ("--data.seed", "1"): "data.seed: 42 → 1",
        ("--optimizer.name", "other"): 'optimizer.name: "optimizer" → "other"',
        ("--env.size", "12"): "env.size: 18 → 12",
    }
    for words, shown in changes.items():
        done = ludus("train", "--resume", "--out", "run", *words)
        assert done.code == 2
        assert "was run with other settings" in done.err and shown in done.err


def test_a_run_of_an_earlier_version_goes_on_as_it_began(ludus: Ludus):
    """It has no record of later settings, whose defaults would decide otherwise."""
    old = ("--train.guards.enabled", "false", "--train.selection_draw", "first", "--train.selection_size", "4")
    old += ("--train.support", "minibatch")
    assert ludus(*train_words("--out", "run", "--quiet", *old)).code == 0
    recorded = json.loads(Path("run/config.json").read_text())["train"]
    assert not {"guards", "selection_draw", "support"} & recorded.keys()
    before = read_results("run")
    done = ludus("train", "--resume", "--out", "run", "--json")
    assert done.code == 0, done.err
    assert read_results("run") == before
    printed = ludus(*train_words("--print-config", *old)).out
    assert "selection_draw: first" in printed and "enabled: false" in printed, "it can be given back"
    assert ludus(*train_words("--out", "new", "--quiet")).code == 0
    assert json.loads(Path("new/config.json").read_text())["train"]["guards"]["enabled"] is True


def test_a_batch_cannot_resume_a_training_run(ludus: Ludus):
    ludus(*train_words("--out", "run", "--quiet"))
    done = ludus("evaluate", "--resume", "--out", "run")
    wanted = (
        "run is a training run, which `ludus evaluate` cannot resume: resume it with ludus train --resume --out run"
    )
    assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1
    assert ludus("process", "rules.py", "--run.resume", "true", "--out", "run").err.count("is a training run") == 1


def test_training_cannot_resume_a_batch(ludus: Ludus):
    agent = ["--model.type", "scripted", "--model.script", "models.py:agent"]
    assert ludus("evaluate", "rules.py", "--env.limit", "2", "--out", "run", "--quiet", *agent).code == 0
    done = ludus("train", "--resume", "--out", "run")
    assert done.code == 2 and "run is a run of evaluate or process, which `ludus train` cannot resume" in done.err
    assert done.err.count("\n") == 1


def test_a_run_whose_optimizer_gives_no_usable_reply_ends_with_an_error(ludus: Ludus):
    Path("mute.py").write_text("def reply(messages, tools, sampling):\n    return 'I would rather not.'\n")
    mute = ["--optimizer.script", "mute.py:reply", "--train.optimizer_tries", "2"]
    done = ludus(*train_words("--out", "run", "--json", *mute))
    report = json.loads(done.out)
    replies = report["ledger"]["optimizer"]["calls"]
    assert (done.code, report["status"], replies > 0) == (1, "completed", True)
    assert f"0 of {replies} replies of the optimizer were usable" in done.err
    assert ludus("train", "--resume", "--out", "run", "--quiet").code == 1


def test_what_an_optimizer_of_ones_own_raises_is_told_without_a_traceback(ludus: Ludus):
    Path("broken.py").write_text(
        "def raise_it(messages, tools, sampling):\n    raise ValueError('no such rule')\n"
        "def say_nothing(messages, tools, sampling):\n    return None\n"
    )
    done = ludus(*train_words("--out", "run", "--optimizer.script", "broken.py:raise_it"))
    assert done.code == 1 and "optimizer: ValueError: no such rule (broken.py, line 2)" in done.err
    assert "resume with" in done.err
    done = ludus(*train_words("--out", "none", "--optimizer.script", "broken.py:say_nothing"))
    assert done.code == 1 and "the script returned NoneType" in done.err


def test_how_fast_it_goes_may_change(ludus: Ludus):
    ludus(*train_words("--out", "run", "--quiet"))
    assert ludus("train", "--resume", "--out", "run", "--run.concurrency", "4", "--budget.calls", "9999").code == 0


# ---- stopping -----------------------------------------------------------------------------------------------------


def test_a_spent_budget_stops_cleanly_and_the_run_resumes_with_a_larger_one(ludus: Ludus):
    ludus(*train_words("--out", "whole", "--quiet"))
    stopped = ludus(*train_words("--out", "run", "--budget.calls", "20"))
    assert stopped.code == 3
    assert "budget of 20 calls is spent" in stopped.err
    assert "ludus train --resume --out run (with a larger budget: --budget.…)" in stopped.err
    assert Path("run/report.html").exists() and not Path("run/summary.json").exists()
    assert "not finished" in stopped.out
    again = ludus("train", "--resume", "--out", "run")
    assert again.code == 3, "the budget is the run's, not the command's"
    done = ludus("train", "--resume", "--out", "run", "--budget.calls", "500")
    assert done.code == 0
    assert read_results("run") == read_results("whole")


@pytest.mark.parametrize("recipe", ["ledger", "reflact"])
def test_a_budget_without_room_for_one_step_stops_before_the_sealed_test(ludus: Ludus, recipe: str):
    words = ["train", "--config", "lines.yaml" if recipe == "ledger" else "config.yaml", "--out", "run"]
    stopped = ludus(*words, "--budget.optimizer.tokens", "5")
    assert stopped.code == 3
    assert "the next call needs about" in stopped.err and "Raise budget.optimizer.tokens to go on" in stopped.err
    assert not Path("run/summary.json").exists()
    assert ludus("train", "--resume", "--out", "run", "--quiet", "--budget.optimizer.tokens", "9999999").code == 0


def test_a_budget_of_rollouts_without_room_for_one_step_is_refused(ludus: Ludus):
    refused = ludus(*train_words("--out", "run", "--budget.rollouts", "20"))
    assert refused.code == 2
    assert "budget.rollouts is 20, but baseline, one step, shipping and the test take" in refused.err
    assert not Path("calls").exists(), "no model was called"


def test_ctrl_c_finishes_what_runs_and_the_run_can_be_resumed(folder: Path, ludus: Ludus):
    patient = ["--model.script", "models.py:patient"]
    Path("go").touch()
    ludus(*train_words("--out", "whole", "--quiet", *patient))
    Path("go").unlink()
    process = subprocess.Popen(
        [*LUDUS, *train_words("--out", "run", *patient)], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 300
    while not Path("waiting").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    Path("go").touch()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "what was under way was finished" in error and "resume with: ludus train --resume --out run" in error
    assert ludus("train", "--resume", "--out", "run", "--quiet").code == 0
    assert read_results("run") == read_results("whole")


@pytest.mark.parametrize("who", ["model", "optimizer"])
def test_a_broken_server_stops_the_run_which_can_be_resumed_when_it_works_again(ludus: Ludus, who: str):
    words = [f"--{who}.script", "models.py:broken"]
    done = ludus(*train_words("--out", "run", *words))
    assert done.code == 1
    assert "the server is on fire" in done.err and "resume with: ludus train --resume --out run" in done.err
    Path("models.py").write_text(RULES_MODELS.replace("def broken", "def unused") + "\nbroken = optimizer\n")
    if who == "model":
        Path("models.py").write_text(RULES_MODELS.replace("def broken", "def unused") + "\nbroken = agent\n")
    for name in [name for name in sys.modules if name.startswith("models") or "models.py" in name]:
        del sys.modules[name]
    command = [*LUDUS, "train", "--resume", "--out", "run", "--quiet"]
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    assert Path("run/summary.json").exists()


# ---- before it starts ---------------------------------------------------------------------------------------------


def test_an_environment_has_to_be_named(ludus: Ludus):
    done = ludus("train")
    assert done.code == 2 and "ludus train gsm8k" in done.err
    done = ludus("train", "--resume", "--out", "nowhere")
    assert done.code == 2 and "nowhere: there is no run to resume" in done.err


def list_documented() -> list[str]:
    """The `ludus train` lines of the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "skill-training.md").read_text().replace("\\\n", " ")
    lines = [
        line.split("#")[0].strip()
        for block in re.findall(r"```bash\n(.*?)```", page, re.S)
        for line in block.split("\n")
    ]
    return [line for line in lines if line.startswith("ludus train") and "--resume" not in line]


@pytest.mark.parametrize("line", list_documented())
def test_the_commands_of_the_documentation_are_understood(ludus: Ludus, line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    Path("SKILL.md").write_text("Be brief.\n")
    rows = [json.dumps({"question": f"{n}+1?", "answer": f"#### {n + 1}"}) for n in range(20)]
    Path("train.jsonl").write_text("\n".join(rows))
    words = shlex.split(line)[1:]
    done = ludus(*words, *([] if "--dry-run" in words else ["--dry-run"]))
    assert done.code == 0, done.err
    assert "steps" in done.out


# ---- other environments, proposers and ways to give the skill -----------------------------------------------------


def test_gsm8k_with_examples_as_earlier_turns_and_no_optimizer(ludus: Ludus):
    done = ludus(
        *("train", "gsm8k", "--out", "run", "--data.pool", "train,test", "--data.ratio", "1:1:1"),
        *("--model.type", "scripted", "--model.script", "models.py:sums", "--agent.examples_as", "turns"),
        *("--train.proposer", "exemplars", "--train.epochs", "1"),
    )
    assert done.code == 0, done.err
    assert "slow update" not in done.err, "the recipe has none"
    with RunDir.read(Path("run")) as run:
        assert not list(run.read_records("call"))
        assert any(rollout.answer == "#### 7" for _, rollout in run.read_outcomes())
    assert "####" in Path("run/final/SKILL.md").read_text()


def test_terminal_test_with_the_skill_as_a_file_and_as_text(ludus: Ludus):
    Path("SKILL.md").write_text("---\nname: files\ndescription: How to make files.\n---\n\nObey.\n")
    words = (
        "train terminal-test --out run --quiet --data.pool train,test --data.ratio 1:1:1 --data.limit 2 "
        "--model.type scripted --model.script models.py:write --sandbox.backend local --recipe reflact "
        "--train.epochs 1 "
        "--optimizer.type scripted --optimizer.script models.py:optimizer --agent.skill_as both --agent.skill SKILL.md"
    )
    done = ludus(*words.split())
    assert done.code == 0, done.err
    assert Path("run/best/SKILL.md").read_text().startswith("---\nname: files\n")
    with RunDir.read(Path("run")) as run:
        systems = [rollout.opening[0].content for _, rollout in run.read_outcomes()]
        baseline = next(record for record in read_records(run) if isinstance(record, Baseline))
    assert all("Your skill is in /tmp/skills/files/SKILL.md." in text and "Obey." in text for text in systems)
    assert baseline.measure.hard == 1.0


# ---- foreign text -------------------------------------------------------------------------------------------------


def test_half_a_surrogate_pair_in_the_optimizers_replies_does_not_stop_the_run(ludus: Ludus, folder: Path):
    """Once as it is in the text, once as an escape inside the JSON of the reply."""
    odd = """
numbers = iter(range(10_000))
plain = optimizer

def optimizer(messages, tools, sampling):
    reply = plain(messages, tools, sampling)
    return (reply, reply + chr(0xD800), reply.replace("Obey", "Obey " + chr(92) + "ud83d"))[next(numbers) % 3]
"""
    with (folder / "models.py").open("a") as file:
        file.write(odd)
    done = ludus(*train_words("--out", "run", "--quiet"))
    assert done.code == 0, done.err
    with RunDir.read(Path("run")) as run:
        calls = [body.decode() for _, body in run.read_records("call")]
    assert any("half of a surrogate pair" in call for call in calls), "it was sent back"
    assert any("\ufffd" in call for call in calls)
    assert ludus("show", "run").code == 0


def test_a_bug_in_a_rollout_ends_training_with_1(ludus: Ludus, folder: Path):
    buggy = """
good = agent

def agent(messages, tools, sampling):
    if messages[-1].content.split()[-1] == "1":
        raise LookupError("nobody expected this")
    return good(messages, tools, sampling)
"""
    with (folder / "models.py").open("a") as file:
        file.write(buggy)
    done = ludus(*train_words("--out", "run", "--quiet", "--train.max_failed", "1"))
    assert (done.code, Path("run/summary.json").exists()) == (1, True), done.err
    assert "met a bug and ha" in done.err


@pytest.mark.parametrize("place", [0, 2, 6])
def test_a_garbage_line_in_the_steps_is_repaired_on_resume(ludus: Ludus, place: int):
    assert ludus(*train_words("--out", "run", "--quiet")).code == 0
    path = Path("run/steps.jsonl")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in ([*lines[:place], b"\xff\x00 garbage\n", *lines[place + 1 :]], [*lines, b"{}\n", b"more garbage\n"]):
        path.write_bytes(b"".join(damaged))
        assert ludus("train", "--resume", "--out", "run", "--quiet").code == 0
        assert path.read_bytes() == whole
