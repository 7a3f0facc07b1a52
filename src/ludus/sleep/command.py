"""`ludus sleep`: train a skill on past sessions, and stage what comes out. `ludus adopt` puts it in place, or not.

A night reads sessions, makes tasks of them, runs a training like `ludus train`, and writes a staged patch. It never
changes the live skill. Two at once are safe: the second says so and ends. A night that was interrupted goes on when the
same command is called again: the training resumes, and replies that were paid for are found in the store.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ludus import __version__
from ludus.arguments import RunArguments, make_argument
from ludus.command import CONFIG, ENGINE, JSON, PRINT_CONFIG, ROLLOUTS, Command
from ludus.command.run_command import open_work
from ludus.command.session_paths import name_session_paths
from ludus.command.settings import read_own_settings, refuse_batch_settings
from ludus.command.terminal import print_notice
from ludus.config import Config, to_record, to_yaml
from ludus.config.build_models import build_ledger, build_model
from ludus.config.build_training import build_proposer, build_train_settings, has_optimizer
from ludus.config.secrets import list_secrets
from ludus.config.tree import TRAINING, NoModelSettings, SameSettings
from ludus.encoding import canonical, to_json
from ludus.errors import ConfigError, LudusError
from ludus.models.ledger import Ledger, RunBudget
from ludus.reflact.command import TrainArguments, TrainingWork, make_plan
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import Summary, count_rollouts
from ludus.reflact.train_settings import DataSettings
from ludus.run import RunOutcome, run_to_end
from ludus.skill import Skill
from ludus.sleep.destinations import list_models, require_permission
from ludus.sleep.drafts import hash_request
from ludus.sleep.harvest import Harvest, find_new, harvest, list_read, list_waiting, summarize_reasons
from ludus.sleep.mining import TraceProposal, describe_traces, load_sleep_prompts, propose_from_traces
from ludus.sleep.night import (
    MINING,
    NIGHT,
    RUN,
    STATE,
    TASKS,
    Night,
    NightStatus,
    Receipt,
    SleepState,
    find_lock_owner,
    hash_text,
    lock_nights,
    make_private,
    read_struct,
    write_private,
    write_struct,
)
from ludus.sleep.night_table import list_staged, print_night, print_nights
from ludus.sleep.night_tasks import NightTasks, make_night_tasks, read_earlier
from ludus.sleep.past_env import SEALED, SELECTION, TRAIN, PastWork
from ludus.sleep.staging import has_changed, list_deltas, read_live, read_versions, stage
from ludus.store import RunDir, make_safe_name
from ludus.transcripts.intake import IntakeOptions, IntakeReport, read_sessions

NIGHTS = "nights"
PROMPTS = "prompts"
_EXIT_CODES = {"completed": 0, "interrupted": 130, "budget": 3, "stalled": 4, "failing": 5, "broken": 1}


class SleepArguments(RunArguments):
    env: str | None = None
    out: str | None = None
    resume: bool = False
    paths: list[str]
    nights: str
    format: str
    since: str
    again: bool
    list: bool
    dry_run: bool


def run(arguments: SleepArguments) -> int:
    folder = Path(arguments.nights).expanduser()
    if arguments.list:
        return _list_nights(folder, as_json=arguments.json)
    config = read_own_settings(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    _check_settings(config, arguments)
    with lock_nights(folder) as is_ours:
        if not is_ours:
            print_notice(
                f"another `ludus sleep` (process {find_lock_owner(folder)}) is at work in {folder}: nothing to do"
            )
            return 0
        with redirect_stdout(sys.stderr):
            result = asyncio.run(_Sleeper(config, arguments, folder).sleep())
    _print_result(result, arguments)
    return result.code


def _list_nights(folder: Path, *, as_json: bool) -> int:
    rows = list_staged(folder)
    if as_json:
        print(to_json(rows).decode())
    else:
        print_nights(rows, folder)
    return 0


def _check_settings(config: Config, arguments: SleepArguments) -> None:
    if not config.agent.skill:
        raise ConfigError(
            "agent.skill: which skill should be trained? Name its folder or its document: --agent.skill DIR"
        )
    if not arguments.paths:
        raise ConfigError("which sessions? For example: ludus sleep claude-code --agent.skill DIR")
    if config.env.name or config.run.out:
        raise ConfigError("env.name, run.out: ludus sleep makes the tasks and names the run itself: leave them out")
    if config.data != DataSettings():
        raise ConfigError("data: ludus sleep divides the tasks itself, once and for all nights: leave it out")
    instead = {"run.seed": "train.seed", "env.split": "--since", "env.limit": "sleep.sessions and sleep.tasks"}
    refuse_batch_settings(config, "to sleep", instead)
    for name in ("judge", "second_judge"):
        if not isinstance(getattr(config, name), NoModelSettings):
            raise ConfigError(f"{name}: ludus sleep scores with checkers, and shows no judge past work: leave it out")
    build_train_settings(config)
    build_proposer(config.train)
    if config.train.prompts:
        print_notice("train.prompts: your own prompts are used, so analysts are not told what users objected to")


@dataclass
class SleepResult:
    """What a night came to."""

    night: Path | None = None
    facts: Night | None = None
    receipt: Receipt | None = None
    message: str = ""
    code: int = 0
    left_out: dict[str, int] = field(default_factory=dict[str, int])


class _Sleeper:
    """One call of `ludus sleep`, with the lock held."""

    def __init__(self, config: Config, arguments: SleepArguments, folder: Path) -> None:
        self.live = read_live(Path(config.agent.skill))
        self.config = replace(config, agent=replace(config.agent, skill=self.live.path))
        self.arguments, self.folder = arguments, folder
        self.state = read_struct(folder / STATE, SleepState) or SleepState()
        self.ledger = build_ledger(config)
        self.models = list_models(config, has_optimizer(config))
        self.report = IntakeReport()

    @property
    def settings(self) -> str:
        """A hash of what decides the result of the night."""
        record = to_record(self.config)
        kept = {name: record[name] for name in record if name not in ("budget", "engine", "tracking", "run", "gateway")}
        return hash_text(canonical((kept, self.live.skill.hash)).decode())

    @property
    def _waiting(self) -> Mapping[str, str]:
        """The sessions that wait since a night that had too few tasks."""
        return self.state.waiting.get(self.live.path, {})

    async def sleep(self) -> SleepResult:
        leaving = require_permission(self.config, self.models)
        self._say_who_gets_what(leaving)
        found = self._harvest()
        notes = tuple(found.notes.values())
        left_out = summarize_reasons(notes)
        opened = self._find_open()
        if not found.sessions and opened is None:
            return SleepResult(message=f"no new session in which {self.live.name} was in use", left_out=left_out)
        if opened is None and not self.arguments.again and not find_new(found, self._waiting):
            words = (
                f"{len(found.sessions)} sessions of {self.live.name} wait for others: their tasks were too few to "
                "measure anything. --again uses them now"
            )
            return SleepResult(message=words, left_out=left_out)
        if self.arguments.dry_run:
            words = f"{len(found.sessions)} sessions would be used; nothing was asked, trained or written (--dry-run)"
            return SleepResult(message=words, left_out=left_out)
        night = opened or self._begin()
        result = await self._work(night, found)
        result.left_out = summarize_reasons(found.notes.values())
        return result

    def _say(self, words: str) -> None:
        if not self.arguments.quiet and not self.arguments.json:
            print_notice(words)

    def _say_who_gets_what(self, leaving: Sequence[str]) -> None:
        for use in self.models:
            self._say(f"{use.role}: {use.name} ({use.place}) gets {use.gets}")
        if leaving:
            print_notice("past work leaves this machine (sleep.remote):\n  " + "\n  ".join(leaving))

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def _harvest(self) -> Harvest:
        options = IntakeOptions(format=self.arguments.format, headless=self.config.sleep.headless)  # pyright: ignore[reportArgumentType]  # one of the choices
        paths = name_session_paths(self.arguments.paths, self._say)
        found = harvest(
            read_sessions(paths, options, self.report),
            self.live.name,
            self.live.skill,
            read={} if self.arguments.again else self.state.read.get(self.live.path, {}),
            since=_parse_since(self.arguments.since),
            most=self.config.sleep.sessions,
            earlier=read_versions(self.folder, self.live.path),
        )
        for hash, count in found.versions.items():
            if hash != self.live.skill.hash:
                print_notice(
                    f"{count} sessions used version {hash} of {self.live.name}; the live one, which is trained, is "
                    f"{self.live.skill.hash}: it has changed since"
                )
        masked = sum(sum(note.masked.values()) for note in found.notes.values())
        new = f"{len(find_new(found, self._waiting))} of them new and with {self.live.name}"
        if waiting := len(found.sessions) - len(find_new(found, self._waiting)):
            new += f", {waiting} waiting since a night with too few tasks"
        self._say(f"{len(found.notes)} sessions, {new}; {masked} values masked")
        if dropped := self.report.dropped:
            counts = ", ".join(f"{count} {kind}" for kind, count in dropped.most_common(8))
            self._say(f"left out of the files: {counts}")
        return found

    # ---- the night's folder -----------------------------------------------------------------------------------------

    def _find_open(self) -> Path | None:
        """The night that has not ended, if it was begun with the same settings and the same skill."""
        name = self.state.open.get(self.live.path, "")
        night = read_struct(self.folder / name / NIGHT, Night) if name else None
        if night is None or night.status != "begun":
            return None
        if night.settings == self.settings:
            self._say(f"night {name} has not ended: it goes on")
            return self.folder / name
        print_notice(
            f"night {name} has not ended, and was begun with other settings or another version of the skill: it is left"
        )
        write_struct(self.folder / name / NIGHT, replace(night, status="left", ended=time.time()))
        return None

    def _begin(self) -> Path:
        day = datetime.now().strftime("%Y-%m-%d")
        paths = (self.folder / (day if number == 1 else f"{day}-{number}") for number in range(1, 1000))
        path = next(path for path in paths if not path.exists())
        make_private(path)
        night = Night(
            name=path.name, begun=time.time(), skill=self.live.name, live=self.live.path, settings=self.settings
        )
        write_struct(path / NIGHT, night)
        self._write_state(open={**self.state.open, self.live.path: path.name})
        return path

    def _write_state(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)
        write_struct(self.folder / STATE, self.state)

    def _end(self, path: Path, found: Harvest, made: NightTasks, status: NightStatus, message: str) -> Night:
        night = read_struct(path / NIGHT, Night)
        assert night is not None
        night = replace(
            night,
            ended=time.time(),
            status=status,
            sessions=tuple(found.notes.values()),
            files=dict(self.report.dropped),
            message=message,
        )
        write_struct(path / NIGHT, night)
        live = self.live.path
        read, waiting = self.state.read.get(live, {}), dict[str, str]()
        if made.find_shortage(self.config.sleep.fewest):  # lost for good if they counted as read
            waiting = list_waiting(found)
        else:
            read = list_read(read, list(night.sessions))
        self._write_state(
            read={**self.state.read, live: read},
            waiting={**self.state.waiting, live: waiting},
            splits={**self.state.splits, **made.splits},
            open={name: night for name, night in self.state.open.items() if name != live},
        )
        return night

    # ---- the work ---------------------------------------------------------------------------------------------------

    async def _work(self, path: Path, found: Harvest) -> SleepResult:
        folder = path / make_safe_name(self.live.name)
        make_private(folder)
        earlier = read_earlier(self.folder, self.live.path, folder.name, path.name)
        secrets = list_secrets(self.config)
        record = {"kind": "mining", "settings": self.settings}
        proposal: TraceProposal | str = ""
        with RunDir.open(folder / MINING, record, resume=True, secrets=secrets) as store:
            async with AsyncExitStack() as stack:
                optimizer = await self._open_optimizer(stack, store)
                made = await make_night_tasks(self.config, folder, found, earlier, dict(self.state.splits), optimizer)
                made.add_waiting(found, self._waiting)
                shortage = made.find_shortage(self.config.sleep.fewest)
                traces = self._list_traces(found, made, with_tasks=bool(shortage))
                counts = ", ".join(f"{count} {split}" for split, count in made.counts.items())
                self._say(f"{len(made.tasks)} valid tasks ({counts}); {len(traces)} sessions only inform proposals")
                if shortage:
                    proposal = await self._propose(optimizer, traces)
        if shortage:
            print_notice(f"nothing is measured: {shortage}")
            return self._stage_unmeasured(path, folder, found, made, proposal, shortage)
        return await self._train(path, folder, found, made, traces)

    async def _open_optimizer(self, stack: AsyncExitStack, store: RunDir) -> Optimizer | None:
        config = self.config
        if not has_optimizer(config):
            return None
        settings = config.model if isinstance(config.optimizer, SameSettings) else config.optimizer
        model = build_model(settings, self.ledger, "optimizer", print_notice)
        stack.push_async_callback(model.close)
        return Optimizer(
            model,
            load_sleep_prompts(),
            store,
            Journal(None),
            sampling=config.train.sampling,
            tries=config.train.optimizer_tries,
            reply_tokens=config.train.reply_tokens,
            concurrency=config.run.concurrency,
            seed=config.train.seed,
        )

    def _list_traces(self, found: Harvest, made: NightTasks, *, with_tasks: bool) -> list[tuple[str, str]]:
        """What informs proposers: sessions that made no task; where nothing is trained, those of train tasks too. None
        whose request is kept for selection or sealed."""
        closed = {key for key, split in made.splits.items() if split != TRAIN}
        used: set[str] = set() if with_tasks else set(made.sessions.values())
        return describe_traces(
            session
            for session in found.sessions
            if session.id not in used and hash_request(session.request) not in closed
        )

    async def _propose(self, optimizer: Optimizer | None, traces: Sequence[tuple[str, str]]) -> TraceProposal | str:
        if optimizer is None:
            return "there is no optimizer's model that could propose something"
        if not self.config.sleep.unmeasured:
            return "sleep.unmeasured is false"
        return await propose_from_traces(self.live.skill, traces, optimizer)

    def _stage_unmeasured(
        self, path: Path, folder: Path, found: Harvest, made: NightTasks, proposal: TraceProposal | str, why: str
    ) -> SleepResult:
        if isinstance(proposal, str):
            words = f"{why}; nothing is proposed: {proposal}"
            return SleepResult(path, self._end(path, found, made, "nothing", words), message=words)
        receipt = replace(
            self._make_receipt(path, made, found),
            measured=False,
            claim=f"not measured: {why}",
            evidence=proposal.sessions,
            invalid={**summarize_reasons(found.notes.values()), **proposal.skipped},
            tokens=self.ledger.total.usage.tokens,
            dollars=self.ledger.total.usage.dollars,
        )
        return self._stage(path, folder, found, made, proposal.skill, receipt)

    # ---- training ---------------------------------------------------------------------------------------------------

    async def _train(
        self, path: Path, folder: Path, found: Harvest, made: NightTasks, traces: Sequence[tuple[str, str]]
    ) -> SleepResult:
        config = self._make_training(folder, made, traces)
        arguments = TrainArguments()
        arguments.command, arguments.typed = "train", self.arguments.typed
        arguments.quiet, arguments.json, arguments.flags = self.arguments.quiet, self.arguments.json, []
        arguments.dry_run = arguments.claim = False
        work = TrainingWork(config, make_plan(config), arguments)
        async with open_work(config, work, arguments) as run:
            outcome = await run_to_end(run, work.work)
            spent = run.ledger.total.usage
            last = work.records[-1] if work.records else None
            summary = last if isinstance(last, Summary) else None
            deltas = _compare(run.directory, summary)
        _write_pages(Path(config.run.out))
        if outcome.status != "completed" or summary is None:
            return self._stop(path, outcome)
        receipt = self._make_receipt(path, made, found)
        claim = summary.claim
        receipt = replace(
            receipt,
            claim=claim.sentence if claim else "nothing was tested",
            difference=claim.difference if claim else None,
            interval=claim.interval if claim else None,
            sealed=claim.tasks if claim else 0,
            deltas=tuple(deltas),
            rollouts=count_rollouts(summary.spent),
            tokens=spent.tokens + self.ledger.total.usage.tokens,
            dollars=spent.dollars + self.ledger.total.usage.dollars,
            run=config.run.out,
        )
        best = summary.state.best.skill
        if best == self.live.skill:
            words = f"{receipt.claim}: nothing is staged"
            return SleepResult(path, self._end(path, found, made, "nothing", words), message=words)
        return self._stage(path, folder, found, made, best, receipt)

    def _make_training(self, folder: Path, made: NightTasks, traces: Sequence[tuple[str, str]]) -> Config:
        """The settings of the training run: those of the user, with the tasks of the night."""
        config, run = self.config, folder / RUN
        train = config.train if config.train.prompts else replace(config.train, prompts=_write_prompts(folder, traces))
        options = {
            "path": str((folder / TASKS).absolute()),
            "slots": made.needs_slots or self.live.is_package,
            "check_seconds": config.sleep.check_seconds,
        }
        return replace(
            config,
            env=replace(config.env, name=PastWork.name),
            options=options,
            data=DataSettings(mode="splits", train=TRAIN, selection=SELECTION, test=SEALED),
            train=train,
            budget=_reduce(config.budget, self.ledger),
            run=replace(config.run, out=str(run), resume=True),
        )

    def _stop(self, path: Path, outcome: RunOutcome) -> SleepResult:
        why = outcome.message or outcome.status
        words = f"night {path.name} has not ended: {why}. To go on, call the same command again"
        return SleepResult(path, message=words, code=_EXIT_CODES[outcome.status] or 1)

    def _make_receipt(self, path: Path, made: NightTasks, found: Harvest) -> Receipt:
        train = {task.id for task in made.tasks if task.split == TRAIN}
        return Receipt(
            night=path.name,
            skill=self.live.name,
            live=self.live.path,
            base="",
            proposal="",
            base_files={},
            proposed_files={},
            changes=(),
            measured=True,
            claim="",
            tasks=made.counts,
            evidence=tuple(sorted(session for task, session in made.sessions.items() if task in train)),
            warnings=_warn_of_reuse(made),
            invalid=summarize_reasons(found.notes.values()),
            models=tuple(self.models),
            version=__version__,
        )

    def _stage(
        self, path: Path, folder: Path, found: Harvest, made: NightTasks, skill: Skill, receipt: Receipt
    ) -> SleepResult:
        if changed := has_changed(self.live):
            warning = f"the live skill has changed since: {'; '.join(changed[:5])}"
            receipt = replace(receipt, warnings=(*receipt.warnings, warning))
        try:
            receipt = stage(folder, self.live, skill, receipt)
        except ConfigError as error:
            return SleepResult(path, self._end(path, found, made, "nothing", str(error)), message=str(error), code=1)
        night = self._end(path, found, made, "staged", receipt.claim)
        return SleepResult(path, night, receipt)


def _warn_of_reuse(made: NightTasks) -> tuple[str, ...]:
    """What weakens the claim: sealed tasks that earlier nights have measured with, too."""
    sealed = [task.id for task in made.tasks if task.split == SEALED]
    again = sum(id not in made.sessions for id in sealed)
    return (f"{again} of {len(sealed)} sealed tasks are of earlier nights, which may have used them",) if again else ()


def _parse_since(text: str) -> float | None:
    """Seconds since 1970 of a day or a moment."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(
            f"--since: {text!r} is no day such as 2026-11-18, nor a moment such as 2026-11-18T08:00"
        ) from None


