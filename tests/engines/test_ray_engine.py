"""The Ray engine on a cluster of two nodes on this machine: same results, lost workers, budgets, secrets, refusals."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli_kit import LUDUS, Ludus, read_calls, script_flags, train_words, write_rules, write_sums
from tests.ray_kit import TestCluster, read_store
from tests.rl_kit import LETTERS_FILE, TableTrainer
from tests.worker_kit import COINS, TrajectoryServer, list_words, serve_in_thread

from ludus import __version__ as ludus_version

MODELS = """
import asyncio, os, subprocess
from pathlib import Path
from ludus.models.scripted import call, say

def count_death(name):
    with Path(name).open("a") as file:
        file.write("x")

def poison(messages, tools, sampling):
    '''The third task ends the process of its worker, each time.'''
    if messages[-1].content == "2+2":
        count_death("deaths.txt")
        os._exit(1)
    return answer(messages, tools, sampling)

async def die_once(messages, tools, sampling):
    '''One of the tasks ends its worker in the middle of a run, once.'''
    if messages[-1].content == "20+20" and not Path("deaths.txt").exists():
        count_death("deaths.txt")
        os._exit(1)
    await asyncio.sleep(0.02)
    return answer(messages, tools, sampling)

async def step(messages, tools, sampling):
    '''The first six at once, the others when they may.'''
    with Path("workers.txt").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    if int(messages[-1].content.split("+")[0]) >= 6:
        while not Path("go").exists():
            await asyncio.sleep(0.05)
    return answer(messages, tools, sampling)

def answer(messages, tools, sampling):
    with Path("calls.txt").open("a") as file:
        file.write(messages[-1].content + "\\n")
    return str(sum(map(int, messages[-1].content.split("+"))))

def secret(messages, tools, sampling):
    '''Looks at all processes of the machine, as another user could.'''
    with Path("seen.txt").open("ab") as file:
        file.write(subprocess.run(["/bin/ps", "axeww"], stdout=subprocess.PIPE, env={}).stdout)
    return os.environ["SUMS_SECRET"][::-1]
