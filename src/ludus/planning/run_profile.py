"""What a run says about its rollouts: samples for the simulation, sizes, tokens, money.

Everything is read from the records. What they do not have is measured in a calibration and kept in the run directory as
`calibration.json`: cores, memory, and how the model server behaved with fewer rollouts at once.
"""

import itertools
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.planning.simulation import RolloutSample, TurnSample
from ludus.store import RunDir, decode_record
from ludus.types import Rollout, Turn, Usage

CALIBRATION = "calibration.json"
MOST_SAMPLES = 1000
"""The most rollouts of a run that a profile is made of."""


class ServerReading(Struct, frozen=True):
    """The model server as some rollouts found it."""

    calls: float
    """Calls under way at once, on average."""
    tokens: float
    """Tokens of replies per second."""


class Calibration(Struct, frozen=True):
    """What a calibration measured beside the records."""

    low: ServerReading | None = None
    """With few rollouts at once; None: not tried."""
    high: ServerReading | None = None
    first: int = 0
    """How many rollouts ran for `low`. They are not among the samples: others had the machine to share."""
    core_seconds: float | None = None
    """Processor time of a rollout with its commands, as far as they were processes of this machine."""
    slot_mb: float | None = None
    """Memory of a rollout that runs, with its slot."""
    base_mb: float = 0.0
    """Memory of the process before the first rollout."""


class RunProfile(Struct, frozen=True, kw_only=True):
    """The rollouts of a run, for a forecast."""

    samples: tuple[RolloutSample, ...]
    failed: int = 0
    untimed: int = 0
    """Rollouts without times of slots and `verify`: an earlier version ran them."""
    tokens: float
    """Of all requests and replies of a rollout."""
    dollars: float
    """Of a rollout."""
    disk: float
    """Bytes of the run directory for each rollout."""
    decode_seconds: float
    """What reading a rollout takes the driver."""
    store_seconds: float
    """What committing a rollout takes."""
    calibration: Calibration = Calibration()

    @property
    def reply_tokens(self) -> float:
        return sum(sample.tokens for sample in self.samples) / len(self.samples)


def read_profile(directory: RunDir, limit: int = MOST_SAMPLES, seed: int = 0) -> RunProfile:
    """The profile of a run, from so many of its rollouts at most, drawn with the seed."""
    calibration = read_calibration(directory.path)
    count = len(directory.read_scores())
    if not count:
        raise ConfigError(f"{directory.path}: no rollout has ended there yet")
    first = calibration.first if calibration.first < count else 0
    rollouts = (rollout for _, rollout in directory.read_outcomes())
    chosen = draw_samples(itertools.islice(rollouts, first, None), limit, seed)
    return make_profile(chosen, measure_disk(directory.path) / count, calibration)


def draw_samples(rollouts: Iterable[Rollout], limit: int, seed: int) -> list[Rollout]:
    """So many rollouts at most, each with the same chance, without having all of them in memory."""
    chance, chosen = random.Random(seed), list[Rollout]()
    for number, rollout in enumerate(rollouts):
        if len(chosen) < limit:
            chosen.append(rollout)
        elif (place := chance.randrange(number + 1)) < limit:
            chosen[place] = rollout
    return chosen


def make_profile(rollouts: Sequence[Rollout], disk: float, calibration: Calibration = Calibration()) -> RunProfile:
    decode_seconds, store_seconds = measure_commits(rollouts)
    usages = [rollout.usage for rollout in rollouts]
    return RunProfile(
        samples=tuple(map(make_sample, rollouts)),
        failed=sum(rollout.failure is not None for rollout in rollouts),
        untimed=sum(rollout.times is None for rollout in rollouts),
        tokens=sum(usage.tokens for usage in usages) / len(usages),
        dollars=sum(usage.dollars for usage in usages) / len(usages),
        disk=disk,
        decode_seconds=decode_seconds,
        store_seconds=store_seconds,
        calibration=calibration,
    )


# ---- one rollout --------------------------------------------------------------------------------------------------


