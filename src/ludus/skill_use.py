"""A skill in a slot: its files are placed where the agent looks for them, and what became of them is recorded.

    place_skill ──> the agent acts ──> survey_skill ──> SkillUse on the rollout

Nothing here asks the agent. There are two witnesses. The **slot**: before the agent acts, the access times of the files
are set far back, so that the first process that opens one moves its time. A probe shows first whether the file system
keeps access times; where it does not, the slot has seen nothing, which is not the same as "not read". A file whose
inode or change time is another one was changed, replaced or had its times set: it says nothing any more. The
**conversation**, as the loop or the gateway recorded it: a file is `shown` if its lines are in what the model got.

Some agents open every document when they start, to list the skills (`Agent.skills`). With them an open document is no
evidence, and only the conversation counts. A script counts as run if a process opened it and a command of a tool call
starts it, by its name or as the argument of an interpreter.

The folder is the agent's to change, and so are its programs in a slot with an image of its own: an agent can only spoil
its own record. Its processes are ended before the survey, and the folder is removed before anything is verified.
"""

import io
import re
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ludus.errors import SandboxError, SetupError, boundary
from ludus.policy import Policy
from ludus.sandbox import Sandbox
from ludus.sandbox.home import resolve_path
from ludus.skill import DOCUMENT, Skill
from ludus.types import JsonObject, Message, SkillUse

_OLD = "200001010000"
"""The access time of a file that nobody has opened yet."""
_SEEN_AFTER = 1_000_000_000
"""Access times after this second (of 2001) were made by the slot."""
_SECONDS = 30.0
_NO_TIMES = "the slot's file system keeps no access times"


@dataclass(frozen=True)
class PlacedSkill:
    """A skill in a slot, before the agent acts."""

    folder: str
    """Its folder, as commands in the slot write it."""
    skill: Skill
    marks: Mapping[str, str]
    """The inode and the change time of each file."""
    unseen: str = ""
    """Why the slot cannot tell which files are opened; empty if it can."""


# ---- placing --------------------------------------------------------------------------------------------------------


async def place_skill(path: str, skill: Skill, box: Sandbox | None) -> PlacedSkill:
    """Write the skill's files to the folder of `path`, the path of its document.

    Raises:
        SetupError: there is no slot, the task has files of its own there, or they could not be written.
    """
    if box is None:
        raise SetupError(
            "agent.skill_as: the environment has no slot for the skill's file: use agent.skill_as text", retryable=False
        )
    with boundary(SetupError, f"{path} could not be written"):
        folder = (await resolve_path(path, box)).removesuffix(f"/{DOCUMENT}")
        inside = box.resolve(folder)
        if (await box.exec(f"test -e {shlex.quote(inside)} || test -L {shlex.quote(inside)}")).exit_code == 0:
            raise SetupError(f"the task has {folder} already: choose another agent.skill_folder", retryable=False)
        await box.unpack(pack_skill(skill), folder)
        return await _mark_files(skill, inside, box)


def pack_skill(skill: Skill) -> bytes:
    """The files as an archive for the slot."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content, runs in (
            (DOCUMENT, skill.text.encode(), False),
            *((file.path, file.content, file.executable) for file in skill.files),
        ):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755 if runs else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


_STAT = "find . -type f -exec stat -c '%X|%i|%z|%n' {} +"


async def _mark_files(skill: Skill, folder: str, box: Sandbox) -> PlacedSkill:
    """Set the access times back, and see whether the slot keeps them."""
    old = f"touch -a -t {_OLD}"
    done = await box.exec(
        f"cd {shlex.quote(folder)} && find . -type f -exec {old} {{}} + && printf x > ../.ludus-probe && "
        f"{old} ../.ludus-probe && stat -c %X ../.ludus-probe && cat ../.ludus-probe > /dev/null && "
        f"stat -c %X ../.ludus-probe && {_STAT}; rm -f {shlex.quote(folder)}/../.ludus-probe",
        timeout=_SECONDS,
        cwd="/",
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    if len(lines) < 3:
        return PlacedSkill(folder, skill, {}, "the slot has no find, touch or stat that works")
    before, after, *rest = lines
    keeps = before.isdigit() and after.isdigit() and int(before) < _SEEN_AFTER < int(after)
    marks = {path: mark for path, (_, mark) in _parse_stats(rest).items()}
    return PlacedSkill(folder, skill, marks, "" if keeps and set(marks) == set(skill.paths) else _NO_TIMES)


def _parse_stats(lines: Iterable[str]) -> dict[str, tuple[int, str]]:
    """The access time, and inode and change time, of each file."""
    found: dict[str, tuple[int, str]] = {}
    for line in lines:
        parts = line.split("|", 3)
        if len(parts) == 4 and parts[0].isdigit():
            found[parts[3].removeprefix("./")] = (int(parts[0]), f"{parts[1]} {parts[2]}")
    return found


# ---- the survey -----------------------------------------------------------------------------------------------------


async def survey_skill(
    placed: PlacedSkill, policy: Policy, box: Sandbox, opening: Sequence[Message], messages: Sequence[Message]
) -> SkillUse:
    """What the agent did with its skill. Ends the agent's processes and removes the skill's folder.

    `opening`: what the environment and the policy say first. `messages`: all that was said; other agents than the loop
    have openings of their own.
    """
    stats, unseen = {}, placed.unseen
    try:
        await box.settle()  # its shell is the agent's to change
        done = await box.exec(
            f"cd {shlex.quote(placed.folder)} && {_STAT}; cd / && rm -rf -- {shlex.quote(placed.folder)}",
            timeout=_SECONDS,
            cwd="/",
        )
        stats = _parse_stats(done.stdout.decode(errors="replace").splitlines())
        if done.timed_out or done.truncated:
            unseen = unseen or "the slot could not list the files in time"
    except SandboxError:
        unseen = unseen or "the slot is gone"
    return decide_use(placed, policy, {} if unseen else stats, unseen, opening, messages)


def decide_use(
    placed: PlacedSkill,
    policy: Policy,
    stats: Mapping[str, tuple[int, str]],
    unseen: str,
    opening: Sequence[Message],
    messages: Sequence[Message],
) -> SkillUse:
    """What is known of a skill's files from the slot (`stats`) and from the conversation."""
    skill = placed.skill
    changed = tuple(path for path in placed.marks if _has_changed(placed, path, stats)) if not unseen else ()
    opened = tuple(
        path for path in skill.paths if path not in changed and path in stats and stats[path][0] > _SEEN_AFTER
    )
    known = "\n".join(message.content for message in opening)
    got = [message.content for message in messages if message.role != "assistant"]
    shown = tuple(path for path in skill.paths if _is_shown(_get_text(skill, path), got, known))
    scripts = [file.path for file in skill.files if file.is_script and file.path in opened]
    commands = list(_list_commands(messages)) if scripts else []
    return SkillUse(
        opened=opened,
        shown=shown,
        run=tuple(path for path in scripts if any(starts_script(command, path) for command in commands)),
        changed=changed,
        unseen=unseen,
        loaded=_decide_loaded(policy, opened, shown, changed, unseen, bool(_list_telling(skill.body, known))),
    )


