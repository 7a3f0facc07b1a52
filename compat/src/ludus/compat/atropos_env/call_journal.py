"""Model calls that are remembered: a call that the store has is not sent again.

What a file does with the model is its own business. So that an interrupted group or evaluation goes on where it was,
every reply is stored when it arrives, under a key of the group, the request, and how often the group has sent the same
request before. When the file runs again, it gets the stored replies in the same order, and only what is missing is
asked and paid for.
"""

import contextvars
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from ludus.encoding import canonical, to_json
from ludus.store import Store, decode_record
from ludus.types import Failure, Provenance, Sampling

T = TypeVar("T")
KIND = "model_call"


class ToolOffer(NamedTuple):
    """The tools of a group."""

    toolsets: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Toolsets that were asked for, or could have been sampled, and cannot be used."""
    tools: tuple[str, ...] = ()


class CallScope:
    """What a call belongs to: a group, or an evaluation."""

    def __init__(self, name: str, seed: int = 0, system: str = "") -> None:
        self.name = name
        self.seed = seed
        self.system = system
        """Text that is added to the system message of every conversation: the skill of a training run."""
        self.failures: list[BaseException] = []
        """Failures of models and slots inside of it. A file may have swallowed them."""
        self.failed: list[Failure] = []
        """Failures of single rollouts of a group."""
        self.rows: list[Any] = []
        """The rows of single rollouts, for evaluations, which return none."""
        self.offer = ToolOffer()
        self.sampling: Sampling | None = None
        """How the first reply was sampled."""
        self.tool_errors: dict[tuple[str, str], str] = {}
        """Why calls count as tool errors, by the call's id and what the model saw."""
        self.counts = Counter[str]()

    def describe(self, provenance: Provenance, replicate: int) -> Provenance:
        """The provenance of a rollout inside of it."""
        return msgspec.structs.replace(
            provenance, replicate=replicate, sampling=self.sampling or provenance.sampling, **self.offer._asdict()
        )


SCOPE: contextvars.ContextVar[CallScope | None] = contextvars.ContextVar("ludus_call_scope", default=None)
"""The scope of the code that runs. Tasks that a file starts inherit it."""


def get_scope() -> CallScope:
    return SCOPE.get() or CallScope("other")


class CallJournal:
    """The replies of a run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def remember(self, scope: CallScope, request: object, kind: type[T], ask: Callable[[int], Awaitable[T]]) -> T:
        """The stored reply to a request, or the one that `ask` gets. `ask` is called with the request's number."""
        digest = hashlib.sha256(canonical(request)).hexdigest()[:32]
        number = scope.counts[digest]
        scope.counts[digest] += 1
        key = f"call/{scope.name}/{digest}/{number}"
        found = self._store.get_record(key)
        if found is not None:
            return decode_record(msgspec.json.Decoder(kind), found)
        made = await ask(number)
        self._store.put_record(key, KIND, to_json(made))
        return made
