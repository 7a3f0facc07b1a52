"""Parts that several commands share: settings, run directories, the ledger's file, Ctrl-C and the report at the end.

Settings are checked before the run directory is made. The first Ctrl-C drains: what runs is finished and recorded. The
second drops what runs. After either, and after a spent budget, the run can be resumed, and the command for it is
printed. `ledger.jsonl` keeps what the run has spent, so that a resumed run does not get its budget a second time.
"""

import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from ludus.agent import Actor, Policy
from ludus.cli.command import Arguments, RunArguments
from ludus.cli.run_kind import refuse_other_kind
from ludus.config import MAY_CHANGE, Config, assemble, list_assumed
from ludus.config.build_agent import build_policy
from ludus.config.build_models import build_ledger, build_vision
from ludus.config.build_sandboxes import open_sandboxes
from ludus.config.build_tools import open_registry
from ludus.config.reading import Layer, is_tree, make_flag_layer, read_file_layer
from ludus.config.references import load_env_class
from ludus.config.secrets import list_secrets
from ludus.config.token_mode import prepare_model
from ludus.config.tree import CONTENT, SECTIONS
from ludus.env import Env, EnvSettings
from ludus.errors import BUG, BudgetExhausted, ConfigError, ModelUnusable, StoreError
from ludus.models import Model
from ludus.models.embedded import EmbeddedSettings
from ludus.models.ledger import Ledger, Totals
from ludus.rollout import RunSettings
from ludus.sandbox.pool import Pool
from ludus.store import CONFIG, RunDir, make_safe_name
from ludus.tools.toolsets import Registry
from ludus.types import to_json

LEDGER = "ledger.jsonl"
"""What each role has spent: a line after each rollout. The last line counts."""

Status = Literal["completed", "interrupted", "budget", "broken"]
EXIT_CODES: dict[Status, int] = {"completed": 0, "interrupted": 130, "budget": 3, "broken": 1}


NO_SLOT: Any = object()
"""In place of a slot, to list tools that are made but not run."""


def print_notice(text: str) -> None:
    """Print a message to the user on stderr."""
    print(f"ludus: {text}", file=sys.stderr, flush=True)


# ---- settings -----------------------------------------------------------------------------------------------------


def _name_env(words: str) -> list[tuple[str, str]]:
    """The settings that an environment on the command line stands for: `verifiers:NAME` names one of that package,
    `openenv:URL` a server."""
    if words.startswith("openenv:"):
        kind = "ludus.compat.openenv_env:OpenEnvEnv"
        return [("env.name", kind), ("env.url", words.removeprefix("openenv:"))]
    if words.startswith("verifiers:"):
        kind = "ludus.compat.verifiers_env:VerifiersEnv"
        return [("env.name", kind), ("env.id", words.removeprefix("verifiers:"))]
    return [("env.name", words)]


def read_settings(arguments: RunArguments, base: Sequence[Layer] = ()) -> Config:
    """The settings of a command, over those of `base`. With `--resume`, the run's own settings are below all others."""
    from ludus.compat.hermes_env.flat_settings import translate_flat  # needed by commands that run something, only

    flags = list(arguments.flags)
    if arguments.env:
        flags += _name_env(arguments.env)
    if arguments.out:
        flags.append(("run.out", arguments.out))
    if arguments.resume:
        flags.append(("run.resume", "true"))
    layers = [
        *base,
        *map(read_file_layer, map(Path, arguments.config)),
        *(make_flag_layer(path, words) for path, words in flags),
    ]
    layers = translate_flat(layers)
    if not arguments.resume:
        config = assemble(layers)
        if config.run.resume:  # as a setting
            _read_run_settings(Path(config.run.out), arguments)
        return config
    out = arguments.out or assemble([layer for layer in layers if "run" in layer.tree]).run.out
    if not out:
        raise ConfigError("run.out: which run should be resumed? Name its directory with --out")
    return assemble([*_read_run_settings(Path(out), arguments), *layers])


