"""`ludus triggers DIR --propose N --out queries.jsonl`: a file of proposed queries for a person to read.

Rows that the file has already stay as they are, and skills with proposed rows are not asked for again. The file is
replaced after each skill, so after a kill the same command goes on.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ludus.catalogue import Catalogue, list_packages, read_card
from ludus.command.terminal import make_console, make_table, make_text, print_notice
from ludus.config import Config
from ludus.config.build_models import build_ledger, build_models
from ludus.encoding import to_json
from ludus.envs.dataset import load_rows
from ludus.envs.triggers import QueryRow, TriggerEnv, read_queries
from ludus.errors import ConfigError
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.skill_folder import read_skill
from ludus.store import MemoryStore
from ludus.triggers.query_proposals import SkillProposal, list_done_skills, propose_queries


def run_proposals(config: Config, env: TriggerEnv, prompts: Prompts, count: int, out: Path, *, as_json: bool) -> int:
    """Propose queries for each skill of the catalogue, write them, and say what they are worth."""
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out: {out} should be a .jsonl file for the proposed queries")
    catalogue = env.read_catalogue()
    folders = list_packages([Path(path).expanduser() for path in env.skills])
    done = asyncio.run(_propose(config, folders, catalogue, prompts, count, out))
    if as_json:
        print(json.dumps({"queries": str(out), "skills": json.loads(to_json(done))}))
    else:
        _print_proposals(done, out)
    return 1 if any(each.problem for each in done) else 0


async def _propose(
    config: Config, folders: Sequence[Path], catalogue: Catalogue, prompts: Prompts, count: int, out: Path
) -> list[SkillProposal]:
    kept = read_known(out, catalogue)
    skills = [(read_card(folder).name, read_skill(folder)) for folder in folders]
    lines, known = [each.rstrip("\n") for each in kept[0]], [row.query for row in kept[1]]
    earlier = list_done_skills(kept[1])
    agent, model = build_models(config, build_ledger(config), print_notice)
    found: list[SkillProposal] = []
    try:
        asking = model or agent
        seed, many = config.run.seed, config.run.concurrency
        optimizer = Optimizer(asking, prompts, MemoryStore(), Journal(), concurrency=many, seed=seed)
        for name, skill in skills:
            if name in earlier:
                print_notice(f"{name}: {out} has proposed queries for it already")
                continue
            done = await propose_queries(optimizer, catalogue, skill, name, count, known)
            found.append(done)
            lines += [to_json(row).decode() for row in done.rows]
            known += [row.query for row in done.rows]
            write_lines(out, lines)
            print_notice(f"{name}: {done.problem or f'{len(done.rows)} queries'}")
    finally:
        await agent.close()
        if model is not None:
            await model.close()
    return found


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
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written: {error.strerror}") from None


def _print_proposals(done: Sequence[SkillProposal], out: Path) -> None:
    console = make_console()
    table = make_table(
        "skill", "for it", "near misses", "words of the description", "dropped: copies", "known, or no text"
    )
    for each in done:
        right = sum(row.skill is not None for row in each.rows)
        overlap = "none" if each.overlap is None else f"{each.overlap:.0%}"
        cells = (str(right), str(len(each.rows) - right), overlap, str(each.copied), str(each.known))
        table.add_row(make_text(each.skill), *cells)
    console.print(table)
    for each in done:
        if each.problem:
            console.print(make_text(f"{each.skill}: no queries: {each.problem}", "red"), soft_wrap=True)
    console.print(
        make_text(
            f"{out}   every row has `source: proposed`. Read them, correct `skill`, and remove the source of those "
            "that you have checked: checked queries are sealed first, and claims say how many were not",
            "dim",
        ),
        soft_wrap=True,
    )
