"""Checks without a model that an environment scores correctly.

Every task is set up in two fresh slots. In one of them the environment's own gold solution (`Env.solve`) is applied; in
the other nothing is done. Both are verified as in a run. `try_task` collects what happened as `Evidence`;
`judge_evidence`, a pure function, finds the problems. Without problems, this holds: ids are unique and valid, tasks can
be recorded, the gold solution passes with value 1, doing nothing does not pass and scores 0, `setup` makes the same
files twice, and `verify` gives the same score twice.

An answer that is contained in the opening messages or in the slot's files is a warning, not a problem: some tasks
intend it. Options of a list, answers that many other tasks mention, and files that the task both places and names are
no warning. A short answer may be there by chance: it is a warning if the opening messages call it the answer, or if
most tasks of the split have theirs there. The checks do not prove that every other wrong answer fails and every other
right one passes.
"""

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Literal, TypeGuard, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from ludus.encoding import canonical
from ludus.env import Env, can_solve, make_turns
from ludus.errors import SandboxError, SetupError, describe_error, explain_not_async
from ludus.judging import FilesUnusable, open_judging_slot
from ludus.policy import Limits
from ludus.rollout import make_opening, make_own_tools
from ludus.runner import Runner
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.agent_files import find_changes
from ludus.sandbox.pool import Pool
from ludus.types import Provenance, Rollout, Score, StopReason, Task, Turn

LONGEST_ID = 200
SHORTEST_LEAK = 6
DISTINCT_LEAK = 4
"""An answer is searched for if it has this many characters, and this many different ones."""
COMMON_SHARE = 0.1
"""An answer in this share of the opening messages of tasks with other answers says nothing."""
COMPARED_OPENINGS = 500
SHORT_LEAKS, SHORT_SHARE = 5, 0.8
"""Short answers are no chance if so many tasks, and this share of them, have theirs in their own opening messages."""
SHOWN_CHANGES = 3
SHOWN_CHARS = 400
LISTED = 200_000
"""How many characters of the list of a slot's files are kept, to show where two slots differ."""

Verdict = Literal["ok", "fail", "warn", "skipped"]
T = TypeVar("T")


class EnvProblem(Struct, frozen=True):
    """What is wrong with one task."""

    task: str
    message: str


class EnvCheck(Struct, frozen=True, kw_only=True):
    """The result of one check over all tasks."""

    name: str
    verdict: Verdict
    checked: int
    problems: tuple[EnvProblem, ...] = ()
    note: str = ""


class EnvReport(Struct, frozen=True, kw_only=True):
    """The results of all checks of an environment."""

    env: str
    version: str
    split: str
    tasks: int
    checks: tuple[EnvCheck, ...]
    skipped: Mapping[str, str] = {}
    """Tasks that cannot be run here: the reasons by id."""

    @property
    def ok(self) -> bool:
        return not any(check.verdict == "fail" for check in self.checks)

    def list_problems(self, name: str) -> dict[str, str]:
        """What a check has found, by task."""
        return {each.task: each.message for check in self.checks if check.name == name for each in check.problems}


@dataclass(frozen=True)
class SlotFiles:
    """The files of a slot: a digest of names, modes and contents, and the beginning of the list. Times do not count,
    nor what is in `.git` and `__pycache__` folders, whose files contain times. A line is a path, a tab and a fact."""

    digest: str
    listing: str


@dataclass
class Evidence:
    """What happened when a task was tried. `broken` has an error message for each step that failed."""

    task: Task
    opening: str = ""
    files: list[SlotFiles] = field(default_factory=list[SlotFiles])
    leaks: tuple[str, ...] = ()
    """The files that contain the answer after setup."""
    gold_answer: str | None = None
    """What the gold solution says at the end; None if it was not tried."""
    gold: list[Score] = field(default_factory=list[Score])
    empty: list[Score] = field(default_factory=list[Score])
    broken: dict[str, str] = field(default_factory=dict[str, str])


# ---- judging ------------------------------------------------------------------------------------------------------

IDS = "task ids"
RECORD = "tasks as plain JSON"
PROMPTS = "opening messages"
TOOLS = "the environment's own tools"
SETUP = "files after two setups (must be equal)"
GOLD = "score of the gold solution (must be 1)"
EMPTY = "score of doing nothing (must be 0)"
REPEATS = "scores of two verify calls (must be equal)"
LEAKS = "answers in the slot or prompt"
NEED_SETUP = (TOOLS, GOLD, EMPTY, REPEATS, LEAKS)
"""Checks of what happens after setup."""


