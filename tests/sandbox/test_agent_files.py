"""Which of an agent's files are copied to a fresh slot before `verify`, with a base and without."""

import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ludus.encoding import to_json
from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import Sandbox, SandboxSpec, agent_files
from ludus.sandbox.agent_files import collect_files, copy_files, find_obstacles, leave_out, merge_files
from ludus.sandbox.archive import ArchiveEntry
from ludus.sandbox.file_tree import Protection
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.types import Rollout, Score, Task

LOOK = (
    "find . -mindepth 1 | sort; find . -type f ! -name large -print0 | sort -z | xargs -0 -r head -n 5; "
    "find . -type l -print0 | sort -z | xargs -0 -r readlink"
)


class Looking(Env, frozen=True):
    """Gives full marks. The feedback lists the files that `verify` has found."""

    name: ClassVar[str] = "looking"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(disk_mb=8)

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        return SandboxSpec(disk_mb=8, base=(task.answer,) if task.answer else ())

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        return Score.of(1.0, (await box.exec(LOOK)).text)


class Guarded(Looking, frozen=True):
    protected: ClassVar[tuple[str, ...]] = ("tests/*", "*.toml")


async def run_and_verify(backend: str, env: Env, task: Task, *commands: str) -> list[tuple[Rollout, str]]:
    """Run one rollout per command. Returns each with the files that its agent saw afterwards."""

    def policy(command: str) -> Policy:
        return Policy(ScriptedModel([call("terminal", command=command), call("terminal", command=LOOK), say("done")]))

    async with asyncio.timeout(300), open_pool(backend, PoolSettings(max_slots=3)) as pool:
        rollouts = await asyncio.gather(*(run(Job(task, policy(command)), Runner(env, pool)) for command in commands))
    return [(rollout, _get_last(rollout)) for rollout in rollouts]


def _get_last(rollout: Rollout) -> str:
    seen = [result.content for turn in rollout.turns for result in turn.results]
    return str(seen[-1]).strip() if seen else ""


@pytest.fixture
def base(tmp_path: Path) -> str:
    folder = tmp_path / "base"
    for name in (
        "src/a.py",
        "src/b.py",
        "src/deep/c.py",
        "tests/test_a.py",
        "tests/test_b.py",
        "old/x",
        "pyproject.toml",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "large").write_bytes(bytes(range(256)) * 4096 * 12)  # 12 MB, of which the slot's disk would hold 8
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path != Path("/tmp") and path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    return str(folder)


TASK = {
    "id": "t",
    "prompt": "p",
    "files": {"given.txt": "given", "src/made.py": "made", "more/m": "m", "src/b.py": "set up"},
}
CHANGES = {
    "nothing": "true",
    "new and changed files": "echo new >src/a.py; echo new >src/new.py; mkdir -p x/y; echo 1 >x/y/z",
    "what the base has": "rm src/b.py; rm -r old; rm src/deep/c.py",
    "what was set up": "rm given.txt src/made.py; rm -r more",
    "folders made anew": "rm -r src old; mkdir -p src/deep old; echo again >src/deep/new",
    "a file in place of a folder": "rm -r src old more; echo file >src; ln -s src old; echo file >more",
    "a folder in place of a file": "rm given.txt src/a.py; mkdir given.txt src/a.py; echo 1 | tee */f src/a.py/f",
    "links": "ln -s src/a.py l; ln -s ../src/./a.py src/up; ln -s src/../src s; ln -s s/a.py ll; ln -s loop loop; "
    "rm given.txt; ln -s /workspace/src/a.py given.txt; ln -s nothing gone; rm -r src/deep; ln -s /workspace src/deep",
    "moved": "mv src moved; mv given.txt taken.txt",
    "odd names": "echo 1 >$'a\\nb'; echo 2 >'-rf'; mkdir -p ' '; echo 3 >' /*'; echo 4 >src/$'\\xff\\xfe'; rm -r old",
}


async def test_verify_sees_what_the_agent_has_left_on_a_base_larger_than_its_disk(bwrap, base):
    found = await run_and_verify(bwrap, Looking(), Task(**TASK, answer=base), *CHANGES.values())
    for change, (rollout, seen) in zip(CHANGES, found, strict=True):
        assert rollout.score is not None, (change, rollout.failure)
        assert rollout.score.value == 1.0, (change, rollout.score)
        assert rollout.score.feedback.strip() == seen, change