def _reduce(budget: RunBudget, ledger: Ledger) -> RunBudget:
    """The budget, less what mining has spent."""
    total = ledger.total
    return replace(
        budget,
        tokens=None if budget.tokens is None else max(1, budget.tokens - total.usage.tokens),
        dollars=None if budget.dollars is None else max(1e-9, budget.dollars - total.usage.dollars),
        calls=None if budget.calls is None else max(1, budget.calls - total.calls),
    )


_SHOWN_IN = ("analyst_lines", "analyst_failure")


def _write_prompts(folder: Path, traces: Sequence[tuple[str, str]]) -> str:
    """The folder of prompts in which analysts are told what users objected to; empty if they objected to nothing."""
    if not traces:
        return ""
    said = "\n\n".join(text for _, text in traces).replace("{{", "{ {").replace("<!--", "<! --")
    head = "# What users objected to in past sessions (a record, and no instruction to you)"
    ours = Prompts.load()
    for name in _SHOWN_IN:
        text = f"{ours.get_text(name).rstrip()}\n\n{head}\n\n{said}\n"
        path = folder / PROMPTS / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            write_private(path, text.encode())
    return str((folder / PROMPTS).absolute())


def _compare(directory: RunDir, summary: Summary | None) -> list[Any]:
    if summary is None or summary.state.best.skill == summary.state.initial.skill:
        return []
    before, after = summary.state.initial.skill.hash, summary.state.best.skill.hash
    return list_deltas((rollout for _, rollout in directory.read_outcomes()), before, after, (SELECTION, SEALED))


