"""A training run: its settings, its data, its runner, its optimizer, and the store with its finished parts.

`Run.do_once` makes a run resumable. The key of a part is the hash of everything that decides it, and the part is done
only if the store does not have it. A decision in the store is final: it is not made again, even if the result would now
be different.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct

from ludus.encoding import canonical, to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import find_price
from ludus.policy import Policy
from ludus.reflact import step_buffer as buffer
from ludus.reflact.gate import Rule, judge
from ludus.reflact.gate_rules import find_rule
from ludus.reflact.guards import Guard
from ludus.reflact.journal import Journal, Watch
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.measure import SkillRunner
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import PACKAGE_PROMPTS, Prompts
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.proposers.analysts import Analysts
from ludus.reflact.records import Baseline, EpochEnd, Record, RunState, Step, Summary
from ludus.reflact.request_sizes import Prices, SizeChoice, apply_sizes, guess_run_tokens, settle_sizes
from ludus.reflact.splits import Splits, choose_selection
from ludus.reflact.train_settings import TrainSettings, check_settings
from ludus.runner import Runner
from ludus.skill import KEEP, Skill, find_strays
from ludus.store import Store, decode_record
from ludus.types import Task

RECORDS = "record"
"""The kind of a finished part in the store."""
_FORMAT = 1
"""The format of records. It is raised when the same inputs lead to other records; older records are then not found."""

P = ParamSpec("P")
R = TypeVar("R", Baseline, Step, EpochEnd, Summary)


@dataclass(frozen=True)
class Resources:
    """What a training run works with beside its runner. It decides how far and how fast the run goes, not what comes
    out."""

    optimizer_concurrency: int = 16
    """Requests to the optimizer at a time."""
    watch: Watch | None = None
    """Called with the progress of each stage."""
    rollouts: int | None = None
    """The most rollouts of the run, shipping and test included. Training ends when the rest is needed for these."""
    reserve: "Reserve | None" = None
    """Keeps back what shipping and test will take of the budget."""
    tested_before: frozenset[str] = frozenset()
    """The hashes of skills that other runs have tested on the same test split."""
    claim: "ClaimPlan | None" = None
    """What the claim is compared with, after the test."""


@dataclass(frozen=True)
class ClaimPlan:
    """The arms that are measured beside the skill that is shipped. They decide nothing in training."""

    best_of: int | None = None
    """Samples of the initial skill for each test task; None: as many as the rollouts of training would be."""
    rollouts: int | None = None
    """The most rollouts of all arms."""
    held_out: str = ""
    """The name of the tasks that are held out, if there are any."""
    model: Model | None = None
    """A model that the skill was not trained with."""

    def count_transfers(self, splits: Splits, settings: TrainSettings) -> int:
        """The rollouts of the arms beside the samples of the initial skill."""
        test = min(len(splits.test), settings.test_size or len(splits.test))
        return 2 * settings.test_replicates * (len(splits.held_out) + (test if self.model is not None else 0))


class Reserve(Protocol):
    """A part of the budget that training must leave for shipping and test."""

    def hold(self, rollouts: int, done: int) -> None:
        """Keep back what this many rollouts will take, by what the rollouts that are done have taken."""
        ...

    def release(self) -> None:
        """Training is over: everything may be spent."""
        ...


class _StoredPart(Struct, frozen=True):
    """A finished part in the store, and the outcomes whose cost is counted in it."""

    record: Record
    counted: tuple[str, ...]


_STORED_PART = msgspec.json.Decoder(_StoredPart)


@dataclass(frozen=True)
class TrainingRun:
    settings: TrainSettings
    splits: Splits
    runner: SkillRunner
    proposer: Proposer
    optimizer: Optimizer | None
    store: Store
    journal: Journal
    system: str
    """The agent's system text without the skill."""
    rule: Rule
    """Decides about candidates while the gate is on."""
    guard: Guard
    """Refuses texts that must not get into the skill."""
    identity: str
    """A hash of everything that decides the result."""
    rollouts: int | None = None
    """The most rollouts of the run, shipping and test included."""
    reserve: Reserve | None = None
    """Keeps back what shipping and test will take of the budget."""
    tested_before: frozenset[str] = frozenset()
    """The hashes of skills that other runs have tested on the same test split."""
    claim: ClaimPlan | None = None
    """What the claim is compared with, after the test."""
    sizes: SizeChoice | None = None
    """The sizes of steps and requests that were chosen; None if they were set by hand."""

    @property
    def selection(self) -> tuple[Task, ...]:
        return choose_selection(self.splits.selection, self.settings)

    @property
    def ledger_batch(self) -> int:
        """The rollouts of a step of the recipe `ledger`."""
        return min(self.settings.ledger.tasks_per_step, len(self.splits.train))

    def hold_reserve(self, rollouts: int, done: int) -> None:
        """Keep back what this many rollouts at the end will take of the budget, and the arms of the claim: as many as
        the run took until then."""
        if self.reserve is not None:
            self.reserve.hold(rollouts + self._count_arms(done + rollouts - self.test_rollouts), done)

    def _count_arms(self, trained: int) -> int:
        """The rollouts of the arms, if training and shipping take so many."""
        if self.claim is None:
            return 0
        total = trained + self.claim.count_transfers(self.splits, self.settings)
        return total if self.claim.rollouts is None else min(total, self.claim.rollouts)

    def release_reserve(self) -> None:
        """Training is over: everything may be spent."""
        if self.reserve is not None:
            self.reserve.release()

    @property
    def test_rollouts(self) -> int:
        """The most rollouts that the test takes, if all skills that are tested differ."""
        tasks = min(len(self.splits.test), self.settings.test_size or len(self.splits.test))
        skills = 3 if self.settings.tests_final else 2
        return skills * tasks * self.settings.test_replicates if self.settings.test else 0

    def make_view(self, state: RunState, step: int, place: int = 1) -> View:
        """What a proposer may see at this point of the run."""
        return View(
            settings=self.settings,
            skill=state.current.skill,
            epoch=state.epoch,
            step=step,
            history=buffer.describe_buffer(state.buffer),
            memory=state.memory,
            system=self.system,
            optimizer=self.optimizer,
            place=place,
            is_package=has_package(self.runner.policy),
        )

    async def load_or_run(
        self,
        kind: type[R],
        work: "Callable[Concatenate[TrainingRun, RunState, P], Awaitable[R]]",
        state: RunState,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The part that follows this state: the stored one, or else the result of `work`, which is then stored."""
        key = compute_part_key(self.identity, kind, state)
        return await self.load_or_make(key, kind, lambda: work(self, state, *args, **kwargs))

    async def load_or_make(self, key: str, kind: type[R], make: Callable[[], Awaitable[R]]) -> R:
        """The part with this key: the stored one, or else a new one, which is then stored."""
        body = self.store.get_record(key)
        if body is None:
            self.runner.check_stop()
            record = await make()
            part = _StoredPart(record, self.journal.close())
            new = to_json(part)
            body = self.store.put_record(key, RECORDS, new)
            if body == new and isinstance(record.state.ledger, LineLedger):  # large: reading it again would take long
                self.journal.mark_counted(part.counted)
                return record
        stored = decode_record(_STORED_PART, body)
        self.journal.mark_counted(stored.counted)
        if not isinstance(stored.record, kind):
            raise TypeError(f"the store has a {type(stored.record).__name__} where a {kind.__name__} was expected")
        return stored.record


def compute_part_key(identity: str, kind: type[object], state: RunState) -> str:
    """The content address of the part that follows a state."""
    if not isinstance(state.ledger, LineLedger):
        return hashlib.sha256(canonical((identity, kind.__name__, state))).hexdigest()[:32]
    # A ledger is large. Its digest says where it comes from, which is much faster to hash.
    small = msgspec.structs.replace(state, ledger=UNSET)
    return hashlib.sha256(canonical((identity, kind.__name__, small, state.ledger.digest))).hexdigest()[:32]


def start_run(
    runner: Runner,
    policy: Policy,
    splits: Splits,
    settings: TrainSettings,
    *,
    optimizer: Model | None,
    proposer: Proposer | None,
    prompts: Prompts | None,
    rule: Rule | None,
    resources: Resources,
) -> TrainingRun:
    """Make a run of its parts. Raises `ConfigError` if they do not fit each other."""
    settings = check_settings(settings)
    rule = rule or find_rule(settings.gate.rule)
    proposer = proposer or Analysts()
    check_fit(settings, splits, proposer, optimizer is not None)
    prompts = prompts or Prompts.load()
    env, store = runner.env, runner.store
    sizes = settle_sizes(
        settings,
        store,
        Prices(find_price(policy.model), find_price(optimizer) if optimizer and proposer.needs_optimizer else None),
        lambda: guess_run_tokens(env, policy, splits, settings, resources.rollouts),
    )
    settings = apply_sizes(settings, sizes)
    journal = Journal(resources.watch)
    asked = None
    if optimizer is not None:
        concurrency = resources.optimizer_concurrency
        asked = _make_optimizer(optimizer, prompts, store, journal, settings, concurrency)
    identity = (
        _FORMAT,
        (env.name, env.version, env),
        policy.fingerprint,
        (optimizer.name if optimizer else "", settings.sampling),
        proposer.identity,
        prompts.compute_digest(settings.recipe, settings.support),
        settings.identity,
        splits.digest,
        *(map(prompts.get_hash, PACKAGE_PROMPTS) if has_package(policy) else ()),
        *(prompts.get_hash(name) for name in proposer.own_prompts),
        *(() if rule is None else (getattr(rule, "__qualname__", type(rule).__qualname__),)),
    )
    return TrainingRun(
        settings=settings,
        splits=splits,
        runner=SkillRunner(runner, policy, journal, settings.max_failed),
        proposer=proposer,
        optimizer=asked,
        store=store,
        journal=journal,
        system="\n\n".join(part for part in (env.system, policy.system) if part),
        rule=rule or judge,
        guard=Guard(settings.guards, splits.train, splits.selection, journal.warn),
        identity=_hash_identity(identity, env),
        rollouts=resources.rollouts,
        reserve=resources.reserve,
        tested_before=resources.tested_before,
        claim=resources.claim,
        sizes=sizes,
    )


def _make_optimizer(
    model: Model, prompts: Prompts, store: Store, journal: Journal, settings: TrainSettings, concurrency: int
) -> Optimizer:
    return Optimizer(
        model,
        prompts,
        store,
        journal,
        sampling=settings.sampling,
        tries=settings.optimizer_tries,
        reply_tokens=settings.reply_tokens,
        concurrency=concurrency,
        seed=settings.seed,
    )


def has_package(policy: Policy) -> bool:
    """Whether the agent gets the initial skill as a package, so that proposals may add files to it."""
    return policy.skill_as == "listed" or bool(policy.skill and policy.skill.files)


def get_initial_skill(policy: Policy) -> Skill:
    """The skill that training starts from: the policy's skill, checked, or an empty one."""
    skill = policy.skill or Skill("")
    try:
        _ = skill.front
    except ConfigError as error:
        raise ConfigError(f"agent.skill: {str(error).removeprefix('skill: ')}") from None
    return skill


def explain_strays(skill: Skill) -> str:
    """What to tell a user whose skill has a marker without its other half; else nothing."""
    strays = find_strays(skill.text, KEEP)
    return (
        f"agent.skill: {strays[0]} has no other half, so it keeps nothing: begin with {KEEP.start}, end with {KEEP.end}"
        if strays
        else ""
    )


def _hash_identity(parts: object, env: Env) -> str:
    try:
        return hashlib.sha256(canonical(parts)).hexdigest()[:32]
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"env {env.name}: its options must be plain JSON values to be recorded ({error})") from error