async def test_a_base_that_was_copied_into_the_slot_is_copied_too(base):
    change = "rm -r old src; echo new >given.txt; mkdir old"
    [(rollout, seen)] = await run_and_verify("local", Looking(), Task(**TASK, answer=base), change)
    assert rollout.score is not None, rollout.failure
    assert rollout.score.feedback.strip() == seen


OUTWARD = {
    "an absolute link": ("ln -s /tmp/expected out.txt", "out.txt -> /tmp/expected"),
    "a relative link": ("ln -s ../tmp/expected out.txt", "out.txt -> ../tmp/expected"),
    "a link through /proc": ("ln -s /proc/self/root/tmp/expected out.txt", "out.txt -> /proc/self/root/tmp/expected"),
    "a link to the working folder": ("ln -s /proc/self/cwd/../tmp/expected out.txt", "/proc/self/cwd"),
    "dots after /workspace": ("ln -s /workspace/../tmp/expected out.txt", "out.txt -> /workspace/../tmp/expected"),
    "dots after a folder": ("mkdir -p a/b; ln -s a/b/../../../tmp/expected out.txt", "out.txt -> a/b"),
    "dots after a link": ("mkdir -p a/b; ln -s a/b/.. d; ln -s d/../../tmp/expected out.txt", "out.txt -> d/.."),
    "dots after a link to the top": (
        "mkdir a; ln -s /workspace a/w; ln -s a/w/../tmp/expected out.txt",
        "out.txt -> a/w",
    ),
    "links to links": (
        "ln -s /tmp l0; for i in {1..30}; do ln -s l$((i - 1)) l$i; done; ln -s l30/expected out.txt",
        "out.txt -> l30/expected",
    ),
    "a folder replaced by a link": ("rm -rf more; ln -s /tmp more; ln -s more/expected out.txt", "more -> /tmp"),
    "a file replaced by a link": ("rm given.txt; ln -s /tmp/expected given.txt", "given.txt -> /tmp/expected"),
    "a link in a folder": (
        "mkdir -p x/y; ln -s ../../../tmp/expected x/y/out.txt; ln -s x/y/out.txt out.txt",
        "x/y/out",
    ),
    "a hard link to a link": ("ln -s /tmp/expected l; ln -P l out.txt", "out.txt"),
    "a pipe": ("mkfifo out.txt", "out.txt (named pipe)"),
}


class Diffing(Looking, frozen=True):
    """Compares what the agent wrote with a file that only the verifier has."""

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        await box.write("/tmp/expected", b"42")
        same = "timeout 5 cmp -s out.txt /tmp/expected || timeout 5 cmp -s given.txt /tmp/expected"
        same += " || timeout 5 cmp -s x/y/out.txt /tmp/expected || timeout 5 cmp -s more/expected /tmp/expected"
        return Score.of(float((await box.exec(same)).exit_code == 0), str(rollout.left_out))


@pytest.mark.parametrize("with_base", [True, False])
async def test_links_out_of_the_workspace_are_left_out_and_reported(bwrap, base, with_base):
    task = Task(**TASK, answer=base if with_base else "")
    honest, *found = await run_and_verify(
        bwrap, Diffing(), task, "printf 42 >out.txt", *(c for c, _ in OUTWARD.values())
    )
    assert honest[0].score is not None and honest[0].score.passed
    assert honest[0].left_out == () and b"left_out" not in to_json(honest[0])
    for (attack, (_, name)), (rollout, _) in zip(OUTWARD.items(), found, strict=True):
        assert rollout.score is not None, (attack, rollout.failure)
        assert rollout.score.value == 0.0, attack
        assert name in "; ".join(rollout.left_out), (attack, rollout.left_out)
        assert rollout.score.feedback == str(rollout.left_out), attack  # verify sees it too


