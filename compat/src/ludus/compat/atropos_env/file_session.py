"""Opens a file for a run: its thread, its servers, its environment object, set up and ready to make groups.

Run ──> open_run_file ──> FileSession ──> open_file ──> FileParts
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.batch import MoreFields
from ludus.compat.atropos_env.base_env import SERVICES, BaseEnv, EvalReport, FileServices
from ludus.compat.atropos_env.call_journal import CallJournal
from ludus.compat.atropos_env.command_settings import read_keys
from ludus.compat.atropos_env.env_config import APIServerConfig
from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.compat.atropos_env.file_host import FileHost, LoadedFile
from ludus.compat.atropos_env.file_model import Fatal, FileModel, PromptScorer, make_text_model
from ludus.compat.atropos_env.file_runs import NOT_CALLED_KIND, write_eval
from ludus.compat.atropos_env.file_settings import make_model_tree, name_key_var
from ludus.compat.atropos_env.group_filter import make_rules
from ludus.compat.atropos_env.group_run import FileParts
from ludus.compat.atropos_env.group_turns import GroupTurns
from ludus.compat.atropos_env.server_view import FileServer, FileServers, Thinking
from ludus.compat.atropos_env.verdicts import list_not_called
from ludus.config.build_models import build_endpoints, build_model
from ludus.config.reading import convert_tree
from ludus.config.tree import Config
from ludus.errors import ConfigError, describe_error
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.models.settings import OpenAISettings
from ludus.policy import Policy
from ludus.rl.token_rows import make_row_fields
from ludus.run import Run, Tell
from ludus.store import RunDir
from ludus.trackers import Table, TrackerSet, Value
from ludus.types import Provenance

DUMMY_VAR = "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"
STOP_IDS = {"atropos": "stop", "vllm": "stop_token_ids", "vllm_chat": "stop_token_ids", "sglang": "stop_token_ids"}
"""The field of each engine for ids that end a reply. Atropos' /generate gets what the file gave, as from atroposlib."""


@dataclass(frozen=True)
class FileSession:
    """What a file is opened with."""

    config: Config
    env: AtroposFileEnv
    loaded: LoadedFile
    policy: Policy
    ledger: Ledger
    run: RunDir
    trackers: TrackerSet
    tell: Tell
    allow_dummy: bool = False
    """Whether `managed_server` may give ids that mean nothing."""

    more: MoreFields = lambda group: {}
    keys: tuple[str, ...] = ()
    """The keys of the servers. A file may make clients of its own with them."""
    command: str = ""
    """The command of the run; empty in a training run."""

    @property
    def eval_folder(self) -> Path:
        return find_eval_folder(self.env.settings, self.run.path)


def find_eval_folder(settings: Mapping[str, Any], out: Path) -> Path:
    """Where `evaluate_log` of a file with these settings writes."""
    own = settings.get("data_dir_to_save_evals")
    return Path(own) if own else out / "evals"


@asynccontextmanager
async def open_run_file(run: Run) -> AsyncGenerator[FileParts]:
    """Load and set up the file of an open run."""
    env, runner = run.env, run.runner
    assert isinstance(env, AtroposFileEnv)
    async with AsyncExitStack() as stack:
        loaded = env.load_file()
        stack.callback(loaded.close)
        session = FileSession(
            run.config,
            env,
            loaded,
            run.policy,
            run.ledger,
            run.directory,
            run.trackers,
            run.tell,
            allow_dummy=os.environ.get(DUMMY_VAR, "").lower() in ("1", "true", "yes"),
            more=make_row_fields(run.policy.model, run.tell),
            keys=read_keys(len(env.servers)),
            command=run.kind.name,
        )
        slots = env.make_slots(run.config, run.registry, runner.pool, runner.slot) if runner.pool else None
        yield await stack.enter_async_context(open_file(session, slots))


@asynccontextmanager
async def open_file(session: FileSession, slots: object = None) -> AsyncGenerator[FileParts]:
    """Set a file up. `slots`: those of the run, for files that use some."""
    config, env, fatal = session.config, session.env, Fatal()
    journal = CallJournal(session.run)
    async with AsyncExitStack() as stack:
        models = _make_models(session, journal, fatal)
        for model in models:
            stack.push_async_callback(model.close)
        servers = _make_views(session, models)
        services = FileServices(
            servers=FileServers(servers, session.allow_dummy),
            loop=asyncio.get_running_loop(),
            out=session.run.path,
            log_metrics=_make_logger(session.trackers),
            write_eval=lambda report: _write_report(report, session),
            retries=config.run.retries,
            tell=session.tell,
            command=session.command,
            tokenizer=config.model.tokenizer
            if isinstance(config.model, OpenAISettings) and config.model.mode == "token"
            else "",
            slots=slots,
        )
        SERVICES.set(services)
        host = stack.enter_context(FileHost())
        made = _make_config(session)
        flags = {"slurm": env.slurm, "testing": env.testing}
        live = await host.make_env(session.loaded.kind, services, made, [view.config for view in servers], flags)
        stack.push_async_callback(_end_file, host, live, session.tell)
        _tell_not_called(session)
        seconds = float(env.settings["worker_timeout"])
        yield FileParts(
            env=live,
            host=host,
            run=session.run,
            provenance=_make_provenance(session),
            rules=make_rules(made, config.serve),
            turns=GroupTurns(live, session.run, session.tell),
            fatal=fatal,
            seed=config.run.seed,
            retries=config.run.retries,
            seconds=seconds if seconds > 0 else None,
            system=session.policy.build_system_text(""),
            tell=session.tell,
            more=session.more,
        )


