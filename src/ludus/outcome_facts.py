"""What lists and sums need to know of a rollout, in one row of numbers and short texts.

A store keeps a row of facts beside each rollout, in the same transaction. So a list, a mean or a page of a hundred
thousand rollouts reads rows of some hundred bytes and decodes no rollout. Stores of earlier versions have no table:
`ludus.view.facts` makes the rows from the rollouts, in a file outside of the run.
"""

from hashlib import blake2b
from typing import NamedTuple

from ludus.encoding import to_json
from ludus.types import Rollout

TABLE = "facts"
SHORT = 500
"""The longest text in a row, in characters. Ids and names that are longer are cut, in lists."""


class OutcomeFacts(NamedTuple):
    """A row of the table. The order of the fields is that of its columns."""

    id: int
    """That of the rollout in its store."""
    key: str
    task: str
    split: str
    kind: str
    asked: str
    """A hash of the prompt: tasks of two runs with the same id and another one are not the same."""
    answered: int
    """Whether the task has a reference, which the verifier knows."""
    replicate: int
    attempt: int
    score: float | None
    passed: int | None
    soft: float | None
    stop: str
    failure: str
    reason: str
    """The first line of the failure's message."""
    turns: int
    calls: int
    errors: int
    """Calls that count as tool errors."""
    prompt: int
    completion: int
    sampled: int
    """Ids that the model sampled, if it has exact tokens."""
    dollars: float
    seconds: float
    began: float
    model: str
    policy: str
    skill: str
    suspect: int
    exact: int
    """Whether every reply has exact tokens."""
    tools: str
    """Calls and errors by tool, as JSON: `{"terminal": [3, 1]}`."""
    phases: str
    """Seconds by phase, as JSON."""
    size: int
    """Bytes of the record."""


COLUMNS = OutcomeFacts._fields
TEXTS = ("task", "split", "kind", "reason", "model", "tools")
"""Columns with texts of users, agents and servers."""
CREATE = f"CREATE TABLE IF NOT EXISTS {{0}}{TABLE} (id INTEGER PRIMARY KEY, {', '.join(COLUMNS[1:])})"
TRIGGER = (
    f"CREATE TRIGGER IF NOT EXISTS {TABLE}_changed AFTER UPDATE OF body ON rollouts "
    f"BEGIN DELETE FROM {TABLE} WHERE id = old.id; END"
)
"""A Ludus that does not know the table changes a rollout: then its row is gone, and not wrong."""
INDEX = f"CREATE INDEX IF NOT EXISTS {{0}}{TABLE}_task ON {TABLE} (task)"
"""Finds the group of a rollout."""
INSERT = f"INSERT OR REPLACE INTO {{0}}{TABLE} VALUES ({', '.join('?' * len(COLUMNS))})"


def make_facts(id: int, key: str, rollout: Rollout, size: int) -> OutcomeFacts:
    """The facts of a rollout. Pure."""
    task, origin, score, failure, times = (
        rollout.task,
        rollout.provenance,
        rollout.score,
        rollout.failure,
        rollout.times,
    )
    tools: dict[str, list[int]] = {}
    prompt = completion = sampled = 0
    dollars, exact = 0.0, bool(rollout.turns)
    for turn in rollout.turns:
        reply = turn.completion
        prompt += reply.usage.prompt_tokens
        completion += reply.usage.completion_tokens
        dollars += reply.usage.dollars
        if reply.tokens is None:
            exact = False
        else:
            sampled += sum(reply.tokens.sampled)
        for result in turn.results:
            counted = tools.setdefault(result.call.name[:SHORT], [0, 0])
            counted[0] += 1
            counted[1] += bool(result.error)
    return OutcomeFacts(
        id=id,
        key=key,
        task=_cut(task.id),
        split=_cut(task.split),
        kind=_cut(rollout.kind),
        asked=hash_prompt(task.prompt),
        answered=int(task.answer is not None),
        replicate=origin.replicate,
        attempt=origin.attempt,
        score=score.value if score else None,
        passed=int(score.passed) if score else None,
        soft=score.soft if score else None,
        stop=rollout.stop.value,
        failure=failure.boundary if failure else "",
        reason=_cut(failure.message.partition("\n")[0]) if failure else "",
        turns=len(rollout.turns),
        calls=sum(count for count, _ in tools.values()),
        errors=sum(count for _, count in tools.values()),
        prompt=min(prompt, _MOST),
        completion=min(completion, _MOST),
        sampled=sampled,
        dollars=dollars,
        seconds=rollout.seconds,
        began=times.began if times else 0.0,
        model=_cut(origin.model),
        policy=origin.policy,
        skill=origin.skill,
        suspect=int(bool(score and score.suspect)),
        exact=int(exact),
        tools=to_json(tools).decode() if tools else "",
        phases=to_json(times.phases).decode() if times else "",
        size=size,
    )


_MOST = 2**62
"""The largest number in a row: a server may report any usage, and a database takes 64 bits."""


def hash_prompt(prompt: str) -> str:
    return blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _cut(text: str) -> str:
    """A text that a database takes: short, and without halves of characters."""
    short = text[:SHORT]
    return short if short.isascii() else short.encode(errors="replace").decode()
