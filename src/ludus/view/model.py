"""What pages show, as values. The JSON API is these structs, encoded; `docs/view-api.md` lists them by route.

Lists come in pages: `next` is the cursor of the next page, empty at the end, and `total` counts what the filter leaves.
A cursor belongs to its sort order and filter. Texts of agents come as a `TextPart`: the beginning, inert HTML of it,
and a name (`ref`) under which the rest can be read piece by piece. Times are seconds since 1970; 0.0 is "not known".
Fields are added, never renamed.
"""

from typing import Any

from msgspec import Struct

from ludus.comparison import ComparedRun, PairComparison
from ludus.control_client import RunStatus
from ludus.run_events import RunEvent
from ludus.stats import FailureLedger, Interval, PassAt, Spread, ToolUse
from ludus.types import Usage

SCHEMA = 1
"""Raised when a field changes its meaning."""


# ---- the server ---------------------------------------------------------------------------------------------------


class ViewSession(Struct, frozen=True, kw_only=True):
    """`GET /api/session`: what the page may do."""

    schema: int = SCHEMA
    version: str
    """Of Ludus."""
    title: str
    """The folders that are shown."""
    read_only: bool
    static: bool = False
    """Whether this is a report in a file: nothing can be fetched that is not in it."""
    may_act: bool
    """Whether actions are possible: not read-only, and the request has shown the token."""
    action_token: str = ""
    """What actions send in the header `X-Ludus-Action`; empty if `may_act` is false."""
    why_not: str = ""
    """Why actions are not possible, in words."""
    single: str = ""
    """The id of the run, if there is exactly one: the page opens it at once."""
    now: float = 0.0
    """The clock of the server, to show ages."""


class ViewError(Struct, frozen=True):
    """The body of every reply that is not a success."""

    error: str
    """What is wrong, and what to do."""


# ---- runs ---------------------------------------------------------------------------------------------------------


class RunCard(Struct, frozen=True, kw_only=True):
    """A run in the list. Numbers are of stored rollouts; those of a run that goes on grow."""

    id: str
    """Its name in addresses: the path below the folder that is shown."""
    path: str
    kind: str = ""
    """evaluate, process, batch, train, headroom, rl, serve, gateway, replay, fork or plan."""
    state: str = ""
    """running, finished, drained, failed, killed; `damaged` if it cannot be read; empty for a run of 0.1."""
    message: str = ""
    """Why it was drained, failed or cannot be read."""
    env: str = ""
    model: str = ""
    rollouts: int = 0
    scored: int = 0
    planned: int = 0
    """How many rollouts it has when it is complete; 0: not known."""
    score: float | None = None
    """The number that says most about the run."""
    interval: Interval | None = None
    """The 95 % interval of `score`, where one is known."""
    measure: str = ""
    """What `score` is: mean, test, selection, held out or reward."""
    mean: float | None = None
    """Of all scored rollouts, by task; of runs with one policy only."""
    suspects: int = 0
    """Rollouts whose verdict the agent may have changed."""
    mean_without_suspects: float | None = None
    dollars: float = 0.0
    tokens: int = 0
    budget_dollars: float | None = None
    started: float = 0.0
    ended: float = 0.0
    version: str = ""
    parent: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    pending: bool = False
    """Whether it was only found so far: its numbers follow (an event `runs` says when)."""


class RunPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs`."""

    rows: tuple[RunCard, ...]
    total: int
    next: str = ""
    pending: int = 0
    """How many runs were found and not read yet."""
    choices: dict[str, dict[str, int]] = {}
    """How many runs have each value of `kind`, `state`, `env`, `model` and `tag`, for filters."""


# ---- a run --------------------------------------------------------------------------------------------------------


class ChartPoint(Struct, frozen=True):
    """A point of a curve."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    """What it is, such as `step_0003` or `accepted`."""
    kind: str = ""
    """`accepted`, `rejected`, `undecided` or `held out` for decisions and measurements; empty: a plain point."""
    ref: str = ""
    """A rollout id or the hash of a skill version behind it."""


class ChartCurve(Struct, frozen=True, kw_only=True):
    """A curve. At most some hundred points: more are averaged."""

    name: str
    label: str
    x_label: str
    unit: str = ""
    """`share` (0 to 1), `dollars`, `seconds`, `tokens`, `per minute` or empty."""
    group: str = ""
    """Curves of one group belong into one chart: score, reward, length, errors, cost, throughput, policy."""
    style: str = "line"
    """`line`, `dots` (measurements with intervals) or `step`."""
    points: tuple[ChartPoint, ...] = ()


class BudgetLine(Struct, frozen=True, kw_only=True):
    """What a role has spent, beside its limits."""

    role: str
    """`agent`, `optimizer`, `judge`, … or `all`."""
    calls: int = 0
    failed: int = 0
    retries: int = 0
    seconds: float = 0.0
    usage: Usage = Usage()
    limit_dollars: float | None = None
    limit_tokens: int | None = None
    limit_calls: int | None = None


class PhaseShare(Struct, frozen=True):
    """How long the rollouts of a run were in a phase, all together."""

    phase: str
    seconds: float


class RunOverview(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN`."""

    card: RunCard
    command: str = ""
    """The command line that opened it."""
    tasks: int = 0
    flaky: int = 0
    """Tasks that some of their rollouts pass and some do not."""
    passed: int = 0
    pass_at: tuple[PassAt, ...] = ()
    mean_with_zeros: float | None = None
    mean_without_suspects: float | None = None
    warning: str = ""
    """What a reader must know before the numbers, such as many rollouts without a score."""
    claim: str = ""
    """With train: what the run claims, in a sentence."""
    kinds: dict[str, "ScoreCard"] = {}
    """The same numbers for each kind of task, if there are several."""
    curves: tuple[ChartCurve, ...] = ()
    failures: FailureLedger
    reasons: tuple[str, ...] = ()
    """The most frequent messages of failures."""
    stops: dict[str, int] = {}
    tools: tuple[ToolUse, ...] = ()
    turns: Spread | None = None
    seconds: Spread | None = None
    phases: tuple[PhaseShare, ...] = ()
    """Where the time went, over all rollouts."""
    costs: tuple[BudgetLine, ...] = ()
    live: RunStatus | None = None
    """What a run that goes on says of itself; None if it does not run, or runs on another machine."""
    live_problem: str = ""
    events: tuple[RunEvent, ...] = ()
    """The last ones, the newest last."""
    recent: tuple["RolloutCard", ...] = ()
    """The rollouts that ended last, the newest first."""
    has_skill: bool = False
    has_weights: bool = False
    has_tokens: bool = False
    can_control: bool = False
    """Whether it answers on its socket, so that it can be paused."""
    indexing: int = 0
    """How many rollouts the index does not have yet: numbers are of the others."""
    stored: int = 0
    """A counter that grows when the store changes; pages compare it with events."""


class ScoreCard(Struct, frozen=True):
    """The scores of some tasks."""

    tasks: int
    rollouts: int
    scored: int
    passed: int
    mean: float | None
    interval: Interval | None


class RecordedSettings(Struct, frozen=True):
    """`GET /api/runs/RUN/settings`."""

    run: str
    settings: dict[str, Any]
    """As they were recorded, without secrets."""
    code: dict[str, str] = {}
    changes: tuple[str, ...] = ()


class TaskCard(Struct, frozen=True, kw_only=True):
    """A task of a run, over its rollouts."""

    task: str
    kind: str = ""
    split: str = ""
    rollouts: int = 0
    scored: int = 0
    passed: int = 0
    rate: float | None = None
    """The share of scored rollouts that passed."""
    mean: float | None = None
    flaky: bool = False
    """Whether some passed and some did not."""
    failed: int = 0
    suspects: int = 0
    turns: float = 0.0
    seconds: float = 0.0
    tokens: float = 0.0
    dollars: float = 0.0
    """Means, but for dollars, which are the sum."""
    tool_errors: int = 0


class TaskPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/tasks`."""

    rows: tuple[TaskCard, ...]
    total: int
    next: str = ""
    indexing: int = 0