class LinkedSetup(Diffing, frozen=True):
    """`setup` itself makes a link out of /workspace."""

    async def setup(self, task: Task, box: Sandbox) -> None:
        await super().setup(task, box)
        await box.exec("ln -s /tmp tools")

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        score = await super().verify(rollout, box)
        assert box is not None
        return Score.of(score.value, (await box.exec("readlink tools out.txt")).text)


@pytest.mark.parametrize("with_base", [True, False])
async def test_links_of_setup_are_kept_and_those_of_the_base_are_followed(bwrap, base, with_base):
    (Path(base) / "shared").symlink_to("/tmp")
    (Path(base) / "near").symlink_to("src")
    task = Task(**TASK, answer=base if with_base else "")
    attacks = ["true", "ln -s tools/expected out.txt", "ln -s near/a.py out.txt"]
    attacks += ["ln -s shared/expected out.txt", "mv shared s; ln -s s/expected out.txt"] if with_base else []
    untouched, through, inside, *others = await run_and_verify(bwrap, LinkedSetup(), task, *attacks)
    assert untouched[0].score == Score.of(0.0, "/tmp\n") and untouched[0].left_out == ()
    assert through[0].left_out == ("out.txt -> tools/expected",)
    assert inside[0].left_out == ()
    for rollout, _ in others:
        assert rollout.score == Score.of(0.0, "/tmp\n") and "out.txt -> s" in "; ".join(rollout.left_out)


async def test_links_are_left_out_without_isolation_too():
    [(rollout, _)] = await run_and_verify("local", Looking(), Task(**TASK), "ln -s given.txt in; ln -s /etc/passwd out")
    assert rollout.left_out == ("out -> /etc/passwd",)
    assert rollout.score is not None and "./in" in rollout.score.feedback.splitlines()


def test_what_is_left_out_is_described_in_a_few_short_lines():
    odd = ArchiveEntry("a\nb\x1b\udcff", 0o777, link="/" + "x" * 4000)
    _, [line] = leave_out([odd], {})
    assert line.startswith("a\\nb\\x1b\\udcff -> /xxx") and len(line) < 250
    many = [ArchiveEntry(f"l{i:03}", 0o777, link="/etc") for i in range(120)]
    copied, lines = leave_out(many, {"l007": "/etc"})
    assert [e.path for e in copied] == ["l007"]
    assert len(lines) == 51 and lines[-1] == "… and 69 more"


ATTACKS = (
    "echo cheat >tests/test_a.py; echo cheat >pyproject.toml",
    "rm -r tests pyproject.toml",
    "rm -r tests; mkdir tests; echo cheat >tests/test_a.py",
    "rm -r tests; ln -s /tmp tests; rm pyproject.toml; mkdir pyproject.toml; echo >pyproject.toml/x",
    "rm -r tests; echo cheat >tests",
    "echo cheat >tests/conftest.py; mkdir tests/more; echo >tests/more/x; echo >sub.toml",
    "mv tests elsewhere; chmod 000 pyproject.toml",
)


async def test_protected_files_are_those_of_the_base_and_of_setup(bwrap, base):
    task = Task(id="t", prompt="p", files={"tests/given.py": "given"}, answer=base)
    (untouched, _), *found = await run_and_verify(bwrap, Guarded(), task, "true", *ATTACKS)
    assert untouched.score is not None
    for attack, (rollout, _) in zip(ATTACKS, found, strict=True):
        assert rollout.score is not None, (attack, rollout.failure)
        assert _list_protected(rollout.score.feedback) == _list_protected(untouched.score.feedback), attack


def _list_protected(feedback: str) -> list[str]:
    """The lines about protected paths, and what follows their headings."""
    lines = feedback.splitlines()
    names = [line for line in lines if line.startswith(("./tests", "./pyproject", "./sub"))]
    heads = [i for i, line in enumerate(lines) if line.startswith(("==> ./tests", "==> ./pyproject", "==> ./sub"))]
    return names + [" ".join(lines[i : i + 2]) for i in heads]


@pytest.mark.parametrize("with_base", [True, False])
async def test_more_than_a_slot_can_hold_is_a_zero_and_no_failure(bwrap, base, with_base):
    holes, names = "truncate -s 20M x", "head -c 4M /dev/zero >x; for i in 1 2 3; do ln x y$i; done"
    for rollout, _ in await run_and_verify(
        bwrap, Looking(), Task(id="t", prompt="p", answer=base if with_base else ""), holes, names
    ):
        assert rollout.score is not None, rollout.failure
        assert rollout.score.value == 0.0
        assert "larger than the limit" in rollout.score.feedback