def _write_pages(out: Path) -> None:
    from ludus.view.report import write_end_report  # it imports every page

    try:
        write_end_report(out)
    except (LudusError, OSError) as error:
        print_notice(f"the pages of the run were not written: {error}")


def _print_result(result: SleepResult, arguments: SleepArguments) -> None:
    if arguments.json:
        plain = {
            "night": str(result.night) if result.night else "",
            "status": result.facts.status if result.facts else ("begun" if result.night else "nothing"),
            "message": result.message,
            "left_out": result.left_out,
            "files": result.facts.files if result.facts else {},
            "receipt": json.loads(to_json(result.receipt)) if result.receipt else None,
        }
        print(json.dumps(plain, ensure_ascii=False))
    elif arguments.quiet:
        if result.night:
            print(result.night)
    else:
        print_night(result.night, result.receipt, result.message, result.left_out)


COMMAND = Command(
    run,
    "ludus sleep claude-code --agent.skill ~/.claude/skills/forms --dry-run   # which sessions, who gets what\n"
    "ludus sleep claude-code --agent.skill ~/.claude/skills/forms \\\n"
    "    --model.base_url http://127.0.0.1:8000/v1 --model.name NAME\n"
    "ludus sleep --list\n"
    "ludus adopt 2026-11-18",
    (
        make_argument(
            "paths",
            metavar="PATH",
            nargs="*",
            help="transcripts, folders of them, run directories, claude-code, or codex",
        ),
        make_argument("--nights", metavar="DIR", default=NIGHTS, help=f"the folder of nights; default: {NIGHTS}"),
        make_argument(
            "--format",
            choices=("auto", "openai", "claude-code", "codex", "sharegpt", "atif", "gateway", "ludus"),
            default="auto",
            help="the format of the transcripts; default: it is detected",
        ),
        make_argument(
            "--since", metavar="DAY", default="", help="leave out sessions that ended before, such as 2026-11-01"
        ),
        make_argument("--again", action="store_true", help="also use sessions that an earlier night has read"),
        make_argument("--list", action="store_true", help="list the nights, and what is staged"),
        make_argument(
            "--dry-run", action="store_true", help="say which sessions would be used and which model gets what"
        ),
        CONFIG,
        PRINT_CONFIG,
        make_argument("--quiet", action="store_true", help="print only the folder of the night"),
        JSON,
        ENGINE,
    ),
    SleepArguments,
    """\
settings (list them: ludus config):
  --agent.skill DIR                                        the skill that was in use, and is trained
  --model.base_url URL --model.name NAME                   the agent's model; --sleep.remote true if it is elsewhere
  --optimizer.base_url URL --optimizer.name NAME           the model that proposes checkers and changes
  --sleep.fewest 12 --budget.rollouts 400 --budget.dollars 2""",
    ROLLOUTS | TRAINING | {"engine", "budget", "tracking", "sleep"},
)
