"""Scripts of a package: one that an optimizer wrote or changed is run with its own check before it is used.

What an optimizer writes is a text of an adversary. It is never run on the host, only in a fresh slot of its own, which
has the package and nothing else: no task, no answer, no hidden test, no network unless the environment's slots have
one, and the limits of those slots.

The check of a script is a test beside it (`test_NAME.py`, `NAME_test.py`, `test_NAME.sh`), or else the script itself
with `--self-check`. Both are programs that end with exit code 0 if all is well. A check that cannot fail says nothing.
So there is a control: without the script the test must fail, and a script must refuse an option that does not exist.
What fails is refused, and its record says why. A slot that fails is tried again; it is not the script's fault.
"""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import RolloutError
from ludus.reflact.train_settings import PackageSettings
from ludus.runner import Runner
from ludus.sandbox import ExecResult, Sandbox, SandboxSpec
from ludus.skill import Skill, SkillFile
from ludus.skill_use import pack_skills

_FOLDER = "/tmp/skill-check"
_TRIES = 3
_OUTPUT_CHARS = 400
_NO_OPTION = "--no-such-option-b7c1"
FAILED_CHECK = "skipped_script_check"
NO_PACKAGE = "skipped_no_package"
"""The fate of an edit of a file where the skill is one document: the agent would never see the file."""


class ScriptCheck(Struct, frozen=True):
    """The result of the check of one script."""

    path: str
    reason: str = ""
    """Why it is refused; empty if it passed."""

    @property
    def passed(self) -> bool:
        return not self.reason


def list_changed_scripts(before: Skill, after: Skill) -> tuple[str, ...]:
    """The scripts that are new or changed, or whose test is. Tests are checked with their scripts."""
    changed = {file.path for file in after.files if before.get_file(file.path) != file}
    changed |= {file.path for file in before.files if after.get_file(file.path) is None}
    scripts = [file.path for file in after.files if file.is_script]
    tested = defaultdict[str, list[str]](list)
    for script in scripts:
        for test in list_test_paths(script):
            tested[test].append(script)
    return tuple(path for path in scripts if not _is_test(path, tested) and changed & {path, *list_test_paths(path)})


def _is_test(path: str, tested: Mapping[str, Sequence[str]]) -> bool:
    """Whether a file is the test of a script, and so is run with it. What only looks like the test of a test, or of a
    text, is a script like any other."""
    return any(not _is_test(script, tested) for script in tested.get(path, ()))


def list_test_paths(path: str) -> tuple[str, ...]:
    """The paths at which the test of a script may be."""
    folder, name = posixpath.split(path)
    stem = name.partition(".")[0]
    return tuple(posixpath.join(folder, test) for test in (f"test_{stem}.py", f"{stem}_test.py", f"test_{stem}.sh"))


async def check_scripts(
    before: Skill, after: Skill, runner: Runner, settings: PackageSettings
) -> tuple[ScriptCheck, ...]:
    """Run the check of each script that is new or changed, each in a slot of its own."""
    paths = list_changed_scripts(before, after)
    if paths and not settings.scripts:
        return tuple(ScriptCheck(path, "train.package.scripts is off") for path in paths)
    return tuple([await check_script(after, path, runner, settings) for path in paths])


async def check_script(skill: Skill, path: str, runner: Runner, settings: PackageSettings) -> ScriptCheck:
    """Run the check of one script in a fresh slot."""
    default = runner.slot or runner.env.sandbox
    if runner.pool is None or default is None:
        return ScriptCheck(path, f"{runner.env.name} has no slots, and a script is run only in one")
    problem = ""
    for _ in range(_TRIES):
        try:
            async with runner.pool.lease(make_check_spec(default)) as box:
                return ScriptCheck(path, await _find_fault(skill, path, box, settings.check_seconds))
        except (RolloutError, OSError) as error:  # the world's fault, or a package that the slot cannot hold
            problem = str(error)
    return ScriptCheck(path, f"it could not be checked, the slot failed {_TRIES} times: {problem}")


def make_check_spec(spec: SandboxSpec) -> SandboxSpec:
    """The slot for a check: the limits of the environment's slots, and none of their files."""
    return replace(spec, base=(), caches=(), folders=(), image=None, env=())


async def _find_fault(skill: Skill, path: str, box: Sandbox, seconds: float) -> str:
    """Why a script is refused; empty if its check passes and the control fails."""
    await box.unpack(pack_skills({"": skill}), _FOLDER)
    file = skill.get_file(path)
    assert file is not None
    test = next((name for name in list_test_paths(path) if skill.read(name) is not None), None)
    if test is not None:
        command, control = _start(test), f"mv {shlex.quote(path)} {_FOLDER}.away && {_start(test)}"
    else:
        start = _start_file(file)
        command, control = f"{start} --self-check", f"{start} {_NO_OPTION}"
    passed = await _run(command, box, seconds)
    if passed.timed_out:
        return f"its check ({command}) took longer than {seconds:g} s"
    if passed.exit_code:
        return f"its check ({command}) ended with exit code {passed.exit_code}: {_cut(passed)}"
    await box.settle()
    failed = await _run(control, box, seconds)
    if failed.exit_code == 0:
        what = "its test passes without it" if test else f"it accepts an option that does not exist ({_NO_OPTION})"
        return f"{what}, so its check says nothing"
    return ""


async def _run(command: str, box: Sandbox, seconds: float) -> ExecResult:
    return await box.exec(command, timeout=seconds, cwd=_FOLDER, env={"PYTHONDONTWRITEBYTECODE": "1"})


def _start(path: str) -> str:
    """The command that runs a test."""
    return f"{'bash' if path.endswith('.sh') else 'python3'} {shlex.quote(f'./{path}')}"


def _start_file(file: SkillFile) -> str:
    """The command that starts a script as agents do."""
    quoted = shlex.quote(f"./{file.path}")
    if file.executable:
        return quoted
    return f"{'bash' if file.path.endswith('.sh') else 'python3'} {quoted}"


def _cut(result: ExecResult) -> str:
    return result.text.strip()[-_OUTPUT_CHARS:] or "no output"


def find_refused_paths(checks: Sequence[ScriptCheck]) -> dict[str, str]:
    """The paths whose edits are not made, with the reason: scripts that failed, and their tests."""
    return {
        path: check.reason
        for check in checks
        if not check.passed
        for path in (check.path, *list_test_paths(check.path))
    }