def judge_evidence(env: Env, split: str, evidence: Sequence[Evidence]) -> EnvReport:
    """Check the evidence of all tasks."""
    tasks = [each.task for each in evidence]
    ready = [each for each in evidence if "setup" not in each.broken]
    common = find_common_answers(evidence)
    leaks = [*_check_each(evidence, lambda each: check_leaks(each, common)), *find_short_leaks(evidence)]
    compared = sum(max(len(each.gold), len(each.empty)) > 1 for each in evidence)
    checks = [
        _make_check(IDS, len(tasks), _check_ids(tasks)),
        _make_check(RECORD, len(tasks), _check_each(evidence, check_record)),
        _make_check(PROMPTS, len(tasks), _check_each(evidence, check_prompt)),
        _make_check(TOOLS, len(ready), _check_each(evidence, lambda each: each.broken.get("tools", ""))),
        _make_check(SETUP, len(tasks), _check_each(evidence, check_setup)),
        _make_check(GOLD, len(ready), _check_each(evidence, check_gold)),
        _make_check(EMPTY, len(ready), _check_each(evidence, check_empty)),
        _make_check(REPEATS, compared, _check_each(evidence, check_repeats)),
        _make_check(LEAKS, len(tasks if env.sandbox is None else ready), leaks, warning=True),
    ]
    overrides: dict[str, EnvCheck] = {}
    if env.sandbox is None:
        overrides[SETUP] = EnvCheck(name=SETUP, verdict="skipped", checked=0, note="the environment has no sandbox")
    if not compared:
        overrides[REPEATS] = EnvCheck(name=REPEATS, verdict="skipped", checked=0, note="verify gave no scores")
    if not ready:
        skipped = [check.name for check in checks if check.name in NEED_SETUP and not check.problems]
        note = "setup failed for every task"
        overrides |= {name: EnvCheck(name=name, verdict="skipped", checked=0, note=note) for name in skipped}
    if not can_solve(env):
        note = (
            f"{type(env).__name__} has no solve(task, box): write one that returns a perfect answer; see ludus.env.Env"
        )
        overrides[GOLD] = EnvCheck(name=GOLD, verdict="fail", checked=0, note=note)
    checks = [overrides.get(check.name, check) for check in checks]
    if not tasks:
        note = f"split '{split}' has no tasks"
        checks = [EnvCheck(name="tasks", verdict="fail", checked=0, note=note)]
    return EnvReport(
        env=env.name,
        version=env.version,
        split=split,
        tasks=len(tasks),
        checks=tuple(checks),
        skipped=env.skipped(split),
    )


def _make_check(name: str, checked: int, problems: Iterable[EnvProblem], *, warning: bool = False) -> EnvCheck:
    found = tuple(problems)
    verdict: Verdict = ("warn" if warning else "fail") if found else "ok"
    return EnvCheck(name=name, verdict=verdict, checked=checked, problems=found)


def _check_each(evidence: Iterable[Evidence], check: Callable[[Evidence], str]) -> Iterator[EnvProblem]:
    for each in evidence:
        if message := check(each):
            yield EnvProblem(str(each.task.id), message)


def _check_ids(tasks: Sequence[Task]) -> Iterator[EnvProblem]:
    for id, count in Counter[object](task.id for task in tasks).items():
        if message := check_id(id):
            yield EnvProblem(str(id), message)
        if count > 1:
            yield EnvProblem(str(id), f"{count} tasks have this id")


def check_id(id: object) -> str:
    """What is wrong with an id. Foreign code makes ids, so they can be of any type."""
    if not isinstance(id, str):
        return f"the id is {type(id).__name__}, not text"
    if not id.strip():
        return "the id is empty"
    if id != id.strip() or not id.isprintable():
        return f"the id has spaces around it or unprintable characters: {id!r}"
    return f"the id is longer than {LONGEST_ID} characters" if len(id) > LONGEST_ID else ""


def check_record(evidence: Evidence) -> str:
    try:
        canonical(evidence.task)
    except (TypeError, ValueError) as error:
        return f"a task must be plain JSON values, answer included, so that stored outcomes can be found ({error})"
    return ""


