"""Runs of environments that are files of Atropos or Hermes: `ludus process atropos:FILE.py`, and `python FILE.py …`.

`ludus.compat` is imported only for such runs. The names of those systems are translated before settings are built
(`ludus.compat.atropos_env.file_settings`); the recorded settings are Ludus's own, so that a run is resumed like any
other.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.agent import Actor, Policy
from ludus.batch import PAGE, BatchProgress
from ludus.cli.command import RunArguments
from ludus.cli.common import (
    RunReport,
    choose_exit_code,
    count_bugs,
    open_agent,
    open_ledger,
    print_model_hint,
    print_notice,
    print_report,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.output.run_tables import ProgressBar, print_summary
from ludus.cli.run_kind import refuse_other_kind
from ludus.cli.token_rows import make_row_fields
from ludus.config import MAY_CHANGE, Config, assemble, to_record, to_yaml
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_model
from ludus.config.build_sandboxes import change_spec, open_slots
from ludus.config.build_tools import open_registry
from ludus.config.build_trackers import build_trackers
from ludus.config.reading import Layer, is_tree, make_flag_layer, read_file_layer
from ludus.config.secrets import list_secrets
from ludus.config.tree import CONTENT, TRAINING, WEIGHTS
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.store import CONFIG, RunDir
from ludus.tools.toolsets import Registry
from ludus.trackers import METRICS, TrackedRun, TrackerSet
from ludus.types import to_json

if TYPE_CHECKING:
    from ludus.compat.atropos_env.base_env import FileServices
    from ludus.compat.atropos_env.file_env import AtroposFileEnv
    from ludus.compat.atropos_env.file_host import LoadedFile
    from ludus.compat.atropos_env.file_runs import FileProgress
    from ludus.compat.atropos_env.file_session import FileSession
    from ludus.compat.atropos_env.group_run import FileParts

REFERENCES = {
    "atropos": "ludus.compat.atropos_env.file_env:AtroposFileEnv",
    "hermes": "ludus.compat.hermes_env.hermes_file_env:HermesFileEnv",
}
TASKS = {**REFERENCES, "hermes": "ludus.compat.hermes_env.hermes_file_env:HermesTaskEnv"}
"""The same for training runs."""
"""The environment class that stands for a file of each system."""
FILES = {"groups": "groups.jsonl", "atropos_groups": "atropos_groups.jsonl", "metrics": METRICS, "page": PAGE}
DUMMY_VAR = "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"
CHANGEABLE = MAY_CHANGE | {"env.settings.total_steps", "env.servers"}


def is_file_run(arguments: RunArguments) -> bool:
    """Whether the environment of a command is a file of another system. Reads the settings of a run to resume."""
    return bool(_find_system(_find_name(arguments)))


def _find_system(name: str) -> str:
    """`atropos` or `hermes`; empty for any other environment."""
    system = name.partition(":")[0]
    if system in REFERENCES and ":" in name:
        return system
    known = [*REFERENCES.items(), *TASKS.items()]
    return next((each for each, reference in known if reference == name), "")


def _find_name(arguments: RunArguments) -> str:
    if arguments.env:
        return arguments.env
    trees = [make_flag_layer(*flag).tree for flag in arguments.flags]
    trees += [read_file_layer(Path(path)).tree for path in arguments.config]
    record = Path(arguments.out or "", CONFIG)
    if arguments.out and record.is_file():
        trees.append(read_file_layer(record).tree)
    sections = (tree.get("env") for tree in trees)
    return next((str(section["name"]) for section in sections if is_tree(section) and section.get("name")), "")


def run_class(kind: type, argv: Sequence[str]) -> int:
    """`python FILE.py process …`: run the class of a file as `ludus process` would."""
    from ludus.cli import main

    file = getattr(sys.modules.get(kind.__module__), "__file__", "") or argv[0]
    words = list(argv[1:])
    if not words or words[0] not in ("process", "serve", "evaluate", "train"):
        print(f"usage: python {Path(argv[0]).name} process|serve|evaluate|train [--env.FIELD VALUE]…", file=sys.stderr)
        return 2
    from ludus.compat.atropos_env.base_env import BaseEnv

    system = "hermes" if any(base.__name__ == "SlotRolloutEnv" for base in kind.__mro__) else "atropos"
    assert issubclass(kind, BaseEnv)
    return main([words[0], f"{system}:{file}:{kind.__name__}", *words[1:]])


# ---- settings -----------------------------------------------------------------------------------------------------


def _split_name(name: str) -> tuple[str, str]:
    """The file and the class of `FILE.py` or `FILE.py:Class`."""
    file, colon, kind = name.rpartition(":")
    return (file, kind) if colon and file.endswith(".py") else (name, "")


def load(system: str, file: str, class_name: str) -> "LoadedFile":
    """Import the file of an environment."""
    from ludus.compat.atropos_env.file_env import AtroposFileEnv
    from ludus.compat.hermes_env.hermes_file_env import HermesFileEnv

    kind = HermesFileEnv if system == "hermes" else AtroposFileEnv
    return kind(file=file, class_name=class_name).load_file()


def read_file_settings(arguments: RunArguments) -> "tuple[Config, LoadedFile]":
    """The settings of a file's run, and the file."""
    system = _find_system(_find_name(arguments))
    layers = [read_file_layer(Path(path)) for path in arguments.config]
    layers += [make_flag_layer(*flag) for flag in arguments.flags]
    for name in ("slurm", "testing"):
        if (value := getattr(arguments, name, None)) is not None:
            layers.append(make_flag_layer(name, value))
    record = Path(arguments.out or "", CONFIG)
    if arguments.resume and record.is_file():
        return _read_resumed(arguments, system, layers, record)
    from ludus.compat.atropos_env.file_settings import translate

    file, class_name = _split_name(_find_name(arguments).partition(":")[2])
    loaded = load(system, file, class_name)
    found = translate(
        loaded.kind,
        (TASKS if arguments.command == "train" else REFERENCES)[system],
        str(loaded.path),
        class_name,
        arguments.command,
        layers,
        _find_extension(system),
    )
    for note in found.notes:
        print_notice(note)
    _set_keys(found.keys)
    run = {"out": arguments.out} if arguments.out else {}
    return assemble([Layer(file, found.tree), Layer("--out", {"run": {**run, "resume": arguments.resume}})]), loaded