"""


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)
    (folder / "models.py").write_text(MODELS)


def run(ludus: Ludus, cluster: TestCluster, *words: str, engine: bool = True) -> tuple[int, dict[str, object], str]:
    on = ["--engine", "ray", "--engine.address", cluster.address] if engine else []
    code, out, err = ludus(*words, "--json", *on)
    return code, json.loads(out) if out.startswith("{") else {}, err


def test_a_run_on_a_cluster_has_the_same_store_as_a_local_one(ludus: Ludus, folder: Path, cluster: TestCluster):
    words = ["evaluate", "sums.py", "--env.size", "30", "--env.group_size", "3", *script_flags("answer")]
    code, found, err = run(ludus, cluster, *words, "--out", "there")
    assert code == 0, err
    assert sorted(read_calls(folder)) == sorted(f"{n}+{n}" for n in range(30) for _ in range(3))
    assert run(ludus, cluster, *words, "--out", "here", engine=False)[0] == 0
    assert read_store(folder / "there") == read_store(folder / "here")
    assert found["ledger"]["agent"]["calls"] == 90
    assert sum(node.get("units", 0) for node in json.loads((folder / "there" / "nodes.json").read_text())) == 90


def test_a_worker_that_dies_loses_nothing_and_repeats_only_what_it_had(
    ludus: Ludus, folder: Path, cluster: TestCluster
):
    words = ["evaluate", "sums.py", "--env.size", "60", "--run.concurrency", "8"]
    code, found, err = run(ludus, cluster, *words, "--out", "r", *script_flags("die_once"))
    assert code == 0 and "its worker was lost" in err, err
    assert found["summary"]["overall"]["scored"] == 60
    assert found["summary"]["overall"]["mean"] == 1.0
    assert len(read_calls(folder)) <= 60 + 8


def test_a_prompt_that_always_kills_its_worker_is_a_failure_of_its_own(
    ludus: Ludus, folder: Path, cluster: TestCluster
):
    words = ["evaluate", "sums.py", "--env.size", "20", "--run.concurrency", "8", "--engine.deaths", "2"]
    code, found, err = run(ludus, cluster, *words, "--out", "r", *script_flags("poison"))
    assert code == 0, err
    overall = found["summary"]["overall"]
    assert (overall["rollouts"], overall["scored"], overall["mean"]) == (20, 19, 1.0)
    (failed,) = [each for each in read_store(folder / "r").values() if "failure" in each]
    assert failed["task"]["id"] == "sum-2" and failed["failure"]["boundary"] == "node"
    assert "2 of them while it ran alone" in failed["failure"]["message"]
    assert "score" not in failed


def test_training_makes_the_same_skill_and_the_same_store(ludus: Ludus, folder: Path, cluster: TestCluster):
    write_rules(folder)
    code, _, err = run(ludus, cluster, *train_words("--out", "there", "--run.concurrency", "4"))
    assert code == 0, err
    assert run(ludus, cluster, *train_words("--out", "here", "--run.concurrency", "4"), engine=False)[0] == 0
    assert read_store(folder / "there") == read_store(folder / "here")
    skills = [(folder / out / "best" / "SKILL.md").read_text() for out in ("there", "here")]
    assert skills[0] == skills[1] and "Obey RULE-" in skills[0]


def test_a_budget_holds_for_all_nodes_together(ludus: Ludus, folder: Path, cluster: TestCluster):
    words = ["evaluate", "sums.py", "--env.size", "60", "--run.concurrency", "8", "--out", "r", *script_flags("answer")]
    code, found, err = run(ludus, cluster, *words, "--budget.calls", "23")
    assert code == 3 and "the budget of 23 calls is spent" in err
    assert len(read_calls(folder)) == 23 == found["ledger"]["agent"]["calls"]
    spent = (folder / "r" / "ledger.jsonl").read_text().splitlines()[-1]
    assert json.loads(spent)["agent"]["calls"] == 23
    code, found, err = run(ludus, cluster, "evaluate", "--resume", "--out", "r", "--budget.calls", "100")
    assert code == 0 and found["summary"]["overall"]["scored"] == 60, err
    assert len(read_calls(folder)) == 60 == found["ledger"]["agent"]["calls"]


def test_secrets_are_in_the_worker_alone(
    ludus: Ludus, folder: Path, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SUMS_SECRET", "terces-yrev-a")
    words = ["evaluate", "sums.py", "--out", "r", "--engine.variables", "[SUMS_SECRET]", *script_flags("secret")]
    code, _, err = run(ludus, cluster, *words)
    assert code == 0, err
    answers = {each["turns"][0]["completion"]["message"]["content"] for each in read_store(folder / "r").values()}
    assert answers == {"a-very-secret"}  # it was there
    seen = (folder / "seen.txt").read_text()
    assert "NodeWorker" in seen and "terces-yrev-a" not in seen
    logs = [path for path in Path("/tmp/ray").glob("session_latest/**/*") if path.is_file()]
    assert logs and not any(b"terces-yrev-a" in path.read_bytes() for path in logs)


def test_a_file_that_a_node_lacks_is_named_with_the_node(
    ludus: Ludus, folder: Path, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
):
    skill = folder / "skill.md"
    skill.write_text("Add the numbers.")
    monkeypatch.setattr("ludus.config.build_engine.hash_file", lambda path: "another" if path == skill else "")
    words = ["evaluate", "sums.py", "--out", "r", *script_flags("answer"), "--agent.skill", str(skill)]
    code, _, err = run(ludus, cluster, *words)
    assert code == 2 and re.search(rf"node \S+ \(\S+\): {skill} is another file than the driver's", err), err
    assert not (folder / "r").exists()


def test_another_version_of_ludus_is_refused_by_name(
    ludus: Ludus, folder: Path, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ludus.config.build_engine.__version__", "9.9")
    code, _, err = run(ludus, cluster, "evaluate", "sums.py", "--out", "r", *script_flags("answer"))
    assert code == 2 and "no node of the cluster can work: node " in err
    assert f"it has Ludus {ludus_version}, and the driver has 9.9" in err
    assert not (folder / "r").exists()


def test_weights_are_trained_with_rollouts_on_nodes(
    ludus: Ludus, folder: Path, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
):
    (folder / "letters.py").write_text(LETTERS_FILE)
    monkeypatch.setattr("ludus.rl.command.build_trainer", lambda *_: TableTrainer())
    words = ["rl", "letters.py", "--rl.steps", "2", "--rl.groups", "3", "--rl.group_size", "4", "--rl.eval_every", "0"]
    code, _, err = run(ludus, cluster, *words, "--out", "there")
    assert code == 0, err
    assert run(ludus, cluster, *words, "--out", "here", engine=False)[0] == 0
    assert read_store(folder / "there") == read_store(folder / "here")
    spent = [json.loads((folder / out / "ledger.jsonl").read_text().splitlines()[-1]) for out in ("there", "here")]
    assert spent[0]["agent"]["usage"] == spent[1]["agent"]["usage"]


def test_a_worker_of_a_trainer_has_its_rollouts_on_nodes(ludus: Ludus, folder: Path, cluster: TestCluster):
    (folder / "coins.py").write_text(COINS)
    for engine, out in ((True, "there"), (False, "here")):
        server = TrajectoryServer(num_steps=3)
        with serve_in_thread(server) as url:
            code, report, err = run(ludus, cluster, *list_words(url, "--out", out), engine=engine)
        assert code == 0 and report["status"] == "completed", err
        assert len(server.batches) >= 3 and server.disconnected == [0]
    there, here = read_store(folder / "there"), read_store(folder / "here")
    shared = there.keys() & here.keys()  # how many rollouts there are depends on the pace of the trainer
    assert len(shared) >= 12 and all(there[key] == here[key] for key in shared)
    nodes = json.loads((folder / "there" / "nodes.json").read_text())
    assert sum(node.get("units", 0) for node in nodes) >= 12  # a node that was not needed has none


@pytest.mark.usefixtures("bwrap")
def test_slots_are_on_the_nodes_and_what_agents_leave_is_kept(ludus: Ludus, folder: Path, cluster: TestCluster):
    write_sums(folder)
    words = ["process", "terminal-test", "--env.group_size", "2", *script_flags("write")]
    code, _, err = run(ludus, cluster, *words, "--out", "there")
    assert code == 0, err
    assert run(ludus, cluster, *words, "--out", "here", engine=False)[0] == 0
    stored, local = read_store(folder / "there"), read_store(folder / "here")
    files = take_files(stored)
    assert all(files) and all(take_files(local)) and stored == local
    code, again, err = run(ludus, cluster, "rescore", "there", "--out", "again")
    assert code == 0 and again["judged"] == again["unchanged"] == len(stored), err
    rescored = read_store(folder / "again")
    assert all(take_files(rescored)) and rescored == stored


def test_nodes_come_and_go_and_nothing_is_lost(folder: Path, cluster: TestCluster):
    """A node is killed in the middle, another one joins and is then drained; the first two go on."""
    lost = cluster.add_node()
    words = ["evaluate", "sums.py", "--env.size", "60", "--run.concurrency", "6", "--out", "r", *script_flags("step")]
    engine = ["--engine", "ray", "--engine.address", cluster.address]
    told = folder / "told.txt"
    with told.open("w") as file, subprocess.Popen([*LUDUS, *words, *engine], stderr=file) as process:
        try:
            wait_until(lambda: len(list_workers(folder)) == 3)
            cluster.kill_node(lost)
            before = list_workers(folder)
            joined = cluster.add_node()
            wait_until(lambda: len(list_workers(folder) - before) > 0)
            cluster.drain_node(joined)
            wait_until(lambda: "is drained: it finishes what it has" in told.read_text())
            (folder / "go").touch()
            process.wait(60)
        finally:
            process.kill()
    cluster.kill_node(joined)
    assert process.returncode == 0 and "its worker was lost" in told.read_text(), told.read_text()
    answers = [each["score"]["value"] for each in read_store(folder / "r").values()]
    assert answers == [1.0] * 60
    assert count_calls(folder) <= 60 + 6


def take_files(stored: dict[str, dict[str, str]]) -> list[str]:
    """Remove the hashes of agents' files: the times of the files are in them."""
    return sorted(each.pop("files") for each in stored.values())