def _has_changed(placed: PlacedSkill, path: str, stats: Mapping[str, tuple[int, str]]) -> bool:
    return path not in stats or stats[path][1] != placed.marks[path]


def _decide_loaded(
    policy: Policy, opened: Sequence[str], shown: Sequence[str], changed: Sequence[str], unseen: str, telling: bool
) -> bool | None:
    """Whether the agent has read the document; None if nobody could see it."""
    if policy.skill_as == "both" or DOCUMENT in shown:
        return True
    if policy.lists_skills:  # it opens documents by itself: what the model got decides
        return False if telling else None
    if DOCUMENT in opened:
        return True
    return None if unseen or DOCUMENT in changed else False


# ---- the conversation -----------------------------------------------------------------------------------------------

_TELLING_CHARS = 16
_WORD = re.compile(r"\w+")


def _get_text(skill: Skill, path: str) -> str:
    return skill.body if path == DOCUMENT else skill.read(path) or ""


def _list_telling(text: str, known: str) -> list[str]:
    """The lines by which a text is recognised: they are long enough, and the agent was not told them before."""
    lines = dict.fromkeys(line.strip() for line in text.splitlines())
    return [line for line in lines if len(line) >= _TELLING_CHARS and _WORD.search(line) and line not in known]


def _is_shown(text: str, got: Sequence[str], known: str) -> bool:
    """Whether lines of the text are in what the model got: two of them, or one in three."""
    telling = _list_telling(text, known)
    if not telling:
        return False
    needed = min(2, -(-len(telling) // 3))
    found = 0
    for line in telling:
        escaped = msgspec.json.encode(line).decode()[1:-1]  # some agents give results as JSON
        found += any(line in each or escaped in each for each in got)
        if found >= needed:
            return True
    return False


# ---- scripts --------------------------------------------------------------------------------------------------------

_INTERPRETER = re.compile(
    r"(?:.*/)?(?:python|pypy|bash|sh|dash|zsh|node|deno|bun|ruby|perl|php|Rscript|lua|uv|npx|tsx)[\d.]*"
)
_BEFORE = frozenset(
    {"env", "exec", "nohup", "nice", "sudo", "time", "timeout", "command", "xargs", ".", "do", "then", "else", "{", "!"}
)
_SEGMENTS = re.compile(r"[;&|\n()`]+")


def starts_script(command: str, path: str) -> bool:
    """Whether a command of a shell starts the script: by its name, or as the argument of an interpreter."""
    name = path.rpartition("/")[2]
    return any(name in segment and _segment_starts(segment, name) for segment in _SEGMENTS.split(command))


def _segment_starts(segment: str, name: str) -> bool:
    words = segment.replace('"', " ").replace("'", " ").split()
    while words and (words[0] in _BEFORE or "=" in words[0] or words[0].startswith("-") or words[0].isdigit()):
        if words[0] == "." and len(words) > 1:
            return _is_named(words[1], name)
        words = words[1:]
    if not words:
        return False
    if _is_named(words[0], name):
        return True
    if words[0] in ("source",) or _INTERPRETER.fullmatch(words[0]):
        return any(_is_named(word, name) for word in words[1:])
    return False


def _is_named(word: str, name: str) -> bool:
    return word.rpartition("/")[2] == name


def _list_commands(messages: Iterable[Message]) -> Iterable[str]:
    """The texts in the arguments of tool calls. An agent without tool calls writes its commands into its messages."""
    calls = [call for message in messages for call in message.calls]
    if not calls:
        yield from (message.content for message in messages if message.role == "assistant")
    for call in calls:
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=JsonObject)
        except (ValueError, RecursionError):
            continue
        yield from (value for value in arguments.values() if isinstance(value, str))
        yield from (
            shlex.join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
            for value in arguments.values()
            if isinstance(value, list)
        )
