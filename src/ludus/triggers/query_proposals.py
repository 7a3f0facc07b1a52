"""Queries for a catalogue that a model proposes from the packages. They are marked as proposed wherever they go.

    packages ──> the optimizer, for each skill ──> requests for it, and near misses ──> rows of a file

A near miss says only that the skill would be wrong (`not`): which other one is right is not the model's to say. A
request that repeats the description tests nothing, because any agent matches equal words. So each row says how many of
its words the description has (`overlap`), and one that copies a part of the description is dropped and counted. A
person should read the rows: a claim that rests on proposed queries says so (`ludus.triggers.claims`).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from ludus.catalogue import Catalogue
from ludus.envs.triggers import PROPOSED, QueryRow
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.records import UnusableReply
from ludus.skill import Skill

PROMPT = "queries"
NEIGHBOURS = 3
"""Skills that the proposer is told to write near misses for."""
_SHOWN_CHARS = 3_000
"""What is shown of a skill's body."""
QUERY_CHARS = 1_000
"""A longer request is no query."""
_COPIED_WORDS = 5
"""A request with so many words of the description in a row copies it."""
_WORD = re.compile(r"\w+")
_LEAST_CHARS = 4
"""Shorter words say little about what a request is for."""


class QueryReply(Struct, frozen=True):
    """What the optimizer answers."""

    should: tuple[str, ...]
    should_not: tuple[str, ...] = ()


class ProposedQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a file of queries, as it is written."""

    query: str
    source: str  # without a default, which would not be written
    skill: str | None = None
    wrong: tuple[str, ...] = field(default=(), name="not")
    overlap: float = 0.0
    """The share of its words that the description of the skill has, too."""


class SkillProposal(Struct, frozen=True, kw_only=True):
    """What was proposed for one skill."""

    skill: str
    rows: tuple[ProposedQuery, ...] = ()
    copied: int = 0
    """Requests that were dropped because they repeat the description."""
    known: int = 0
    """Requests that were dropped because they are there already, or are no text of a usual length."""
    problem: str = ""
    """Why there are none."""

    @property
    def overlap(self) -> float | None:
        """On average over the requests that the skill is for."""
        shares = [row.overlap for row in self.rows if row.skill is not None]
        return sum(shares) / len(shares) if shares else None


async def propose_queries(
    optimizer: Optimizer,
    catalogue: Catalogue,
    skill: Skill,
    name: str,
    count: int,
    known: Sequence[str],
    *,
    private: Collection[str] = (),
) -> SkillProposal:
    """Ask for requests for one skill. `known`: those that there are already. `private`: those that are not shown."""
    shown = [text for text in known if text not in private]
    reply = await optimizer.ask(
        PROMPT,
        make_values(catalogue, skill, name, count, shown),
        QueryReply,
        stage=PROMPT,
        place=name,
        otherwise="there are no proposed queries for this skill",
        check=check_queries,
    )
    if isinstance(reply, UnusableReply):
        return SkillProposal(skill=name, problem=reply.problem)
    return sort_reply(reply, name, catalogue.get(name).description, count, known)


def make_values(catalogue: Catalogue, skill: Skill, name: str, count: int, known: Sequence[str]) -> Mapping[str, str]:
    """The values of the prompt."""
    near = find_neighbours(catalogue, name)
    return {
        "count": str(count),
        "catalogue": "\n".join(f"- {card.name}: {' '.join(card.description.split())}" for card in catalogue.cards),
        "skill": name,
        "description": catalogue.get(name).description,
        "body": skill.body[:_SHOWN_CHARS] or "(empty)",
        "neighbours": "\n".join(f"- {other}" for other in near) or "(none)",
        "known": "\n".join(f"- {' '.join(text.split())[:200]}" for text in known[-20:]) or "(none)",
    }


def check_queries(reply: QueryReply) -> str:
    """What is wrong with a reply; empty if nothing is."""
    return "" if any(text.strip() for text in reply.should) else "`should` has no request"


def sort_reply(reply: QueryReply, name: str, description: str, count: int, known: Iterable[str]) -> SkillProposal:
    """The rows of a reply: without copies of the description, and each request once."""
    seen, rows = {fold_words(text) for text in known}, list[ProposedQuery]()
    copied = dropped = 0
    for right, texts in ((True, reply.should), (False, reply.should_not)):
        for text in [" ".join(each.split()) for each in texts][:count]:
            if not text.isprintable() or not text or len(text) > QUERY_CHARS or fold_words(text) in seen:
                dropped += 1
            elif right and copies_description(text, description):
                copied += 1
            else:
                seen.add(fold_words(text))
                rows.append(_make_row(text, name, description, right=right))
    return SkillProposal(skill=name, rows=tuple(rows), copied=copied, known=dropped)


def _make_row(text: str, name: str, description: str, *, right: bool) -> ProposedQuery:
    overlap = measure_overlap(text, description)
    if right:
        return ProposedQuery(query=text, skill=name, source=PROPOSED, overlap=overlap)
    return ProposedQuery(query=text, wrong=(name,), source=PROPOSED, overlap=overlap)


# ---- words ----------------------------------------------------------------------------------------------------------


def measure_overlap(query: str, description: str) -> float:
    """The share of the query's words that the description has. Short words do not count."""
    asked = {word for word in _list_words(query) if len(word) >= _LEAST_CHARS}
    return round(len(asked & set(_list_words(description))) / len(asked), 2) if asked else 0.0


def copies_description(query: str, description: str) -> bool:
    """Whether the query has several words of the description in a row."""
    asked, said = _list_words(query), f" {' '.join(_list_words(description))} "
    runs = (asked[at : at + _COPIED_WORDS] for at in range(len(asked) - _COPIED_WORDS + 1))
    return any(f" {' '.join(run)} " in said for run in runs)


def find_neighbours(catalogue: Catalogue, name: str) -> list[str]:
    """The skills whose descriptions share most words with that of this one."""
    own = set(_list_words(catalogue.get(name).description))
    shared = {
        card.name: len(own & {word for word in _list_words(card.description) if len(word) >= _LEAST_CHARS})
        for card in catalogue.cards
        if card.name != name
    }
    return sorted((other for other, count in shared.items() if count), key=lambda other: (-shared[other], other))[
        :NEIGHBOURS
    ]


def _list_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def fold_words(text: str) -> str:
    return " ".join(_list_words(text))


# ---- the file -------------------------------------------------------------------------------------------------------


def list_done_skills(rows: Iterable[QueryRow]) -> set[str]:
    """The skills that rows were proposed for already."""
    proposed = [row for row in rows if row.source == PROPOSED]
    return {name for row in proposed for name in ((row.skill,) if row.skill else row.wrong)}