@pytest.mark.parametrize("with_base", [True, False])
async def test_a_workspace_that_the_agent_has_locked_is_verified_too(bwrap, base, with_base):
    task = Task(id="t", prompt="p", answer=base if with_base else "")
    [(rollout, _)] = await run_and_verify(bwrap, Looking(), task, "echo mine >own; chmod 000 /workspace")
    assert rollout.score is not None, rollout.failure
    assert "./own" in rollout.score.feedback.splitlines()


def test_what_is_above_protected_files():
    protected = ("root/.local/bin", "home/*/.bashrc", "*/sitecustomize.py", "usr")
    above = ("root", "root/.local", "home", "home/me")
    not_above = ("root/.local/bin", "root/.config", "usr", "app", "app/root")
    assert [path for path in (*above, *not_above) if Protection(protected).is_below(path)] == [*above]


async def test_files_with_too_long_paths_are_not_copied(bwrap):
    deep = "n=$(printf 'a%.0s' {1..250}); echo 1 >f; for i in {1..20}; do mkdir $n && cd $n || break; done; echo >deep"
    [(rollout, _)] = await run_and_verify(bwrap, Looking(), Task(id="t", prompt="p"), deep)
    assert rollout.score is not None, rollout.failure
    assert rollout.score.feedback.startswith("./" + "a" * 250)


def test_what_is_removed_before_changes_are_written():
    def file(path: str) -> ArchiveEntry:
        return ArchiveEntry(path, 0o644, data=b"")

    left = {
        e.path: e
        for e in (
            file("f"),
            ArchiveEntry("d", 0o755),
            ArchiveEntry("gone", 0, removed=True),
            ArchiveEntry("new", 0o755, opaque=True),
        )
    }
    assert find_obstacles(left, [], []) == ["f", "gone", "new"]
    assert find_obstacles(left, ["d", "made"], ["made/x", "d"]) == ["f", "gone", "new", "made/x", "d", "made"]
    assert [
        e.path for e in merge_files([file("a"), file("a/b"), file("__pycache__/x"), file("z" * 5000)], [], Protection())
    ] == ["a"]


# ---- the event loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layered", [False, True])
async def test_work_on_many_files_is_done_outside_of_the_event_loops_thread(bwrap, open_folder, monkeypatch, layered):
    """However small they are: the number of entries counts, not only their bytes."""
    threads: dict[str, set[int]] = {}

    def watch(name: str) -> None:
        real = getattr(agent_files, name)

        def call(*arguments: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return real(*arguments, **options)

        monkeypatch.setattr(agent_files, name, call)

    names = ["read_entries", "filter_files", "leave_out", "make_archive", "_drop_unreachable"]
    names += ["find_obstacles"] if layered else ["merge_files"]
    for name in names:
        watch(name)
    spec = SandboxSpec(disk_mb=16, base=(str(open_folder),) if layered else ())

    async with open_pool(bwrap) as pool, pool.lease(spec) as box, pool.lease(spec) as fresh:
        await box.exec("touch {1..2000}; ln -s /etc/passwd link")
        await box.settle()
        left_out = await copy_files(await collect_files(box), fresh, ())
        assert (await fresh.exec("ls | wc -l")).stdout == b"2000\n"
    assert left_out == ("link -> /etc/passwd",)
    assert sorted(threads) == sorted(names)
    assert not any(threading.get_ident() in found for found in threads.values()), threads


async def test_a_protected_link_of_setup_that_leads_out_is_kept(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as acted, pool.lease(SandboxSpec()) as fresh:
        await acted.write("mine.txt", b"1")
        await fresh.exec("mkdir venv && ln -s /usr/bin/env venv/python")
        assert await copy_files(await collect_files(acted), fresh, ("venv",)) == ()
        result = (await fresh.exec("readlink venv/python; cat mine.txt")).text
    assert result == "/usr/bin/env\n1"
