"""`ludus evaluate` and `ludus process`: run a batch, and write its numbers, or groups of scored rollouts.

With `--models A,B`, `evaluate` runs each model, one after the other, into a run directory each, and ends in the table
of `ludus compare`. A model is a name in place of `model.name`, or a YAML file with any settings of its own. So it does
with several `--agent.skill`: each skill with each model, on the same tasks and seeds. An empty one is no skill.
"""

import copy
import dataclasses
import json
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ludus.arguments import RunArguments, make_argument
from ludus.batch import (
    GROUPS,
    SAMPLES,
    SUMMARY,
    Batch,
    BatchProgress,
    OnRollout,
    evaluate,
    is_complete,
    load_tasks,
    process,
    read_groups,
)
from ludus.command import ENGINE, ROLLOUTS, RUN_SETTINGS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, make_resume_command, run_command
from ludus.command.settings import choose_out, find_run_source, read_settings, refuse_suspects, require_env
from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.build_tools import build_distribution
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.policy import Policy
from ludus.run import Run, RunKind
from ludus.run_info import REPORT, note_planned
from ludus.skill import DOCUMENT
from ludus.stats import RunSummary, summarize
from ludus.store import STORE, make_safe_name
from ludus.types import Rollout

FILES = {"groups": GROUPS, "samples": SAMPLES, "summary": SUMMARY, "report": REPORT}
EVALUATE = RunKind("evaluate", files=FILES)
PROCESS = RunKind("process", files=FILES)


class BatchWork(RunWork):
    """Runs the tasks that the settings choose."""

    kind = EVALUATE
    batch: Batch
    """Known when the policy is."""

    def __init__(self, config: Config, arguments: RunArguments) -> None:
        self.config = config
        if self.kind is EVALUATE:
            refuse_suspects(config, "evaluate shows its mean with and without suspects")
        self.env = env = build_env(config)
        self.tasks = load_tasks(env, config.env.split, config.env.limit, config.env.ids)
        self.quiet = arguments.quiet or arguments.json
        if skipped := env.skipped(config.env.split):
            print_notice(explain_skipped(env, skipped))

    def prepare(self, policy: Policy) -> Mapping[str, str] | None:
        config = self.config
        distribution = build_distribution(config, self.env, policy.registry)
        size, seed, disabled = config.env.group_size, config.run.seed, config.tools.disabled
        self.batch = Batch(self.tasks, policy, size, seed, distribution, disabled)

    async def work(self, run: Run) -> bool:
        note_planned(run.directory, len(self.batch.tasks) * self.batch.group_size)
        with show_progress(run.env.name, self.quiet, run.control) as show:

            def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
                run.write_spent()
                show(rollout, dataclasses.replace(progress, usage=run.ledger.total.usage))

            await self.run_batch(run, on_rollout)
        return not run.control.is_stopping or is_complete(self.batch, run.runner)

    async def run_batch(self, run: Run, on_rollout: OnRollout) -> None:
        await evaluate(self.batch, run.runner, on_rollout=on_rollout)

    def conclude(self, run: Run) -> RunResult:
        summary = summarize(read_groups(self.batch, run.runner))
        run.trackers.log(list_values(summary), 0)
        spent, command = run.ledger.total.usage, self.kind.name

        def show(out: Path) -> None:
            from ludus.batch.run_tables import print_summary

            print_summary(summary, spent=spent)
            print_links(summary, out, command)

        failed = summary.overall.scored == 0
        return RunResult({"summary": json.loads(to_json(summary))}, show, failed, summary.failures)


class ProcessWork(BatchWork):
    """The same, into groups for trainers."""

    kind = PROCESS

    async def run_batch(self, run: Run, on_rollout: OnRollout) -> None:
        from ludus.rl.token_rows import make_row_fields

        more = make_row_fields(run.policy.model, print_notice, run.runner.suspects)
        await process(self.batch, run.runner, on_rollout=on_rollout, more=more)


