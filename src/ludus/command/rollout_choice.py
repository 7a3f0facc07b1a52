"""Which rollout of a run a command means: a task's id, the Nth rollout of a task, or the beginning of an outcome's key.

    ludus show RUN greeting.txt       its first rollout
    ludus show RUN greeting.txt#2     its second
    ludus show RUN 4f1c09             the rollout whose key begins so

The beginning of a task's id is enough if no other id begins like that. So are some words of what the task asks
(`'who wrote Faust'`) if no other task has them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ludus.errors import ConfigError, StoreError, suggest
from ludus.run_info import find_kind
from ludus.session_runs import number_sessions
from ludus.store import RunDir
from ludus.types import Rollout

SHORTEST_KEY = 6
"""So many characters of a key, or more, name a rollout."""
MOST_LISTED = 10


class ListedRollout(NamedTuple):
    """A rollout of a run, without its content."""

    key: str
    task: str
    policy: str
    replicate: int
    prompt: str = ""


def choose_rollout(directory: RunDir, wanted: str) -> tuple[str, Rollout]:
    """The rollout that the user means, and its key.

    Raises:
        ConfigError: there is none, or more than one; the message lists them.
        StoreError: no rollout has ended.
    """
    key = find_listed(list_rollouts(_read_rollouts(directory)), wanted).key
    found = directory.get(key) if find_kind(directory) != "gateway" else None
    return (key, found) if found else next(each for each in _read_rollouts(directory) if each[0] == key)


def _read_rollouts(directory: RunDir) -> Iterator[tuple[str, Rollout]]:
    return number_sessions(directory) if find_kind(directory) == "gateway" else directory.read_outcomes()


def list_rollouts(rollouts: Iterable[tuple[str, Rollout]]) -> list[ListedRollout]:
    """The rollouts group after group, in the order in which the groups were begun."""
    groups: dict[tuple[str, str], list[ListedRollout]] = {}
    for key, rollout in rollouts:
        origin = rollout.provenance
        place = ListedRollout(key, rollout.task.id, origin.policy, origin.replicate, rollout.task.prompt)
        groups.setdefault((place.task, place.policy), []).append(place)
    return [place for places in groups.values() for place in sorted(places, key=lambda each: each.replicate)]


def find_listed(places: Sequence[ListedRollout], wanted: str) -> ListedRollout:
    """The rollout of `task`, `task#N` or of the key that begins so."""
    if not places:
        raise StoreError("no rollout has ended in this run yet")
    by_task: dict[str, list[ListedRollout]] = {}
    for place in places:
        by_task.setdefault(place.task, []).append(place)
    near: list[str] = []
    for task, number in _read_wanted(wanted):
        near = [task] if task in by_task else [id for id in by_task if id.startswith(task)]
        if len(near) == 1:
            return _pick(by_task[near[0]], number)
        if near:
            break
    near = near or _find_words(places, wanted)
    if len(near) == 1:
        return by_task[near[0]][0]
    keys = [place for place in places if len(wanted) >= SHORTEST_KEY and place.key.startswith(wanted)]
    if len(keys) == 1:
        return keys[0]
    if near or keys:
        raise ConfigError(f"'{wanted}' could be any of: {_list_some(near or [place.key for place in keys])}")
    raise ConfigError(f"no rollout of a task '{wanted}' in this run; {suggest(wanted, list(by_task))}")


def _find_words(places: Sequence[ListedRollout], wanted: str) -> list[str]:
    """The tasks that ask for something in these words. One word is a name that is wrong, not a request."""
    words = " ".join(wanted.casefold().split())
    if " " not in words:
        return []
    found = (place.task for place in places if words in " ".join(place.prompt.casefold().split()))
    return list(dict.fromkeys(found))


def _pick(places: Sequence[ListedRollout], number: int) -> ListedRollout:
    if number <= len(places):
        return places[number - 1]
    raise ConfigError(f"task '{places[0].task}' has {len(places)} rollouts in this run, not {number}")


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"{', '.join(names[:MOST_LISTED])}{more}"


def _read_wanted(wanted: str) -> Iterable[tuple[str, int]]:
    """The possible meanings of `wanted`. An id may contain a #, so the whole text is tried first."""
    yield wanted, 1
    task, mark, number = wanted.rpartition("#")
    if mark and number.isdecimal() and int(number):
        yield task, int(number)