def make_sample(rollout: Rollout) -> RolloutSample:
    """The times of a rollout. What no phase and no turn accounts for, such as the program of a command-line agent,
    counts as time on the node before `verify`."""
    turns = tuple(map(_make_turn, rollout.turns))
    acting = sum(turn.model + turn.tools for turn in turns)
    size = len(to_json(rollout))
    if rollout.times is None:
        return RolloutSample(setup=max(0.0, rollout.seconds - acting), turns=turns, size=size)
    phases = rollout.times.phases
    slot, setup, verify = (phases.get(name, 0.0) for name in ("slot", "setup", "verify"))
    rest = sum(phases.values()) - slot - setup - verify - acting
    return RolloutSample(slot, setup, turns, verify + max(0.0, rest), size)


def _make_turn(turn: Turn) -> TurnSample:
    """Calls that ran side by side take as long as the turn, at most."""
    tools = min(turn.seconds, sum(result.seconds for result in turn.results))
    return TurnSample(turn.seconds - tools, turn.completion.usage.completion_tokens, tools)


# ---- the whole run ------------------------------------------------------------------------------------------------


class RunTotals:
    """The sums of a run, rollout by rollout."""

    def __init__(self) -> None:
        self.rollouts = 0
        self.usage = Usage()
        self._calls = 0.0
        self._replies = 0
        self._spans: list[tuple[float, float]] = []

    def add(self, rollout: Rollout) -> None:
        self.rollouts += 1
        self.usage += rollout.usage
        sample = make_sample(rollout)
        self._calls += sum(turn.model for turn in sample.turns)
        self._replies += sample.tokens
        if rollout.times is not None:
            self._spans.append((rollout.times.began, rollout.times.began + sum(rollout.times.phases.values())))

    @property
    def seconds(self) -> float:
        """In which at least one of them ran. 0: they have no times."""
        return measure_spans(self._spans)

    def read_server(self) -> ServerReading | None:
        """The model server as they found it; None if they have no times."""
        seconds = self.seconds
        return ServerReading(self._calls / seconds, self._replies / seconds) if seconds else None


def measure_spans(spans: Iterable[tuple[float, float]]) -> float:
    """The seconds that are in at least one of the spans: a run that was resumed had pauses."""
    total, until = 0.0, 0.0
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


MORE_CALLS, MORE_TOKENS = 1.8, 1.25


def find_saturation(low: ServerReading | None, high: ServerReading | None) -> float | None:
    """The tokens per second at which a server is saturated: with at least `MORE_CALLS` times the calls at once it gave
    less than `MORE_TOKENS` times the tokens. None: it was not found."""
    if low is None or high is None or high.calls < MORE_CALLS * low.calls or not low.tokens:
        return None
    return high.tokens if high.tokens < MORE_TOKENS * low.tokens else None


def measure_disk(folder: Path) -> int:
    """The bytes of all files of a run."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_commits(rollouts: Sequence[Rollout], most: int = 400) -> tuple[float, float]:
    """What it takes to read and to commit a rollout on this machine, in seconds: the means over these rollouts, in a
    store of their own."""
    taken = [rollouts[number % len(rollouts)] for number in range(min(most, 8 * len(rollouts)))]
    bodies = [to_json(rollout) for rollout in taken]
    decoder = msgspec.json.Decoder(Rollout)
    with tempfile.TemporaryDirectory(prefix="ludus-plan-") as folder, RunDir.open(Path(folder) / "run", {}) as run:
        began = time.perf_counter()
        for body in bodies:
            decode_record(decoder, body)
        decoded = time.perf_counter()
        for number, rollout in enumerate(taken):
            run.put(str(number), rollout)
        ended = time.perf_counter()
    return (decoded - began) / len(taken), (ended - decoded) / len(taken)


# ---- the calibration's own file -----------------------------------------------------------------------------------


def read_calibration(folder: Path) -> Calibration:
    """What a calibration measured; of other runs, nothing."""
    try:
        return msgspec.json.decode((folder / CALIBRATION).read_bytes(), type=Calibration)
    except FileNotFoundError:
        return Calibration()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"{folder / CALIBRATION} is damaged ({error}): remove it, or calibrate again") from None