def check_prompt(evidence: Evidence) -> str:
    if "opening" in evidence.broken:
        return evidence.broken["opening"]
    return "" if evidence.opening.strip() else "the opening messages are empty"


def check_setup(evidence: Evidence) -> str:
    if "setup" in evidence.broken:
        return evidence.broken["setup"]
    if len(evidence.files) < 2 or evidence.files[0].digest == evidence.files[1].digest:
        return ""
    changes = list(_compare_files(*(_read_listing(files.listing) for files in evidence.files[:2])))
    more = f", and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
    shown = ", ".join(changes[:SHOWN_CHANGES]) or "in a long list of files"
    return f"two slots differ after setup: {shown}{more}"


def _read_listing(listing: str) -> dict[str, list[str]]:
    """The facts about each path."""
    lines = listing.split("\n")[: -1 if len(listing) >= LISTED else None]  # the last line of a long list is cut
    facts: dict[str, list[str]] = {}
    for line in lines:
        path, tab, fact = line.partition("\t")
        if tab:
            facts.setdefault(path, []).append(fact)
    return facts


def _compare_files(first: dict[str, list[str]], second: dict[str, list[str]]) -> Iterator[str]:
    for path in dict.fromkeys([*first, *second]):
        if path not in first or path not in second:
            yield f"{path} is there only after the {'first' if path in first else 'second'} setup"
        elif changed := sorted(set(first[path]) ^ set(second[path])):
            content = all(fact.startswith("content ") for fact in changed)
            yield f"{path} has {'other content' if content else 'another type, mode or link target'}"


def check_gold(evidence: Evidence) -> str:
    for step in ("solve", "verify gold"):
        if step in evidence.broken:
            return evidence.broken[step]
    if not evidence.gold:
        return "" if "setup" in evidence.broken else "not tried"
    score = evidence.gold[0]
    return "" if score.passed and score.value == 1.0 else f"gold scored {_format_score(score)}"


def check_empty(evidence: Evidence) -> str:
    if "verify empty" in evidence.broken:
        return evidence.broken["verify empty"]
    if not evidence.empty:
        return "" if "setup" in evidence.broken else "not tried"
    score = evidence.empty[0]
    return "" if not score.passed and score.value == 0.0 else f"an empty answer scored {_format_score(score)}"


def check_repeats(evidence: Evidence) -> str:
    for scores in (evidence.gold, evidence.empty):
        if len(scores) > 1 and replace(scores[0], feedback="") != replace(scores[1], feedback=""):  # numbers only
            return f"first {_format_score(scores[0])}, then {_format_score(scores[1])}"
    return ""


def check_leaks(evidence: Evidence, common: Container[str] = ()) -> str:
    """Where the answer is given away; empty if nowhere. `common`: answers that say nothing, see `find_common_answers`.

    A list of options in the opening messages may contain the answer, and so may a file that the task places and that
    the opening messages name. Where the gold solution makes files and does not say the answer, the opening messages
    are the instruction to make them.
    """
    needle, opening = find_needle(evidence.task.answer), " ".join(evidence.opening.split())
    if needle in common:
        return ""
    is_said = evidence.gold_answer is None or needle in " ".join(evidence.gold_answer.split())
    if needle and is_said and _has_words(opening, needle) and not _is_option(opening, needle):
        return "the answer is in the opening messages"
    shown = {f"{WORKSPACE}/{path}" for path in evidence.task.files if _has_words(opening, path.rpartition("/")[2])}
    leaks = [path for path in evidence.leaks if path not in shown]
    return f"the answer is in {', '.join(leaks[:3])} after setup" if leaks else ""


def find_needle(answer: object) -> str:
    """The answer as a text to search for; empty if it is too short, too plain or structured, as it could occur by
    chance: `4`, `yes`, `False`, `100000`."""
    text = " ".join(answer.split()) if isinstance(answer, str) else ""
    return text if len(text) >= SHORTEST_LEAK and len(set(text)) >= DISTINCT_LEAK else ""


