"""Hidden tests, run with pytest in a slot and judged in the driver.

    async def verify(self, rollout, box):
        return await run_tests(box, {"test_solution.py": rollout.task.answer})

The tests import the agent's code from /workspace. They are written now, outside /workspace and under a name that could
not be known before. `python3 -I` runs them, without the agent's conftest, plugins, pytest.ini, `sitecustomize`,
PYTHONPATH or modules of /workspace that are named like one of the library. What counts is a report that begins with a
secret of this run, not an exit code or a file. The process that knows the secret never imports the agent's code; the
tests run in another one (`in_slot.py`). The source of the test files is not on the disk while they run.

Every test must be in the report: one that is missing, skipped or expected to fail has not passed. The number of cases
of a test is read from its source, as far as `parametrize` has literal values there (`count_cases`); fewer cases in the
report are missing. Controls run among them (`control_tests.py`): copies of some of the tests that must fail, under
names that were never used before, and one that must pass. If one that must fail passes, the verdict is forged.
A value that claims to equal every other fails the comparison.

Limits. A test and the code it imports share a process. Code that was written for this can look at the frame that calls
it (its constants are expected values), or let only those tests pass that it has read in memory and understood. A value
whose `__eq__` recognizes the checks can equal anything: compare types as well. Helper files beside the tests are on the
disk. The feedback of a pass names this limit. Tests that start the agent's program as a separate process and look at
what it does are safe from all of this: that process can read neither the tests nor the memory of the one that runs
them.
"""

import ast
import importlib.metadata
import importlib.util
import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from shlex import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import VerifierError
from ludus.sandbox import WORKSPACE, ExecResult, Sandbox
from ludus.sandbox.archive import ArchiveEntry, gather_entries, make_archive
from ludus.sandbox.limits import explain_exit
from ludus.types import Score
from ludus.verify.cases import count_module_cases
from ludus.verify.control_tests import Controls, add_controls, make_name, make_plain

_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_RUNNER = Path(__file__).with_name("in_slot.py")
_FEEDBACK_TESTS = 5
_USAGE_ERROR = 4
_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-fA-F]+|\b0x(?:7f|55|56)[0-9a-f]{10}\b")


class TestReport(Struct):
    """What pytest has reported: the outcome of each test by its id, and the notes about those that did not pass."""

    __test__ = False  # no test, though pytest finds it in tests that import it
    outcomes: dict[str, str]
    notes: dict[str, str]
    tampering: str
    ended: bool
    exit_code: int


async def run_tests(
    box: Sandbox,
    tests: Mapping[str, str],
    *,
    seconds: float = 120.0,
    python: str = "python3",
    separate: bool = False,
) -> Score:
    """Score 1 if every test passes; `soft` is the share that passes. `tests` are files by name, helpers included.

    `separate`: the tests do not import the agent's code. Without it, the feedback of a pass says that they may.

    Raises:
        VerifierError: the tests are wrong, or pytest is neither in the slot nor installed beside Ludus.
    """
    expected = count_cases(tests)
    run = JudgeRun(box, python)
    real = [name for name in tests if _is_test_file(PurePosixPath(name))]
    changed, added = add_controls({name: tests[name] for name in real})
    report = await run.run_pytest(
        {f"hidden/{name}": text for name, text in {**tests, **changed}.items()},
        hidden=[f"{run.folder}/hidden/{name}" for name in real],
        arguments=list_arguments(run.folder, run.control),
        seconds=seconds,
        controls=added,
    )
    if isinstance(report, Score):
        return report
    return judge_outcomes(report.outcomes, report.notes, expected, plain=run.controls, added=added, separate=separate)


def list_arguments(folder: str, control: str) -> list[str]:
    """The arguments of pytest for hidden tests in a folder of their own."""
    return [
        *("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", f"{folder}/pytest.ini"),
        "--continue-on-collection-errors",  # a solution that cannot be imported is wrong, not tampering
        *(f"--rootdir={folder}", f"--confcutdir={folder}", f"{folder}/hidden", control),
    ]


