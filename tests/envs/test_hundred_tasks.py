"""A hundred Harbor-shaped tasks whose solutions change all kinds of files: each reference solution is still paid.

Twenty shapes of tasks, five of each. An agent does what the reference solution does, and nothing has told the
environment before which files that changes. `make test-harbor` runs all; the other tests, one of each shape.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.envs.harbor import Harbor
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool

COUNT = 5 if "LUDUS_TEST_HARBOR" in os.environ else 1
SHAPES: dict[str, tuple[str, str, str]] = {
    "answer": ("Write N to /app/answer.txt.", "echo N >/app/answer.txt", "grep -qx N /app/answer.txt"),
    "module": (
        "Write add in /app/calc.py.",
        "printf 'from helper import b\\ndef add(a): return a + b\\n' >/app/calc.py; echo 'b = N' >/app/helper.py",
        "cd /app && python3 -c 'import calc; assert calc.add(1) == N + 1'",
    ),
    "named-like-the-library": (
        "Write days() in /app/calendar.py; it returns N.",
        "printf 'def days():\\n    return N\\n' >/app/calendar.py",
        'cd / && python3 -c \'import runpy; assert runpy.run_path("/app/calendar.py")["days"]() == N\'',
    ),
    "package": (
        "Make the package shop in /app with a price of N.",
        "mkdir -p /app/shop && echo >/app/shop/__init__.py && echo 'price = N' >/app/shop/types.py",
        "cd /app && python3 -c 'from shop.types import price; assert price == N'",
    ),
    "settings-of-a-service": (
        "Let the service listen on port N.",
        "mkdir -p /etc/shop && echo 'port = N' >/etc/shop/shop.conf",
        "grep -q 'port = N' /etc/shop/shop.conf",
    ),
    "hosts": ("Let shop be 10.0.0.N.", "echo '10.0.0.N shop' >>/etc/hosts", "grep -q '10.0.0.N shop' /etc/hosts"),
    "shell-settings": (
        "Every login shell has LEVEL=N.",
        "mkdir -p /etc/profile.d; echo 'export LEVEL=N' >/etc/profile.d/level.sh",
        "(. /etc/profile.d/level.sh; [ $LEVEL = N ])",
    ),
    "git-settings": (
        "Git's name is user-N everywhere.",
        "git config --global user.name user-N",
        '[ "$(git config --global user.name)" = user-N ]',
    ),
    "repository": (
        "Commit a file N.txt to a new repository in /app/repo.",
        "cd /app; git init -q repo; cd repo; touch N.txt; git add .; git -c user.name=a -c user.email=a@b commit -qm N",
        '[ "$(git -C /app/repo log --format=%s)" = N ]',
    ),
    "hook": (
        "A commit in /app/repo is counted.",
        "git init -q /app/repo; printf '#!/bin/sh\\necho N >>/app/count\\n' >/app/repo/.git/hooks/post-commit; "
        "chmod +x /app/repo/.git/hooks/post-commit",
        "cd /app/repo; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; grep -qx N /app/count",
    ),
    "database": (
        "Make /app/shop.db with a table t that has N.",
        "sqlite3 /app/shop.db 'create table t (n int); insert into t values (N);'",
        "[ \"$(sqlite3 /app/shop.db 'select n from t')\" = N ]",
    ),
    "ssh": (
        "ssh knows shop, port N.",
        "mkdir -p ~/.ssh; printf 'Host shop\\nPort N\\n' >~/.ssh/config",
        "grep -q N ~/.ssh/config",
    ),
    "program": (
        "Make the program /app/bin/report.",
        "mkdir -p /app/bin; printf '#!/bin/sh\\necho N\\n' >/app/bin/report; chmod +x /app/bin/report",
        '[ "$(/app/bin/report)" = N ]',
    ),
    "environment": (
        "Make a virtual environment in /app/venv in which `import mine` works.",
        "python3 -m venv --without-pip /app/venv; mkdir /app/src; echo 'n = N' >/app/src/mine.py; "
        "echo /app/src >$(ls -d /app/venv/lib/python3*/site-packages)/mine.pth",
        "/app/venv/bin/python -c 'import mine; assert mine.n == N'",
    ),
    "tests": (
        "Write a test of N in /app/tests/test_n.py that passes.",
        "mkdir -p /app/tests; printf 'def test_n():\\n    assert N == N\\n' >/app/tests/test_n.py",
        "cd /app && python3 -m pytest -q tests && grep -q N tests/test_n.py",
    ),
    "project": (
        "Make a project in /app with a pyproject.toml that sets pytest's minversion to 6.N.",
        "printf '[tool.pytest.ini_options]\\nminversion = \"6.N\"\\n' >/app/pyproject.toml",
        "grep -q 6.N /app/pyproject.toml",
    ),
    "removal": ("Remove /app/old.", "rm -r /app/old", "[ ! -e /app/old ]"),
    "links": (
        "/app/current leads to /srv/release-N.",
        "mkdir /srv/release-N; ln -s /srv/release-N /app/current",
        "[ -d /app/current ]",
    ),
    "archive": (
        "Pack N into /app/n.tar.",
        "cd /app; echo N >n; tar cf n.tar n; rm n",
        "tar xOf /app/n.tar n | grep -qx N",
    ),
    "crontab": (
        "A job runs at minute N.",
        "mkdir -p /etc/cron.d; echo 'N * * * * root true' >/etc/cron.d/job",
        "grep -q '^N ' /etc/cron.d/job",
    ),
}
REWARD = "\nif [ $? -eq 0 ]; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi\n"


def write_task(folder: Path, shape: str, number: int) -> None:
    ask, solve, check = (text.replace("N", str(number)) for text in SHAPES[shape])
    files = {
        "task.toml": "[verifier]\ntimeout_sec = 60\n",
        "instruction.md": ask,
        "environment/Dockerfile": "FROM python:3\nWORKDIR /app\nRUN mkdir old && touch old/file\n",
        "solution/solve.sh": solve,
        "tests/test.sh": check + REWARD,
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture(scope="module")
def env() -> Iterator[Harbor]:
    with tempfile.TemporaryDirectory(prefix="ludus-hundred-") as name:
        Path(name).chmod(0o755)  # slots run as other users
        for shape in SHAPES:
            for number in range(11, 11 + COUNT):
                write_task(Path(name, "tasks", f"{shape}-{number}"), shape, number)
        yield Harbor(path=f"{name}/tasks", cache=f"{name}/cache", bases=("python=host",))


async def test_solutions_of_all_shapes_are_paid(pool: Pool, env: Harbor):
    tasks, room = list(env.tasks("train")), asyncio.Semaphore(3)
    assert len(tasks) == len(SHAPES) * COUNT

    async def act(id: str) -> str:
        task, script = (
            next(task for task in tasks if task.id == id),
            Path(env.path, id, "solution/solve.sh").read_text(),
        )
        async with room:
            model = ScriptedModel([call("terminal", command=script), say("done")])
            rollout = await run(Job(task, Policy(model)), Runner(env, pool))
        is_paid = rollout.score is not None and rollout.score.value == 1.0 and not rollout.score.suspect
        return "" if is_paid else f"{rollout.stop}: {rollout.score or rollout.failure} {rollout.left_out}"

    found = await asyncio.gather(*(act(task.id) for task in tasks))
    assert {task.id: words for task, words in zip(tasks, found, strict=True) if words} == {}