def find_common_answers(evidence: Sequence[Evidence]) -> set[str]:
    """The answers that are also in many opening messages of tasks with other answers, such as the names of classes."""
    openings = [(find_needle(each.task.answer), " ".join(each.opening.split())) for each in evidence]
    suspects = {needle for needle, opening in openings if needle and needle in opening}
    suspects |= {find_needle(each.task.answer) for each in evidence if each.leaks}
    common: set[str] = set()
    for needle in suspects:
        others = [opening for answer, opening in openings[:COMPARED_OPENINGS] if answer != needle]
        count = sum(needle in opening and _has_words(opening, needle) for opening in others)
        if count and count >= COMMON_SHARE * len(others):
            common.add(needle)
    return common


def find_short_leaks(evidence: Sequence[Evidence]) -> list[EnvProblem]:
    """Answers that are too short for `find_needle` and are given away all the same."""
    short = [_ShortAnswer(each) for each in evidence]
    short = [each for each in short if each.text]
    stated = [each for each in short if each.is_alone(short, each.is_stated_in)]
    there = [each for each in short if each.is_alone(short, each.is_in)]
    if len(there) >= max(SHORT_LEAKS, SHORT_SHARE * len(short)):
        return [EnvProblem(each.id, "the answer is in the opening messages") for each in there]
    return [EnvProblem(each.id, "the opening messages say which answer it is") for each in stated]


class _ShortAnswer:
    """A short answer, and the opening messages of its task. The text is empty if the answer is not a short one, or if
    the gold solution does not say it."""

    def __init__(self, evidence: Evidence) -> None:
        answer, said = evidence.task.answer, evidence.gold_answer
        text = " ".join(answer.split()) if isinstance(answer, str) and not find_needle(answer) else ""
        self.text = text if said is None or text in said else ""
        self.id = str(evidence.task.id)
        self.opening = " ".join(evidence.opening.split())

    def is_alone(self, others: "Sequence[_ShortAnswer]", is_in: Callable[[str], bool]) -> bool:
        """Whether it is in its own opening messages, and in few of those of tasks with other answers."""
        if not is_in(self.opening):
            return False
        compared = [each.opening for each in others[:COMPARED_OPENINGS] if each.text != self.text]
        return sum(map(is_in, compared)) <= COMMON_SHARE * len(compared)

    def is_in(self, opening: str) -> bool:
        return _has_words(opening, self.text) and not _is_option(opening, self.text)

    def is_stated_in(self, opening: str) -> bool:
        """Whether the messages call it the answer: `The answer is 4.`, but not `Answer: yes or no`."""
        return re.search(rf"{_CALLED}{re.escape(self.text)}{_NOT_LISTED}", opening) is not None


_CALLED = r"(?i)\b(?:answer|solution|result)\W{0,3}(?:is|=|:)\W{0,3}"
_NOT_LISTED = r"(?!\w|\s*(?:or\b|[/|,]))"