def _read_run_settings(out: Path, arguments: RunArguments) -> list[Layer]:
    """The settings of the run in `out`; none if there is no run. Raises `ConfigError` if it is a run of another command
    or of another environment."""
    env = arguments.env
    if not (out / CONFIG).is_file():
        return []
    source, tree = read_file_layer(out / CONFIG)  # JSON is YAML
    refuse_other_kind(out, tree, arguments.command)
    before = tree["env"].get("name") if is_tree(tree.get("env")) else None
    if env and before and dict(_name_env(env))["env.name"] != before:
        raise ConfigError(f"{out} is a run of {before}, not of {env}: leave the environment out, or name another --out")
    return [Layer(source, list_assumed()), Layer(source, {name: tree[name] for name in tree if name != CONTENT})]


def read_recorded_settings(arguments: Arguments, recorded: Mapping[str, Any], env: str) -> Config:
    """The settings of a run, and over them those of a command that judges it. If the command names another environment
    (`env`), the options of the run's own do not apply."""
    flags = [*arguments.flags, *([("env.name", env)] if env else [])]
    sections = {name: value for name, value in recorded.items() if name in SECTIONS}
    if env and is_tree(own := sections.get("env")) and own.get("name") != env:
        sections["env"] = {name: own[name] for name in EnvSettings.__struct_fields__ if name in own}
    return assemble(
        [
            Layer("the run's settings", sections),
            *map(read_file_layer, map(Path, arguments.config)),
            *(make_flag_layer(name, words) for name, words in flags),
        ]
    )


def print_model_hint(config: Config) -> None:
    """Say so if the settings leave the choice of the model open."""
    if isinstance(config.model, EmbeddedSettings):
        print_notice("model: the small embedded one, for trials. Another one: --model.base_url URL --model.name NAME")


def require_env(config: Config, example: str) -> None:
    """Raise `ConfigError` if the settings name no environment."""
    if not config.env.name and config.run.resume:
        raise ConfigError(f"{config.run.out or '--out'}: there is no run to resume; to start one, leave out --resume")
    if not config.env.name:
        raise ConfigError(f"which environment? For example: {example} (see: ludus envs)")


def refuse_batch_settings(config: Config, aim: str, instead: Mapping[str, str]) -> None:
    """Raise `ConfigError` for settings that only `process` and `evaluate` use. `instead` has what to use, by name."""
    unset = {"env": EnvSettings(), "run": RunSettings()}
    for name, other in instead.items():
        section, _, key = name.partition(".")
        if getattr(getattr(config, section), key) != getattr(unset[section], key):
            raise ConfigError(f"{name} is for process and evaluate; {aim}, use {other}")


def choose_out(config: Config) -> Path:
    """The run directory: `run.out`, or a new one that is named after the environment and the time."""
    if config.run.out:
        return Path(config.run.out)
    name = make_safe_name(load_env_class(config.env.name).name)
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (base.with_name(f"{base.name}-{n}") for n in range(2, 1000))
    return next(path for path in (base, *others) if not path.exists())


def set_out(config: Config) -> Config:
    """The settings with the chosen run directory in `run.out`."""
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, out=str(choose_out(config))))


# ---- what a run needs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentParts:
    """The agent of a run, with its tools and its sandboxes, open."""

    policy: Policy
    registry: Registry
    pool: Pool | None


@asynccontextmanager
async def open_agent(
    config: Config, env: Env, model: Model, ledger: Ledger, actor: Actor | None = None
) -> AsyncGenerator[AgentParts, None]:
    """Open the tools and the sandboxes, and wait for the model. Everything is closed afterwards. The calls of tools to
    models of their own are in the ledger."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(model.close)
        if actor is not None:
            stack.push_async_callback(actor.close)
        registry = await stack.enter_async_context(open_registry(config.tools, build_vision(config, ledger)))
        pool = await stack.enter_async_context(open_sandboxes(config, env))
        policy = replace(build_policy(config, env, model, registry), actor=actor)
        await prepare_model(policy, env, print_notice)
        yield AgentParts(policy, registry, pool)


def open_run(config: Config, record: Mapping[str, Any]) -> RunDir:
    """Make or resume the run directory of the settings, which are recorded as `record`."""
    return RunDir.open(
        Path(config.run.out), record, resume=config.run.resume, ignore=MAY_CHANGE, secrets=list_secrets(config)
    )


def open_ledger(config: Config) -> Ledger:
    """The ledger of a run. That of a resumed run begins with what the run has spent."""
    return build_ledger(config, read_spent(Path(config.run.out)) if config.run.resume else None)


def write_spent(directory: RunDir, ledger: Ledger) -> None:
    directory.append(LEDGER, to_json(ledger.roles))


def read_spent(out: Path) -> dict[str, Totals]:
    """What each role had spent, by the last line of the ledger's file."""
    try:
        lines = (out / LEDGER).read_bytes().split(b"\n")[:-1]  # without a last line that was not finished
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(lines[-1], type=dict[str, Totals]) if lines else {}
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(
            f"{out / LEDGER} is damaged ({error}): cut off its last line, or raise the budget and remove it"
        ) from None