class JudgeRun:
    """One run of pytest in a slot, with a secret and control tests of its own."""

    def __init__(self, box: Sandbox, python: str = "python3") -> None:
        self._box, self._python = box, python
        self._secret = secrets.token_hex(16)
        self.folder = box.resolve(f"/tmp/ludus-judge-{secrets.token_hex(8)}")
        name, self._control_text, self.controls = make_plain()
        """Tests that must fail, which every run has."""
        self._control_path = f"{make_name()}/{name}"
        self.control = f"{self.folder}/{self._control_path.partition('/')[0]}"
        """The folder of these tests, which must be among the arguments."""

    async def run_pytest(
        self,
        files: Mapping[str, str],
        *,
        hidden: Sequence[str],
        arguments: Sequence[str],
        seconds: float,
        wanted: Sequence[str] | None = None,
        controls: Controls = Controls(),
        known: Collection[str] = (),
        cwd: str = WORKSPACE,
        plugins: bool = False,
    ) -> "TestReport | Score":
        """Run pytest and return its report, or the score 0 if it did not come to its end.

        `files` are written to `folder`. `hidden`: files whose source is removed from the disk first. `wanted`: run only
        these tests, and the `controls` that were added to them. `known`: names of classes whose instances may equal
        everything. `plugins`: load the plugins that are installed in the slot.

        Raises:
            VerifierError: pytest did not start, or is neither in the slot nor installed beside Ludus.
        """
        box, python = self._box, self._python
        has_pytest = await self._has_pytest(box.resolve(cwd))
        files = {self._control_path: self._control_text, **files}
        await box.unpack(_pack_judge(files, self._secret, packages=not has_pytest), self.folder)
        run_controls = self.controls | controls
        order = {
            "secret": f"{self.folder}/secret",  # a file that the runner removes: stdin could be read later
            "packages": "" if has_pytest else f"{self.folder}/packages",
            "hidden": list(hidden),
            "arguments": list(arguments),
            "wanted": None if wanted is None else list(wanted),
            "controls": sorted(run_controls.failing | run_controls.passing),
            "known": sorted(known),
            "workspace": box.resolve(cwd),
            "python": python,
        }
        autoload = "" if plugins else "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "
        # The runner knows the secret, so it loads no packages: the agent may have changed those.
        command = f'env -i PATH="$PATH" HOME="$HOME" LANG=C.UTF-8 {autoload}python3 -I -S -B'
        done = await box.exec(
            f"{command} {quote(self.folder)}/run.py", timeout=seconds, stdin=json.dumps(order).encode(), cwd=cwd
        )
        if done.timed_out:
            return Score.of(0.0, f"The tests did not end within {seconds:g} s.")
        return self._read_report(done)

    async def _has_pytest(self, workspace: str) -> bool:
        """Whether the slot has pytest, outside of the workspace."""
        places = f"[p for p in sys.path if not p.startswith({workspace!r}) or p.startswith(sys.prefix)]"
        code = f"import sys; sys.path = {places}; import pytest; print(pytest.__name__)"
        done = await self._box.exec(f"{quote(self._python)} -I -c {quote(code)}", timeout=60)
        return done.exit_code == 0 and done.stdout.strip() == b"pytest"

    def _read_report(self, done: ExecResult) -> "TestReport | Score":
        records, explain = _read_records(done.stdout, self._secret), partial(explain_exit, spec=self._box.spec)
        tail = _clean_text(done.stderr.decode(errors="replace"), self.folder)[-1000:]
        if not records:
            raise VerifierError(f"pytest did not start in the slot ({explain(done.exit_code)}): {tail}")
        early = "The tests were ended before they were through"
        if records[-1] == "ready":
            return Score.of(0.0, f"{early} ({explain(done.exit_code)}).\n{tail}")
        report = msgspec.json.decode(_clean_text(records[-1], self.folder), type=TestReport)
        if report.tampering:
            return Score.forged((f"the test run was tampered with: {report.tampering}",))
        if not report.ended:
            if report.exit_code == _USAGE_ERROR and not report.outcomes:
                raise VerifierError(f"pytest does not take its arguments or settings: {tail}")
            return Score.of(0.0, f"{early} ({explain(report.exit_code)}).\n{tail}")
        return report


def _clean_text(text: str, folder: str) -> str:
    """Remove what differs each time: the folder's name and memory addresses."""
    return _ADDRESS.sub("0x…", text.replace(f"{folder}/", ""))


def count_cases(tests: Mapping[str, str]) -> dict[str, int]:
    """`file::function` and `file::Class::function` of every test, with the number of cases that its source defines.

    The number is a lower limit: values of `parametrize` that are computed count as one.
    """
    found: dict[str, int] = {}
    for name, text in tests.items():
        file = PurePosixPath(name)
        if file.is_absolute() or ".." in file.parts:
            raise VerifierError(f"a test file must be below the tests' folder, not '{name}'", retryable=False)
        if not _is_test_file(file):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise VerifierError(f"hidden test '{name}' is not Python: {error}", retryable=False) from error
        found |= {f"hidden/{name}::{inner}": number for inner, number in count_module_cases(tree).items()}
    if not found:
        raise VerifierError("the hidden tests hold no test: name files and functions test_…", retryable=False)
    return found


