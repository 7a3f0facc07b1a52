"""Runs a test script of a task's author in a slot, and judges by what its pytest reports.

The script installs what it needs and runs pytest in its own way. A plugin (`report_plugin.py`) makes that pytest write
each outcome to a file, in lines that begin with a secret of this run. The script's exit code and output are not read.
Only the script's first run of pytest reports. Every test that the sources define must be in the report, and a test that
was skipped has not passed.
"""

import ast
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ludus.errors import VerifierError
from ludus.sandbox import WORKSPACE, Sandbox
from ludus.sandbox.archive import ArchiveEntry, make_archive
from ludus.sandbox.limits import explain_exit
from ludus.types import Score
from ludus.verify.cases import count_module_cases
from ludus.verify.control_tests import Controls
from ludus.verify.pytest import pack_pytest

_PLUGIN = Path(__file__).with_name("report_plugin.py")
_MODULE = "ludus_report"
_REPORT_BYTES = 16 * 2**20
_SHOWN = 5
_PHASES = ("setup", "call", "teardown")
_INSTALLS = re.compile(r"\b(?:install|add|uvx|uv\s+run|sync)\b.*pytest", re.IGNORECASE)


async def run_script(
    box: Sandbox,
    command: str,
    sources: Mapping[str, str],
    *,
    env: Mapping[str, str],
    seconds: float,
    script: str = "",
    controls: Controls = Controls(),
) -> Score:
    """Score 1 if every test passes; `soft` is the share that passes. `sources` are the test files by name, `script` is
    the text of what runs them. `controls` are tests that were added to them.

    Raises:
        VerifierError: there is no report, or the script did not end in time.
    """
    secret, folder = secrets.token_hex(16), f"/tmp/.ludus-report-{secrets.token_hex(8)}"
    await box.write(f"{folder}/{_MODULE}.py", _PLUGIN.read_bytes())
    await box.write(f"{folder}/secret", secret.encode())
    offered = await offer_pytest(box, script)
    variables = {
        **offered,
        **env,
        "PYTHONPATH": ":".join(filter(None, (box.resolve(folder), offered.get("PYTHONPATH", "")))),
        "PYTEST_ADDOPTS": f"-p {_MODULE}",
        "PYTHONNOUSERSITE": "1",
    }
    done = await box.exec(command, env=variables, cwd=WORKSPACE, timeout=seconds, stdin=b"")
    await box.settle()
    if done.timed_out:
        raise VerifierError(f"the test script did not end within {seconds:g} s")
    tail = done.text.strip()[-1000:]
    try:
        report = await box.read(f"{folder}/report", max_bytes=_REPORT_BYTES)
    except (OSError, ValueError) as error:
        raise VerifierError(
            f"the test script ran no pytest ({explain_exit(done.exit_code, box.spec)}). If it fetches "
            f"something, allow the network: --sandbox.network true. {tail}"
        ) from error
    lines = [line.partition(" ")[2] for line in report.decode(errors="replace").splitlines() if line.startswith(secret)]
    score = judge_report(lines, sources, controls)
    return msgspec.structs.replace(score, feedback=score.feedback if score.passed else f"{score.feedback}\n{tail}")


async def offer_pytest(box: Sandbox, script: str) -> dict[str, str]:
    """Put pytest into a slot that has none. Returns the variables with which scripts find it.

    It comes after all packages that a script installs, so that those are used. Where the folders of packages cannot be
    changed, it comes before them; then it is not offered to a `script` that can install its own.
    """
    if (await box.exec("python3 -c 'import pytest'", env={"PYTHONNOUSERSITE": "1"}, cwd="/")).exit_code == 0:
        return {}
    folder = box.resolve("/tmp/.ludus-pytest")
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    add = f'd=$(python3 -I -c "{place}") && mkdir -p "$d" && echo {folder}/packages >"$d/zz_ludus_pytest.pth"'
    is_added = (await box.exec(f"{{ {add}; }} 2>/dev/null", cwd="/")).exit_code == 0
    if not is_added and box.spec.network and _INSTALLS.search(script.replace("\\\n", " ")):
        return {}
    program = ArchiveEntry("bin/pytest", 0o755, data=b'#!/bin/sh\nexec python3 -m pytest "$@"\n')
    await box.unpack(make_archive([program, *pack_pytest()]), folder)
    path = (await box.exec('printf %s "$PATH"')).stdout.decode(errors="replace")
    return {"PATH": f"{path}:{folder}/bin"} | ({} if is_added else {"PYTHONPATH": f"{folder}/packages"})


def judge_report(lines: Iterable[str], sources: Mapping[str, str], controls: Controls = Controls()) -> Score:
    """The score for the lines of a report: `[test, phase, outcome, note]` and, last, `["end", exit code]`. The controls
    do not count, but if one that must fail has passed, the report is forged."""
    phases: dict[str, dict[str, str]] = {}
    notes: dict[str, str] = {}
    ended = False
    for line in lines:
        item = msgspec.json.decode(line)
        if item[0] == "end" and len(item) == 2:
            ended = True
            continue
        test, phase, outcome, note = item
        phases.setdefault(test, {})[phase] = outcome
        if outcome != "passed":
            notes.setdefault(test, note)
    outcomes = {test: "passed" if _has_passed(found) else "not passed" for test, found in phases.items()}
    if ended and (evidence := controls.find_evidence(outcomes)):
        return Score.forged(evidence)
    doubt = controls.find_doubt(outcomes)
    outcomes = {test: outcome for test, outcome in outcomes.items() if test not in controls}
    outcomes |= dict.fromkeys(_list_missing(outcomes, sources), "missing")
    if not ended or not outcomes:
        return Score.of(0.0, "pytest did not come to its end.")
    wrong = sorted(test for test, outcome in outcomes.items() if outcome != "passed")
    if not wrong:
        return Score(1.0, True, 1.0, f"All {len(outcomes)} tests passed.", suspect=doubt)
    shown = "\n".join(f"{test}: {outcomes[test]}\n{notes.get(test, '')}".rstrip() for test in wrong[:_SHOWN])
    share = 1 - len(wrong) / len(outcomes)
    return Score(0.0, False, share, f"{len(wrong)} of {len(outcomes)} tests did not pass.\n{shown}")


def _has_passed(phases: Mapping[str, str]) -> bool:
    return all(phases.get(phase) == "passed" for phase in _PHASES) and set(phases.values()) == {"passed"}


def _list_missing(outcomes: Mapping[str, str], sources: Mapping[str, str]) -> Sequence[str]:
    """The tests that the sources define and the report has too few cases of, by file name and function."""
    seen = Counter(test.partition("[")[0].rpartition("/")[2] for test in outcomes)
    missing: list[str] = []
    for name, text in sources.items():
        try:
            cases = count_module_cases(ast.parse(text))
        except SyntaxError as error:
            raise VerifierError(f"test file '{name}' is not Python: {error}", retryable=False) from error
        missing += [f"{name}::{test}" for test, number in cases.items() if seen[f"{name}::{test}"] < number]
    return missing