def explain_skipped(env: Env, skipped: Mapping[str, str]) -> str:
    """One line for each reason, with the tasks that it applies to."""
    reasons: dict[str, list[str]] = {}
    for id, reason in skipped.items():
        reasons.setdefault(reason, []).append(id)
    lines = [
        f"  {', '.join(ids[:3])}{f' and {len(ids) - 3} more' if len(ids) > 3 else ''}: {reason}"
        for reason, ids in reasons.items()
    ]
    return "\n".join([f"{env.name}: {len(skipped)} tasks cannot be run here and are skipped", *lines])


@contextmanager
def show_progress(title: str, quiet: bool, control: RunControl | None = None) -> Generator[OnRollout]:
    if quiet:
        yield lambda rollout, progress: None
        return
    from ludus.batch.run_tables import ProgressBar

    with ProgressBar(title, control=control) as bar:
        yield bar


def list_values(summary: RunSummary) -> dict[str, float]:
    """The numbers of a batch for trackers."""
    overall = summary.overall
    values = {"rollouts": float(overall.rollouts), "failed": float(overall.excluded)}
    if overall.mean is not None:
        values["mean"] = overall.mean
    return values | {f"pass_at_{each.k}": each.value for each in overall.pass_at}


def print_links(summary: RunSummary, out: Path, command: str) -> None:
    """Print where the run is, and what to do next."""
    print(f"\n{out}")
    failed = summary.overall.excluded
    if failed:
        what = "1 rollout has no score: run it" if failed == 1 else f"{failed} rollouts have no score: run them"
        print(f"  {make_resume_command(command, out)}   {what} again")
    print(f"  ludus show {shlex.quote(str(out))}   the rollouts; add a task id for a transcript")
    if (out / REPORT).exists():
        print(f"  {(out / REPORT).resolve().as_uri()}   the same in a browser; live: ludus view")


# ---- several models and skills -------------------------------------------------------------------------------------

YAML = (".yaml", ".yml")
INTERRUPTED = 130
"""The exit code of a run that the user has interrupted."""


class EvaluateArguments(RunArguments):
    models: list[str]


EXAMPLE = "ludus evaluate terminal-test"


SKILL = "agent.skill"


def run_evaluate(arguments: EvaluateArguments) -> int:
    models = [model.strip() for words in arguments.models for model in words.split(",") if model.strip()]
    skills = [value for name, value in arguments.flags if name == SKILL]
    if not models and len(skills) < 2:
        return run_command(arguments, BatchWork, EXAMPLE)
    source = find_run_source(arguments)
    if models and source is not None and source.chooses_model:
        raise ConfigError(f"--models: {source.title} is run with the model of its own settings: leave --models out")
    return _run_each(arguments, list_variants(models, skills if len(skills) > 1 else []))


class Variant(NamedTuple):
    """One of several runs: its model and its skill, where they differ, and the folder of its run."""

    model: str | None
    skill: str | None
    folder: str

    @property
    def label(self) -> str:
        return " · ".join(part for part in (self.model, self.skill if self.skill != "" else NO_SKILL) if part)


NO_SKILL = "no-skill"
"""The folder of a run without a skill, which is named by an empty text."""


def list_variants(models: Sequence[str], skills: Sequence[str]) -> list[Variant]:
    """Each model with each skill. Names of folders say which: `MODEL`, `SKILL` or `MODEL/SKILL`. Of skills with the
    same name, such as one before and after training, the later ones have the folder above in theirs.

    Raises:
        ConfigError: two of them would have the same folder.
    """
    named = _name_skills(skills)
    found: list[Variant] = []
    for model in dict.fromkeys(models) or [None]:
        for skill in dict.fromkeys(skills) or [None]:
            names = (_name_model(model) if model else None, named[skill] if skill is not None else None)
            found.append(Variant(model, skill, "/".join(name for name in names if name)))
    if len({variant.folder for variant in found}) < len(found):
        what = (
            f"--models: {', '.join(models)}" if len({*map(_name_model, models)}) < len({*models}) else "--agent.skill"
        )
        raise ConfigError(f"{what}: two of them would have the same folder; rename one")
    return found


def _name_model(model: str) -> str:
    return make_safe_name(Path(model).stem if model.endswith(YAML) else model)


