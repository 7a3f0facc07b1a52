"""How many tasks a step of the recipe `ledger` has, how many rollouts a request shows, and how many tasks share a text.
Pure, but for the store that keeps what was chosen.

A step of 24 tasks with 24 rollouts per request asks the optimizer a third as often as one of 8, but learns a little
less from each rollout. A text that several tasks share is read from the server's cache by all but the first of them,
but fewer texts say less about lines. So both are a matter of prices. `choose_sizes` compares what a run costs until it
has learned the same: with larger sizes it takes more rollouts, and each of them costs a rollout and its share of the
requests. The factors are the largest that were measured in simulated worlds (`docs/optimizer.md`), savings are counted
low and other costs high. So a choice other than the default does not cost more than it saves in runs like those.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.env import Env
from ludus.models.server import Price
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.policy import Policy
from ludus.reflact.ledger.rollout_plan import plan_rollouts
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import TrainSettings
from ludus.store import Store, decode_record

CHOICES = "sizes"
"""The kind of a `SizeChoice` in the store."""
_KEY = hashlib.sha256(CHOICES.encode()).hexdigest()[:32]


class RequestSizes(Struct, frozen=True):
    """The sizes of a run."""

    batch: int = 8
    """Train tasks of a step."""
    minibatch: int = 8
    """Rollouts of a request to the optimizer."""
    block: int = 1
    """Tasks of a step that share one text."""


class SizeChoice(Struct, frozen=True, omit_defaults=True):
    """The sizes that were chosen, and why."""

    sizes: RequestSizes = RequestSizes()
    reasons: tuple[str, ...] = ()
    """One for each size that the settings leave open."""


class Prices(NamedTuple):
    """What the tokens of a run cost."""

    agent: Price
    optimizer: Price | None
    """None: the run has no optimizer."""


class RunTokens(Struct, frozen=True, kw_only=True):
    """About how many tokens the rollouts and requests of a run take."""

    rollouts: int
    """Of training."""
    tasks: int
    """Train tasks."""
    before: int = 0
    """Before the skill, in the first prompt of a rollout: the environment's system text."""
    skill: int = 0
    """Of the skill in the first prompt of a rollout, on average over the run."""
    other: int = 300
    """All other prompt tokens of a rollout."""
    reply: int = 300
    """The agent's replies in a rollout."""
    failing: float = 0.5
    """The share of rollouts that the optimizer reads."""
    shown: int = 600
    """What a request shows of one rollout."""
    asked: int = 2_500
    """A request to the optimizer without what it shows of rollouts."""


class TrainingCost(NamedTuple):
    """What training takes until it has learned what it learns with the default sizes."""

    rollouts: float
    calls: float
    """Requests to the optimizer."""
    agent: float
    """Dollars."""
    optimizer: float

    @property
    def dollars(self) -> float:
        return self.agent + self.optimizer


LARGER = (24, 24)
"""Batch and minibatch that are compared with the default."""
_MORE_BY_BATCH = {8: 1.0, 24: 1.6}
_MORE_BY_BLOCK = {1: 1.0, 2: 1.7, 4: 1.7, 8: 1.7}
"""How many times the rollouts of the default sizes a run takes to half of its gain: about the largest ratio of a family
that was ever measured. Later in a run the ratio is smaller."""
_FRESH = {1: 0.58, 2: 0.36, 4: 0.19, 8: 0.1}
"""The share of the skill's tokens that no earlier prompt has as its beginning. Of a text of its own it is a part, too:
texts begin alike."""
_LEAST_CACHED = 1_024
"""Servers that bill cached tokens cache no shorter beginnings."""
_LEAST_STEPS, _LEAST_BATCHES = 20, 2
"""Larger batches are not chosen for fewer steps than this, nor where fewer of them hold all train tasks: they were not
measured there."""
_REPLY, _REPLY_EACH = 480, 40
"""Tokens of the optimizer's reply, and for each rollout that it is shown."""