def _find_extension(system: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes the sections that only one of the systems has."""
    if system != "hermes":
        return lambda _: {}
    from ludus.compat.hermes_env.hermes_settings import make_sandbox_trees

    return lambda settings: make_sandbox_trees(settings, os.environ)


def _read_resumed(
    arguments: RunArguments, system: str, layers: Sequence[Layer], record: Path
) -> "tuple[Config, LoadedFile]":
    """The settings of a run that is resumed: its own, and what may change."""
    from ludus.compat.atropos_env.file_settings import change_resumed

    source, tree = read_file_layer(record)
    refuse_other_kind(Path(arguments.out or ""), tree, arguments.command)
    tree.pop(CONTENT, None)
    loaded = load(system, tree["env"]["file"], tree["env"].get("class_name", ""))
    changed, keys = change_resumed(loaded.kind, tree, layers)
    _set_keys(keys)
    own = {"run": {"out": arguments.out, "resume": True}}
    return assemble([Layer(source, changed), Layer("--resume", own)]), loaded


def _set_keys(keys: Sequence[str]) -> None:
    """Put the keys of a file's servers into variables, where models look for them."""
    from ludus.compat.atropos_env.file_settings import name_key_var

    for place, key in enumerate(keys):
        if key:
            os.environ[name_key_var(place)] = key


def _read_keys(env: "AtroposFileEnv") -> tuple[str, ...]:
    from ludus.compat.atropos_env.file_settings import name_key_var

    return tuple(os.environ.get(name_key_var(place), "") for place in range(max(1, len(env.servers))))


# ---- running ------------------------------------------------------------------------------------------------------


def run_file(arguments: RunArguments) -> int:
    """`ludus process` or `ludus evaluate` of a file."""
    return run_loaded(arguments, lambda config, loaded: _run(config, loaded, arguments))


def run_loaded(arguments: RunArguments, work: "Callable[[Config, LoadedFile], Coroutine[Any, Any, int]]") -> int:
    """Read the settings and the file, do the work with them, and unload the file. Returns the exit code."""
    config, loaded = read_file_settings(arguments)
    try:
        if arguments.print_config:
            print(to_yaml(config), end="")
            return 0
        config = set_out(config)
        if not arguments.quiet:
            print_model_hint(config)
        return asyncio.run(work(config, loaded))
    finally:
        loaded.close()


async def _run(config: Config, loaded: "LoadedFile", arguments: RunArguments) -> int:
    from ludus.compat.atropos_env.file_runs import NothingKept, read_eval, summarize_run

    ledger = open_ledger(config)
    evaluating = arguments.command == "evaluate"
    async with open_session(config, loaded, ledger) as (session, parts):
        directory = session.run

        async def work(stop: asyncio.Event) -> bool:
            try:
                if evaluating:
                    return await _evaluate(parts)
                return await _process(config, parts, arguments, stop, session)
            finally:
                write_spent(directory, ledger)

        outcome = await run_to_end(work, (NothingKept,))
        summary, bugs = summarize_run(directory, parts), count_bugs(directory)
    metrics = read_eval(session.eval_folder) if evaluating else {}
    facts = {"metrics": metrics} if evaluating else {"summary": json.loads(to_json(summary))}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, FILES, bugs)

    def show() -> None:
        if evaluating:
            for name, value in metrics.items():
                print(f"{name}  {value}")
            print(f"\n{session.eval_folder}")
        else:
            print_summary(summary, spent=ledger.total.usage)
            print(f"\n{report.out}\n  {report.out / FILES['atropos_groups']}   the groups, as the file made them")

    print_report(report, arguments, show)
    if outcome.status == "completed" and not evaluating and summary.overall.scored == 0:
        return 1
    return choose_exit_code(report)


