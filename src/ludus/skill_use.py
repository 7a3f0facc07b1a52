"""A skill in a slot: its files are placed where the agent looks for them, and what became of them is recorded.

    place_skills ──> the agent acts ──> survey_skills ──> SkillUse on the rollout, one for each skill

Nothing here asks the agent. There are two witnesses. The **slot**: before the agent acts, the access times of the files
are set far back, so that the first process that opens one moves its time. A probe shows first whether the file system
keeps access times; where it does not, the slot has seen nothing, which is not the same as "not read". A file whose
inode or change time is another one was changed, replaced or had its times set: it says nothing any more. The
**conversation**, as the loop or the gateway recorded it: a file is `shown` if its lines are in what the model got.

Some agents open every document when they start, to list the skills (`Agent.skills`). With them an open document is no
evidence, and only the conversation counts. A script counts as run if a process opened it and a command of a tool call
starts it, by its name or as the argument of an interpreter.

This is one of three ways to see what was loaded. Rollouts of a library are measured by these records
(`ludus.library.readings`), because the whole task is done. Queries end with the first load, so there a mark in the text
that the gateway sees is enough, and needs no slot that keeps access times (`ludus.triggers.trigger_agent`). The loop
loads with a tool, and its call says what (`ludus.envs.triggers`).

The folder is the agent's to change, and so are its programs in a slot with an image of its own: an agent can only spoil
its own record. Its processes are ended before the survey, and the folder is removed before anything is verified.
"""

import io
import re
import shlex
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    shared: frozenset[str] = frozenset()
    """Lines that another skill in the slot has too. They do not show which of them was read."""


# ---- placing --------------------------------------------------------------------------------------------------------


async def place_skills(wanted: Sequence[tuple[str, Skill]], box: Sandbox | None) -> tuple[PlacedSkill, ...]:
    """Write the files of each skill to the folder of its path, the path of its document.

    Raises:
        SetupError: there is no slot, the task has files of its own there, or they could not be written.
    """
    if box is None:
        raise SetupError(
            "agent.skill_as: the environment has no slot for the skill's file: use agent.skill_as text", retryable=False
        )
    with boundary(SetupError, f"{wanted[0][0]} could not be written"):
        names = [path.split("/")[-2] for path, _ in wanted]
        root = await resolve_path(
            wanted[0][0].removesuffix(f"/{names[0]}/{DOCUMENT}"), box
        )  # all lie beside each other
        skills = {name: skill for name, (_, skill) in zip(names, wanted, strict=True)}
        return await _mark_files(await unpack_skills(root, skills, box), box)


async def unpack_skills(root: str, skills: Mapping[str, Skill], box: Sandbox) -> dict[str, Skill]:
    """Write skills below a folder, each into a folder with its name. Returns them by their folders.

    Raises:
        SetupError: one of the folders is there already.
    """
    inside = {box.resolve(f"{root}/{name}"): skill for name, skill in skills.items()}
    for folder in await _list_existing(tuple(inside), box):
        raise SetupError(f"the task has {folder} already: choose another agent.skill_folder", retryable=False)
    await box.unpack(pack_skills({f"{name}/": skill for name, skill in skills.items()}), root)
    return inside


async def _list_existing(folders: Sequence[str], box: Sandbox) -> list[str]:
    tests = f'for f in {_quote(folders)}; do if test -e "$f" || test -L "$f"; then echo "$f"; fi; done'
    return (await box.exec(tests)).stdout.decode(errors="replace").splitlines()