async def _end_file(host: FileHost, env: BaseEnv, tell: Tell) -> None:
    """Let a file end. What it raises is reported: its groups are kept."""
    try:
        await host.run(env.end_run)
    except Exception as error:  # foreign code
        tell(f"the end of the file failed: {describe_error(error)}")


def _tell_not_called(session: FileSession) -> None:
    """Say, and record, what the file defines and Ludus does not call."""
    for name in list_not_called(session.loaded.kind):
        session.run.put_record(f"file/not_called/{name}", NOT_CALLED_KIND, name.encode())
        session.tell(f"the file defines {name}, which is not called here: see compat/docs/atropos.md")


def _make_config(session: FileSession) -> Any:
    kind = session.loaded.kind
    found = kind.config_init()
    made = type(found[0])(**session.env.settings)
    if not made.data_dir_to_save_evals:  # files write there, too
        made.data_dir_to_save_evals = str(session.eval_folder)
    if made.group_size < 1:
        raise ConfigError(f"env.group_size is {made.group_size}; a group has at least one rollout: use 1 or more")
    return made


def _make_models(session: FileSession, journal: CallJournal, fatal: Fatal) -> list[FileModel]:
    """The model of each server of the file. Servers of one model share it."""
    model, config = session.policy.model, session.config
    listed = session.env.servers or ({},)
    first = _make_model(model, config.model, session, journal, fatal, listed[0])
    models = [first]
    for place, server in enumerate(listed[1:], 1):
        if server["model_name"] == listed[0]["model_name"]:
            models.append(first)
            continue
        has_key = place < len(session.keys) and session.keys[place]
        tree = make_model_tree([server], session.env.settings, name_key_var(place) if has_key else "")
        settings = convert_tree(
            {name: value for name, value in tree.items() if name != "type"}, OpenAISettings, "model"
        )
        other = build_model(settings, session.ledger, tell=session.tell)
        models.append(_make_model(other, settings, session, journal, fatal, server))
    return models


def _make_model(
    model: Model,
    settings: Any,
    session: FileSession,
    journal: CallJournal,
    fatal: Fatal,
    server: Mapping[str, Any],
) -> FileModel:
    text = None
    if isinstance(settings, OpenAISettings) and settings.mode == "chat":
        text = make_text_model(settings, build_endpoints(settings))
    scorer = None
    if isinstance(settings, OpenAISettings) and settings.mode == "token" and settings.engine in ("atropos", "vllm"):
        scorer = PromptScorer(settings, build_endpoints(settings))
    return FileModel(
        model,
        session.ledger,
        journal,
        fatal,
        sampling=msgspec.structs.replace(session.policy.sampling, temperature=None),
        own={name: getattr(session.policy.sampling, name) for name in session.env.sampling_set},
        text=text,
        scorer=scorer,
        eval_requests=int(server.get("num_requests_for_eval", 64)),
        stop_ids=STOP_IDS.get(settings.engine, "")
        if isinstance(settings, OpenAISettings) and settings.mode == "token"
        else "",
    )


def _make_views(session: FileSession, models: list[FileModel]) -> list[FileServer]:
    settings = session.env.settings
    thinking = Thinking(bool(settings["thinking_mode"]), settings["reasoning_effort"], settings["max_reasoning_tokens"])
    loop = asyncio.get_running_loop()
    configs = [APIServerConfig(**each) for each in session.env.servers or ({},)]
    for config, model in zip(configs, models, strict=True):
        config.model_name = model.name
    for config, key in zip(configs, session.keys, strict=False):
        config.api_key = key
    return [FileServer(model, config, loop, thinking) for model, config in zip(models, configs, strict=True)]


def _make_logger(trackers: TrackerSet) -> Callable[[dict[str, Any]], None]:
    """Keeps the numbers, texts and tables of a file's metrics. Steps count the logs."""
    steps = iter(range(1_000_000_000))

    def log(metrics: dict[str, Any]) -> None:
        values: dict[str, Value] = {}
        for name, value in metrics.items():
            if isinstance(value, bool | int | float):
                values[name] = float(value)
            elif isinstance(value, str):
                values[name] = value
            elif hasattr(value, "item") and not hasattr(value, "columns"):
                values[name] = float(value.item())
            elif hasattr(value, "columns") and hasattr(value, "data"):
                rows = tuple(
                    tuple(each if isinstance(each, str | int | float) else str(each) for each in row)
                    for row in value.data
                )
                values[name] = Table(tuple(map(str, value.columns)), rows)
        trackers.log(values, next(steps))

    return log


def _write_report(report: EvalReport, session: FileSession) -> None:
    write_eval(report, session.eval_folder)


def _make_provenance(session: FileSession) -> Provenance:
    policy, kind = session.policy, session.loaded.kind
    name = kind.name or kind.__name__
    return Provenance(
        policy=policy.fingerprint,
        model=policy.model_name,
        sampling=policy.sampling,
        seed=session.config.run.seed,
        versions={"env": f"{session.env.name}:{name}@{session.env.version}"},
    )
