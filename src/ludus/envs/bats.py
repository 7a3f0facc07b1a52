"""Hidden tests of command-line programs in the format of bats, run in a slot and judged in the driver.

    score = await run_bats(box, {"leap.bats": text, "bats-extra.bash": helper})

Each `@test` runs in a bash of its own, whose script comes over a pipe: no test file is on the disk while the agent's
program runs. A test has passed if its bash came to the end and then wrote a secret that only this run knows. A test
that is skipped, or that ends early, has not passed. The program under test is another process. It can end its tests,
which is no pass, but it cannot read their script from a file, an argument or an environment variable. A program that
was written for this could still read it from the memory of the bash that started it.

What tests may use: `run` (with `-N`, `!`, `--separate-stderr`, `--keep-empty-lines`), `load`, `skip`, `fail`, `setup`,
`teardown`, and the assertions of bats-assert. A file that is loaded and is among the given ones is read from there.
"""

import re
import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from shlex import quote

from ludus.errors import VerifierError
from ludus.sandbox import WORKSPACE, Sandbox
from ludus.types import Score

_TEST = re.compile(r"""^[ \t]*@test[ \t]+(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))[ \t]*\{[ \t]*$""", re.M)
_PRELUDE = Path(__file__).parent.joinpath("bats_prelude.bash")
_FEEDBACK_TESTS = 5
_NOTE_CHARS = 600


async def run_bats(box: Sandbox, files: Mapping[str, str], *, seconds: float = 120.0) -> Score:
    """Score 1 if every test passes; `soft` is the share that passes. `files`: tests (`.bats`) and helpers by name.

    Raises:
        VerifierError: there is no test, or bash does not run in the slot.
    """
    tests = {name: text for name, text in files.items() if PurePosixPath(name).suffix == ".bats"}
    found = [(name, number, title) for name, text in tests.items() for number, title in enumerate(list_tests(text))]
    if not found:
        raise VerifierError("the hidden tests hold no @test", retryable=False)
    wrong: list[str] = []
    for name, number, title in found:
        problem = await _run_test(box, files, name, number, seconds / len(found) + 5.0)
        if problem is not None:
            wrong.append(f"{title}: {problem}".rstrip())
    if not wrong:
        return Score(1.0, True, 1.0, f"All {len(found)} tests passed.")
    shown = "\n".join(wrong[:_FEEDBACK_TESTS])
    return Score(0.0, False, 1 - len(wrong) / len(found), f"{len(wrong)} of {len(found)} tests did not pass.\n{shown}")


def list_tests(text: str) -> list[str]:
    """The titles of the tests of a file."""
    return [next(part for part in match.groups() if part is not None) for match in _TEST.finditer(text)]


def write_script(files: Mapping[str, str], name: str, number: int, secret: str) -> str:
    """The bash script that runs one test of a file."""
    count = iter(range(len(files[name])))
    body = _TEST.sub(lambda _: f"ludus_test_{next(count)}() {{", files[name])
    helpers = [
        f"_ludus_files[{quote(_name_helper(each))}]={quote(text)}" for each, text in files.items() if each != name
    ]
    return "\n".join(
        [
            "declare -A _ludus_files",
            *helpers,
            _PRELUDE.read_text(encoding="utf-8"),
            body,
            "trap '_ludus_end' EXIT",
            "set -e",
            "setup",
            f"ludus_test_{number}",
            f"_ludus_secret={secret}",
        ]
    )


async def _run_test(box: Sandbox, files: Mapping[str, str], name: str, number: int, seconds: float) -> str | None:
    """What is wrong with one test; None if it passed."""
    secret = secrets.token_hex(16)
    script = write_script(files, name, number, secret)
    command = """env -i PATH="$PATH" HOME="$HOME" LANG=C.UTF-8 bash --noprofile --norc -c 'eval "$(cat)"' 2>&1"""
    done = await box.exec(command, stdin=script.encode(), cwd=WORKSPACE, timeout=seconds)
    if done.timed_out:
        return f"not done within {seconds:g} s"
    said, _, rest = done.stdout.decode(errors="replace").rpartition(f"\n{secret} passed\n")
    if done.exit_code == 0 and not rest and f"\n{secret} passed\n".encode() in done.stdout:
        return None
    if done.exit_code == 127 and b"bash" in done.stdout and b"env:" in done.stdout:
        raise VerifierError(f"there is no bash in the slot: {said or rest}", retryable=False)
    return (said + rest).replace(secret, "").strip()[-_NOTE_CHARS:] or f"exit code {done.exit_code}"


def _name_helper(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".bash")
