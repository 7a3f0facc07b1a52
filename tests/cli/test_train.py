"""`ludus train`, as a user meets it."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ludus.cli import main
from ludus.cli.training import TrainingBar
from ludus.reflact.gate import Gate
from ludus.reflact.journal import Progress
from ludus.reflact.records import Baseline, Step
from ludus.reflact.training_run import read_records
from ludus.skill import Skill, as_file, from_file
from ludus.store import RunDir

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]

ENV = '''
"""A task needs a rule, which its answer names. The agent passes when its skill has that rule."""

from typing import ClassVar

from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Score, Task


class Rules(Env, frozen=True):
    """Obey rules."""

    name: ClassVar[str] = "rules"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "You obey rules."
    size: int = 18

    def tasks(self, split):
        for n in range(self.size):
            yield Task(id=f"{split}-{n}", prompt=f"{split} question {n}", split=split, answer=f"RULE-{n % 3}")

    async def verify(self, rollout, box):
        right = rollout.answer == rollout.task.answer
        return Score(float(right), right, float(right), "right" if right else f"rule missing: {rollout.task.answer}")
'''

MODELS = '''
import asyncio
import json
import os
import re
import signal
from pathlib import Path

from ludus.errors import ModelError


def count():
    """Notes a call; ends the process, as a power cut would, at the call that `kill` names."""
    calls = Path("calls")
    number = len(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text("." * number)
    if Path("kill").exists() and number == int(Path("kill").read_text()):
        os.kill(os.getpid(), signal.SIGKILL)


def agent(messages, tools, sampling):
    count()
    wanted = f"RULE-{int(messages[-1].content.split()[-1]) % 3}"
    return wanted if wanted in messages[0].content and "verse" not in messages[0].content else "no idea"


async def patient(messages, tools, sampling):
    """Waits for the file `go` once it has a rule."""
    while "RULE" in messages[0].content and not Path("go").exists():
        Path("waiting").touch()
        await asyncio.sleep(0.02)
    return agent(messages, tools, sampling)


def broken(messages, tools, sampling):
    raise ModelError("the server is on fire", retryable=False)


def optimizer(messages, tools, sampling):
    count()
    system, asked = " ".join(messages[0].content.split()), messages[1].content
    if "tasks that it failed" in system:
        rules = list(dict.fromkeys(re.findall(r"rule missing: (RULE-\\\\d)", asked)))
        items = [{"op": "append", "content": f"Obey {rule}."} for rule in rules[:1]]
        items.append({"op": "replace", "target": "nowhere", "content": "<b>x</b>"})
        return json.dumps({"items": items, "reasoning": "a rule is missing"})
    if "tasks that it solved" in system:
        return json.dumps({"items": [{"op": "append", "content": "Answer in verse."}]})
    if "have read" in system or "proposals learned" in system:
        texts = re.split(r"^\\\\[\\\\d+\\\\] from .*\\\\n", asked.split("# Proposals", 1)[1], flags=re.M)[1:]
        items = [dict(re.findall(r"^(op|target|content): (.*)", text, re.M)) for text in texts]
        return json.dumps({"items": [{"item": item, "made_of": [n]} for n, item in enumerate(items, 1)]})
    if "Choose those" in system:
        return json.dumps({"selected": [1, 2, 3]})
    if "guidance that lasts" in system:
        return json.dumps({"guidance": "Keep to the rules."})
    return json.dumps({"memory": "Adding rules helps."})


def write(messages, tools, sampling):
    from ludus.models.scripted import call

    if messages[-1].role == "tool":
        return "Done."
    path, content = re.search(r\'called (\\\\S+) that contains "(.*)"\', messages[-1].content).groups()
    return call("write_file", path=path, content=content) if "Obey" in messages[0].content else "Done."


def sums(messages, tools, sampling):
    """Ends as an example shows it, or not at all as asked."""
    return "#### 7" if any(m.role == "assistant" for m in messages) else "seven"
'''.replace("\\\\", "\\")

CONFIG = """
env: {name: rules.py}
model: {type: scripted, script: "models.py:agent", name: agent}
optimizer: {type: scripted, script: "models.py:optimizer", name: optimizer}
data: {ratio: "1:1:1"}
train: {epochs: 2, batch_size: 3, minibatch_size: 2, edit_budget: 2, min_edit_budget: 1, slow: {samples: 2}}
run: {concurrency: 1}
"""


Ludus = Callable[..., Any]
"""The fixture `ludus`: what a command ends with, prints and says."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is: with an environment, a skill and some scripted models."""
    (tmp_path / "rules.py").write_text(ENV)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words: str) -> list[str]:
    return ["train", "--config", "config.yaml", *words]


