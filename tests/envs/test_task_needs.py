"""What a task needs changed is recorded when its solution is run, and what its image has is read in a fresh slot."""

from pathlib import Path

from ludus.envs.task_folders import TaskFolder, read_task_folder
from ludus.envs.task_needs import read_facts, read_needs, write_needs
from ludus.sandbox import SandboxSpec
from ludus.sandbox.archive import ArchiveEntry
from ludus.sandbox.pool import Pool


def make_task(path: Path, solution: str) -> TaskFolder:
    files = {
        "task.toml": "[agent]\n",
        "instruction.md": "Do it.",
        "environment/Dockerfile": "FROM x\n",
        "tests/test.sh": "cd /srv/x\n",
    }
    for name, text in {**files, "solution/solve.sh": solution}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return read_task_folder(path)


def test_needs_are_those_of_this_task_and_solution(tmp_path: Path):
    cache, task = str(tmp_path / "cache"), make_task(tmp_path / "task", "true")
    assert not read_needs(cache, task).is_known
    write_needs(cache, task, ["usr/bin/x", "etc/y"])
    assert read_needs(cache, task).paths == {"usr/bin/x", "etc/y"}
    assert read_needs(cache, task).areas == {"usr", "etc"}
    assert not read_needs(cache, make_task(tmp_path / "task", "false")).is_known


async def test_facts_of_a_slot(pool: Pool, tmp_path: Path):
    task = make_task(tmp_path, "true")
    spec = SandboxSpec(env=(("BASH_ENV", "/opt/e.sh"), ("PYTHONPATH", "/srv/lib:relative")))
    entries = [ArchiveEntry(path, 0o644, data=b"") for path in ("usr/bin/env", "no/such", "a\nb")]
    async with pool.lease(spec) as box:
        facts = await read_facts(box, entries, task.tests)
    assert {"usr/bin/env", "usr/bin"} <= facts.existing
    assert not facts.existing & {"no/such", "a\nb"}
    assert "usr/bin" in facts.program_folders
    assert "env" in facts.programs
    assert (facts.module_folders, facts.startup) == (("srv/lib", "srv/x"), ("opt/e.sh",))
