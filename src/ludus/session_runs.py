"""Sessions of the gateway as rollouts of a run.

A session that has ended is stored like any rollout, under a key made of its name and its start. So `show`, `export` and
`check` read it like the rollouts of other runs. It has no score until `ludus score` or a request gives it one. Its task
is the one that the client named: with the header `x-ludus-task`, or as the name of the session up to a `~`, so that
`sum-3~1` and `sum-3~2` are two attempts at `sum-3`. Groups are formed by task.

`sessions.jsonl` has every session with all its requests. Runs of earlier versions have only that file; their sessions
are read from it.
"""

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from ludus.encoding import canonical, to_json
from ludus.engine import make_group
from ludus.errors import ConfigError
from ludus.gateway.dialect import BadRequest
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.score_route import ScoredSession
from ludus.gateway.service import Gateway
from ludus.gateway.session import SessionRecord, make_turns
from ludus.run_info import find_kind
from ludus.store import RunDir, decode_record
from ludus.types import Failure, Finish, Group, Provenance, Rollout, Score, StopReason, Task, ToolSpec

SESSIONS = "sessions.jsonl"
"""The file with a line for each session that has ended."""

SESSION = "session"
"""The key of a session's name in `Rollout.details`."""

_RECORD = msgspec.json.Decoder(SessionRecord)


# ---- one session --------------------------------------------------------------------------------------------------


def make_rollout(record: SessionRecord) -> Rollout:
    """The rollout of a session. It has no score, unless the record has one."""
    failure = record.failure
    if failure is None and not record.exchanges:
        failure = Failure("agent", f"none of its {record.requests} requests got a reply", retryable=False)
    stop = StopReason.FAILED if failure is not None else _find_stop(record)
    first = record.exchanges[0] if record.exchanges else None
    asked = [message.content for message in record.opening if message.role == "user"]
    provenance = Provenance(
        policy=hashlib.sha256(canonical(("session", record.model))).hexdigest()[:16],
        model=record.model,
        tools=tuple(tool.name for tool in first.tools) if first else (),
    )
    if first is not None:
        provenance = msgspec.structs.replace(provenance, sampling=first.sampling)
    return Rollout(
        task=Task(id=find_task(record), prompt=asked[-1] if asked else ""),
        provenance=provenance,
        opening=record.opening,
        turns=make_turns(record, stop),
        stop=stop,
        score=None if failure is not None else record.score,
        failure=failure,
        seconds=record.seconds,
        details={SESSION: record.name},
    )


def find_task(record: SessionRecord) -> str:
    """The id of the task that the client named."""
    return record.task or record.name.partition("~")[0] or record.name


def make_session_key(record: SessionRecord) -> str:
    """The key of a session in the store."""
    return hashlib.sha256(canonical((SESSION, record.name, record.started))).hexdigest()[:32]


def _find_stop(record: SessionRecord) -> StopReason:
    if record.stop:
        return StopReason.MAX_TURNS if record.stop == "budget" else StopReason.CONTEXT
    match record.exchanges[-1].completion.finish:
        case Finish.LENGTH:
            return StopReason.LENGTH
        case Finish.FILTER:
            return StopReason.FILTERED
        case _:
            return StopReason.FINISHED


# ---- writing ------------------------------------------------------------------------------------------------------


class SessionWriter:
    """Stores sessions when they end. Sessions without a request are not stored."""

    def __init__(self, directory: RunDir, tell: Callable[[str], None]) -> None:
        self._directory = directory
        self._tell = tell
        self._last: dict[str, str] | None = None
        """The key of the last session of each name. Read from the run when it is first needed."""
        self.count = 0

    def __call__(self, record: SessionRecord) -> None:
        if not record.requests:
            return
        key = make_session_key(record)
        try:
            line = to_json(record)
            self._directory.put(key, make_rollout(record))
        except (TypeError, ValueError, RecursionError) as error:  # one agent's session must not end the others
            self._tell(f"a session cannot be written as JSON and is left out: {error}")
            return
        self._directory.append(SESSIONS, line)
        self.count += 1
        if self._last is not None:
            self._last[record.name] = key

    async def store_score(self, sessions: NamedSessions, gateway: Gateway, name: str, score: Score) -> ScoredSession:
        """Score the session of a name: the open one, which ends now, or else the last that has ended.

        Raises:
            BadRequest: there is none, it has a score already, it failed, or its requests still run.
        """
        session = next((each for each in gateway.sessions if each.name == name), None)
        if session is not None:
            if session.tasks:
                raise BadRequest(
                    f"session '{name}' still has requests that run: score it when the agent has ended", 409
                )
            record = session.make_record()
            _refuse_failed(name, make_rollout(record))
            session.score = score
            await sessions.end_session(gateway, session)
            return ScoredSession(name, find_task(record), score.value)
        key = self._find_last().get(name)
        rollout = None if key is None else self._directory.get(key)
        if key is None or rollout is None:
            raise BadRequest(f"there is no session '{name}'", 404)
        _refuse_failed(name, rollout)
        if rollout.score is not None:
            raise BadRequest(f"session '{name}' already has the score {rollout.score.value:g}", 409)
        self._directory.put(key, msgspec.structs.replace(rollout, score=score))
        return ScoredSession(name, rollout.task.id, score.value)

    def _find_last(self) -> dict[str, str]:
        if self._last is None:
            import_sessions(self._directory)
            self._last = {
                str((rollout.details or {}).get(SESSION)): key for key, rollout in read_sessions(self._directory)
            }
        return self._last