def compute_training_cost(sizes: RequestSizes, tokens: RunTokens, prices: Prices) -> TrainingCost:
    """The cost of training with these sizes. Unknown prices count as nothing."""
    rollouts = tokens.rollouts * _MORE_BY_BATCH.get(sizes.batch, 1.0) * _MORE_BY_BLOCK.get(sizes.block, 1.0)
    read = tokens.failing * sizes.batch  # of a step
    calls = rollouts / sizes.batch * math.ceil(read / sizes.minibatch)
    each = 0.0
    if prices.optimizer is not None:
        shown = min(read, sizes.minibatch)
        prompt, reply = tokens.asked + tokens.skill + shown * tokens.shown, _REPLY + _REPLY_EACH * shown
        each = prices.optimizer.compute_cost(round(prompt), round(reply))
    return TrainingCost(rollouts, calls, rollouts * _compute_rollout(sizes.block, tokens, prices.agent), calls * each)


def _compute_rollout(block: int, tokens: RunTokens, price: Price) -> float:
    """The dollars of one rollout. Only of the skill it is counted that a cache may have it."""
    prompt = tokens.before + tokens.skill + tokens.other
    cached = count_cached(block, tokens, price)
    return price.compute_cost(prompt, tokens.reply, cached, tokens.skill - cached if cached else 0)


def count_cached(block: int, tokens: RunTokens, price: Price) -> int:
    """The tokens of the skill that the server has in its cache when a rollout begins, on average; 0 if it is not known
    to have a cache."""
    return round((1.0 - _FRESH.get(block, _FRESH[8])) * tokens.skill) if is_cached(tokens, price) else 0


def is_cached(tokens: RunTokens, price: Price) -> bool:
    """Whether prompts that begin alike are known to cost less."""
    known = price.prompt is not None and price.cached is not None and price.cached < price.prompt
    return known and tokens.before + tokens.skill >= _LEAST_CACHED


def choose_sizes(settings: TrainSettings, prices: Prices, guess: Callable[[], RunTokens]) -> SizeChoice | None:
    """The sizes of a run; None if all are set by hand. `guess` is called if the prices leave a choice."""
    if not _is_open(settings):
        return None
    given = read_sizes(settings)
    why_batch, why_block = _refuse_batches(settings, prices), _refuse_blocks(settings, prices.agent)
    if why_batch is not None and why_block is not None:
        return SizeChoice(given, (*why_batch, *why_block))
    tokens = guess()
    why_batch = why_batch if why_batch is not None else _refuse_short(tokens)
    batches = [(given.batch, given.minibatch)] if why_batch is not None else [(given.batch, given.minibatch), LARGER]
    blocks = [given.block] if why_block is not None else list(_MORE_BY_BLOCK)
    options = [RequestSizes(*batch, block) for batch in batches for block in blocks]
    costs = {sizes: compute_training_cost(sizes, tokens, prices) for sizes in options}
    best = min(options, key=lambda sizes: costs[sizes].dollars)  # of equal ones the first, which is the default
    if why_batch is None:
        why_batch = (_compare(f"steps of {best.batch} tasks", best, costs, lambda sizes: sizes.batch),)
    if why_block is None:
        words = f"{best.block} tasks share a text" if best.block > 1 else "a text for each task"
        why_block = (_compare(words, best, costs, lambda sizes: sizes.block),)
    return SizeChoice(best, (*why_batch, *why_block))


def _compare(
    words: str, best: RequestSizes, costs: Mapping[RequestSizes, TrainingCost], read: Callable[[RequestSizes], int]
) -> str:
    """What the choice of one size saves."""
    own, other = costs[best], min(cost.dollars for sizes, cost in costs.items() if read(sizes) != read(best))
    return f"{words}: about ${own.dollars:.2f} until the same is learned, otherwise ${other:.2f}"


def _is_open(settings: TrainSettings) -> bool:
    """Whether the settings leave a size open."""
    sizes = (settings.ledger.batch_size, settings.minibatch_size, settings.ledger.block_size)
    return settings.recipe == "ledger" and "auto" in sizes


def _refuse_batches(settings: TrainSettings, prices: Prices) -> tuple[str, ...] | None:
    """Why larger steps are out of the question, if they are; nothing is said of sizes that are set by hand."""
    if not settings.ledger.batch_size == settings.minibatch_size == "auto":
        return ()
    words = f"steps of {settings.ledger.tasks_per_step} tasks"
    if prices.optimizer is None:
        return (f"{words}: there is no optimizer to ask",)
    parts = (("model", prices.agent), ("optimizer", prices.optimizer))
    missing = [f"{name}.price" for name, price in parts if not _has_rates(price)]
    return (f"{words}: {' and '.join(missing)} not given",) if missing else None


