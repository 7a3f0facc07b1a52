"""What a worker keeps in the store of its run, so that it can go on after any end.

A group is begun (its number, and the version of the policy), its rollouts are stored one by one, and it is ended with a
verdict: sent, or not sent and why. A group that was begun and not ended is taken up again when the run is resumed: the
rollouts that are stored are not run again, and it is posted under the same idempotency key. A server that honours the
key has it once, wherever the worker was killed.
"""

import hashlib
import secrets
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.store import Store, decode_record

_IDENTITY = "serve/run"


class GroupStart(Struct, frozen=True):
    """A group was begun."""

    number: int
    task: str
    version: int
    """The step of the trainer when the group was begun."""


class GroupEnd(Struct, frozen=True, omit_defaults=True):
    """A group was ended."""

    number: int
    verdict: str
    """`sent`, or why it was not sent."""
    message: str = ""


class EvalRecord(Struct, frozen=True, omit_defaults=True):
    """An evaluation was begun, or has ended with these values."""

    step: int
    values: dict[str, float] = {}


_START = msgspec.json.Decoder(GroupStart)
_END = msgspec.json.Decoder(GroupEnd)
_EVAL = msgspec.json.Decoder(EvalRecord)


class WorkerJournal:
    """The records of a worker's run."""

    def __init__(self, run: Store) -> None:
        self._run = run
        self._identity = run.put_record(_IDENTITY, "serve_run", secrets.token_hex(16).encode()).decode()
        self._begun = {each.number: each for each in self._read_starts()}
        self._ended = {each.number for each in self._read_ends()}

    @property
    def next_number(self) -> int:
        """The number of the next new group."""
        return max(self._begun, default=-1) + 1

    def list_open(self) -> list[int]:
        """The numbers of groups that were begun and not ended."""
        return sorted(self._begun.keys() - self._ended)

    def get_version(self, number: int) -> int:
        """The version of the policy when a group was begun."""
        return self._begun[number].version

    def make_key(self, number: int) -> str:
        """The idempotency key of a group: the same in every process, and different in every run."""
        return hashlib.sha256(f"{self._identity}/{number}".encode()).hexdigest()[:32]

    def begin(self, number: int, task: str, version: int) -> None:
        start = GroupStart(number, task, version)
        self._run.put_record(f"serve/begin/{number}", "serve_begin", to_json(start))
        self._begun[number] = start

    def end(self, number: int, verdict: str, message: str = "") -> None:
        self._run.put_record(f"serve/end/{number}", "serve_end", to_json(GroupEnd(number, verdict, message)))
        self._ended.add(number)

    def begin_eval(self, step: int) -> None:
        self._run.put_record(f"serve/eval/{step}", "serve_eval", to_json(EvalRecord(step)))

    def end_eval(self, step: int, values: dict[str, float]) -> None:
        self._run.put_record(f"serve/evaluated/{step}", "serve_evaluated", to_json(EvalRecord(step, values)))

    def list_open_evals(self) -> list[int]:
        """The steps of evaluations that were begun and not ended."""
        begun, ended = (
            {decode_record(_EVAL, body).step for _, body in self._run.read_records(kind)}
            for kind in ("serve_eval", "serve_evaluated")
        )
        return sorted(begun - ended)

    def count_verdicts(self) -> dict[str, int]:
        """How many groups ended with each verdict, in all processes of the run."""
        counts: dict[str, int] = {}
        for end in self._read_ends():
            counts[end.verdict] = counts.get(end.verdict, 0) + 1
        return counts

    def _read_starts(self) -> Iterator[GroupStart]:
        return (decode_record(_START, body) for _, body in self._run.read_records("serve_begin"))

    def _read_ends(self) -> Iterator[GroupEnd]:
        return (decode_record(_END, body) for _, body in self._run.read_records("serve_end"))
