"""Tests of a repository, run with pytest in a slot and judged in the driver.

    await run_repository_tests(box, "/workspace/shelf", ["tests/test_a.py::test_x[1-2]"], {"tests/test_a.py": …}, …)

The tests run as the repository's own: with its settings, its conftest files and the plugins of its environment. Restore
those before, so that they are not the agent's (`Env.protected`). Hidden test files are written now, and their source is
not on the disk while they run. Ids are compared, never written into a command, so they may contain any character.

Every id must have passed: one that is missing, skipped or expected to fail has not. Reports, control tests and limits
are those of `ludus.verify.pytest`: the tests import the agent's code. A value that claims to equal every other fails
the comparison, unless it is of a class that the repository had before (`known`).
"""

from collections.abc import Collection, Mapping, Sequence

from ludus.errors import VerifierError
from ludus.sandbox import Sandbox
from ludus.types import Score
from ludus.verify.control_tests import Controls, add_controls
from ludus.verify.pytest import JudgeRun, TestReport, find_tampering

_FEEDBACK_TESTS = 5
_SETTINGS = {
    "pytest.toml": "",
    ".pytest.toml": "",
    "pytest.ini": "",
    ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
"""The files that pytest looks at, in its order, and what they must contain."""


async def run_repository_tests(
    box: Sandbox,
    folder: str,
    ids: Sequence[str],
    hidden: Mapping[str, str],
    *,
    python: str,
    seconds: float,
    known: Collection[str] = (),
) -> Score:
    """Score 1 if all tests pass; `soft` is the share that passes.

    `folder`: the repository in the slot. `ids`: pytest's ids of the tests. `hidden`: test files by their path in the
    repository, which are written first. `python`: the interpreter in the slot. `known`: names of classes of the
    repository that compare themselves.

    Raises:
        VerifierError: there are no ids, or pytest does not start with the repository's settings.
    """
    if not ids:
        raise VerifierError("there are no tests to run", retryable=False)
    wanted = {id.partition("[")[0].partition("::")[2] for id in ids}
    sources = {path: text for path, text in hidden.items() if path.endswith(".py")}
    changed, added = add_controls(sources, among=wanted)
    for path, text in {**hidden, **changed}.items():
        await _write_file(box, f"{folder}/{path}", text)
    root, run = box.resolve(folder), JudgeRun(box, python)
    settings = await find_settings(box, folder)
    files = dict.fromkeys(id.partition("::")[0] for id in ids)
    report = await run.run_pytest(
        {},
        hidden=[f"{root}/{path}" for path in sources],
        arguments=[
            *("-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--rootdir={root}"),
            *(("-c", f"{root}/{settings}") if settings else ()),
            *(f"{root}/{file}" for file in files),
            run.control,
        ],
        wanted=ids,
        controls=added,
        known=known,
        seconds=seconds,
        cwd=folder,
        plugins=True,
    )
    return report if isinstance(report, Score) else judge_ids(report, ids, run.controls, added)


async def find_settings(box: Sandbox, folder: str) -> str:
    """The file with the repository's settings of pytest; empty if there is none. Pytest itself searches for it in the
    common parent of all tests, which the control tests are not in."""
    for name, mark in _SETTINGS.items():
        try:
            text = (await box.read(f"{folder}/{name}")).decode(errors="replace")
        except (OSError, ValueError):
            continue
        if mark in text:
            return name
    return ""


async def _write_file(box: Sandbox, path: str, text: str) -> None:
    try:
        await box.write(path, text.encode())
    except OSError:  # the agent left something else at that place
        await box.exec('rm -rf -- "$target"', env={"target": box.resolve(path)})
        await box.write(path, text.encode())


def judge_ids(report: TestReport, ids: Sequence[str], plain: Controls, added: Controls = Controls()) -> Score:
    """The score for a report. `plain` are controls that every run has, `added` those among the tests."""
    if evidence := find_tampering(report.outcomes, plain, added):
        return Score.forged(evidence)
    wanted = list(dict.fromkeys(ids))
    wrong = [id for id in wanted if report.outcomes.get(id) != "passed"]
    share = 1 - len(wrong) / len(wanted)
    if not wrong:
        where = "They ran in one process with the agent's code."
        doubt = added.find_doubt(report.outcomes)
        return Score(1.0, True, 1.0, f"All {len(wanted)} tests passed. {where}", suspect=doubt)
    notes = {name: note for name, note in report.notes.items() if name in wrong or "::" not in name}
    lines = [f"{id}: {report.outcomes.get(id, 'missing')}\n{notes.get(id, '')}".rstrip() for id in wrong]
    lines = [*(f"{name}\n{note}" for name, note in notes.items() if "::" not in name), *lines]
    return Score(
        0.0, False, share, f"{len(wrong)} of {len(wanted)} tests did not pass.\n" + "\n".join(lines[:_FEEDBACK_TESTS])
    )
