"""Mining: tasks are made of drafts, and the rest is kept for proposers.

    draft ──> checkers (a model's, or made of the answer) ──> trials on known answers ──> task, or a reason

A checker is tried on the accepted answer, on an empty reply and on accepted answers of other sessions, before it may
judge anything (`checkers.choose_checkers`). Commands are tried later, in slots, when the tasks are validated as those
of any environment. The model's requests and replies are stored, so a night that was interrupted does not ask again.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.reflact.guards import Guard, GuardSettings
from ludus.reflact.journal import open_task_group
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import UnusableReply
from ludus.skill import Edit, Op, Skill, apply_edits, render_whole
from ludus.sleep.checkers import (
    MOST,
    Checker,
    CheckerTrial,
    check_text,
    choose_checkers,
    find_checker_fault,
    make_plain_checkers,
)
from ludus.sleep.drafts import TaskDraft, judge_mood
from ludus.sleep.past_env import PastAnswer
from ludus.transcripts.past_session import PastSession
from ludus.types import Task
from ludus.verify.scoring_process import ScorerFailed

PROMPTS = ("checkers", "traces")
CONTROLS = 3
SHOWN_CHARS = 6_000
TRACES = 30
EDITS = 4


class MinedTask(Struct, frozen=True):
    """What became of a draft."""

    draft: TaskDraft
    checkers: tuple[Checker, ...]
    reason: str = ""
    """Why it is no task; empty if it is one."""


class CheckerReply(Struct, frozen=True):
    """What the model replies about one request."""

    checkers: tuple[Checker, ...]
    reasoning: str = ""


def load_sleep_prompts() -> Prompts:
    """The prompts of mining."""
    folder = files("ludus.sleep").joinpath("prompts")
    texts = {name: folder.joinpath(f"{name}.md").read_text("utf-8") for name in PROMPTS}
    return Prompts({**texts, "reask": Prompts.load().get_text("reask")})


# ---- checkers -------------------------------------------------------------------------------------------------------


async def mine_tasks(
    drafts: Sequence[TaskDraft], others: Sequence[TaskDraft], optimizer: Optimizer | None, seconds: float
) -> list[MinedTask]:
    """Find checkers for every draft. `others`: drafts of earlier nights, whose answers are controls, too."""
    answers = [(draft.session, draft.reference) for draft in (*drafts, *others)]

    async def mine(draft: TaskDraft) -> MinedTask:
        controls = [answer for session, answer in answers if session != draft.session and answer != draft.reference]
        if not controls:
            return MinedTask(draft, (), "there is no other session whose answer could be the control")
        tried = await propose_checkers(draft, optimizer)
        chosen, reason = await _try(draft, tried, controls[:CONTROLS], seconds)
        if not chosen and (plain := make_plain_checkers(draft.reference)):
            chosen, reason = await _try(draft, plain, controls[:CONTROLS], seconds)
        return MinedTask(draft, chosen, reason)

    async with open_task_group() as group:
        work = [group.create_task(mine(draft)) for draft in drafts]
    return [each.result() for each in work]


async def propose_checkers(draft: TaskDraft, optimizer: Optimizer | None) -> tuple[Checker, ...]:
    """The checkers that the model proposes; none without a model or a usable reply."""
    if optimizer is None:
        return ()
    reply = await optimizer.ask(
        "checkers",
        {
            "most": str(MOST),
            "request": draft.request[:SHOWN_CHARS],
            "objections": "\n".join(f"- {text}" for text in draft.objections) or "(nothing)",
            "reference": draft.reference[:SHOWN_CHARS],
            "files": _describe_files(draft.results or draft.files),
        },
        CheckerReply,
        stage="checkers",
        place=draft.key,
        otherwise="the request has the checkers that need no model",
        check=_find_reply_fault,
    )
    if isinstance(reply, UnusableReply):
        return ()
    return tuple(each for each in reply.checkers if each.kind != "command" or draft.results or draft.files)


def _find_reply_fault(reply: CheckerReply) -> str:
    if len(reply.checkers) > MOST:
        return f"there are {len(reply.checkers)} checkers; give at most {MOST}"
    return next((fault for each in reply.checkers if (fault := find_checker_fault(each))), "")


def _describe_files(known: Mapping[str, str]) -> str:
    texts = (f"==== {path} ====\n{text[:SHOWN_CHARS]}" for path, text in known.items())
    return "\n\n".join(texts) or "(none)"


async def _try(
    draft: TaskDraft, checkers: Sequence[Checker], controls: Sequence[str], seconds: float
) -> tuple[tuple[Checker, ...], str]:
    """Try checkers of texts on known answers. Commands are tried in slots, later: they stay if there is a text."""
    texts = [checker for checker in checkers if checker.kind != "command"]
    trials = [(checker, await _try_one(checker, draft.reference, controls, seconds)) for checker in texts]
    chosen, reason = choose_checkers(trials)
    commands = tuple(checker for checker in checkers if checker.kind == "command")
    if commands and (chosen or not texts):
        return (*chosen, *commands), ""
    return chosen, reason


async def _try_one(checker: Checker, reference: str, controls: Sequence[str], seconds: float) -> CheckerTrial:
    async def check(answer: str) -> bool | None:
        try:
            return await check_text(checker, answer, seconds)
        except (TimeoutError, ScorerFailed):
            return None

    reached = await check(reference)
    if not reached:  # the others would take as long
        return CheckerTrial(reached, False, ())
    return CheckerTrial(reached, await check(""), tuple([await check(control) for control in controls]))


def make_task(mined: MinedTask, split: str) -> Task:
    draft = mined.draft
    answer = PastAnswer(
        checkers=mined.checkers,
        reference=draft.reference,
        files=dict(draft.results),
        objections=draft.objections,
    )
    return Task(
        id=f"past-{draft.key}",
        prompt=draft.request,
        files=dict(draft.files),
        split=split,
        answer=msgspec.json.decode(to_json(answer)),
    )


# ---- a proposal without a measurement -------------------------------------------------------------------------------


class TraceEdit(Struct, frozen=True):
    """An edit that sessions speak for."""

    op: Op
    content: str = ""
    target: str = ""
    sessions: tuple[int, ...] = ()


class TraceReply(Struct, frozen=True):
    """What the model proposes from reading sessions."""

    edits: tuple[TraceEdit, ...]
    reasoning: str = ""


class TraceProposal(Struct, frozen=True):
    """A skill that was changed without a measurement."""

    skill: Skill
    sessions: tuple[str, ...] = ()
    """The sessions that speak for it."""
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    """Edits that were not made, by reason."""


def describe_traces(sessions: Iterable[PastSession]) -> list[tuple[str, str]]:
    """The sessions in which the user objected, as texts, each with its id."""
    found: list[tuple[str, str]] = []
    for session in sessions:
        objections = [text for text in session.feedback if judge_mood(text) == "objection"]
        if objections:
            said = "\n".join(f"- {text[:500]}" for text in objections[:5])
            found.append((session.id, f"The user asked: {session.request[:1000]}\nThen the user objected:\n{said}"))
    return found[:TRACES]


async def propose_from_traces(
    skill: Skill, traces: Sequence[tuple[str, str]], optimizer: Optimizer, limit: int = EDITS
) -> TraceProposal | str:
    """A changed skill, from what users objected to; or why there is none."""
    if not traces:
        return "no user objected to anything"
    shown = "\n\n".join(f"## Session {number}\n\n{text}" for number, (_, text) in enumerate(traces, 1))
    reply = await optimizer.ask(
        "traces",
        {"limit": str(limit), "skill": render_whole(skill), "sessions": shown},
        TraceReply,
        stage="traces",
        place=skill.hash,
        otherwise="nothing is proposed",
    )
    if isinstance(reply, UnusableReply):
        return f"the model gave no usable reply: {reply.problem}"
    return apply_traces(skill, reply.edits[:limit], traces)


def apply_traces(skill: Skill, edits: Sequence[TraceEdit], traces: Sequence[tuple[str, str]]) -> TraceProposal | str:
    """Make the edits that may be made: no secrets, and no rows of words of a session."""
    tasks = [Task(id=id, prompt=text) for id, text in traces]
    guard = Guard(replace(GuardSettings(), words=8), tasks, ())
    sessions: set[str] = set()
    skipped: dict[str, int] = {}
    for each in edits:
        edit = Edit(each.op, each.content, each.target)
        fault = guard.check_edit(skill, edit)
        changed, (report,) = (skill, (None,)) if fault else apply_edits(skill, [edit])
        status = fault.status if fault else (report.status if report else "")
        if changed == skill:
            skipped[status] = skipped.get(status, 0) + 1
            continue
        skill = changed
        sessions |= {traces[number - 1][0] for number in each.sessions if 0 < number <= len(traces)}
    if not edits or len(edits) == sum(skipped.values()):
        return "the model proposed nothing that could be used"
    return TraceProposal(skill, tuple(sorted(sessions)), skipped)