def pack_skills(skills: Mapping[str, Skill]) -> bytes:
    """The files of skills as an archive for the slot. What their paths begin with → the skill."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for start, skill in skills.items():
            for path, content, runs in (
                (DOCUMENT, skill.text.encode(), False),
                *((file.path, file.content, file.executable) for file in skill.files),
            ):
                entry = tarfile.TarInfo(start + path)
                entry.size, entry.mode = len(content), 0o755 if runs else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


_STAT = "-type f -exec stat -c '%X|%i|%z|%n' {} +"


def _quote(folders: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, folders))


async def _mark_files(skills: Mapping[str, Skill], box: Sandbox) -> tuple[PlacedSkill, ...]:
    """Set the access times back, and see whether the slot keeps them. `skills`: by their folders."""
    old, folders = f"touch -a -t {_OLD}", _quote(skills)
    probe = shlex.quote(f"{next(iter(skills)).rpartition('/')[0]}/.ludus-probe")
    done = await box.exec(
        f"find {folders} -type f -exec {old} {{}} + && printf x > {probe} && {old} {probe} && stat -c %X {probe} && "
        f"cat {probe} > /dev/null && stat -c %X {probe} && find {folders} {_STAT}; rm -f {probe}",
        timeout=_SECONDS,
        cwd="/",
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    shared = _find_shared_lines(tuple(skills.values()))
    if len(lines) < 3:
        unseen = "the slot has no find, touch or stat that works"
        return tuple(PlacedSkill(folder, skill, {}, unseen, shared) for folder, skill in skills.items())
    before, after, *rest = lines
    keeps = before.isdigit() and after.isdigit() and int(before) < _SEEN_AFTER < int(after) and not done.truncated
    stats = _parse_stats(rest, tuple(skills))
    return tuple(_make_placed(folder, skill, stats[folder], keeps, shared) for folder, skill in skills.items())


def _make_placed(
    folder: str, skill: Skill, stats: Mapping[str, tuple[int, str]], keeps: bool, shared: frozenset[str]
) -> PlacedSkill:
    marks = {path: mark for path, (_, mark) in stats.items()}
    return PlacedSkill(folder, skill, marks, "" if keeps and set(marks) == set(skill.paths) else _NO_TIMES, shared)


@lru_cache(maxsize=64)  # the same few libraries are placed for every rollout
def _find_shared_lines(skills: tuple[Skill, ...]) -> frozenset[str]:
    if len(skills) == 1:
        return frozenset()
    counts = Counter[str]()
    for skill in skills:
        texts = (skill.body, *(file.text for file in skill.files))
        counts.update({line.strip() for text in texts for line in text.splitlines()})
    return frozenset(line for line, count in counts.items() if count > 1)


def _parse_stats(lines: Iterable[str], folders: Sequence[str]) -> dict[str, dict[str, tuple[int, str]]]:
    """The access time, and inode and change time, of each file: by folder and by path in it."""
    found: dict[str, dict[str, tuple[int, str]]] = {folder: {} for folder in folders}
    for line in lines:
        parts = line.split("|", 3)
        if len(parts) == 4 and parts[0].isdigit():
            folder = next((each for each in folders if parts[3].startswith(f"{each}/")), None)
            if folder is not None:
                found[folder][parts[3].removeprefix(f"{folder}/")] = (int(parts[0]), f"{parts[1]} {parts[2]}")
    return found


# ---- the survey -----------------------------------------------------------------------------------------------------


async def survey_skills(
    placed: Sequence[PlacedSkill],
    policy: Policy,
    box: Sandbox,
    opening: Sequence[Message],
    messages: Sequence[Message],
) -> tuple[SkillUse, ...]:
    """What the agent did with its skills, one by one. Ends the agent's processes and removes the skills' folders.

    `opening`: what the environment and the policy say first. `messages`: all that was said; other agents than the loop
    have openings of their own.
    """
    folders, unseen = tuple(each.folder for each in placed), ""
    stats: Mapping[str, Mapping[str, tuple[int, str]]] = {}
    try:
        await box.settle()  # its shell is the agent's to change
        done = await box.exec(
            f"find {_quote(folders)} {_STAT}; cd / && rm -rf -- {_quote(folders)}", timeout=_SECONDS, cwd="/"
        )
        stats = _parse_stats(done.stdout.decode(errors="replace").splitlines(), folders)
        if done.timed_out or done.truncated:
            unseen = "the slot could not list the files in time"
    except SandboxError:
        unseen = "the slot is gone"

    def decide(each: PlacedSkill) -> SkillUse:
        why = each.unseen or unseen
        return decide_use(each, policy, {} if why else stats.get(each.folder, {}), why, opening, messages)

    return tuple(map(decide, placed))


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
    shown = tuple(path for path in skill.paths if _is_shown(_get_text(skill, path), got, known, placed.shared))
    scripts = [file.path for file in skill.files if file.is_script and file.path in opened]
    commands = list(_list_commands(messages)) if scripts else []
    return SkillUse(
        opened=opened,
        shown=shown,
        run=tuple(path for path in scripts if any(starts_script(command, path) for command in commands)),
        changed=changed,
        unseen=unseen,
        loaded=_decide_loaded(
            policy, opened, shown, changed, unseen, bool(_list_telling(skill.body, known, placed.shared))
        ),
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


def _list_telling(text: str, known: str, shared: frozenset[str]) -> list[str]:
    """The lines by which a text is recognised: they are long enough, the agent was not told them before, and no other
    skill has them."""
    lines = dict.fromkeys(line.strip() for line in text.splitlines())
    long = (line for line in lines if len(line) >= _TELLING_CHARS and line not in shared)
    return [line for line in long if _WORD.search(line) and line not in known]


def _is_shown(text: str, got: Sequence[str], known: str, shared: frozenset[str]) -> bool:
    """Whether lines of the text are in what the model got: two of them, or one in three."""
    telling = _list_telling(text, known, shared)
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