def _is_test_file(file: PurePosixPath) -> bool:
    return file.suffix == ".py" and (file.name.startswith("test_") or file.stem.endswith("_test"))


def judge_outcomes(
    outcomes: Mapping[str, str],
    notes: Mapping[str, str],
    expected: Mapping[str, int],
    *,
    plain: Controls,
    added: Controls = Controls(),
    separate: bool = False,
) -> Score:
    """The score for a report. `expected` are the tests, with the least number of cases of each. `plain` are controls
    that every run has, `added` those among the tests."""
    if evidence := find_tampering(outcomes, plain, added):
        return Score.forged(evidence)
    doubt = added.find_doubt(outcomes)
    counted = {name: outcome for name, outcome in outcomes.items() if name not in plain and name not in added}
    seen = Counter(name.partition("[")[0] for name in counted)
    for name, number in expected.items():
        missing = range(seen[name], number)
        counted |= {name if number == 1 else f"{name} (case {case + 1} of {number})": "missing" for case in missing}
    wrong = sorted(name for name, outcome in counted.items() if outcome != "passed")
    share = 1 - len(wrong) / len(counted)
    if not wrong:
        where = "" if separate else " They ran in one process with the agent's code."
        return Score(1.0, True, 1.0, f"All {len(counted)} tests passed.{where}", suspect=doubt)
    shown = "\n".join(f"{name}: {counted[name]}\n{notes.get(name, '')}".rstrip() for name in wrong[:_FEEDBACK_TESTS])
    return Score(0.0, False, share, f"{len(wrong)} of {len(counted)} tests did not pass.\n{shown}")


def find_tampering(outcomes: Mapping[str, str], plain: Controls, added: Controls) -> tuple[str, ...]:
    """What shows that the outcomes were changed: a control that must fail did not, or was not run at all."""
    failed = [name for name, outcome in outcomes.items() if name in plain and outcome == "failed"]
    if len(failed) != len(plain.failing):
        return ("tests that must fail did not",)
    return added.find_evidence(outcomes)


def _read_records(stdout: bytes, secret: str) -> list[str]:
    """The lines of the runner: those that begin with the secret."""
    lines = (line.partition(" ") for line in stdout.decode(errors="replace").splitlines())
    return [rest for word, _, rest in lines if word == secret]


# ---- what is written ----------------------------------------------------------------------------------------------


def _pack_judge(tests: Mapping[str, str], secret: str, *, packages: bool) -> bytes:
    files = {
        "run.py": _RUNNER.read_bytes(),
        "secret": secret.encode(),
        "pytest.ini": b"[pytest]\n",
        **{name: text.encode() for name, text in tests.items()},
    }
    entries = [ArchiveEntry(path, 0o600 if path == "secret" else 0o644, data=data) for path, data in files.items()]
    return make_archive([*entries, *(pack_pytest() if packages else ())])


async def place_pytest(box: Sandbox, folder: str) -> None:
    """Write pytest and its dependencies to a folder of a slot, for an environment without it."""
    packages = (replace(entry, path=entry.path.removeprefix("packages/")) for entry in pack_pytest())
    await box.unpack(make_archive(packages), folder)


@cache
def pack_pytest() -> tuple[ArchiveEntry, ...]:
    """pytest and its dependencies, as installed beside Ludus. All are pure Python."""
    found: list[ArchiveEntry] = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise VerifierError(
                "there is no pytest in the slot and none beside Ludus: pip install pytest", retryable=False
            )
        origin = Path(spec.origin)
        whole = origin.name == "__init__.py"
        prefix = f"packages/{name}" if whole else "packages"
        for entry in gather_entries(origin.parent if whole else origin):
            if entry.path.endswith(".py"):
                found.append(ArchiveEntry(f"{prefix}/{entry.path}", 0o644, data=entry.data))
    for name in ("pytest", "pluggy"):  # they ask for their own versions
        version = importlib.metadata.version(name)
        data = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        found.append(ArchiveEntry(f"packages/{name}-{version}.dist-info/METADATA", 0o644, data=data))
    return tuple(found)