def left(out: str) -> dict[str, Any]:
    """What equal runs leave alike."""
    found: dict[str, Any] = {
        name: Path(out, name).read_bytes() for name in ("steps.jsonl", "best/SKILL.md", "final/SKILL.md")
    }
    summary = json.loads(Path(out, "summary.json").read_bytes())
    del summary["seconds"]
    return {**found, "summary": summary}


# ---- a run --------------------------------------------------------------------------------------------------------


def test_a_skill_is_trained_and_everything_is_left_behind(ludus: Ludus):
    done = ludus(*train("--out", "run"))
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in Path("run/steps.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == ["baseline", "step", "step", "epoch", "step", "step", "epoch"]
    assert [line["number"] for line in lines if line["record"] == "step"] == [1, 2, 3, 4]
    summary = json.loads(Path("run/summary.json").read_text())
    for name in ("best", "final"):
        file = Path(f"run/{name}/SKILL.md").read_text()
        assert from_file(file).text == summary[name]["skill"]["text"] != ""
        assert (front := Skill(file).front) is not None and front.name == "rules"
    assert sum(summary["seconds"].values()) > 0 and {"baseline", "rollout", "test"} <= set(summary["seconds"])
    assert summary["best"]["test"]["overall"]["hard"] > summary["initial"]["test"]["overall"]["hard"] == 0.0
    report = Path("run/report.html").read_text()
    for words in ("<svg", "polyline", "accept_new_best", "Obey RULE-", "skipped_replace_target_not_found", "optimizer"):
        assert words in report
    assert "baseline: 0 [0, 0.39] on 6 selection tasks" in done.err
    assert "step 4/4 (epoch 2)" in done.err
    assert "step_0004" in done.out and "1 [0.61, 1] of 6 tasks" in done.out
    assert "run/best/SKILL.md" in done.out


def test_a_trained_skill_is_used_as_it_was_trained_without_the_head_of_its_file(ludus: Ludus):
    trained = Skill("Obey RULE-0.\n")
    Path("SKILL.md").write_text(as_file(trained, "rules", "How to obey."))
    assert ludus(*train("--out", "run", "--quiet", "--agent.skill", "SKILL.md", "--budget.calls", "2")).code == 3
    assert json.loads(Path("run/config.json").read_text())["content"]["skill"] == trained.hash


def test_for_machines_stdout_is_one_json(ludus: Ludus):
    done = ludus(*train("--out", "run", "--json"))
    told = json.loads(done.out)
    assert (told["status"], told["steps"], told["resume"]) == ("completed", 4, "")
    assert told["summary"]["best"]["selection"] > 0
    assert set(told["files"]) == {"steps", "summary", "report", "best", "final"}
    assert {"agent", "optimizer"} == set(told["ledger"])
    spent = {role: sum(e["calls"] for e in told["summary"]["spent"] if e["role"] == role) for role in told["ledger"]}
    assert spent["optimizer"] == told["ledger"]["optimizer"]["calls"]
    assert "step" not in done.err


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus(*train("--out", "run", "--quiet")) == (0, "run\n", "")


def test_show_prints_the_steps(ludus: Ludus):
    ludus(*train("--out", "run", "--quiet"))
    shown = ludus("show", "run")
    assert shown.code == 0
    assert "accept_new_best" in shown.out and "initial_skill" in shown.out and "optimizer" in shown.out
    told = json.loads(ludus("show", "run", "--json").out)
    assert told["records"][0]["record"] == "baseline"
    assert told["records"][-1]["record"] == "summary"
    assert "question" in ludus("show", "run", "train-3").out


def test_the_settings_of_a_run_can_be_printed(ludus: Ludus):
    done = ludus(*train("--print-config", "--train.gate.metric", "soft"))
    assert "metric: soft" in done.out and "proposer: analysts" in done.out
    assert not Path("runs").exists()


# ---- resuming -----------------------------------------------------------------------------------------------------


def test_killed_anywhere_it_comes_to_the_same_files(folder: Path):
    def run(out: str, *words: str) -> int:
        command = [*LUDUS, *train("--out", out, "--quiet", *words)]
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
        assert left(f"killed-{number}") == left("whole")


def test_a_finished_run_is_resumed_without_a_call(ludus: Ludus):
    ludus(*train("--out", "run", "--quiet"))
    before, files = len(Path("calls").read_text()), left("run")
    Path("run/steps.jsonl").unlink()
    Path("run/best/SKILL.md").write_text("somebody's")
    done = ludus("train", "--resume", "--out", "run")
    assert done.code == 0
    assert len(Path("calls").read_text()) == before
    assert left("run") == files
    assert "step 1" not in done.err  # it was told of when it happened


def test_other_settings_are_refused_with_the_difference(ludus: Ludus):
    ludus(*train("--out", "run", "--quiet"))
    changes = {
        ("--train.epochs", "3"): "train.epochs: 2 → 3",
        ("--train.gate.metric", "soft"): 'train.gate.metric: "hard" → "soft"',
        ("--data.seed", "1"): "data.seed: 42 → 1",
        ("--optimizer.name", "other"): 'optimizer.name: "optimizer" → "other"',
        ("--env.size", "12"): "env.size: 18 → 12",
    }
    for words, shown in changes.items():
        done = ludus("train", "--resume", "--out", "run", *words)
        assert done.code == 2
        assert "was run with other settings" in done.err and shown in done.err


def test_other_files_behind_the_same_settings_are_refused(ludus: Ludus, folder: Path):
    Path("SKILL.md").write_text("Be brief.\n")
    Path("prompts").mkdir()
    words = ["--agent.skill", "SKILL.md", "--train.prompts", "prompts"]
    assert ludus(*train("--out", "run", "--quiet", *words)).code == 0
    Path("SKILL.md").write_text("Be long.\n")
    changed = ludus("train", "--resume", "--out", "run")
    assert changed.code == 2 and "content.skill" in changed.err
    Path("SKILL.md").write_text("Be brief.\n")
    ours = Path(main.__code__.co_filename).parent.parent / "reflact" / "prompts" / "reask.md"
    Path("prompts/reask.md").write_text(ours.read_text() + "\nPlease.\n")
    changed = ludus("train", "--resume", "--out", "run")
    assert changed.code == 2 and "content.prompts" in changed.err


def test_a_batch_cannot_go_on_with_a_training_run(ludus: Ludus):
    ludus(*train("--out", "run", "--quiet"))
    done = ludus("evaluate", "--resume", "--out", "run")
    assert done.code == 2 and "was run with other settings" in done.err


def test_how_fast_it_goes_may_change(ludus: Ludus):
    ludus(*train("--out", "run", "--quiet"))
    assert ludus("train", "--resume", "--out", "run", "--run.concurrency", "4", "--budget.calls", "9999").code == 0


# ---- stopping -----------------------------------------------------------------------------------------------------


def test_a_spent_budget_stops_cleanly_and_the_run_goes_on_with_a_larger_one(ludus: Ludus):
    ludus(*train("--out", "whole", "--quiet"))
    stopped = ludus(*train("--out", "run", "--budget.calls", "20"))
    assert stopped.code == 3
    assert "budget of 20 calls is spent" in stopped.err
    assert "ludus train --resume --out run (with a larger budget: --budget.…)" in stopped.err
    assert Path("run/report.html").exists() and not Path("run/summary.json").exists()
    assert "not finished" in stopped.out
    again = ludus("train", "--resume", "--out", "run")
    assert again.code == 3, "the budget is the run's, not the command's"
    done = ludus("train", "--resume", "--out", "run", "--budget.calls", "500")
    assert done.code == 0
    assert left("run") == left("whole")


def test_ctrl_c_finishes_what_runs_and_the_run_goes_on(folder: Path, ludus: Ludus):
    patient = ["--model.script", "models.py:patient"]
    Path("go").touch()
    ludus(*train("--out", "whole", "--quiet", *patient))
    Path("go").unlink()
    process = subprocess.Popen(
        [*LUDUS, *train("--out", "run", *patient)], cwd=folder, stderr=subprocess.PIPE, text=True
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
    assert "what was under way was finished" in error and "go on with: ludus train --resume --out run" in error
    assert ludus("train", "--resume", "--out", "run", "--quiet").code == 0
    assert left("run") == left("whole")


@pytest.mark.parametrize("who", ["model", "optimizer"])
def test_a_broken_server_stops_the_run_which_goes_on_when_it_is_mended(ludus: Ludus, who: str):
    words = [f"--{who}.script", "models.py:broken"]
    done = ludus(*train("--out", "run", *words))
    assert done.code == 1
    assert "the server is on fire" in done.err and "go on with: ludus train --resume --out run" in done.err
    Path("models.py").write_text(MODELS.replace("def broken", "def unused") + "\nbroken = optimizer\n")
    if who == "model":
        Path("models.py").write_text(MODELS.replace("def broken", "def unused") + "\nbroken = agent\n")
    for name in [name for name in sys.modules if name.startswith("models") or "models.py" in name]:
        del sys.modules[name]
    command = [*LUDUS, "train", "--resume", "--out", "run", "--quiet"]
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    assert Path("run/summary.json").exists()


# ---- before it starts ---------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_the_run_then_takes(ludus: Ludus):
    guess = json.loads(ludus(*train("--dry-run", "--json")).out)
    assert not Path("runs").exists() and not Path("calls").exists()
    assert guess["sizes"] == {"train": 6, "selection": 6, "test": 6}
    summary = json.loads(ludus(*train("--out", "run", "--json")).out)["summary"]
    assert guess["steps"] == summary["steps"]
    bounds = {(line["role"], line["stage"]): line["calls"] for line in guess["lines"]}
    real = {(entry["role"], entry["stage"]): entry["calls"] for entry in summary["spent"]}
    assert real.keys() <= bounds.keys()
    for place, calls in bounds.items():
        assert calls["least"] <= real.get(place, 0) <= calls["most"], place
    assert guess["earlier"] == "" and not any(line["measured"] for line in guess["lines"])


def test_a_dry_run_goes_by_what_an_earlier_run_took(ludus: Ludus):
    summary = json.loads(ludus(*train("--out", "runs/one", "--json")).out)["summary"]
    guess = json.loads(ludus(*train("--dry-run", "--json")).out)
    spent = [entry for entry in summary["spent"] if entry["stage"] != "test"]  # which is not in steps.jsonl
    took = {(e["role"], e["stage"]): e["usage"]["prompt_tokens"] // e["calls"] for e in spent}
    said = {(line["role"], line["stage"]): line["each"]["prompt_tokens"] for line in guess["lines"] if line["measured"]}
    assert guess["earlier"] == "runs/one"
    assert {place: said[place] for place in took} == took
    assert ("agent", "test") in said  # as rollouts were in the other stages
    assert "Tokens of a call are as they were in runs/one" in ludus(*train("--dry-run")).out
    assert json.loads(ludus(*train("--dry-run", "--json", "--model.name", "another")).out)["earlier"] == ""


def test_a_dry_run_for_people(ludus: Ludus):
    server = ["--model.type", "openai", "--model.base_url", "http://127.0.0.1:9/v1", "--model.price.prompt", "1"]
    done = ludus("train", "rules.py", "--data.ratio", "1:1:1", *server, "--model.name", "m", "--dry-run")
    assert done.code == 0, done.err
    for words in ("6 train, 6 selection and 6 test tasks; 4 steps", "analyst", "$0.", "at most $"):
        assert words in done.out
    assert "no money" in ludus(*train("--dry-run")).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.epoch", "3"], "did you mean 'train.epochs'?"),
        (["--train.gate.metrik", "hard"], "did you mean 'train.gate.metric'?"),
        (["--data.ratios", "1:1:1"], "did you mean 'data.ratio'?"),
        (["--train.batch_size", "0"], "train.batch_size: expected a whole number of at least 1"),
        (["--train.proposer", "magic"], "train.proposer: expected one of analysts, exemplars"),
        (["--data.ratio", "1:1"], "data.ratio"),
        (["--train.min_edit_budget", "9"], "train.min_edit_budget is 9"),
        (["--env.split", "test"], "env.split is for process and evaluate"),
        (["--env.limit", "3"], "data.limit"),
        (["--env.group_size", "3"], "train.selection_replicates"),
        (["--run.seed", "3"], "train.seed"),
        (["--tools.distribution", "default"], "tools.distribution"),
        (["--train.prompts", "nowhere"], "nowhere is not a folder"),
        (["--agent.skill", "nowhere.md"], "agent.skill: nowhere.md cannot be read"),
        (["--agent.skill", "bad.md"], "the front matter is not in the Agent Skills form"),
        (["--agent.skill_as", "file"], "rules has no slot to put a file in"),
        (["--optimizer.script", ""], "optimizer.script: which function?"),
        (["--data.limit", "1", "--data.ratio", "1:1:99"], "data: the"),
        (["--train.proposer", "exemplars", "--train.update_mode", "full_rewrite_minibatch"], "cannot do"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(ludus: Ludus, words: list[str], message: str):
    Path("bad.md").write_text("---\nname: x\n---\n\nBe brief.\n")
    done = ludus(*train("--out", "run", *words))
    assert done.code == 2
    assert message in done.err
    assert not Path("calls").exists() and not Path("run").exists()


def test_an_environment_has_to_be_named(ludus: Ludus):
    done = ludus("train")
    assert done.code == 2 and "ludus train gsm8k" in done.err
    done = ludus("train", "--resume", "--out", "nowhere")
    assert done.code == 2 and "nowhere: there is no run to go on with" in done.err


def documented() -> list[str]:
    """The `ludus train` lines of the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "skill-training.md").read_text().replace("\\\n", " ")
    lines = [
        line.split("#")[0].strip()
        for block in re.findall(r"```bash\n(.*?)```", page, re.S)
        for line in block.split("\n")
    ]
    return [line for line in lines if line.startswith("ludus train") and "--resume" not in line]


@pytest.mark.parametrize("line", documented())
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


def test_gsm8k_with_examples_as_earlier_turns_and_nobody_to_ask(ludus: Ludus):
    done = ludus(
        *("train", "gsm8k", "--out", "run", "--data.pool", "train,test", "--data.ratio", "1:1:1"),
        *("--model.type", "scripted", "--model.script", "models.py:sums", "--agent.examples_as", "turns"),
        *("--train.proposer", "exemplars", "--train.epochs", "1", "--train.gate.enabled", "false"),
    )
    assert done.code == 0, done.err
    assert "slow update and optimizer memory, which need one, are off" in done.err
    with RunDir.read(Path("run")) as run:
        assert not list(run.records("call"))
        assert any(rollout.answer == "#### 7" for _, rollout in run.outcomes())
    assert "####" in Path("run/final/SKILL.md").read_text()


def test_terminal_test_with_the_skill_as_a_file_and_as_text(ludus: Ludus):
    Path("SKILL.md").write_text("---\nname: files\ndescription: How to make files.\n---\n\nObey.\n")
    words = (
        "train terminal-test --out run --quiet --data.pool train,test --data.ratio 1:1:1 --data.limit 2 "
        "--model.type scripted --model.script models.py:write --sandbox.backend local --train.epochs 1 "
        "--optimizer.type scripted --optimizer.script models.py:optimizer --agent.skill_as both --agent.skill SKILL.md"
    )
    done = ludus(*words.split())
    assert done.code == 0, done.err
    assert Path("run/best/SKILL.md").read_text().startswith("---\nname: files\n")
    with RunDir.read(Path("run")) as run:
        systems = [rollout.opening[0].content for _, rollout in run.outcomes()]
        baseline = next(record for record in read_records(run) if isinstance(record, Baseline))
    assert all("Your skill is in /tmp/skills/files/SKILL.md." in text and "Obey." in text for text in systems)
    assert baseline.measure.hard == 1.0


# ---- while it runs ------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_where_the_run_is(ludus: Ludus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    ludus(*train("--out", "run", "--quiet"))
    with RunDir.read(Path("run")) as run:
        records = list(read_records(run))
    screen = Terminal()
    with TrainingBar(Gate(), steps=4, rollouts=50, file=screen) as bar:
        bar.record(records[0], quiet=True)
        bar(Progress(1, 1, "rollout", 1, 3), "")
        bar(Progress(1, 1, "analyst", 1, 0), "")
        time.sleep(0.11)
        bar(Progress(1, 1, "rollout", 2, 3), "120 tokens, $0.01 of $2.00")
        bar.record(next(record for record in records if isinstance(record, Step)))
    shown = screen.getvalue()
    for words in ("8/50", "step 1/4 rollout 2/3", "best 0", "$0.01 of $2.00", "left", "accept_new_best"):
        assert words in shown