def _refuse_failed(name: str, rollout: Rollout) -> None:
    if rollout.failure is not None:
        why = rollout.failure.message
        raise BadRequest(f"session '{name}' failed and has no score, because the agent may not be at fault: {why}", 409)


def import_sessions(directory: RunDir) -> None:
    """Store the sessions of a run of an earlier version."""
    for key, rollout in _read_lines(directory):
        directory.put(key, rollout)


# ---- reading ------------------------------------------------------------------------------------------------------


def read_sessions(directory: RunDir) -> Iterator[tuple[str, Rollout]]:
    """Every session of a run that has ended, with its key."""
    yield from directory.read_outcomes()
    yield from _read_lines(directory)


def _read_lines(directory: RunDir) -> Iterator[tuple[str, Rollout]]:
    """The sessions that are in `sessions.jsonl` alone."""
    stored = directory.read_scores().keys()
    for line in directory.read_lines(SESSIONS):
        record = decode_record(_RECORD, line)
        if (key := make_session_key(record)) not in stored:
            yield key, make_rollout(record)


def number_sessions(directory: RunDir) -> Iterator[tuple[str, Rollout]]:
    """Every session of a run with its key. Those of one task and model are numbered, as the rollouts of a group are."""
    counts = Counter[tuple[str, str]]()
    for key, rollout in read_sessions(directory):
        group = (rollout.task.id, rollout.provenance.policy)
        provenance = msgspec.structs.replace(rollout.provenance, replicate=counts[group])
        counts[group] += 1
        yield key, msgspec.structs.replace(rollout, provenance=provenance)


def group_sessions(directory: RunDir) -> list[Group]:
    """The sessions of a run in groups by task and model, in the order in which the groups were begun."""
    members: dict[tuple[str, str], list[Rollout]] = {}
    for _, rollout in number_sessions(directory):
        members.setdefault((rollout.task.id, rollout.provenance.policy), []).append(rollout)
    return [make_group(find_fullest_task(rollouts), rollouts, len(rollouts)) for rollouts in members.values()]


def read_session_tools(directory: RunDir) -> dict[str, ToolSpec]:
    """The tools that clients of the gateway sent, by name. Of two with one name, the later one."""
    records = (decode_record(_RECORD, line) for line in directory.read_lines(SESSIONS))
    return {tool.name: tool for record in records for each in record.exchanges for tool in each.tools}


def find_fullest_task(rollouts: Iterable[Rollout]) -> Task:
    """The task of a group: the environment's, if one of the rollouts was judged with it."""
    tasks = [rollout.task for rollout in rollouts]
    return next((task for task in tasks if task.answer is not None), tasks[0])


def count_unscored(groups: Iterable[Group]) -> int:
    """How many rollouts could have a score and have none."""
    return sum(rollout.score is None and rollout.failure is None for group in groups for rollout in group.rollouts)


def describe_unscored(path: Path, count: int) -> str:
    """What to do about sessions without a score."""
    what = "1 session has" if count == 1 else f"{count} sessions have"
    return f"{what} no score: ludus score {shlex.quote(str(path))} --env ENV"


def require_gateway_run(directory: RunDir) -> None:
    """Raise `ConfigError` if a run does not hold sessions of the gateway."""
    if find_kind(directory) != "gateway":
        raise ConfigError(
            f"{directory.path} holds no sessions of the gateway: its rollouts were judged when they were run"
        )
