"""What travels between the driver and the workers of an engine, as bytes.

    driver ── NodeOrder (once), NodeLease, Word ──> worker
    worker ── NodeHello (once), NodeReport ──> driver

Tasks and policies are pickled, because an environment may put values of its own types into them; both ends have the
same code, which `NodeHello` proves. Everything else is MessagePack. A policy travels as what differs from the policy of
the settings, and once for each worker. A rollout travels without its task, which the driver has.
"""

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus import __version__
from ludus.activity import ActivityReport
from ludus.agent_settings import ExamplesAs, SkillAs
from ludus.encoding import canonical, to_json
from ludus.env import Env
from ludus.env_code import hash_code
from ludus.errors import (
    BudgetExhausted,
    ConfigError,
    LudusError,
    ModelError,
    ModelUnusable,
    StoreError,
    describe_bug,
)
from ludus.models.ledger import Amount, Totals
from ludus.policy import Limits, Policy
from ludus.runner import ActedWork
from ludus.sandbox.file_tree import CollectedFiles
from ludus.skill import Skill
from ludus.skill_library import SkillLibrary
from ludus.store import decode_rollout
from ludus.types import Rollout, Sampling, Task

# ---- opening a worker ---------------------------------------------------------------------------------------------


class NodeProof(Struct, frozen=True, kw_only=True):
    """What must be equal on a node for its rollouts to be those of the driver."""

    env: str
    env_code: Mapping[str, str]
    """The digests of the environment's files."""
    policy: Mapping[str, str]
    """The parts of the policy's fingerprint, as words."""


class OrderHead(Struct, frozen=True, kw_only=True):
    """The part of an order that every version understands."""

    version: str = __version__


class NodeOrder(OrderHead, frozen=True, kw_only=True):
    """What a worker is opened with. It has secrets: it is only ever an argument of a call."""

    settings: Mapping[str, Any]
    variables: Mapping[str, str]
    """Values of environment variables."""
    folder: str
    """The driver's working folder, to which paths in the settings are relative."""
    files: Mapping[str, bytes]
    """Files that the settings name, by their path."""
    digests: Mapping[str, str]
    """The digest of each file that a node must have, also of those that are too large to be sent."""
    proof: NodeProof
    judges: bool = False
    """Whether stored rollouts are judged: there is no model and no policy."""
    relay: str = ""
    """The name of the policy's model, if it lives in the driver and is asked there."""


class NodeHello(Struct, frozen=True, kw_only=True):
    """What a worker says when it is open, or why it is not."""

    version: str = __version__
    pid: int = 0
    refusal: str = ""


def prove(env: Env, policy: Policy | None) -> NodeProof:
    """What a worker must have in common with this process."""
    return NodeProof(
        env=f"{env.name} {env.version} {_hash(canonical(env))}",
        env_code=hash_code(env),
        policy={} if policy is None else list_policy_parts(policy),
    )


def list_policy_parts(policy: Policy) -> dict[str, str]:
    """What decides a policy's fingerprint, by name."""
    agent = policy.agent
    return {
        "model": policy.model_name,
        "skill": policy.skill_hash,
        "sampling": canonical(policy.sampling).decode(),
        "limits": canonical(policy.limits).decode(),
        "system": policy.system,
        "toolsets": str(policy.toolsets),
        "skill_as": policy.skill_as,
        "examples_as": policy.examples_as,
        "skill_folder": policy.skill_folder,
        "agent": f"{policy.agent_name} {canonical(agent.identity).decode() if agent else ''}".strip(),
    }


def find_difference(driver: NodeProof, node: NodeProof) -> str:
    """What differs on a node, in words; empty if nothing does."""
    if driver.env != node.env:
        return f"its environment is another one: {node.env}, and the driver's is {driver.env}"
    names = sorted({*driver.env_code, *node.env_code})
    changed = [name for name in names if driver.env_code.get(name) != node.env_code.get(name)]
    if changed:
        return f"the environment's code is not the driver's: {', '.join(changed)}"
    return describe_policy_difference(driver.policy, node.policy)