class RolloutCard(Struct, frozen=True, kw_only=True):
    """A rollout in a list."""

    id: int
    """Its number in the run, in the order in which jobs first ended."""
    key: str
    """Its content address."""
    task: str
    kind: str = ""
    split: str = ""
    replicate: int = 0
    attempt: int = 1
    score: float | None = None
    passed: bool | None = None
    soft: float | None = None
    stop: str = ""
    failure: str = ""
    """The boundary that failed; empty if none did."""
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    began: float = 0.0
    model: str = ""
    policy: str = ""
    skill: str = ""
    suspect: bool = False
    exact: bool = False
    """Whether it has exact tokens."""
    size: int = 0
    """Bytes of its record."""
    part: str = ""
    """With train: the part of the run that it belongs to, such as `step 3`."""
    role: str = ""
    """With train: what it was run for, such as `candidate`."""


class RolloutPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rollouts`."""

    rows: tuple[RolloutCard, ...]
    total: int
    next: str = ""
    indexing: int = 0
    choices: dict[str, dict[str, int]] = {}
    """How many rollouts have each value of `stop`, `failure`, `kind` and `model`, before the filter."""


# ---- a rollout ----------------------------------------------------------------------------------------------------


class TextPart(Struct, frozen=True, kw_only=True):
    """A text of an agent, a tool or a user: its beginning."""

    text: str = ""
    """The beginning, with control characters made visible."""
    html: str = ""
    """The same as inert HTML; empty: show `text` as it is."""
    form: str = "text"
    """`markdown`, `json`, `text`, or the name of a programming language."""
    size: int = 0
    """Characters of the whole text."""
    cut: bool = False
    """Whether there is more: fetch `…/text?ref=REF&start=N`."""
    ref: str = ""


class ShownImage(Struct, frozen=True):
    """A picture."""

    src: str
    """An address of this server, or a `data:` URL in a report; empty: it is not shown."""
    note: str = ""
    """What stands in its place, such as the address of a picture on the web, which is never fetched."""


class ShownMessage(Struct, frozen=True, kw_only=True):
    """A message of the opening, or one that the user or the agent's program sent later."""

    role: str
    text: TextPart
    images: tuple[ShownImage, ...] = ()


class ShownCall(Struct, frozen=True, kw_only=True):
    """A tool call with its result."""

    id: str = ""
    name: str = ""
    arguments: TextPart
    result: TextPart | None = None
    """None: the call was not answered."""
    error: str = ""
    seconds: float = 0.0
    spilled: str = ""
    images: tuple[ShownImage, ...] = ()


class ShownTurn(Struct, frozen=True, kw_only=True):
    """One reply of the model and what followed it."""

    number: int
    """From 1."""
    reasoning: TextPart | None = None
    text: TextPart
    calls: tuple[ShownCall, ...] = ()
    notices: tuple[ShownMessage, ...] = ()
    images: tuple[ShownImage, ...] = ()
    finish: str = ""
    stop: str = ""
    model: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    """The whole turn."""
    start: float = 0.0
    """Seconds after the begin of the rollout, as far as the record tells."""
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    guided: bool = False
    branch: int | None = None
    """The number of the turn after which the history branched here; None: it follows the turn before it. 0: a
    conversation of its own, such as a sub-agent's."""
    sampled: int = 0
    """Sampled ids, if the tokens are exact."""
    ids: int = 0
    """All ids that the turn added."""


class TurnPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rollouts/ID/turns`."""

    turns: tuple[ShownTurn, ...]
    total: int
    first: int
    """The number of the first one of this page."""
    next: int = 0
    """The number of the first turn of the next page; 0 at the end."""


class WaterfallSpan(Struct, frozen=True):
    """A bar of the waterfall."""

    turn: int
    """0: before or after the turns."""
    phase: str
    """slot, setup, model, tool, verify or other."""
    label: str
    start: float
    """Seconds after the begin."""
    seconds: float
    exact: bool = True
    """Whether the record has the start; else it is put after what came before."""


class ShownScore(Struct, frozen=True, kw_only=True):
    """A verdict."""

    value: float
    passed: bool
    soft: float
    feedback: TextPart
    parts: dict[str, float] = {}
    suspect: tuple[str, ...] = ()


class ShownFailure(Struct, frozen=True):
    boundary: str
    message: str
    retryable: bool


class LeftFile(Struct, frozen=True, kw_only=True):
    """A file that the agent left."""

    path: str
    size: int = 0
    mode: str = ""
    link: str = ""
    removed: bool = False
    ref: str = ""
    """For `…/text?ref=`; empty if it has no text."""


class RolloutBranch(Struct, frozen=True):
    """A line of the history: some turns in a row."""

    first: int
    last: int
    after: int
    """The turn that it continues; 0: none, a conversation of its own."""
    label: str


class RolloutDetail(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rollouts/ID`: everything but the further turns."""

    run: str
    row: RolloutCard
    prompt: TextPart
    opening: tuple[ShownMessage, ...] = ()
    page: TurnPage
    """The first turns."""
    score: ShownScore | None = None
    failure: ShownFailure | None = None
    advantage: float | None = None
    """Its score minus the mean of its group, if it has a score."""
    group: tuple[RolloutCard, ...] = ()
    """The rollouts of the same task and policy, with this one."""
    before: int | None = None
    """The id of the rollout before it in the list that the request names by its sort and filter; None at the begin."""
    after: int | None = None
    place: int = 0
    """Its place in that list, from 1; 0 if it is not in it."""
    of: int = 0
    waterfall: tuple[WaterfallSpan, ...] = ()
    phases: tuple[PhaseShare, ...] = ()
    branches: tuple[RolloutBranch, ...] = ()
    """More than one where history branched, or a sub-agent had a conversation of its own."""
    files: tuple[LeftFile, ...] = ()
    files_note: str = ""
    """Why there are no files, or how many are not listed."""
    provenance: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    """What else the record has: how a program ended, files that were left out, what it repeats."""
    has_tokens: bool = False
    has_trainer_logprobs: bool = False
    skill: str = ""
    """The hash of the skill that it ran with, if the run has that version."""
    commands: dict[str, str] = {}
    """Command lines: `show`, `replay` (run it again with its replies), `fork` (go on from a turn)."""