# ---- running to the end -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    status: Status
    message: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]


async def run_to_end(
    work: Callable[[asyncio.Event], Awaitable[bool]], failures: tuple[type[Exception], ...] = ()
) -> RunOutcome:
    """Run `work` until it is complete, interrupted, out of budget or broken by an unusable model or one of `failures`.

    `work` is called with the event that asks it to stop early; it returns whether it is complete.
    """
    with drain_on_interrupt() as stop:
        try:
            complete = await work(stop)
        except BudgetExhausted as error:
            return RunOutcome("budget", str(error))
        except (ModelUnusable, *failures) as error:
            return RunOutcome("broken", str(error))
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            return RunOutcome("interrupted", "interrupted; what was under way was dropped")
    if not complete:
        return RunOutcome("interrupted", "interrupted; what was under way was finished")
    return RunOutcome("completed")


@contextmanager
def drain_on_interrupt() -> Generator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets. The second cancels the current task."""
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def interrupt() -> None:
        if stop.is_set():
            task.cancel()
        else:
            print_notice("stopping: what runs is finished first; Ctrl-C again drops it")
            stop.set()

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
    except (ValueError, RuntimeError):  # not the main thread: the caller handles signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


# ---- the report at the end ----------------------------------------------------------------------------------------


def count_bugs(directory: RunDir) -> int:
    """The number of rollouts in a run that met a bug and have no score."""
    return sum(failure.boundary == BUG for failure in directory.read_failures())


def choose_exit_code(report: "RunReport") -> int:
    """The exit code of a run: that of its outcome, or 1 if it is complete but a rollout met a bug."""
    return report.outcome.exit_code or (1 if report.bugs else 0)


def make_resume_command(command: str, out: Path) -> str:
    return shlex.join(["ludus", command, "--resume", "--out", str(out)])


@dataclass(frozen=True)
class RunReport:
    """What a command says about its run in the end."""

    outcome: RunOutcome
    out: Path
    ledger: Ledger
    facts: Mapping[str, Any]
    """What the JSON has beside the facts of every run."""
    files: Mapping[str, str]
    """The names of the run's files, by their keys in the JSON. Those that do not exist are left out."""
    bugs: int = 0
    """The number of rollouts that met a bug."""


def print_report(report: RunReport, arguments: RunArguments, print_result: Callable[[], None]) -> None:
    """Print how a run ended, and how to resume it: as JSON, as a path, or with `print_result` for people."""
    outcome, out = report.outcome, report.out
    resume = make_resume_command(arguments.command, out)
    if outcome.message:
        more = " (with a larger budget: --budget.…)" if outcome.status == "budget" else ""
        print_notice(f"{outcome.message}\nresume with: {resume}{more}")
    if report.bugs:
        which = "1 rollout met a bug and has" if report.bugs == 1 else f"{report.bugs} rollouts met a bug and have"
        print_notice(
            f"{which} no score. Please report the bug with its traceback: ludus show {shlex.quote(str(out))} TASK"
        )
    if arguments.json:
        print(json.dumps(_to_json(report, arguments.command, resume), ensure_ascii=False))
    elif arguments.quiet:
        print(out)
    else:
        print_result()


def _to_json(report: RunReport, command: str, resume: str) -> dict[str, Any]:
    outcome, out = report.outcome, report.out
    return {
        "command": command,
        "run": str(out),
        "status": outcome.status,
        "message": outcome.message,
        "resume": "" if outcome.status == "completed" else resume,
        **report.facts,
        "ledger": json.loads(to_json(report.ledger.roles)),
        "files": {key: str(out / name) for key, name in report.files.items() if (out / name).exists()},
    }