def check_fit(settings: TrainSettings, splits: Splits, proposer: Proposer, has_optimizer: bool) -> None:
    """Raises `ConfigError` if settings, data, proposer and optimizer do not fit each other."""
    if settings.update_mode not in proposer.modes:
        raise ConfigError(
            f"train.update_mode: the proposer '{proposer.name}' cannot do {settings.update_mode}; it can do "
            f"{', '.join(proposer.modes)}"
        )
    if settings.test and not len(splits.test):
        raise ConfigError("train.test: the test split is empty; give it tasks, or set train.test to false")
    if has_optimizer:
        return
    needs = {
        f"the proposer '{proposer.name}'": proposer.needs_optimizer,
        "train.update_mode rewrite_from_suggestions": settings.update_mode == "rewrite_from_suggestions",
        "train.control autonomous": settings.control == "autonomous",
        "train.slow.enabled": settings.slow.enabled,
        "train.memory": settings.memory,
        "train.appendix.consolidate_above": settings.appendix.enabled and settings.appendix.consolidate_above > 0,
    }
    wanting = [name for name, needed in needs.items() if needed]
    if wanting:
        raise ConfigError(f"optimizer: the run has no optimizer model, which is needed for {', '.join(wanting)}")


class _RecordReader(Protocol):
    def read_records(self, kind: str) -> Iterable[tuple[str, bytes]]: ...


def read_records(store: _RecordReader) -> Iterator[Record]:
    """Read the finished parts of a run from its store, in order. A summary is replaced by the one after it, which has
    more: the arms of the claim, or further steps."""
    held: Summary | None = None
    for record, _ in read_parts(store):
        if isinstance(record, Summary):
            held = record
        else:
            held = None
            yield record
    if held is not None:
        yield held


def read_parts(store: _RecordReader) -> Iterator[tuple[Record, tuple[str, ...]]]:
    """Read the finished parts of a run in order, each with the content addresses of the outcomes that it counts."""
    parts = (decode_record(_STORED_PART, body) for _, body in store.read_records(RECORDS))
    return ((part.record, part.counted) for part in parts)
