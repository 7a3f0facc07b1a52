"""The JSON API: which function answers which path. `docs/view-api.md` is the list for readers.

A function takes a `ViewRequest` and returns a struct of `ludus.view.model`. It runs in a thread. What it raises becomes
a status: `UnknownRun` is 404, another `StoreError` 409, a `ConfigError` 400.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ludus.encoding import to_json
from ludus.errors import ConfigError, LudusError, StoreError
from ludus.http_server import JSON
from ludus.images import FOLDER as IMAGES
from ludus.outcome_facts import OutcomeFacts
from ludus.rl.trainer_logprobs import read_trainer_logprobs
from ludus.run_info import read_info
from ludus.view.acting import StartedCommands, control_run, review_skill, write_notes
from ludus.view.env_pages import list_environment_tasks, list_environments
from ludus.view.facts import RunFacts
from ludus.view.forms import FormBook
from ludus.view.model import ActionReply, RecordedSettings, ViewError
from ludus.view.overview import describe_run, read_last_events
from ludus.view.paging import Parameters
from ludus.view.rollout_pages import list_rollouts, list_tasks
from ludus.view.run_folder import RunFolder, UnknownRun
from ludus.view.skills import blame_skill, compare_skills, list_skills, show_skill
from ludus.view.transcript import (
    RolloutShelf,
    TokenWords,
    describe_rollout,
    find_advantage,
    list_tokens,
    list_turns,
    read_piece,
)
from ludus.view.versus import compare_folder_runs
from ludus.view.weights import list_groups, list_steps

LARGEST_RECORD = 64_000_000
_TYPES = {".png": b"image/png", ".jpeg": b"image/jpeg", ".gif": b"image/gif", ".webp": b"image/webp"}


class ViewReply(NamedTuple):
    """What is sent."""

    status: int
    kind: bytes
    body: bytes


class NotFound(LudusError):
    """There is nothing at this address."""


@dataclass
class ViewState:
    """What the API works with. Each part guards itself: requests run in threads."""

    folder: RunFolder
    forms: FormBook
    started: StartedCommands
    shelf: RolloutShelf = field(default_factory=RolloutShelf)
    words: TokenWords = field(default_factory=TokenWords)


class ViewRequest(NamedTuple):
    state: ViewState
    names: tuple[str, ...]
    """The parts of the path that have no fixed name, in order."""
    given: Parameters
    body: bytes

    def open_facts(self) -> RunFacts:
        """The index of the run that the path names."""
        return self.state.folder.facts.open(self.path)

    @property
    def path(self) -> Path:
        return self.state.folder.find(self.names[0])

    def get_row(self, facts: RunFacts) -> OutcomeFacts:
        number = self.names[1]
        row = facts.get(int(number)) if number.isdecimal() and len(number) < 18 else None
        if row is None:
            raise NotFound(f"the run '{self.names[0]}' has no rollout {number[:40]}")
        return row


Answer = Callable[[ViewRequest], object]


def answer(state: ViewState, method: str, path: Sequence[str], given: Parameters, body: bytes) -> ViewReply:
    """Answer a request. `path` has the parts after `/api`, decoded."""
    try:
        found, names = _find_route(method, path)
        value = found(ViewRequest(state, names, given, body))
    except (NotFound, UnknownRun) as error:
        return make_error(404, str(error))
    except StoreError as error:
        return make_error(409, str(error))
    except LudusError as error:
        return make_error(400, str(error))
    return value if isinstance(value, ViewReply) else ViewReply(200, JSON, to_json(value))


def make_error(status: int, message: str) -> ViewReply:
    return ViewReply(status, JSON, to_json(ViewError(message)))


def _find_route(method: str, path: Sequence[str]) -> tuple[Answer, tuple[str, ...]]:
    for pattern, found in ROUTES.items():
        wanted, *parts = pattern.split("/")
        if (
            wanted.strip() == method
            and len(parts) == len(path)
            and all(p in (q, "*") for p, q in zip(parts, path, strict=True))
        ):
            return found, tuple(q for p, q in zip(parts, path, strict=True) if p == "*")
    raise NotFound(f"there is no {method} /api/{'/'.join(path)[:200]}; docs/view-api.md has the list")


# ---- a run --------------------------------------------------------------------------------------------------------


def _get_run(request: ViewRequest) -> object:
    card = request.state.folder.get_card(request.names[0])
    with request.open_facts() as facts:
        return describe_run(facts, card)


def _get_settings(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        info = read_info(facts.directory.path)
        settings: dict[str, Any] = dict(facts.directory.config)
        return RecordedSettings(request.names[0], settings, info.code if info else {}, info.changes if info else ())


def _get_tasks(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        return list_tasks(facts, request.given)


def _get_rollouts(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        return list_rollouts(facts, request.given)


def _get_rollout(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        row = request.get_row(facts)
        return describe_rollout(facts, row, request.state.shelf.take(facts, row), request.names[0], request.given)


def _get_turns(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        return list_turns(request.state.shelf.take(facts, request.get_row(facts)), request.names[0], request.given)


def _get_text(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        return read_piece(facts.directory, request.state.shelf.take(facts, request.get_row(facts)), request.given)


def _get_tokens(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        row = request.get_row(facts)
        rollout = request.state.shelf.take(facts, row)
        base, config = request.path.parent, facts.directory.config
        advantage, trainer = find_advantage(facts, row), read_trainer_logprobs(facts.directory, rollout)
        return list_tokens(rollout, config, request.state.words, base, request.given, advantage, trainer)


def _get_json(request: ViewRequest) -> object:
    with request.open_facts() as facts:
        row = request.get_row(facts)
        if row.size > LARGEST_RECORD:
            raise ConfigError(f"the record has {row.size:,} bytes: read it with {['ludus', 'show', row.key, '--json']}")
        return ViewReply(200, JSON, facts.directory.read_body(row.id) or b"{}")


def _get_image(request: ViewRequest) -> object:
    """A picture of a run: only a file right in its folder of pictures, with a name of the store."""
    name = request.names[1]
    kind = _TYPES.get(Path(name).suffix)
    stem = name.rpartition(".")[0]
    if kind is None or not stem.isalnum() or not stem.isascii():
        raise NotFound(f"there is no picture {name[:80]}")
    try:
        return ViewReply(200, kind, (request.path / IMAGES / name).read_bytes())
    except OSError:
        raise NotFound(f"there is no picture {name[:80]}") from None


# ---- acting -------------------------------------------------------------------------------------------------------


def _control(request: ViewRequest) -> object:
    return control_run(request.path, request.body)


def _write_notes(request: ViewRequest) -> object:
    write_notes(request.path, request.body)
    return ActionReply(True, "saved", request.names[0])


def _review(request: ViewRequest) -> object:
    return review_skill(request.path, request.body)


class _FormBody(msgspec.Struct, forbid_unknown_fields=True):
    values: dict[str, str] = {}


def _preview(request: ViewRequest) -> object:
    return request.state.forms.preview(request.names[0], _read_values(request.body))


def _start(request: ViewRequest) -> object:
    preview = request.state.forms.preview(request.names[0], _read_values(request.body))
    return request.state.started.start(preview, request.state.folder)


def _read_values(body: bytes) -> dict[str, str]:
    try:
        return msgspec.json.decode(body, type=_FormBody).values
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"the body: {error}") from None


ROUTES: dict[str, Answer] = {
    "GET/runs": lambda r: r.state.folder.list_runs(r.given),
    "GET/runs/*": _get_run,
    "GET/runs/*/settings": _get_settings,
    "GET/runs/*/events": lambda r: read_last_events(r.path, 200),
    "GET/runs/*/tasks": _get_tasks,
    "GET/runs/*/rollouts": _get_rollouts,
    "GET/runs/*/rollouts/*": _get_rollout,
    "GET/runs/*/rollouts/*/turns": _get_turns,
    "GET/runs/*/rollouts/*/text": _get_text,
    "GET/runs/*/rollouts/*/tokens": _get_tokens,
    "GET/runs/*/rollouts/*/json": _get_json,
    f"GET/runs/*/{IMAGES}/*": _get_image,
    "GET/runs/*/skills": lambda r: list_skills(r.path),
    "GET/runs/*/skills/diff": lambda r: compare_skills(r.path, r.given),
    "GET/runs/*/skills/*": lambda r: show_skill(r.path, r.names[1]),
    "GET/runs/*/skills/*/blame": lambda r: blame_skill(r.path, r.names[1], r.state.folder.facts),
    "GET/runs/*/rl": lambda r: list_steps(r.path, r.given),
    "GET/runs/*/groups": lambda r: list_groups(r.path, r.state.folder.facts, r.given),
    "GET/compare": lambda r: compare_folder_runs(r.state.folder, r.given),
    "GET/envs": lambda r: list_environments(r.state.folder, r.given),
    "GET/envs/*/tasks": lambda r: list_environment_tasks(r.state.folder, r.names[0], r.given),
    "GET/forms": lambda r: r.state.forms.list(),
    "GET/forms/*": lambda r: r.state.forms.get(r.names[0]),
    "GET/starts/*": lambda r: r.state.started.get(r.names[0]),
    "POST/runs/*/control": _control,
    "POST/runs/*/notes": _write_notes,
    "POST/runs/*/skills/review": _review,
    "POST/forms/*/preview": _preview,
    "POST/forms/*/start": _start,
}
"""By method and path; `*` is any part. The first that fits answers."""
