"""`ludus triggers`: measure which skill of a catalogue an agent loads for each query, and train descriptions.

The run is of the environment `triggers`, with the catalogue in place of the skill. Its controls run in every run, and
come first in what is printed. With `--train`, the queries are divided: descriptions are trained on one part, and the
claim is measured on the other, which is sealed until then. The skills themselves are not changed: the new descriptions
are written into the run directory, as packages to look at and to copy.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from importlib.resources import files as find_files
from pathlib import Path

from ludus.arguments import RunArguments, make_argument
from ludus.catalogue import Catalogue, list_packages, read_card, render_catalogue
from ludus.command import CONFIG, ENGINE, JSON, OUT, PRINT_CONFIG, QUIET, RESUME, ROLLOUTS, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.session_paths import name_session_paths
from ludus.command.settings import find_env_name, read_settings
from ludus.command.terminal import LiveLine, format_count, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env, build_harness
from ludus.config.build_models import build_models
from ludus.config.tree import CATALOGUE, SameSettings
from ludus.encoding import to_json
from ludus.env import Env
from ludus.envs.triggers import TriggerEnv
from ludus.errors import ConfigError, ModelError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent, Policy
from ludus.reflact.journal import Journal, StageProgress
from ludus.reflact.measure import Outage, SkillRunner, Stopped
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.run import Run, RunKind
from ludus.run_info import note_planned
from ludus.skill import change_description
from ludus.skill_folder import read_skill, render_package, write_package
from ludus.triggers.catalogue_runs import CatalogueRuns, split_queries
from ludus.triggers.claims import TriggerOutcome
from ludus.triggers.controls import make_controls
from ludus.triggers.description_training import PROMPT, DescriptionRound
from ludus.triggers.proposal_command import ProposalRequest, run_proposals
from ludus.triggers.query_proposals import PROMPT as QUERIES
from ludus.triggers.trigger_agent import CATALOGUE_BYTES, TriggerAgent, measure_packages
from ludus.triggers.trigger_measurement import TriggerPlan, measure_triggers
from ludus.triggers.trigger_table import REPORT, print_triggers

TRAINED = "trained"
"""The folder of the skills whose descriptions were changed, each as a package."""
RUNS = 4
"""How often each query is run, if the settings say nothing else."""
TRIGGERS = RunKind(
    "triggers",
    sections=CATALOGUE | {"optimizer"},
    failures=(Outage, ModelError),
    files={"report": REPORT, "trained": TRAINED},
)


class TriggerArguments(RunArguments):
    env: str | None = None
    """Not an argument of this command: it is `triggers`."""
    skills: list[str]
    queries: str
    train: bool
    propose: int
    transcripts: list[str]


def run(arguments: TriggerArguments) -> int:
    flags: dict[str, str] = {}
    if not find_env_name(arguments):
        flags |= {"env.name": TriggerEnv.name, "env.group_size": str(RUNS), "env.shown": "false"}
    if arguments.skills:
        flags["env.skills"] = json.dumps(arguments.skills)
    if arguments.queries:
        flags["env.queries"] = arguments.queries
    if arguments.train:
        flags["triggers.train"] = "true"
    arguments.flags = [*flags.items(), *arguments.flags]
    if arguments.propose or arguments.transcripts:
        return propose(arguments)
    return run_command(arguments, TriggerWork, "ludus triggers skills/ --queries queries.jsonl")


def propose(arguments: TriggerArguments) -> int:
    """Propose queries in place of a run: `--out` names their file."""
    if arguments.propose < 0:
        raise ConfigError("--propose: how many queries of each sort for each skill? Give a number above 0")
    if arguments.train or arguments.resume or arguments.queries:
        raise ConfigError(
            "--propose and --transcripts only write a file of queries: leave --train, --resume and --queries out"
        )
    out, arguments.out = Path(arguments.out or "queries.jsonl"), None
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out: {out} should be a .jsonl file for the queries")
    config = read_settings(arguments)
    env: Env = build_env(config)
    if not isinstance(env, TriggerEnv):
        raise ConfigError(f"env.name: ludus triggers runs its own environment, not {env.name}")
    folders = list_packages([Path(path).expanduser() for path in env.skills])
    paths = name_session_paths(arguments.transcripts)
    request = ProposalRequest(folders, env.read_catalogue(), arguments.propose, paths, out)
    return run_proposals(config, request, load_prompts(), as_json=arguments.json)


class TriggerWork(RunWork):
    """Measures a catalogue, and trains its descriptions if asked to."""

    kind = TRIGGERS
    optimizer: Model | None = None

    def __init__(self, config: Config, arguments: TriggerArguments) -> None:
        env: Env = build_env(config)
        if not isinstance(env, TriggerEnv):
            raise ConfigError(f"env.name: ludus triggers runs its own environment, not {env.name}")
        for name in ("skill", "library"):
            if getattr(config.agent, name):
                raise ConfigError(f"agent.{name}: the catalogue is in its place: leave it out")
        self.env, self.config, self.settings = env, config, config.triggers
        self.packages = list_packages([Path(path).expanduser() for path in env.skills])
        self.catalogue, self.queries = env.read_catalogue(), env.read_queries()
        self.placed = bool(config.agent.harness)
        if self.placed and config.engine.type != "local":
            raise ConfigError(
                f"engine.type {config.engine.type}: ludus triggers runs command-line agents on this machine only: "
                "leave --engine out"
            )
        self.quiet = arguments.quiet or arguments.json
        self.outcome: TriggerOutcome | None = None
        self.train, self.sealed = split_queries(self.queries, self.settings.sealed)
        if self.settings.train and (len(self.train) < 2 or len(self.sealed) < 2):
            raise ConfigError(
                f"env.queries: {len(self.queries)} queries are too few to train on one part and to measure on another; "
                "give at least 4 for each skill"
            )

    async def open_model(self, config: Config, ledger: Ledger, stack: AsyncExitStack) -> Model:
        if not self.settings.train:
            return await super().open_model(config, ledger, stack)
        model, self.optimizer = build_models(config, ledger, print_notice)
        if self.optimizer is not None and not isinstance(config.optimizer, SameSettings):
            stack.push_async_callback(self.optimizer.close)
        return model

    async def open_agent(
        self, config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        """A command-line agent finds the packages in its slot."""
        if not self.placed:
            return None
        return make_trigger_agent(config, self.packages)

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        queries = to_json(self.queries)
        return {"command": TRIGGERS.name, "catalogue": render_catalogue(self.catalogue).hash, "queries": _hash(queries)}

    async def work(self, run: Run) -> bool:
        size = self.config.env.group_size
        note_planned(run.directory, 0 if self.settings.train else self._count_rollouts())
        with nullcontext() if self.quiet else LiveLine("triggers") as line:

            def show(progress: StageProgress) -> None:
                run.write_spent()
                if line is not None:
                    spent = f"{format_count(run.ledger.total.usage.tokens)} tokens"
                    line.draw(progress.done, progress.total or None, f"{progress.stage}, {spent}")

            runner = SkillRunner(run.runner, run.policy, Journal(show))
            bench = CatalogueRuns(runner, self.config.run.seed, size, self.placed)
            try:
                self.outcome = await self._measure(bench, run)
            except Stopped:
                return False
        run.directory.write(REPORT, to_json(self.outcome))
        if self.outcome.trained is not None:
            self._write_trained(run, self.outcome.trained)
        return True

    def _write_trained(self, run: Run, trained: Catalogue) -> None:
        """Write the packages with new descriptions, to look at and to copy. The user's own folders stay as they are."""
        for folder in self.packages:
            skill, card = read_skill(folder), read_card(folder)
            new = trained.get(card.name).description
            if new != card.description:
                files = render_package(change_description(skill, new), card.name, new)
                write_package(files, run.directory.path / TRAINED / card.name)

    def _count_rollouts(self) -> int:
        return (len(self.queries) + 2 * len(make_controls(self.catalogue)[0].queries)) * self.config.env.group_size

    async def _measure(self, bench: CatalogueRuns, run: Run) -> TriggerOutcome:
        def show(done: DescriptionRound) -> None:
            if not self.quiet:
                print_notice(describe_round(done))

        measured = self.sealed if self.settings.train else self.queries
        plan = TriggerPlan(self.catalogue, measured, self.train, self.settings)
        return await measure_triggers(bench, plan, self._make_optimizer(bench, run), show)

    def _make_optimizer(self, bench: CatalogueRuns, run: Run) -> Optimizer | None:
        if not self.settings.train:
            return None
        assert self.optimizer is not None
        return Optimizer(
            self.optimizer,
            load_prompts(),
            run.directory,
            bench.runner.journal,
            concurrency=self.config.run.concurrency,
            seed=self.config.run.seed,
        )

    def conclude(self, run: Run) -> RunResult:
        outcome = self.outcome
        facts = {"triggers": json.loads(to_json(outcome))}
        failed = outcome is not None and (not outcome.controls.works or bool(outcome.silence))
        return RunResult(facts, lambda out: print_triggers(outcome, out), failed=failed)


