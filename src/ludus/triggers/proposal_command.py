"""`ludus triggers DIR --propose N --transcripts PATH --out queries.jsonl`: a file of queries for a person to read.

Transcripts are read first: what users really asked for. Then the optimizer is asked for each skill. It does not get
the queries of transcripts: they are past work, and its model may be elsewhere.

Rows that the file has already stay as they are, and skills with proposed rows are not asked for again. The file is
replaced after each skill, so after a kill the same command goes on.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.catalogue import Catalogue, read_card
from ludus.command.terminal import make_console, make_table, make_text, print_notice
from ludus.config import Config
from ludus.config.build_models import build_ledger, build_models
from ludus.encoding import to_json
from ludus.envs.dataset import load_rows
from ludus.envs.triggers import TRANSCRIPT, QueryRow, read_queries
from ludus.errors import ConfigError
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.skill_folder import read_skill
from ludus.store import MemoryStore
from ludus.transcripts.intake import read_sessions
from ludus.transcripts.masking import mask_session
from ludus.triggers.past_queries import PastQueries, make_past_queries
from ludus.triggers.query_proposals import ProposedQuery, SkillProposal, list_done_skills, propose_queries
from ludus.whole_files import write_whole


@dataclass(frozen=True)
class ProposalRequest:
    """What is asked for."""

    folders: Sequence[Path]
    """The packages."""
    catalogue: Catalogue
    count: int
    """Queries of each sort for each skill; 0: the optimizer is not asked."""
    transcripts: Sequence[Path]
    out: Path


def run_proposals(config: Config, request: ProposalRequest, prompts: Prompts, *, as_json: bool) -> int:
    """Write queries for each skill of the catalogue, and say what they are worth."""
    rows = _ProposedRows.read(request.out, request.catalogue)
    past = _read_transcripts(request, rows)
    done = asyncio.run(_propose(config, request, prompts, rows)) if request.count else []
    if as_json:
        left_out = dict(past.left_out)
        facts = {"queries": str(request.out), "transcripts": len(past.rows), "left_out": left_out}
        print(json.dumps({**facts, "skills": json.loads(to_json(done))}))
    else:
        _print_proposals(done, past, request.out)
    return 1 if any(each.problem for each in done) else 0


def _read_transcripts(request: ProposalRequest, rows: "_ProposedRows") -> PastQueries:
    if not request.transcripts:
        return PastQueries()
    masked = (mask_session(session)[0] for session in read_sessions(request.transcripts))
    found = make_past_queries(masked, request.catalogue, rows.texts)
    rows.add(found.rows)
    return found


async def _propose(
    config: Config, request: ProposalRequest, prompts: Prompts, rows: "_ProposedRows"
) -> list[SkillProposal]:
    skills = [(read_card(folder).name, read_skill(folder)) for folder in request.folders]
    agent, model = build_models(config, build_ledger(config), print_notice)
    found: list[SkillProposal] = []
    try:
        seed, many = config.run.seed, config.run.concurrency
        optimizer = Optimizer(model or agent, prompts, MemoryStore(), Journal(), concurrency=many, seed=seed)
        for name, skill in skills:
            if name in rows.done:
                print_notice(f"{name}: {request.out} has proposed queries for it already")
                continue
            done = await propose_queries(
                optimizer, request.catalogue, skill, name, request.count, rows.texts, private=rows.private
            )
            found.append(done)
            rows.add(done.rows)
            if not done.problem:  # problems are said at the end
                print_notice(f"{name}: {len(done.rows)} queries")
    finally:
        await agent.close()
        if model is not None:
            await model.close()
    return found


@dataclass
class _ProposedRows:
    """The lines of the file, those that were there before first."""

    out: Path
    lines: list[str]
    texts: list[str]
    private: frozenset[str]
    """Those of transcripts."""
    done: frozenset[str]
    """Skills that it has proposed rows for."""

    @classmethod
    def read(cls, out: Path, catalogue: Catalogue) -> "_ProposedRows":
        lines, rows = read_known(out, catalogue)
        private = frozenset(row.query for row in rows if row.source == TRANSCRIPT)
        return cls(out, lines, [row.query for row in rows], private, frozenset(list_done_skills(rows)))

    def add(self, rows: Sequence[ProposedQuery]) -> None:
        self.lines += [to_json(row).decode() for row in rows]
        self.texts += [row.query for row in rows]
        self.private |= {row.query for row in rows if row.source == TRANSCRIPT}
        write_lines(self.out, self.lines)


def read_known(out: Path, catalogue: Catalogue) -> tuple[list[str], list[QueryRow]]:
    """The lines and rows that the file has already.

    Raises:
        ConfigError: it is there, and is no file of queries for this catalogue.
    """
    if not out.exists() or not out.read_bytes().strip():
        return [], []
    read_queries(str(out), catalogue)  # raises if it is something else
    rows = [row.item for row in load_rows(str(out), QueryRow, "", texts=["query"])]
    return [line for line in out.read_text("utf-8").split("\n") if line.strip()], rows


def write_lines(out: Path, lines: Iterable[str]) -> None:
    """Replace the file: readers see the old one or the new one."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, (f"{line}\n".encode() for line in lines))
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written: {error.strerror}") from None


def _print_proposals(done: Sequence[SkillProposal], past: PastQueries, out: Path) -> None:
    console = make_console()
    if past.rows or past.left_out:
        console.print(make_text(f"{len(past.rows)} queries are of transcripts (their secrets are masked)"))
        for why, count in past.left_out.most_common():
            console.print(make_text(f"  {count} sessions are left out: {why}", "dim"), soft_wrap=True)
    table = make_table(
        "skill", "for it", "near misses", "words of the description", "dropped: copies", "known, or no text"
    )
    for each in done:
        right = sum(row.skill is not None for row in each.rows)
        overlap = "none" if each.overlap is None else f"{each.overlap:.0%}"
        cells = (str(right), str(len(each.rows) - right), overlap, str(each.copied), str(each.known))
        table.add_row(make_text(each.skill), *cells)
    if done:
        console.print(table)
    for each in done:
        if each.problem:
            console.print(make_text(f"{each.skill}: no queries: {each.problem}", "red"), soft_wrap=True)
    if not past.rows and not any(each.rows for each in done):
        console.print(make_text(f"{out}   no row was added", "dim"), soft_wrap=True)
        return
    console.print(
        make_text(
            f"{out}   every new row has a `source`. Read them, correct `skill`, and remove the source of those "
            "that you have checked: checked queries are sealed first, and claims say how many were not",
            "dim",
        ),
        soft_wrap=True,
    )