def _has_rates(price: Price) -> bool:
    return price.prompt is not None and price.completion is not None


def _refuse_blocks(settings: TrainSettings, price: Price) -> tuple[str, ...] | None:
    """Why tasks should not share a text, if they should not."""
    if settings.ledger.block_size != "auto":
        return ()
    if price.prompt is None or price.cached is None:
        return ("a text for each task: model.price.prompt and .cached not given",)
    return ("a text for each task: cached tokens cost no less",) if price.cached >= price.prompt else None


def _refuse_short(tokens: RunTokens) -> tuple[str, ...] | None:
    """Why a run is too short for larger steps, if it is."""
    size = LARGER[0]
    if tokens.rollouts >= _LEAST_STEPS * size and tokens.tasks >= _LEAST_BATCHES * size:
        return None
    return (f"steps of 8 tasks: {tokens.rollouts} rollouts on {tokens.tasks} tasks are too few for {size}",)


# ---- of a run -------------------------------------------------------------------------------------------------------


def read_sizes(settings: TrainSettings) -> RequestSizes:
    """The sizes in the settings, with the default of those that are left open."""
    ledger = settings.ledger
    return RequestSizes(ledger.tasks_per_step, settings.rollouts_per_request, ledger.tasks_per_text)


def apply_sizes(settings: TrainSettings, choice: SizeChoice | None) -> TrainSettings:
    """The settings with the sizes that were chosen, or with the default of those that are left open. So runs that do
    not choose have the identity that they had before there was a choice."""
    sizes = read_sizes(settings) if choice is None else choice.sizes
    ledger = replace(settings.ledger, batch_size=sizes.batch, block_size=sizes.block)
    return replace(settings, ledger=ledger, minibatch_size=sizes.minibatch)


def settle_sizes(
    settings: TrainSettings, store: Store, prices: Prices, guess: Callable[[], RunTokens]
) -> SizeChoice | None:
    """The sizes of a run: those that its store has, or else those that the prices suggest, which are then stored. A
    resumed run keeps them, whatever prices are by then."""
    if not _is_open(settings):
        return None
    body = store.get_record(_KEY)
    if body is None:
        choice = choose_sizes(settings, prices, guess)
        body = store.put_record(_KEY, CHOICES, to_json(choice))
        if not body:  # a store that keeps nothing
            return choice
    return decode_record(_CHOICE, body)


_CHOICE = msgspec.json.Decoder(SizeChoice)
_TURNS = 6
"""Turns that a rollout with tools is assumed to have."""
_LEARNED_RULES, _RULE = 10, 40
"""How many proposed lines a text has on average, and the tokens of each."""


def guess_run_tokens(env: Env, policy: Policy, splits: Splits, settings: TrainSettings, limit: int | None) -> RunTokens:
    """About what the rollouts and requests of a run take, without running any. `limit`: the budget of rollouts."""
    test = min(len(splits.test), settings.test_size or len(splits.test)) * settings.test_replicates
    rollouts = plan_rollouts(settings, len(splits.train), 2 * test if settings.test else 0, limit).training
    own = estimate_text(policy.skill.text) if policy.skill else 0
    openings = [estimate_prompt(env.opening(task), ()) for task in splits.train[:20]]
    has_tools = bool(env.toolsets if policy.toolsets is None else policy.toolsets) or policy.agent is not None
    turns = min(policy.limits.turns, _TURNS) if has_tools else 1
    task, reply = sum(openings) // max(1, len(openings)), min(policy.sampling.max_tokens or 300, 300)
    before = estimate_text("\n\n".join(part for part in (env.system, policy.system) if part))
    skill = own + _LEARNED_RULES * _RULE
    again = (turns - 1) * (before + skill + task) + turns * (turns - 1) * reply  # later turns send everything again
    return RunTokens(
        rollouts=rollouts,
        tasks=len(splits.train),
        before=before,
        skill=skill,
        other=task + again,
        reply=turns * reply,
        shown=task + 2 * turns * reply,
    )