def make_trigger_agent(config: Config, packages: Sequence[Path]) -> TriggerAgent:
    """The command-line agent of the settings, among the packages in these folders."""
    from ludus.harness import HarnessAgent

    harness = build_harness(config.agent)
    assert harness is not None
    skills = {read_card(folder).name: read_skill(folder) for folder in packages}
    if (size := measure_packages(skills)) > CATALOGUE_BYTES:
        raise ConfigError(
            f"env.skills: the packages have {size:,} bytes together; a slot gets at most {CATALOGUE_BYTES:,}"
        )
    return TriggerAgent(HarnessAgent(harness), skills, config.triggers.turns)


def load_prompts() -> Prompts:
    """The prompts that the optimizer of descriptions and queries is asked with."""
    folder = find_files("ludus.triggers").joinpath("prompts")
    texts = {name: folder.joinpath(f"{name}.md").read_text("utf-8") for name in (PROMPT, QUERIES)}
    return Prompts({**texts, "reask": Prompts.load().get_text("reask")})


def describe_round(done: DescriptionRound) -> str:
    """A round, in a line."""
    if done.problem:
        said = f"no candidates ({done.problem})"
    elif not done.chosen:
        said = f"none of {len(done.candidates)} candidates is better"
    else:
        points = f"{100 * done.paired.difference:+.1f} points" if done.paired else "not compared"
        said = f"{'taken' if done.taken else 'not taken'}: {points} on the train queries"
    return f"round {done.number}, {done.skill} ({done.errors:.1f} errors): {said}"


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()[:16]


