"""The tasks of a night: drafts get checkers, are validated as tasks of any environment, and are divided for good.

A task must pass what `ludus validate` checks: the accepted answer scores 1, an empty reply 0, twice the same. A task
whose commands do not pass in a slot is tried again without them. Tasks of earlier nights are used again, in the split
that they were in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from ludus import env_checks
from ludus.config import Config
from ludus.encoding import to_json
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.paired_evidence import FEWEST_TASKS
from ludus.run import open_judging, tell_nobody
from ludus.sleep.drafts import TaskDraft, assign_splits, draft_task
from ludus.sleep.harvest import Harvest
from ludus.sleep.mining import MinedTask, make_task, mine_tasks
from ludus.sleep.night import TASKS, list_nights, write_private
from ludus.sleep.past_env import SEALED, SELECTION, TRAIN, PastWork, read_answer, read_tasks
from ludus.types import Task

SPLITS = (TRAIN, SELECTION, SEALED)
_ID = "past-"


@dataclass
class NightTasks:
    """The tasks that a night trains on."""

    tasks: list[Task] = field(default_factory=list[Task])
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    """The session of each task of this night."""
    splits: dict[str, str] = field(default_factory=dict[str, str])
    """The split of each request, by its hash."""

    @property
    def counts(self) -> dict[str, int]:
        return {split: sum(task.split == split for task in self.tasks) for split in SPLITS}

    @property
    def needs_slots(self) -> bool:
        return any(_needs_slot(task) for task in self.tasks)

    def add_waiting(self, found: Harvest, waiting: Mapping[str, str]) -> None:
        """Count tasks of sessions that have waited since a night with too few as tasks of this night: no night has
        measured anything with them."""
        ids = {task.id for task in self.tasks}
        for session in found.sessions:
            made = found.notes[session.id].tasks if session.id in waiting else ()
            self.sessions |= {id: session.id for id in made if id in ids}

    def find_shortage(self, fewest: int) -> str:
        """Why these tasks are too few to measure anything; empty if they are not."""
        counts = self.counts
        if len(self.tasks) < fewest:
            few = f"fewer than {fewest} (sleep.fewest) cannot tell whether a change helps"
            return f"{len(self.tasks)} valid tasks, and {few}"
        if counts[SELECTION] < FEWEST_TASKS or not counts[TRAIN] or not counts[SEALED]:
            said = ", ".join(f"{count} {split}" for split, count in counts.items())
            return f"the valid tasks cannot be divided ({said}): too many of them come from one session"
        return ""


def _needs_slot(task: Task) -> bool:
    known = read_answer(task)
    return bool(task.files or known.files) or any(each.kind == "command" for each in known.checkers)


def read_earlier(folder: Path, live: str, skill: str, besides: str = "") -> list[Task]:
    """The tasks of earlier nights of a skill, the latest first, each request once."""
    found: dict[str, Task] = {}
    for path, night in reversed(list_nights(folder)):
        if night.live == live and night.name != besides and (path / skill / TASKS).is_file():
            for task in read_tasks(path / skill / TASKS):
                found.setdefault(task.id, task)
    return list(found.values())


def draft_tasks(found: Harvest, earlier: Sequence[Task]) -> list[TaskDraft]:
    """The drafts of the sessions. Reasons why there is none are noted."""
    known = {task.id.removeprefix(_ID) for task in earlier}
    drafts: dict[str, TaskDraft] = {}
    for session in found.sessions:
        draft = draft_task(session)
        if isinstance(draft, str):
            found.note(session.id, reason=draft)
        elif draft.key in known:
            found.note(session.id, reason="its request is a task already", tasks=(f"{_ID}{draft.key}",))
        elif draft.key in drafts:
            found.note(session.id, reason="the same request as in another session")
        else:
            drafts[draft.key] = draft
    return list(drafts.values())


async def make_night_tasks(
    config: Config,
    folder: Path,
    found: Harvest,
    earlier: Sequence[Task],
    known: dict[str, str],
    optimizer: Optimizer | None,
) -> NightTasks:
    """Make the tasks of a night, and write them. A file that is there already is from before the night was
    interrupted: it stays."""
    drafts = draft_tasks(found, earlier)
    if (folder / TASKS).is_file():
        return _take_written(folder, drafts, found)
    controls = [
        TaskDraft(session=task.id, request=task.prompt, reference=read_answer(task).reference) for task in earlier
    ]
    seconds = config.sleep.check_seconds
    mined = await mine_tasks(drafts, controls, optimizer, seconds)
    valid = await _validate(config, folder, mined)
    made = NightTasks()
    for each in mined:
        task, reason = valid.get(each.draft.key, (None, each.reason))
        if task is None:
            found.note(each.draft.session, reason=reason)
        else:
            made.tasks.append(task)
            made.sessions[task.id] = each.draft.session
            found.note(each.draft.session, tasks=(task.id,))
    made.tasks = [*made.tasks, *earlier][: config.sleep.tasks]
    _divide(made, known)
    _write_tasks(folder / TASKS, made.tasks)
    return made


def _take_written(folder: Path, drafts: Sequence[TaskDraft], found: Harvest) -> NightTasks:
    made = NightTasks(read_tasks(folder / TASKS))
    ids = {task.id for task in made.tasks}
    for draft in drafts:
        if (id := f"{_ID}{draft.key}") in ids:
            made.sessions[id] = draft.session
            found.note(draft.session, tasks=(id,))
        else:
            found.note(draft.session, reason="no valid checkers")
    made.splits = {task.id.removeprefix(_ID): task.split for task in made.tasks}
    return made


def _divide(made: NightTasks, known: dict[str, str]) -> None:
    before = {task.id.removeprefix(_ID): task.split for task in made.tasks if task.id not in made.sessions}
    drafts = [(task.id.removeprefix(_ID), made.sessions.get(task.id, task.id), task.prompt) for task in made.tasks]
    made.splits = assign_splits(drafts, {**known, **before})
    made.tasks = [replace(task, split=made.splits[task.id.removeprefix(_ID)]) for task in made.tasks]


def _write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    write_private(path, b"".join(to_json(task) + b"\n" for task in tasks))


async def _validate(config: Config, folder: Path, mined: Sequence[MinedTask]) -> dict[str, tuple[Task | None, str]]:
    """The tasks that pass what `ludus validate` checks, by the hash of their request; for others, why not."""
    kept = {each.draft.key: each for each in mined if each.checkers}
    results: dict[str, tuple[Task | None, str]] = {}
    for attempt in ("with commands", "without"):
        tasks = {key: make_task(each, TRAIN) for key, each in kept.items()}
        problems = await _find_problems(config, folder, list(tasks.values()))
        again: dict[str, MinedTask] = {}
        for key, task in tasks.items():
            problem = problems.get(task.id, "")
            results[key] = (None, f"not valid: {problem}") if problem else (task, "")
            texts = tuple(each for each in kept[key].checkers if each.kind != "command")
            if problem and attempt == "with commands" and texts and len(texts) < len(kept[key].checkers):
                again[key] = MinedTask(kept[key].draft, texts)
        kept = again
        if not kept:
            break
    return results


async def _find_problems(config: Config, folder: Path, tasks: list[Task]) -> dict[str, str]:
    """What `ludus validate` says about tasks, by id."""
    if not tasks:
        return {}
    path = folder / f".{TASKS}.tried"
    _write_tasks(path, tasks)
    env = PastWork(path=str(path), slots=any(map(_needs_slot, tasks)), check_seconds=config.sleep.check_seconds)
    async with open_judging(config, env, tell_nobody) as runner:
        report = await env_checks.validate(runner, TRAIN, tasks, limits=config.limits)
    path.unlink()
    found: dict[str, str] = {}
    for check in report.checks:
        if check.verdict == "fail":
            for each in check.problems:
                found.setdefault(each.task, f"{check.name}: {each.message}"[:300])
    return found