class TextPiece(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rollouts/ID/text?ref=…`: a piece of a long text."""

    ref: str
    start: int
    end: int
    size: int
    text: str
    html: str = ""
    form: str = "text"


class TokenPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rollouts/ID/tokens`: columns of one length."""

    start: int
    total: int
    next: int = 0
    """The start of the next page; 0 at the end."""
    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()
    """What each id says; empty if the tokenizer is not on this machine."""
    sampled: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    trainer_logprobs: tuple[float | None, ...] = ()
    """By the trainer, where it reported them; else empty."""
    turns: tuple[int, ...]
    """The turn that added each id."""
    advantage: float | None = None
    note: str = ""
    """Why there are no texts, in words."""


# ---- compare ------------------------------------------------------------------------------------------------------


class GridCell(Struct, frozen=True, kw_only=True):
    """A task in one run."""

    score: float | None = None
    passed: int = 0
    scored: int = 0
    rollouts: int = 0
    rollout: int | None = None
    """The id of its first rollout there."""


class GridRow(Struct, frozen=True, kw_only=True):
    """A task in all runs that are compared."""

    task: str
    split: str = ""
    kind: str = ""
    cells: tuple[GridCell, ...]
    """In the order of the runs."""
    spread: float = 0.0
    """The largest difference between two runs."""
    same: bool = True
    """Whether all runs asked the same: tasks with another prompt are not compared."""


class SettingDifference(Struct, frozen=True):
    key: str
    values: tuple[str, ...]
    """As JSON, in the order of the runs; empty where it is not set."""


class CostPerPoint(Struct, frozen=True, kw_only=True):
    """What a run cost, for what it scored."""

    run: str
    dollars: float
    tokens: int
    rollouts: int
    score: float | None
    dollars_per_rollout: float | None = None
    dollars_per_point: float | None = None
    """Dollars for each rollout that passed, or each point of score."""
    tokens_per_point: float | None = None


class Versus(Struct, frozen=True, kw_only=True):
    """`GET /api/compare?run=A&run=B`."""

    runs: tuple[ComparedRun, ...]
    cards: tuple[RunCard, ...]
    pairs: tuple[PairComparison, ...]
    """Each with each; the lists of tasks are cut, the grid has all."""
    grid: tuple[GridRow, ...]
    total: int
    next: str = ""
    settings: tuple[SettingDifference, ...] = ()
    curves: dict[str, tuple[ChartCurve, ...]] = {}
    """By run."""
    costs: tuple[CostPerPoint, ...] = ()
    problems: tuple[str, ...] = ()
    """Runs that are left out, and why."""


# ---- skills -------------------------------------------------------------------------------------------------------


class RolloutRef(Struct, frozen=True):
    """A rollout behind a piece of evidence."""

    step: int
    task: str
    id: int | None = None
    """Its id in the run; None if it is not stored any more."""


class SkillVersion(Struct, frozen=True, kw_only=True):
    """A text that a run used, or was given."""

    hash: str
    origin: str
    """`initial_skill`, `step_0003`, `review_1`, …"""
    step: int = 0
    decision: str = ""
    """What became of it: `initial`, `accepted`, `rejected`, `undecided`, `working`, `shipped`, `final`, `review`."""
    score: float | None = None
    interval: Interval | None = None
    characters: int = 0
    lines: int = 0
    tokens: int = 0
    """About: four characters are one."""
    added: int = 0
    removed: int = 0
    """Lines, against the version before it."""
    by: str = ""
    """The person who made it, if one did."""
    reason: str = ""


class SkillVersions(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/skills`."""

    versions: tuple[SkillVersion, ...]
    total: int
    shipped: str = ""
    """The hash of the version that is shipped, or would be now."""
    initial: str = ""
    can_review: bool = False
    why_not: str = ""


class SkillText(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/skills/HASH`."""

    version: SkillVersion
    text: str
    html: str


class DiffRow(Struct, frozen=True, kw_only=True):
    """A row of two texts side by side."""

    kind: str
    """`same`, `changed`, `removed`, `added`, or `skipped`: so many equal lines are left out."""
    left: str = ""
    right: str = ""
    left_number: int = 0
    right_number: int = 0
    left_marks: tuple[tuple[int, int], ...] = ()
    """With `changed`: which characters differ, from and to."""
    right_marks: tuple[tuple[int, int], ...] = ()
    count: int = 0


class SkillDiff(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/skills/diff?left=HASH&right=HASH`."""

    left: SkillVersion
    right: SkillVersion
    rows: tuple[DiffRow, ...]
    added: int
    removed: int


class LineFate(Struct, frozen=True):
    """Something that happened to a line."""

    step: int
    change: str
    """new, entered, left, revived, retired, dropped, accepted, rejected, reverted."""
    reason: str = ""
    by: str = ""


class BlamedLine(Struct, frozen=True, kw_only=True):
    """A line of a skill, and who put it there."""

    number: int
    text: str
    html: str = ""
    origin: str = ""
    """The version that brought it: `initial_skill`, `step_0003`, …"""
    step: int = 0
    line: str = ""
    """The id of the line in the ledger, with the recipe `ledger`."""
    reason: str = ""
    """Why it was proposed, in the words of the optimizer."""
    status: str = ""
    """`working`, `waiting`, `retired`, or empty for text of the initial skill."""
    situation: str = ""
    """What goes wrong without it."""
    works: float | None = None
    """The probability that it works."""
    worth: float | None = None
    """The net gain of accuracy."""
    interval: Interval | None = None
    """Of `worth`, 95 %."""
    pays: float | None = None
    """The probability that the gain is above the price of a line."""
    tokens: int = 0
    evidence_for: tuple[RolloutRef, ...] = ()
    evidence_against: tuple[RolloutRef, ...] = ()
    suspected: tuple[RolloutRef, ...] = ()
    proposed_from: tuple[RolloutRef, ...] = ()
    more: int = 0
    """How many further rollouts are not listed."""
    rollouts: int = 0
    passed: int = 0
    history: tuple[LineFate, ...] = ()
    by: str = ""
    """The person who decided about it last, if one did."""


class RefusedLine(Struct, frozen=True, kw_only=True):
    """A line that was proposed and is not in the text."""

    text: str
    step: int = 0
    status: str = ""
    """dropped, retired, waiting, not_selected, rejected, or why an edit could not be made."""
    reason: str = ""
    line: str = ""
    source: str = ""
    worth: float | None = None
    interval: Interval | None = None
    evidence_for: tuple[RolloutRef, ...] = ()
    evidence_against: tuple[RolloutRef, ...] = ()
    by: str = ""


class SkillBlame(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/skills/HASH/blame`."""

    version: SkillVersion
    lines: tuple[BlamedLine, ...]
    refused: tuple[RefusedLine, ...]
    refused_total: int
    can_review: bool = False
    why_not: str = ""


# ---- RL -----------------------------------------------------------------------------------------------------------


class WeightStep(Struct, frozen=True, kw_only=True):
    """A step of an RL run."""

    step: int
    version: int
    reward: float | None = None
    passed: float | None = None
    length: float | None = None
    rows: int = 0
    rollouts: int = 0
    failed: int = 0
    suspects: int = 0
    groups: int = 0
    dropped: dict[str, int] = {}
    staleness: float = 0.0
    stalest: int = 0
    trained_fast: float | None = None
    trained_slow: float | None = None
    loss: float | None = None
    kl: float | None = None
    reference_kl: float | None = None
    entropy: float | None = None
    clipped: float | None = None
    ratio: float | None = None
    gradient: float | None = None
    held_out: float | None = None
    held_out_interval: Interval | None = None
    seconds: dict[str, float] = {}


class WeightsPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/rl`."""

    steps: tuple[WeightStep, ...]
    total: int
    next: str = ""
    curves: tuple[ChartCurve, ...] = ()
    planned: int = 0
    trained_by_duration: tuple["DurationShare", ...] = ()
    server: "ServerQueue | None" = None
    server_problem: str = ""


class DurationShare(Struct, frozen=True):
    """Which share of the groups of some duration was trained on."""

    low: float
    """Seconds of the group, from."""
    high: float
    groups: int
    trained: int


class WeightGroup(Struct, frozen=True, kw_only=True):
    """A group of an RL run: rollouts of one task under one version."""

    number: int | None = None
    """Its number in the run, if a step has taken it."""
    task: str
    step: int | None = None
    version: int | None = None
    staleness: int | None = None
    dropped: str = ""
    """Why it was not trained on."""
    scores: tuple[float | None, ...] = ()
    advantages: tuple[float | None, ...] = ()
    spread: float = 0.0
    """The standard deviation of the scores."""
    seconds: float = 0.0
    """Of its slowest rollout."""
    rollouts: tuple[int, ...] = ()
    """Their ids."""
    model: str = ""
    role: str = ""
    """`train` or `held out`."""


class GroupPage(Struct, frozen=True, kw_only=True):
    """`GET /api/runs/RUN/groups`."""

    rows: tuple[WeightGroup, ...]
    total: int
    next: str = ""
    indexing: int = 0


class ServerQueue(Struct, frozen=True, kw_only=True):
    """The trajectory server of an RL run or of `ludus serve`."""

    url: str
    step: int = 0
    queued: int = 0
    environments: tuple[dict[str, Any], ...] = ()
    facts: dict[str, Any] = {}
    """Everything that it says of itself at `/status`."""


# ---- environments -------------------------------------------------------------------------------------------------


class EnvironmentCard(Struct, frozen=True, kw_only=True):
    """An environment that runs of the folder used."""

    name: str
    runs: tuple[str, ...]
    """Ids of runs, the newest first."""
    tasks: int = 0
    rollouts: int = 0
    scored: int = 0
    passed: int = 0
    rate: float | None = None
    summary: str = ""
    """What it is, if it comes with Ludus."""
    options: dict[str, Any] = {}
    """As the newest run has them."""
    pending: int = 0
    """Runs that were not read yet."""


class EnvironmentPage(Struct, frozen=True, kw_only=True):
    """`GET /api/envs`."""

    rows: tuple[EnvironmentCard, ...]
    total: int
    next: str = ""


class EnvironmentTask(Struct, frozen=True, kw_only=True):
    """A task over all runs."""

    task: str
    split: str = ""
    kind: str = ""
    runs: int = 0
    rollouts: int = 0
    scored: int = 0
    passed: int = 0
    rate: float | None = None
    flaky: bool = False
    best_run: str = ""
    has_reference: bool | None = None
    """Whether its task has an answer for the verifier; None if that is not known."""
    prompt: str = ""
    """The beginning."""
    example_run: str = ""
    example: int | None = None
    """A rollout of it: run and id."""


class EnvironmentTaskPage(Struct, frozen=True, kw_only=True):
    """`GET /api/envs/NAME/tasks`."""

    env: str
    rows: tuple[EnvironmentTask, ...]
    total: int
    next: str = ""
    pending: int = 0


# ---- acting -------------------------------------------------------------------------------------------------------


class ActionReply(Struct, frozen=True):
    """What an action answers."""

    ok: bool
    text: str
    run: str = ""
    """The id of the run, after one was started or a note was written."""


class FormField(Struct, frozen=True, kw_only=True):
    """A field of the form that starts a run."""

    name: str
    """The dotted name of the setting, or the name of an argument."""
    label: str
    section: str
    kind: str
    """`text`, `number`, `whole`, `flag`, `choice` or `json`."""
    default: str = ""
    """As it is written in a command line."""
    choices: tuple[str, ...] = ()
    help: str = ""
    required: bool = False
    common: bool = False
    """Whether it is shown at once; the others are behind their section."""


class RunForm(Struct, frozen=True, kw_only=True):
    """`GET /api/forms/COMMAND`."""

    command: str
    summary: str
    fields: tuple[FormField, ...]


class FormList(Struct, frozen=True):
    """`GET /api/forms`."""

    commands: dict[str, str]
    """The commands that can be started, and what each does."""


class CommandPreview(Struct, frozen=True, kw_only=True):
    """`POST /api/forms/COMMAND/preview`: what a form is equal to."""

    line: str
    words: tuple[str, ...]
    problem: str = ""
    """What is wrong with it; empty if it can be started."""


class StartedCommand(Struct, frozen=True, kw_only=True):
    """`POST /api/forms/COMMAND/start`."""

    line: str
    pid: int
    log: str
    """The file with what it prints."""
    run: str = ""
    """The id that its run will have."""


class LogTail(Struct, frozen=True):
    """`GET /api/starts/PID`: how a command goes that was started here."""

    pid: int
    line: str
    running: bool
    code: int | None
    text: str
    """The end of what it printed."""


# ---- live ---------------------------------------------------------------------------------------------------------


class ChangeEvent(Struct, frozen=True, kw_only=True):
    """The data of an event of `GET /api/events`: something has changed, fetch it again."""

    runs: tuple[str, ...]
    """The ids of runs that changed."""
    what: tuple[str, ...]
    """`info`, `store`, `events`, `notes`, `list` (a run was added or removed), `index`."""
    stored: dict[str, int] = {}
    """The number of rollouts of runs whose store changed."""
