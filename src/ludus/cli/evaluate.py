"""`ludus evaluate`: run a batch and write the numbers of a model on an environment.

With `--models A,B` it does so for each model, one after the other, into a run directory each, and ends in the table of
`ludus compare`. A model is a name in place of `model.name`, or a YAML file with any settings of its own.
"""

import copy
from pathlib import Path

from ludus.batch import evaluate
from ludus.cli.batch_run import run_command
from ludus.cli.command import FILE_TAKES, RUN_SETTINGS, Command, RunArguments, make_argument
from ludus.cli.common import choose_out, print_notice, read_settings, require_env
from ludus.cli.compare import print_compared
from ludus.cli.file_envs import is_file_run, run_file
from ludus.cli.skillopt_runs import read_layers
from ludus.errors import ConfigError
from ludus.store import STORE, make_safe_name

YAML = (".yaml", ".yml")


class EvaluateArguments(RunArguments):
    models: list[str]
    skillopt: str


def run(arguments: EvaluateArguments) -> int:
    models = [model.strip() for words in arguments.models for model in words.split(",") if model.strip()]
    if is_file_run(arguments):
        if models:
            raise ConfigError("--models: a file of another system is run with one model: leave --models out")
        return run_file(arguments)
    if not models:
        return run_command(arguments, evaluate, read_layers(arguments.skillopt, arguments.config, arguments.flags))
    if arguments.skillopt:
        raise ConfigError("--models: an adapter has a model of its own: leave --models out")
    return _run_each(arguments, list(dict.fromkeys(models)))


def _run_each(arguments: EvaluateArguments, models: list[str]) -> int:
    """Evaluate each model below one folder, then compare them. All settings are read before the first is run."""
    folders = {model: make_safe_name(Path(model).stem if model.endswith(YAML) else model) for model in models}
    if len(set(folders.values())) < len(models):
        raise ConfigError(f"--models: two of them would have the same folder: {', '.join(models)}; rename a file")
    out = _choose_folder(arguments, models[0])
    typed = {model: _choose_model(arguments, model, out / folder) for model, folder in folders.items()}
    for each in typed.values():
        require_env(read_settings(each), f"ludus {arguments.command} terminal-test")
    codes: list[int] = []
    for model, each in typed.items():
        if not arguments.quiet and not arguments.json:
            print(f"\n{model}")
        codes.append(run_command(each, evaluate))
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
    return max(*codes, print_compared(runs, as_json=arguments.json) if not arguments.quiet else 0)


INTERRUPTED = 130
"""The exit code of a run that the user has interrupted."""


def _choose_folder(arguments: EvaluateArguments, model: str) -> Path:
    """The folder of all runs: `--out`, or a new one, named after the environment and the time."""
    if arguments.out:
        return Path(arguments.out)
    if arguments.resume:
        raise ConfigError("run.out: which runs should be resumed? Name their folder with --out")
    config = read_settings(_choose_model(arguments, model, None))
    require_env(config, "ludus evaluate terminal-test")
    return choose_out(config)


def _choose_model(arguments: EvaluateArguments, model: str, out: Path | None) -> EvaluateArguments:
    """The arguments for one of the models."""
    chosen = copy.copy(arguments)
    chosen.out = str(out) if out else None
    if model.endswith(YAML):
        chosen.config = [*arguments.config, model]
    else:
        chosen.flags = [*arguments.flags, ("model.name", model)]
    return chosen


COMMAND = Command(
    run,
    "ludus evaluate gsm8k --env.split test --env.group_size 4 --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY\n"
    "ludus evaluate gsm8k --config server.yaml --models gpt-5-mini,gpt-5      # ends in the table of ludus compare\n"
    "ludus evaluate gsm8k --models small.yaml,large.yaml --out runs/models    # settings of their own\n"
    "ludus evaluate --skillopt searchqa.yaml --env.split test --agent.skill best_skill.md   # an adapter of SkillOpt",
    (
        *FILE_TAKES,
        make_argument(
            "--models",
            action="append",
            default=[],
            metavar="A,B",
            help="models to compare: names, or YAML files with settings of their own; "
            "each has a run of its own in a folder below --out",
        ),
        make_argument(
            "--skillopt", metavar="FILE", default="", help="settings in SkillOpt's YAML; --config overrides them"
        ),
    ),
    EvaluateArguments,
    RUN_SETTINGS,
)
