"""The bundled tasks in all three forms, on the programs of this machine: no network, no engine, no other system."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ludus.env_checks import format_report, validate
from ludus.envs.harbor import Harbor
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool
from ludus.types import Rollout

LONGEST = "awk 'length > length(b) { b = $0 } END { print b }' /app/notes/*.txt >/app/longest.txt"
FORGED = "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt"
TOTALS = "printf 'chair,12\\nlamp,7\\ntable,1\\n' >/app/totals.csv"
ROTATED = "mkdir archive && gzip -c logs/old.log >archive/old.log.gz && rm logs/old.log && : >logs/app.log"


@pytest.fixture(scope="module")
def env() -> Iterator[Harbor]:
    with tempfile.TemporaryDirectory(prefix="ludus-harbor-") as name:
        Path(name).chmod(0o755)  # slots run as other users
        yield Harbor(cache=name)


async def attempt(pool: Pool, env: Harbor, id: str, commands: Sequence[str]) -> list[Rollout]:
    """A rollout for each command."""
    task = next(task for task in env.tasks("train") if task.id == id)
    models = [ScriptedModel([call("terminal", command=command), say("done")]) for command in commands]
    return [await run(Job(task, Policy(model)), Runner(env, pool)) for model in models]


async def test_reference_solutions_score_1_and_nothing_scores_0(pool: Pool, env: Harbor):
    tasks = [
        task for task in env.tasks("train") if task.id in ("service-settings", "sum-column", "task_0002_user_table")
    ]
    assert len(tasks) == 3
    report = await validate(Runner(env, pool), "train", tasks, limits=Limits(), concurrency=2)
    assert (format_report(report) if not report.ok else "") == ""


async def test_rewards_of_a_harbor_task(pool: Pool, env: Harbor):
    """An agent works in the image's folder, and partial credit is what the script writes."""
    commands = ("sed -i 's/^port.*/port = 8025/' post.conf; [ $SERVICE = post ]", "echo x >>/etc/service/post.conf")
    first, second = await attempt(pool, env, "service-settings", commands)
    assert first.score is not None
    assert second.score is not None
    assert first.score.value == pytest.approx(1 / 3)
    assert first.score.parts == {"reward": pytest.approx(1 / 3), "kept": 1.0}
    assert (second.score.value, second.score.passed) == (0.0, False)


SITE = "/root/.local/lib/python3.11/site-packages"
CHEATS = {
    "the reward itself, a process that goes on writing it, and other tests": f"{FORGED}; "
    f"(while :; do {FORGED}; done) >/dev/null 2>&1 & disown; "
    "mkdir -p /tests; echo 'echo 1 >/logs/verifier/reward.txt' >/tests/test.sh; chmod -R a-w /tests",
    "a link in the place of the logs": "mkdir -p /app/l/verifier; echo 1 >/app/l/verifier/reward.txt; rm -rf /logs; "
    "ln -s /app/l /logs",
    "other programs, and code that they run when they start": f"mkdir -p /root/.local/bin {SITE}; "
    "cp /bin/true /root/.local/bin/python3; cp /bin/true /usr/local/bin/python3; cp /bin/true /bin/python3; "
    f"echo 'import os; os._exit(0)' | tee /app/sitecustomize.py >{SITE}/usercustomize.py; "
    "echo 'python3() { true; }' | tee /root/.bashrc /etc/profile /etc/bash.bashrc; "
    "echo 'BASH_ENV=/root/.bashrc' >>/etc/environment",
    "a link to the tests": "ln -s /tests/check.py /app/longest.txt",
}


async def test_cheats_score_0(pool: Pool, env: Harbor):
    honest, *cheats = await attempt(pool, env, "longest-line", [LONGEST, *CHEATS.values()])
    assert honest.score is not None
    assert honest.score.passed
    scores = dict(zip(CHEATS, (rollout.score for rollout in cheats), strict=True))
    assert {name: score and score.value for name, score in scores.items()} == dict.fromkeys(CHEATS, 0.0)


