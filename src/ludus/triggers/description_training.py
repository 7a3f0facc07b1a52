"""Train the descriptions of a catalogue: one skill at a time, judged by all train queries.

    errors by skill ──> the worst one ──> candidates of the optimizer ──> race on the queries concerned ──> all queries

A round takes the skill with the most errors: its own queries that went elsewhere, and others' queries that it took. The
optimizer proposes descriptions. They race on the queries that the skill is involved in, with a seed that is used for
nothing else. The best one is then run on every train query, with the seeds of the current catalogue. It is taken if it
is better there, over the whole catalogue: what it takes from other skills counts against it. What is claimed comes from
sealed queries (`ludus.triggers.command`).
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec import Struct

from ludus.catalogue import DESCRIPTION_CHARS, Catalogue
from ludus.envs.triggers import TriggerQuery
from ludus.reflact.guards import Guard, GuardSettings
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.records import UnusableReply
from ludus.skill import Skill
from ludus.stats import PairedStats
from ludus.trigger_settings import TriggerSettings
from ludus.triggers.catalogue_runs import CatalogueRuns
from ludus.triggers.trigger_stats import QueryResult, collect_results, compare_results
from ludus.types import Task

PROMPT = "describe"
COPIED_WORDS = 8
"""So many words of a request in a row are a copy of it."""
SHOWN = 12
"""Queries of each sort that the optimizer is shown."""
RACE_ROLLOUTS = 64
"""Each candidate has at least so many rollouts in the race: few queries are run several times. Chosen on the
development worlds of `bench/triggers.py`."""


class DescriptionReply(Struct, frozen=True):
    """What the optimizer answers."""

    descriptions: tuple[str, ...]
    reasoning: str = ""


class DescriptionRound(Struct, frozen=True, kw_only=True):
    """What happened in a round."""

    number: int
    skill: str
    errors: float
    """Of the skill before the round: missed queries and queries that it took from others."""
    candidates: tuple[str, ...] = ()
    chosen: str = ""
    """The candidate that won the race; empty if none was better there."""
    paired: PairedStats | None = None
    """The chosen one against the current catalogue, on all train queries."""
    taken: bool = False
    problem: str = ""
    """Why there are no candidates."""
    accuracy: float | None = None
    """Of the current catalogue after the round, on the train queries."""
    catalogue: Catalogue


async def train_descriptions(
    bench: CatalogueRuns,
    optimizer: Optimizer,
    catalogue: Catalogue,
    queries: Sequence[TriggerQuery],
    settings: TriggerSettings,
) -> AsyncGenerator[DescriptionRound, None]:
    """Improve descriptions until nothing is left to improve, or the rounds are over."""
    results = await bench.measure_one(catalogue, queries, "train")
    idle: Counter[str] = Counter()
    tried: dict[str, tuple[str, ...]] = {}
    for number in range(1, settings.rounds + 1):
        errors = count_errors(results, catalogue.names)
        skill = choose_skill(errors, idle, settings.patience)
        if skill is None:
            return
        done = DescriptionRound(number=number, skill=skill, errors=errors[skill], catalogue=catalogue)
        reply = await ask_for_candidates(optimizer, catalogue, skill, results, settings, number, tried.get(skill, ()))
        if isinstance(reply, UnusableReply):
            done = _replace(done, problem=reply.problem)
        elif reply:
            done, results = await _try_candidates(bench, done, reply, queries, results, settings)
        idle[skill] = 0 if done.taken else idle[skill] + 1
        tried[skill] = () if done.taken else (*tried.get(skill, ()), *done.candidates)
        if done.taken:
            idle.clear()
        catalogue = done.catalogue
        yield _replace(done, accuracy=_average(results))


async def _try_candidates(
    bench: CatalogueRuns,
    done: DescriptionRound,
    candidates: Sequence[str],
    queries: Sequence[TriggerQuery],
    results: list[QueryResult],
    settings: TriggerSettings,
) -> tuple[DescriptionRound, list[QueryResult]]:
    """Race the candidates, and take the best one if it is better on all train queries."""
    catalogue, skill = done.catalogue, done.skill
    done = _replace(done, candidates=tuple(candidates))
    concerned = list_concerned(results, skill)
    racing = [catalogue, *(catalogue.describe(skill, text) for text in candidates)]
    runs = count_race_runs(len(concerned), bench.runs)
    ran = await bench.measure(racing, concerned, f"race {done.number}", first=bench.runs, runs=runs)
    current, *others = [collect_results(rollouts) for rollouts in ran]
    best = choose_winner([compare_results(each, current) for each in others])
    if best is None:
        return done, results
    new = catalogue.describe(skill, candidates[best])
    found = await bench.measure_one(new, queries, "train")
    paired = compare_results(found, results)
    done = _replace(done, chosen=candidates[best], paired=paired)
    if not is_better(paired, settings.certainty):
        return done, results
    return _replace(done, taken=True, catalogue=new), found


# ---- decisions -----------------------------------------------------------------------------------------------------


def count_errors(results: Iterable[QueryResult], names: Sequence[str]) -> dict[str, float]:
    """By skill: the share of runs in which its queries went elsewhere, and in which it took others' queries, summed."""
    errors = dict.fromkeys(names, 0.0)
    for result in results:
        query = result.query
        if query.right:
            errors[query.right] += 1 - result.loads.get(query.right, 0) / result.runs
        for name, loads in result.loads.items():
            if name in errors and name != query.right and (query.right is not None or name in query.wrong):
                errors[name] += loads / result.runs
    return errors