COMMAND = Command(
    run,
    "ludus triggers skills/ --queries queries.jsonl --model.base_url URL --model.name NAME\n"
    "ludus triggers skills/ --propose 5 --out queries.jsonl\n"
    "ludus triggers skills/ --transcripts claude-code --out queries.jsonl\n"
    "ludus triggers skills/ --queries queries.jsonl --agent.harness claude-code\n"
    "ludus triggers skills/ --queries queries.jsonl --train --out runs/triggers\n"
    "ludus show runs/triggers",
    (
        make_argument(
            "skills", metavar="DIR", nargs="*", help="the folder of a skill, or a folder of such folders; any number"
        ),
        make_argument(
            "--queries",
            metavar="FILE",
            default="",
            help='JSONL, JSON or CSV: rows with `query` and `skill` ("" if none is right)',
        ),
        make_argument("--train", action="store_true", help="improve descriptions, and claim on sealed queries"),
        make_argument(
            "--propose",
            metavar="N",
            type=int,
            default=0,
            help="write a file of queries (--out FILE.jsonl) instead: for each skill N that it is for, N near misses",
        ),
        make_argument(
            "--transcripts",
            metavar="PATH",
            nargs="+",
            default=[],
            help="write what users asked for in past sessions when a skill was loaded (--out FILE.jsonl); masked",
        ),
        CONFIG,
        OUT,
        RESUME,
        PRINT_CONFIG,
        QUIET,
        JSON,
        ENGINE,
    ),
    TriggerArguments,
    """\
settings (list them: ludus config):
  --env.group_size 4                                       runs of each query
  --triggers.sealed 0.5 --triggers.rounds 40               training: the sealed share, the number of rounds
  --triggers.turns 6                                       replies until a command-line agent has loaded none
  --optimizer.base_url URL --optimizer.name NAME           the model that writes descriptions and queries""",
    ROLLOUTS | {"engine", "triggers", "optimizer"},
)