def describe_policy_difference(driver: Mapping[str, str], node: Mapping[str, str]) -> str:
    parts = [name for name in driver if driver[name] != node.get(name)]
    if not parts:
        return ""
    name = parts[0]
    return f"its policy is not the driver's: {name} is {node.get(name)!r} there, and {driver[name]!r} here"


# ---- jobs ---------------------------------------------------------------------------------------------------------


class PolicyPatch(Struct, frozen=True):
    """What makes the policy of a job out of the policy of the settings."""

    fingerprint: str
    skill: Skill | None
    sampling: Sampling
    limits: Limits
    system: str
    toolsets: tuple[str, ...] | None
    skipped: tuple[str, ...]
    skill_as: SkillAs
    examples_as: ExamplesAs
    model: str
    stage: str = ""
    library: SkillLibrary | None = None


class WireActed(Struct, frozen=True, array_like=True):
    """What the agent of a stored rollout has done and left. The rollout is in the bytes of a store: an unpickled one
    would have its default values written out."""

    rollout: bytes
    files: CollectedFiles | None


class WireJob(Struct, frozen=True, array_like=True):
    """A job: its task, its policy by name, and what makes its seed."""

    task: Task
    replicate: int
    seed: int
    policy: str
    acted: WireActed | None = None


class WireUnit(Struct, frozen=True, array_like=True):
    """Jobs that are run together: one, or a group that is judged together."""

    number: int
    jobs: tuple[WireJob, ...]


class NodeSlots(Struct, frozen=True, array_like=True):
    """How many rollouts a worker may run at once. Ray may deliver calls in another order: the highest number counts."""

    number: int
    rollouts: int


class NodeLease(Struct, frozen=True):
    """Units for a worker, and the policies among theirs that it has not seen yet."""

    units: tuple[WireUnit, ...]
    policies: Mapping[str, PolicyPatch]
    slots: NodeSlots


def make_patch(policy: Policy) -> PolicyPatch:
    return PolicyPatch(
        policy.fingerprint,
        policy.skill,
        policy.sampling,
        policy.limits,
        policy.system,
        policy.toolsets,
        policy.skipped,
        policy.skill_as,
        policy.examples_as,
        policy.model.name,
        policy.agent.stage if policy.agent else "",
        policy.library,
    )


def name_patch(patch: PolicyPatch) -> str:
    return _hash(canonical(patch))


def encode_lease(lease: NodeLease) -> bytes:
    return pickle.dumps(lease)


def decode_lease(data: bytes) -> NodeLease:
    return pickle.loads(data)


# ---- reports ------------------------------------------------------------------------------------------------------


class StopCause(Struct, frozen=True, array_like=True):
    """An error that stops a run, from another process."""

    kind: str
    message: str
    retryable: bool = True
    too_long: bool = False


class UnitEnd(Struct, frozen=True, array_like=True):
    """How a unit ended on a worker: with its rollouts, or with an error that stops the run."""

    number: int
    seconds: float
    rollouts: tuple[bytes, ...] = ()
    files: bytes = b""
    """What agents left, by the name that the rollouts have it under."""
    stop: StopCause | None = None
    unplaced: str = ""
    """Why no rollout of it got a slot that works; empty if one did."""


class GrantRequest(Struct, frozen=True, array_like=True):
    """A worker asks for a part of the budget."""

    number: int
    role: str
    amount: Amount


class NodeReport(Struct, frozen=True, omit_defaults=True):
    """What has happened on a worker since its last report."""

    ends: tuple[UnitEnd, ...] = ()
    returned: tuple[int, ...] = ()
    """Units that it has not begun and gives back."""
    spent: Mapping[str, Totals] = {}
    """What each role has spent."""
    released: Mapping[str, Amount] = {}
    """How much of what it was granted is used or not needed any more, by role."""
    requests: tuple[GrantRequest, ...] = ()
    asked: tuple[tuple[int, bytes], ...] = ()
    """Calls of a model of the driver: their numbers, and a `RelayRequest` each."""
    cancelled: tuple[int, ...] = ()
    """Those of which nobody waits for the reply any more."""
    dropped: tuple[int, ...] = ()
    """Handles of messages of such a model that are not needed any more."""
    notices: tuple[str, ...] = ()
    """Messages for the user."""
    activity: ActivityReport | None = None
    """What is under way, if it is time to say so."""


