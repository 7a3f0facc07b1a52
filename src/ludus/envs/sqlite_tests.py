"""Hidden tests of SQL scripts in the format of Exercism's sqlite track, run in a slot and judged in the driver.

A test script reads the data, then the agent's script, then makes a table `tests` with the expected values and compares.
Here these are steps of their own. The agent's script runs on the data before anything of the tests is in the slot, and
all its processes are ended. Of what it leaves, only plain tables are kept: views become tables with what they hold at
that moment, and triggers are dropped, because both could read or change the table of the tests later. A virtual table
is refused. The result is read from `tests` behind a secret.
"""

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import PurePosixPath
from shlex import quote

from ludus.errors import VerifierError
from ludus.sandbox import WORKSPACE, ExecResult, Sandbox
from ludus.types import Score

_FEEDBACK_TESTS = 5
_LIST = "SELECT type || ' ' || hex(name) FROM sqlite_master WHERE type IN ('view', 'trigger') ORDER BY rowid;"
_VIRTUAL = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%';"


async def run_sqlite_tests(
    box: Sandbox, solution: str, test: str, files: Mapping[str, str], *, seconds: float = 60.0
) -> Score:
    """Score 1 if every row of `tests` has the status `pass`; `soft` is the share.

    `solution`: the agent's script in /workspace. `test`: the name of the test script in `files`, beside what it reads.

    Raises:
        VerifierError: the test script does not read the solution, or cannot be run.
    """
    before, after = split_script(files[test], solution)
    folder = box.resolve(f"/tmp/ludus-judge-{secrets.token_hex(8)}")
    hidden = {name for name in files if name not in _list_reads(before, files)}
    await _write(box, folder, {name: text for name, text in files.items() if name not in hidden})
    done = await _run(box, f"{folder}/data.db", before, seconds, folder)
    if done.exit_code:
        raise VerifierError(f"the data of the tests cannot be made: {done.text.strip()[-500:]}", retryable=False)
    script = quote(box.resolve(f"{WORKSPACE}/{solution}"))
    own = await box.exec(f"sqlite3 -batch -bail {quote(folder)}/data.db < {script}", timeout=seconds, cwd=WORKSPACE)
    await box.settle()
    if own.exit_code:
        what = f"not done within {seconds:g} s" if own.timed_out else own.text.strip()[-500:]
        return Score.of(0.0, f"{solution} failed: {what}")
    place = box.resolve(f"/tmp/ludus-judge-{secrets.token_hex(8)}")
    await box.exec(f"mkdir -m 700 {quote(place)} && cat {quote(folder)}/data.db > {quote(place)}/data.db")
    if problem := await _keep_tables(box, f"{place}/data.db", seconds):
        return Score.of(0.0, problem)
    await _write(box, place, files)
    return await _judge(box, place, after, seconds)


def split_script(script: str, solution: str) -> tuple[str, str]:
    """The parts of a test script before and after it reads the solution."""
    name = re.escape(PurePosixPath(solution).name)
    found = re.search(rf"^\.read\s+['\"]?(?:\./)?{name}['\"]?\s*$", script, re.M)
    if found is None:
        raise VerifierError(f"the test script does not read the solution: no line `.read {solution}`", retryable=False)
    return script[: found.start()], script[found.end() :]


def _list_reads(script: str, files: Mapping[str, str]) -> set[str]:
    """The files that a script reads, and those that they read."""
    found: set[str] = set()
    waiting = [script]
    while waiting:
        text = waiting.pop()
        for name in files:
            if name not in found and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text):
                found.add(name)
                waiting.append(files[name])
    return found


async def _keep_tables(box: Sandbox, database: str, seconds: float) -> str:
    """Turn views into tables and drop triggers. Returns what is wrong."""
    listed = await _run(box, database, f"{_VIRTUAL}\n{_LIST}", seconds)
    count, *things = listed.stdout.decode().split("\n")
    if listed.exit_code or count.strip() != "0":
        return f"Only plain tables can be judged: {listed.text.strip()[-300:]}"
    words: list[str] = []
    for kind, _, code in (thing.partition(" ") for thing in things if thing):
        name = bytes.fromhex(code).decode(errors="replace").replace('"', '""')
        if kind == "trigger":
            words.append(f'DROP TRIGGER "{name}";')
        else:
            words.append(f'CREATE TABLE "ludus_{code}" AS SELECT * FROM "{name}"; DROP VIEW "{name}";')
            words.append(f'ALTER TABLE "ludus_{code}" RENAME TO "{name}";')
    done = await _run(box, database, "\n".join(words), seconds)
    return f"A view cannot be read: {done.text.strip()[-300:]}" if done.exit_code else ""


async def _judge(box: Sandbox, place: str, after: str, seconds: float) -> Score:
    secret = secrets.token_hex(16)
    report = (
        "\n.output\n.mode list\n.headers off\n"
        f"SELECT '{secret} ' || json_object('name', description, 'status', status, 'note', message) FROM tests;\n"
    )
    done = await _run(box, f"{place}/data.db", after + report, seconds, place)
    if done.timed_out:
        return Score.of(0.0, f"The tests did not end within {seconds:g} s.")
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith(f"{secret} ")]
    if done.exit_code:  # the tests read a table or column that the solution should have made
        return Score.of(0.0, f"The tests cannot be run: {done.stderr.decode(errors='replace').strip()[-500:]}")
    rows = [json.loads(line.partition(" ")[2]) for line in lines]
    if not rows:
        raise VerifierError("the test script has no tests: its table `tests` is empty", retryable=False)
    wrong = [row for row in rows if row["status"] != "pass"]
    if not wrong:
        return Score(1.0, True, 1.0, f"All {len(rows)} tests passed.")
    shown = "\n".join(f"{row['name']}: {row['note'] or row['status']}" for row in wrong[:_FEEDBACK_TESTS])
    return Score(0.0, False, 1 - len(wrong) / len(rows), f"{len(wrong)} of {len(rows)} tests did not pass.\n{shown}")


async def _run(box: Sandbox, database: str, script: str, seconds: float, cwd: str | None = None) -> ExecResult:
    command = f"sqlite3 -batch -bail -init /dev/null {quote(database)}"
    return await box.exec(command, stdin=script.encode(), timeout=seconds, cwd=cwd or "/tmp")


async def _write(box: Sandbox, folder: str, files: Mapping[str, str]) -> None:
    await box.exec(f"mkdir -p {quote(folder)}")
    for name, text in files.items():
        await box.write(f"{folder}/{name}", text.encode())