async def _evaluate(parts: "FileParts") -> bool:
    from ludus.compat.atropos_env.file_runs import evaluate_file

    await evaluate_file(parts)
    return True


async def _process(
    config: Config, parts: "FileParts", arguments: RunArguments, stop: asyncio.Event, session: "FileSession"
) -> bool:
    from ludus.compat.atropos_env.file_runs import process_file

    total = int(session.env.settings["total_steps"])
    if total < 1:
        raise ConfigError(f"env.total_steps is {total}: how many groups? For example --env.total_steps 20")
    at_once = max(1, config.run.concurrency // parts.rules.group_size)
    bar = ProgressBar(parts.env.name or session.env.name) if not (arguments.quiet or arguments.json) else None

    def on_group(progress: "FileProgress") -> None:
        write_spent(session.run, session.ledger)
        if bar is not None:
            done = progress.done + progress.failed
            usage = session.ledger.total.usage
            bar.update(BatchProgress(progress.total, done, progress.done, progress.mean, usage))

    if bar is None:
        return await process_file(parts, total, at_once, stop, on_group)
    with bar:
        return await process_file(parts, total, at_once, stop, on_group)


@asynccontextmanager
async def open_session(
    config: Config,
    loaded: "LoadedFile",
    ledger: Ledger,
    keep: frozenset[str] = frozenset(),
    start_trackers: Callable[[RunDir], Awaitable[TrackerSet]] | None = None,
) -> "AsyncGenerator[tuple[FileSession, FileParts], None]":
    """Everything that a file's run needs, open. `keep`: sections that the record has beside the usual ones."""
    from ludus.compat.atropos_env.file_env import AtroposFileEnv
    from ludus.compat.atropos_env.file_session import FileSession, open_file

    env = build_env(config)
    assert isinstance(env, AtroposFileEnv)
    keys = _read_keys(env)
    model = build_model(config.model, ledger, tell=print_notice)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(open_agent(config, env, model, ledger))
        record = {k: v for k, v in to_record(config).items() if k not in (TRAINING | WEIGHTS) - keep}
        directory = stack.enter_context(
            RunDir.open(
                Path(config.run.out),
                record,
                resume=config.run.resume,
                ignore=CHANGEABLE,
                secrets=[*list_secrets(config), *filter(None, keys)],
            )
        )
        trackers = await start_trackers(directory) if start_trackers else _open_trackers(config, directory)
        stack.callback(trackers.close)
        dummy = os.environ.get(DUMMY_VAR, "").lower() in ("1", "true", "yes")
        session = FileSession(
            config,
            env,
            loaded,
            agent.policy,
            ledger,
            directory,
            trackers,
            print_notice,
            allow_dummy=dummy,
            more=make_row_fields(model, print_notice),
            keys=keys,
        )
        extend: Callable[[FileServices], None] = _keep_services
        if agent.pool is not None and env.sandbox is not None:
            extend = _make_slots(config, env, agent.registry, agent.pool, env.sandbox)
        parts = await stack.enter_async_context(open_file(session, extend))
        yield session, parts


@asynccontextmanager
async def open_file_actor(config: Config, env: Env, model: Model, ledger: Ledger) -> AsyncGenerator[Actor | None, None]:
    """The agent of a training run with a file; None for any other environment."""
    if not _find_system(config.env.name):
        yield None
        return
    from ludus.compat.atropos_env.file_actor import FileActor
    from ludus.compat.atropos_env.file_env import AtroposFileEnv
    from ludus.compat.atropos_env.file_session import FileSession, open_file
    from ludus.compat.atropos_env.file_tasks import draw_items

    assert isinstance(env, AtroposFileEnv)
    async with AsyncExitStack() as stack:
        loaded = env.load_file()
        stack.callback(loaded.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        run = stack.enter_context(RunDir.open(Path(folder), {}, resume=False))
        policy = Policy(model, sampling=config.sampling)
        quiet = TrackerSet([], lambda _: None, print_notice)
        keys = _read_keys(env)
        session = FileSession(config, env, loaded, policy, ledger, run, quiet, print_notice, keys=keys)
        extend: Callable[[FileServices], None] = _keep_services
        if env.name == "hermes":
            registry = await stack.enter_async_context(open_registry(config.tools))
            spec = change_spec(SandboxSpec(network=True), config.sandbox)
            pool = await stack.enter_async_context(open_slots(config, spec))
            extend = _make_slots(config, env, registry, pool, spec)
        parts = await stack.enter_async_context(open_file(session, extend))
        items = await draw_items(parts.host, parts.env, int(env.settings["total_steps"]))
        yield FileActor(parts, f"{loaded.kind.__name__}/{model.name}", items)


def _keep_services(services: "FileServices") -> None:
    """For files that use no slots."""


def _make_slots(
    config: Config, env: "AtroposFileEnv", registry: Registry, pool: Pool, spec: SandboxSpec
) -> "Callable[[FileServices], None]":
    """Gives a file the slots of the run."""
    from ludus.compat.hermes_env.slot_desk import SlotDesk

    found = {name: getattr(profile, "image", "") for name, profile in config.sandbox.profiles.items()}
    images = {str(image): name for name, image in found.items() if image}
    settings = env.settings
    calls = int(settings["tool_pool_size"] if "tool_pool_size" in settings else settings["tool_max_batch_size"])
    desk = SlotDesk(pool, spec, registry, images, asyncio.get_running_loop(), calls)

    def extend(services: "FileServices") -> None:
        services.slots = desk

    return extend


def _open_trackers(config: Config, directory: RunDir) -> TrackerSet:
    trackers = build_trackers(config.tracking, lambda line: directory.append(METRICS, line), print_notice)
    if config.tracking.use:
        name = directory.path.resolve().name
        trackers.start(
            TrackedRun(
                name=config.tracking.name or name,
                project=config.tracking.project or "ludus",
                group=config.tracking.group,
                folder=directory.path,
                config=to_record(config),
            )
        )
    return trackers