def _name_skills(skills: Sequence[str]) -> dict[str, str]:
    """A folder for each skill: the name of its package or file, with the folders above it as far as it needs them."""
    named: dict[str, str] = {}
    places: set[Path] = set()
    for skill in dict.fromkeys(skills):
        path = Path(skill).expanduser().resolve()
        path = path.parent if path.name == DOCUMENT else path
        parts = path.parts[1:]
        names = ["-".join(parts[-count:]) for count in range(1, len(parts) + 1)] if skill else [NO_SKILL]
        free = next((name for name in map(make_safe_name, names) if name not in named.values()), "")
        named[skill] = free if free and path not in places else make_safe_name(names[0])
        places |= {path} if skill else set()
    return named


def run_process(arguments: RunArguments) -> int:
    return run_command(arguments, ProcessWork, "ludus process terminal-test")


def _run_each(arguments: EvaluateArguments, variants: list[Variant]) -> int:
    """Evaluate each variant below one folder, then compare them. All settings are read before the first is run."""
    out = _choose_folder(arguments, variants[0])
    typed = {variant: _choose_variant(arguments, variant, out / variant.folder) for variant in variants}
    for each in typed.values():
        require_env(read_settings(each), EXAMPLE)
    codes: list[int] = []
    for variant, each in typed.items():
        if not arguments.quiet and not arguments.json:
            print(f"\n{variant.label}")
        codes.append(run_command(each, BatchWork, EXAMPLE))
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
    if arguments.print_config:
        return max(codes)
    runs = [Path(each.out) for each in typed.values() if each.out and (Path(each.out) / STORE).exists()]
    if len(runs) < 2:
        print_notice("there are no two runs to compare")
        return max(codes)
    if not arguments.quiet and not arguments.json:
        print()
    from ludus.batch.comparison_command import print_compared  # few runs end in a comparison

    return max(*codes, print_compared(runs, as_json=arguments.json) if not arguments.quiet else 0)


def _choose_folder(arguments: EvaluateArguments, variant: Variant) -> Path:
    """The folder of all runs: `--out`, or a new one, named after the environment and the time."""
    if arguments.out:
        return Path(arguments.out)
    if arguments.resume:
        raise ConfigError("run.out: which runs should be resumed? Name their folder with --out")
    config = read_settings(_choose_variant(arguments, variant, None))
    require_env(config, EXAMPLE)
    return choose_out(config)


def _choose_variant(arguments: EvaluateArguments, variant: Variant, out: Path | None) -> EvaluateArguments:
    """The arguments for one of the runs."""
    chosen = copy.copy(arguments)
    chosen.out = str(out) if out else None
    model, skill = variant.model, variant.skill
    if skill is not None:
        chosen.flags = [*(flag for flag in chosen.flags if flag[0] != SKILL), (SKILL, skill)]
    if model is not None and model.endswith(YAML):
        chosen.config = [*arguments.config, model]
    elif model is not None:
        chosen.flags = [*chosen.flags, ("model.name", model)]
    return chosen


EVALUATE_COMMAND = Command(
    run_evaluate,
    "ludus evaluate gsm8k --env.split test --env.group_size 4 --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY\n"
    "ludus evaluate gsm8k --config server.yaml --models gpt-5-mini,gpt-5      # ends in the table of ludus compare\n"
    "ludus evaluate gsm8k --models small.yaml,large.yaml --out runs/models    # settings of their own\n"
    "ludus evaluate gsm8k --agent.skill '' --agent.skill A/SKILL.md --agent.skill B/SKILL.md --models small,large\n"
    "                                                                         # each skill with each model, paired",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--models",
            action="append",
            default=[],
            metavar="A,B",
            help="models to compare: names, or YAML files with settings of their own; "
            "each has a run of its own in a folder below --out",
        ),
    ),
    EvaluateArguments,
    RUN_SETTINGS,
    ROLLOUTS | {"engine", "tracking"},
)
PROCESS_COMMAND = Command(
    run_process,
    "ludus process terminal-test --env.group_size 4 --out runs/first\nludus process --resume --out runs/first",
    (*RUN_TAKES, ENGINE),
    RunArguments,
    RUN_SETTINGS,
    ROLLOUTS | {"engine", "tracking"},
)