def count_calls(folder: Path) -> int:
    return len(read_calls(folder))


def list_workers(folder: Path) -> set[str]:
    """The processes that have run rollouts."""
    path = folder / "workers.txt"
    return set(path.read_text().split()) if path.exists() else set()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


FULL = """
import asyncio
import os
import time
from pathlib import Path
from ludus.env import Env
from ludus.types import Score, Task

LATE = {late}

def take_first(name):
    # whether this process is the first one that asks
    try:
        with Path(name).open("x"):
            return True
    except FileExistsError:
        return False

def is_second_worker():
    return not take_first("driver.txt") and not take_first("first.txt")

if os.environ.get("KNOWN") != str(os.getpid()):
    os.environ["KNOWN"] = str(os.getpid())
    if is_second_worker():
        time.sleep(LATE)

class Full(Env, frozen=True):
    name = "full"

    def tasks(self, split):
        return (Task(id=str(n), prompt=f"{{n}}+{{n}}", split=split) for n in range(30))

    async def setup(self, task, box):
        # the disk of the node that comes first is full
        if take_first("full.txt"):
            Path("full-pid.txt").write_text(str(os.getpid()))
        while not Path("full-pid.txt").exists():
            await asyncio.sleep(0.01)
        if Path("full-pid.txt").read_text() == str(os.getpid()):
            with Path("failures.txt").open("a") as file:
                file.write("one\\n")
            raise OSError("no space left on device")

    async def verify(self, rollout, box):
        # nothing ends well before that node has failed often enough
        while Path("failures.txt").read_text().count("one") < 4:
            await asyncio.sleep(0.01)
        return Score.of(1.0)
"""


@pytest.mark.parametrize("late", [0, 3])
def test_a_node_whose_slots_fail_gets_no_more_work(ludus: Ludus, folder: Path, cluster: TestCluster, late: int):
    (folder / "full.py").write_text(FULL.format(late=late))
    words = ["evaluate", "full.py", "--run.concurrency", "4", *script_flags("answer"), "--out", "there"]
    code, _, err = run(ludus, cluster, *words)
    assert code == 0, err
    assert "slot after slot fails there" in err and "no space left on device" in err
    stored = read_store(folder / "there")
    assert len(stored) == 30 and all(each["score"]["value"] == 1.0 for each in stored.values())