async def test_pytests_report_of_a_terminal_bench_task(pool: Pool, env: Harbor):
    commands = (
        TOTALS,
        "printf 'chair,12\\nlamp,7\\n' >totals.csv",
        "cp /bin/true /usr/local/bin/pytest; mkdir -p /tests; "
        "printf 'def pytest_runtest_makereport(item): ...' | tee /conftest.py /app/conftest.py /tests/conftest.py; "
        "echo 'import os; os._exit(0)' >/app/pytest.py; printf 'true' >/tests/run-tests.sh",
    )
    right, partial, cheat = (rollout.score for rollout in await attempt(pool, env, "sum-column", commands))
    assert right is not None
    assert right.passed
    assert partial is not None
    assert (partial.value, partial.soft) == (0.0, pytest.approx(3 / 5))
    assert cheat is not None
    assert cheat.soft == 0.0


async def test_partial_credit_of_an_endless_task(pool: Pool, env: Harbor):
    right, partial = (
        rollout.score for rollout in await attempt(pool, env, "task_0001_rotate_logs", (ROTATED, ": >logs/app.log"))
    )
    assert right is not None
    assert (right.value, right.passed) == (1.0, True)
    assert partial is not None
    assert (partial.value, partial.passed) == (pytest.approx(1 / 3), False)


async def test_what_the_agent_did_to_the_system_is_said(pool: Pool, env: Harbor):
    commands = ("echo 'exit 0' >/root/.bashrc", "rm -rf /root; ln -s /app /root", "rm -rf --no-preserve-root / 2>&-")
    rollout, linked, broken = await attempt(pool, env, "longest-line", commands)
    assert "root -> /app" in linked.left_out
    assert broken.score is not None  # what the agent did to its slot is no failure of the world
    assert broken.stop == "broken"
    assert any("1 changes of protected files, such as root/.bashrc" in line for line in rollout.left_out)
    assert rollout.score is not None
    assert "Not seen by the tests" in rollout.score.feedback


def test_tasks_that_cannot_be_run_are_skipped_with_the_reason(tmp_path: Path, env: Harbor):
    for name, base in (("good", "mapped:1"), ("bad", "alpine:3")):
        folder = tmp_path / name
        (folder / "tests").mkdir(parents=True)
        (folder / "instruction.md").write_text("Do it.")
        (folder / "Dockerfile").write_text(f"FROM {base}\n")
        (folder / "tests/test_final_state.py").write_text("def test_it(): ...\n")
    some = Harbor(path=str(tmp_path), bases=("mapped=host",))
    assert [task.id for task in some.tasks("train")] == ["good"]
    assert list(some.skipped("train")) == ["bad"]
    assert "FROM alpine:3 is no base that can be made here" in some.skipped("train")["bad"]
    assert [task.id for task in Harbor(path=str(tmp_path), engine="docker").tasks("train")] == ["bad", "good"]
    with pytest.raises(ConfigError, match="none of the 2 tasks can be run here: bad: FROM alpine"):
        list(Harbor(path=str(tmp_path)).tasks("train"))
    with pytest.raises(ConfigError, match=r"env\.bases: 'x' is not NAME=FOLDER"):
        list(Harbor(path=str(tmp_path), bases=("x",)).tasks("train"))


def test_a_folder_for_each_split(tmp_path: Path):
    for split in ("train", "test"):
        folder = tmp_path / split / f"{split}-task"
        (folder / "tests").mkdir(parents=True)
        (folder / "instruction.md").write_text("Do it.")
        (folder / "Dockerfile").write_text("FROM x\n")
        (folder / "tests/test_final_state.py").write_text("def test_it(): ...\n")
    env = Harbor(path=str(tmp_path), engine="podman")
    assert [task.id for task in env.tasks("test")] == ["test-task"]
    assert [task.id for task in env.tasks("train")] == ["train-task"]