class Word(Struct, frozen=True, omit_defaults=True):
    """What the driver says to a worker beside leases."""

    slots: NodeSlots | None = None
    """How many rollouts it may run at once."""
    give_back: bool = False
    """It returns what it has not begun."""
    granted: tuple[int, Amount] | None = None
    """The answer to a request: its number and the amount."""
    refused: tuple[int, StopCause] | None = None
    replied: tuple[int, bytes] | None = None
    """The reply of a model of the driver: the number of the call, and a `RelayReply`."""
    recall: bool = False
    """It returns what it was granted and does not use: another worker waits for it."""


_ENCODER = msgspec.msgpack.Encoder()
_REPORT = msgspec.msgpack.Decoder(NodeReport)
_WORD = msgspec.msgpack.Decoder(Word)


def encode(value: Struct) -> bytes:
    return _ENCODER.encode(value)


def decode_report(data: bytes) -> NodeReport:
    return _REPORT.decode(data)


def decode_word(data: bytes) -> Word:
    return _WORD.decode(data)


SENT = "node-"
"""How the name of files begins that are sent with a rollout."""
_NO_TASK = Task(id="", prompt="")


def find_unplaced(rollouts: Sequence[Rollout]) -> str:
    """Why none of the rollouts got a slot that works: the node may be at fault. Empty if one did."""
    failures = [rollout.failure for rollout in rollouts]
    placed = any(failure is None or failure.boundary not in ("sandbox", "setup") for failure in failures)
    return "" if placed else next(failure.message for failure in failures if failure is not None)


def encode_rollout(rollout: Rollout) -> bytes:
    """A rollout without its task."""
    return to_json(msgspec.structs.replace(rollout, task=_NO_TASK))


def pack_acted(acted: ActedWork | None) -> WireActed | None:
    return None if acted is None else WireActed(encode_rollout(acted.rollout), acted.files)


def unpack_acted(acted: WireActed | None, task: Task) -> ActedWork | None:
    if acted is None:
        return None
    return ActedWork(msgspec.structs.replace(decode_rollout(acted.rollout), task=task), acted.files)


def read_rollout(data: bytes, task: Task, kept: Mapping[str, str]) -> Rollout:
    """A rollout with its task. `kept`: the hashes of files in the store, by the names that the worker gave them."""
    rollout = decode_rollout(data)
    files = kept.get(rollout.files, "") if rollout.files.startswith(SENT) else rollout.files
    return msgspec.structs.replace(rollout, task=task, files=files)


def encode_files(files: Mapping[str, CollectedFiles]) -> bytes:
    return pickle.dumps(dict(files)) if files else b""


def decode_files(data: bytes) -> dict[str, CollectedFiles]:
    return pickle.loads(data) if data else {}


_STOPS: Mapping[str, type[LudusError]] = {
    kind.__name__: kind for kind in (BudgetExhausted, ModelUnusable, ModelError, ConfigError, StoreError)
}
DRAINS = (BudgetExhausted.__name__, ModelUnusable.__name__)
"""Errors after which what runs is finished first."""


def describe_stop(error: BaseException) -> StopCause:
    """An error that stops the run, as it travels."""
    kind = next((name for name, kind in _STOPS.items() if isinstance(error, kind)), "")
    if isinstance(error, ModelError):
        return StopCause(kind, str(error), error.retryable, error.too_long)
    return StopCause(kind, str(error) if kind else describe_bug(error).message)


def make_error(stop: StopCause, node: str) -> LudusError:
    if stop.kind == ModelError.__name__:
        error = ModelError(stop.message, retryable=stop.retryable)
        error.too_long = stop.too_long
        return error
    kind = _STOPS.get(stop.kind, LudusError)
    return kind(stop.message if stop.kind else f"node {node}: {stop.message}")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