def choose_skill(errors: dict[str, float], idle: Counter[str], patience: int) -> str | None:
    """The skill with the most errors, of those that were not tried for too long; None if none is left."""
    left = [name for name, count in errors.items() if count > 0 and idle[name] < patience]
    return max(left, key=lambda name: (errors[name] / (1 + idle[name]), name)) if left else None


def list_concerned(results: Iterable[QueryResult], skill: str) -> list[TriggerQuery]:
    """The queries that a new description of the skill is likely to change: its own, those that it took, and those of
    the skills that it is taken for."""
    results = list(results)
    rivals = {name for each in results if each.query.right == skill for name in each.loads}
    rivals |= {each.query.right for each in results if each.query.right and skill in each.loads}
    return [each.query for each in results if skill in each.loads or each.query.right in rivals | {skill}]


def count_race_runs(queries: int, runs: int) -> int:
    """How often each query is run in a race. `runs`: how often it is run in a measurement."""
    return min(runs, max(1, -(-RACE_ROLLOUTS // max(1, queries))))


def choose_winner(compared: Sequence[PairedStats | None]) -> int | None:
    """The candidate with the largest gain in the race; None if none has one."""
    gains = [(each.difference, -number) for number, each in enumerate(compared) if each is not None]
    best = max(gains, default=(0.0, 0))
    return -best[1] if best[0] > 0 else None


def is_better(paired: PairedStats | None, certainty: float) -> bool:
    """Whether a description is taken: it is better on average, and on more than half of the queries that it changes,
    with this probability."""
    return paired is not None and paired.difference > 0 and paired.better >= certainty


# ---- the optimizer -----------------------------------------------------------------------------------------------


async def ask_for_candidates(
    optimizer: Optimizer,
    catalogue: Catalogue,
    skill: str,
    results: Sequence[QueryResult],
    settings: TriggerSettings,
    number: int,
    tried: Sequence[str] = (),
) -> tuple[str, ...] | UnusableReply:
    """New descriptions of a skill, each once, without the current one. `tried`: those that were no better."""
    missed, taken, right = sort_queries(results, skill)
    guard, old = make_guard(results), catalogue.get(skill).description
    reply = await optimizer.ask(
        PROMPT,
        {
            "catalogue": "\n".join(f"- {card.name}: {card.description}" for card in catalogue.cards),
            "skill": skill,
            "description": old,
            "missed": _list_lines(missed, skill),
            "taken": _list_lines(taken, skill),
            "right": _list_lines(right, skill),
            "tried": "\n".join(f"- {' '.join(text.split())}" for text in tried[-SHOWN:]) or "(none)",
            "count": str(settings.candidates),
            "chars": str(DESCRIPTION_CHARS),
        },
        DescriptionReply,
        stage=PROMPT,
        place=f"round {number}",
        otherwise="the description stays as it is",
        check=lambda reply: check_reply(reply, guard, old),
    )
    if isinstance(reply, UnusableReply):
        return reply
    texts = map(join_lines, reply.descriptions)
    return tuple(dict.fromkeys(text for text in texts if text != join_lines(old)))[: settings.candidates]


def make_guard(results: Iterable[QueryResult]) -> Guard:
    """What no description may hold: secrets, hidden characters, and long pieces of requests, which may be of users."""
    tasks = [Task(id=each.query.id, prompt=each.query.text) for each in results]
    return Guard(GuardSettings(words=COPIED_WORDS), tasks, ())


def check_reply(reply: DescriptionReply, guard: Guard, old: str = "") -> str:
    """What is wrong with a reply; empty if nothing is. `old`: the description, whose text is allowed."""
    if not reply.descriptions:
        return "`descriptions` is empty"
    for text in reply.descriptions:
        if not text.strip():
            return "a description is empty"
        if len(text.strip()) > DESCRIPTION_CHARS:
            return f"a description has {len(text.strip())} characters; at most {DESCRIPTION_CHARS} are allowed"
        if fault := guard.find_fault(Skill(old), text):
            return f"a description cannot be used: {fault.describe()}"
    return ""


def join_lines(text: str) -> str:
    """A description as one line: where agents list skills line by line, another line could pass for another skill."""
    return " ".join(text.split())


def sort_queries(
    results: Iterable[QueryResult], skill: str
) -> tuple[list[QueryResult], list[QueryResult], list[QueryResult]]:
    """Queries that the skill missed at least once, that it took from others, and that it always gets; the worst
    first."""
    missed, taken, right = list[QueryResult](), list[QueryResult](), list[QueryResult]()
    for each in results:
        share = each.loads.get(skill, 0) / each.runs
        if each.query.right == skill:
            (right if share == 1 else missed).append(each)
        elif share and (each.query.right is not None or skill in each.query.wrong):
            taken.append(each)
    missed.sort(key=lambda each: each.loads.get(skill, 0) / each.runs)
    taken.sort(key=lambda each: -each.loads[skill] / each.runs)
    return missed, taken, right


def _list_lines(results: Sequence[QueryResult], skill: str) -> str:
    lines = (f"- {' '.join(each.query.text.split())[:400]}{_say_instead(each, skill)}" for each in results[:SHOWN])
    return "\n".join(lines) or "(none)"


def _say_instead(each: QueryResult, skill: str) -> str:
    if each.query.right != skill:
        return f"   (right: {each.query.right or 'no skill'})"
    others = [name for name in each.loads if name != skill]
    if each.loads.get(skill, 0) == each.runs:
        return ""
    return f"   (loaded instead: {', '.join(others) or 'no skill'})"


def _average(results: Sequence[QueryResult]) -> float | None:
    return sum(each.rate for each in results) / len(results) if results else None


def _replace(done: DescriptionRound, **changes: object) -> DescriptionRound:
    import msgspec

    return msgspec.structs.replace(done, **changes)