def _has_words(text: str, words: str) -> bool:
    """Whether the text contains these words as a whole: `cat` is not in `concatenate`."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _is_option(text: str, answer: str) -> bool:
    """Whether every place where the answer occurs is an option of a list with at least two: `A) tea B) coffee`."""
    marks = {match[1] for match in re.finditer(rf"{_MARK}\S", text)}
    without = re.sub(rf"{_MARK}{re.escape(answer)}(?!\w)", " ", text)
    return len(marks) > 1 and not _has_words(without, answer)


_MARK = r"(?:(?<=\s)|^)[(\[]?([A-Za-z]|\d\d?)[)\].:] +"
"""The mark of an option, such as `A)`, `(b)` or `3.`."""


def _format_score(score: Score) -> str:
    words = f"{score.value:g}, {'passed' if score.passed else 'not passed'}"
    return f"{words}: {_shorten(' '.join(score.feedback.split()))}" if score.feedback else words


def _shorten(text: str) -> str:
    """The beginning and the end of a text: what a program prints last says why it ended."""
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS // 4]} … {text[-SHOWN_CHARS * 3 // 4 :]}"


# ---- trying tasks -------------------------------------------------------------------------------------------------


async def validate(
    runner: Runner,
    split: str,
    tasks: Iterable[Task],
    *,
    limits: Limits = Limits(),
    concurrency: int = 4,
    on_task: Callable[[Task], None] = lambda task: None,
) -> EnvReport:
    """Try every task and check the evidence. Errors of the environment are reported, not raised. `on_task` is called
    with each task that was tried."""
    evidence = [Evidence(task) for task in tasks]
    queue = iter(evidence)

    async def work() -> None:
        for each in queue:
            await try_task(runner, each, limits)
            on_task(each.task)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return judge_evidence(runner.env, split, evidence)


async def try_task(runner: Runner, evidence: Evidence, limits: Limits) -> None:
    """Try one task: once with an empty answer, once with the gold solution."""
    env, task = runner.env, evidence.task

    async def render_opening() -> str:
        return "\n".join(message.content for message in make_opening(env, task))

    async def get_spec() -> SandboxSpec:
        await env.prepare(task)
        return runner.make_spec(task)

    evidence.opening = await _attempt(evidence, "opening", limits, "setup_seconds", render_opening) or ""
    if env.sandbox is None:
        for gold in (False, True):
            solution = await _get_solution(env, evidence, None, limits, gold=gold)
            if solution is not None:
                await _verify_twice(runner, evidence, None, limits, solution, gold=gold)
        return
    assert runner.pool is not None, "an environment with a sandbox is validated with a pool"
    spec = await _attempt(evidence, "setup", limits, "setup_seconds", get_spec)
    try:
        for gold in (False, True):
            if spec is not None and "setup" not in evidence.broken:
                await _try_in_slot(runner, evidence, spec, runner.pool, limits, gold=gold)
    except (SandboxError, SetupError) as error:
        evidence.broken["setup"] = f"the slot failed: {error}"


async def _try_in_slot(
    runner: Runner, evidence: Evidence, spec: SandboxSpec, pool: Pool, limits: Limits, *, gold: bool
) -> None:
    """Try a task in a slot, and verify it in the slot in which a run would."""
    env, task = runner.env, evidence.task
    async with pool.lease(spec) as box:
        await _attempt(evidence, "setup", limits, "setup_seconds", lambda: env.setup(task, box))
        if "setup" in evidence.broken:
            return
        evidence.files.append(await list_files(box))
        evidence.leaks = evidence.leaks or await _find_answer(box, task)
        solution = await _get_solution(env, evidence, box, limits, gold=gold)
        if solution is None:
            return
        try:
            async with open_judging_slot(task, box, runner, limits) as judge_box:
                await _verify_twice(runner, evidence, judge_box, limits, solution, gold=gold)
        except FilesUnusable as error:
            evidence.broken["solve"] = str(error)


async def _get_solution(
    env: Env, evidence: Evidence, box: Sandbox | None, limits: Limits, *, gold: bool
) -> str | Sequence[Turn] | None:
    """The empty answer, or the gold solution; None if there is none or it failed."""

    async def make_tools() -> None:
        make_own_tools(env, evidence.task, box)

    if not gold:
        await _attempt(evidence, "tools", limits, "setup_seconds", make_tools)
        return ""
    if not can_solve(env):
        return None
    solution = await _attempt(evidence, "solve", limits, "rollout_seconds", lambda: env.solve(evidence.task, box))
    if not (isinstance(solution, str) or _are_turns(solution)):
        what = f"solve returned {type(solution).__name__}, not the final answer as text, nor turns"
        evidence.broken.setdefault("solve", what)
        return None
    evidence.gold_answer = make_rollout(evidence.task, solution).answer
    return solution


def _are_turns(solution: object) -> TypeGuard[Sequence[Turn]]:
    """Whether it is a conversation: an environment is foreign code."""
    return isinstance(solution, list | tuple) and all(isinstance(each, Turn) for each in cast("list[Any]", solution))


async def _verify_twice(
    runner: Runner,
    evidence: Evidence,
    box: Sandbox | None,
    limits: Limits,
    solution: str | Sequence[Turn],
    *,
    gold: bool,
) -> None:
    """Verify twice and keep the scores."""
    step, scores = ("verify gold", evidence.gold) if gold else ("verify empty", evidence.empty)
    env, rollout = runner.env, make_rollout(evidence.task, solution)

    def judge() -> Awaitable[Score]:
        return env.grade(rollout, box, runner.judges) if env.graded else env.verify(rollout, box)

    for _ in range(2):
        score: object = await _attempt(evidence, step, limits, "verify_seconds", judge)
        if isinstance(score, Score):
            scores.append(score)
        else:
            evidence.broken.setdefault(step, f"verify returned {type(score).__name__}, not a Score")


async def _attempt(
    evidence: Evidence, step: str, limits: Limits, limit: str, work: Callable[[], Awaitable[T]]
) -> T | None:
    """The result of `work`; None, with an entry in `evidence.broken`, if it failed. `limit`: which limit of time."""
    seconds: float = getattr(limits, limit)
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            pending = work()
            if inspect.isawaitable(pending):
                return await pending
            evidence.broken[step] = explain_not_async(step.partition(" ")[0])
    except Exception as error:  # an environment is foreign code: what it raises is what we want to know
        late = f"took longer than {seconds:g} s (limits.{limit})"
        evidence.broken[step] = f"{step} {late if clock.expired() else f'raised {describe_error(error)}'}"
    return None


def make_rollout(task: Task, solution: str | Sequence[Turn]) -> Rollout:
    """The rollout that `verify` gets if the agent says only this, or took these turns."""
    provenance = Provenance(policy="validate", model="validate")
    return Rollout(task=task, provenance=provenance, turns=make_turns(solution), stop=StopReason.FINISHED)


_LIST = r"""list() {
  cd "$1" || return
  skip=(-name .git -o -name __pycache__ -o -path ./run/ludus -o -path "./tmp/.ludus-*")
  find . -mindepth 1 "(" "${skip[@]}" ")" -prune -printf "$2/%P\t%y\n" -o -printf "$2/%P\t%y %m %l\n" | LC_ALL=C sort
  find . -mindepth 1 "(" "${skip[@]}" ")" -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum |
    sed -E "s|^.?([0-9a-f]{64})  \./(.*)|$2/\2\tcontent \1|"
}
"""
_LIST_WORKSPACE = f"""list "$workspace" {WORKSPACE}
[ "$HOME" -ef "$workspace" ] || list "$HOME" "~" """


async def list_files(box: Sandbox) -> SlotFiles:
    """The files of the workspace and the home folder. Of a slot with an image, what differs from the image: a working
    folder may be the root, with /proc and everything else."""
    if changes := find_changes(box):
        command = f"({_LIST}\nlist {quote(changes)} '')"
    else:
        command = f"(workspace={quote(box.resolve(WORKSPACE))}\n{_LIST}\n{_LIST_WORKSPACE})"
    digest = await box.exec(f"{command} | sha256sum")
    listing = await box.exec(f"{command} | head -c {LISTED}")
    return SlotFiles(digest.stdout.decode(), listing.stdout.decode(errors="replace"))


async def _find_answer(box: Sandbox, task: Task) -> tuple[str, ...]:
    """The files that contain the longest line of the answer."""
    if not find_needle(task.answer):
        return ()
    line = max((part.strip() for part in str(task.answer).splitlines()), key=len)
    if not find_needle(line):
        return ()
    workspace = box.resolve(WORKSPACE)
    found = await box.exec(f'grep -rlFw -f - {quote(workspace)} "$HOME"', stdin=line.encode())
    paths = found.stdout.decode(errors="replace").split("\n")[:-1]
    return tuple(dict.fromkeys(re.sub(rf"^{re.escape(workspace)}(?=/)", WORKSPACE, path) for path in paths))


# ---- for people ---------------------------------------------------------------------------------------------------


def format_report(report: EnvReport, *, shown: int = 3) -> str:
    """The report as text, with the first problems of each check."""
    count = _count_tasks(report.tasks)
    lines = [f"{report.env} (version {report.version}), split '{report.split}': {count}"]
    for check in report.checks:
        bad = len({problem.task for problem in check.problems})
        count = f"{bad} of {_count_tasks(check.checked)}" if bad else check.note
        lines.append(f"  {check.verdict:<8}{check.name}{f': {count}' if count else ''}")
        lines += [f"            {problem.task}: {problem.message}" for problem in check.problems[:shown]]
        if len(check.problems) > shown:
            lines.append(f"            … and {len(check.problems) - shown} more (--json has them all)")
    if report.skipped:
        lines.append(f"  skipped {_count_tasks(len(report.skipped))} that cannot be run here")
        lines += [f"            {id}: {reason}" for id, reason in list(report.skipped.items())[:shown]]
        if len(report.skipped) > shown:
            lines.append(f"            … and {len(report.skipped) - shown} more (--json has them all)")
    lines.append("no problems" if report.ok else "there are problems")
    return "\n".join(lines)


def _count_tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"
