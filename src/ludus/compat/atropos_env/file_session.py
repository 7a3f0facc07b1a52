"""Opens a file for a run: its thread, its servers, its environment object, set up and ready to make groups."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ludus.agent import Policy
from ludus.batch import MoreFields
from ludus.compat.atropos_env.base_env import SERVICES, EvalReport, FileServices
from ludus.compat.atropos_env.call_journal import CallJournal
from ludus.compat.atropos_env.env_config import APIServerConfig
from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.compat.atropos_env.file_host import FileHost, LoadedFile
from ludus.compat.atropos_env.file_runs import write_eval
from ludus.compat.atropos_env.file_settings import make_model_tree, name_key_var
from ludus.compat.atropos_env.group_filter import FilterRules
from ludus.compat.atropos_env.group_run import FileParts
from ludus.compat.atropos_env.model_desk import Fatal, ModelDesk, PromptScorer, make_text_model
from ludus.compat.atropos_env.server_view import FileServer, FileServers, Thinking
from ludus.config.build_models import build_endpoints, build_model
from ludus.config.reading import convert_tree
from ludus.config.tree import Config
from ludus.errors import ConfigError
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.openai import OpenAISettings
from ludus.store import RunDir
from ludus.trackers import Table, TrackerSet
from ludus.types import Provenance

Tell = Callable[[str], None]


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

    @property
    def eval_folder(self) -> Path:
        """Where `evaluate_log` writes."""
        own = self.env.settings.get("data_dir_to_save_evals")
        return Path(own) if own else self.run.path / "evals"


@asynccontextmanager
async def open_file(
    session: FileSession, extend: Callable[[FileServices], None] = lambda _: None
) -> AsyncGenerator[FileParts]:
    """Set a file up. `extend` adds services before the file's object is made."""
    config, env, fatal = session.config, session.env, Fatal()
    journal = CallJournal(session.run)
    async with AsyncExitStack() as stack:
        desks = _make_desks(session, journal, fatal)
        for desk in desks:
            stack.push_async_callback(desk.close)
        servers = _make_views(session, desks)
        services = FileServices(
            servers=FileServers(servers, session.allow_dummy),
            loop=asyncio.get_running_loop(),
            out=session.run.path,
            log_metrics=_make_logger(session.trackers),
            write_eval=lambda report: _write_report(report, session),
            retries=config.run.retries,
            tokenizer=config.model.tokenizer
            if isinstance(config.model, OpenAISettings) and config.model.mode == "token"
            else "",
        )
        extend(services)
        SERVICES.set(services)
        host = stack.enter_context(FileHost())
        made = _make_config(session)
        flags = {"slurm": env.slurm, "testing": env.testing}
        live = await host.make_env(session.loaded.kind, services, made, [view.config for view in servers], flags)
        seconds = float(env.settings["worker_timeout"])
        yield FileParts(
            env=live,
            host=host,
            run=session.run,
            provenance=_make_provenance(session),
            rules=FilterRules(
                group_size=made.group_size,
                differing_scores=made.ensure_scores_are_not_same,
                include_messages=made.include_messages,
            ),
            fatal=fatal,
            seed=config.run.seed,
            retries=config.run.retries,
            seconds=seconds if seconds > 0 else None,
            tell=session.tell,
            more=session.more,
        )


def _make_config(session: FileSession) -> Any:
    kind = session.loaded.kind
    found = kind.config_init()
    made = type(found[0])(**session.env.settings)
    if not made.data_dir_to_save_evals:  # files write there, too
        made.data_dir_to_save_evals = str(session.eval_folder)
    if made.group_size < 1:
        raise ConfigError(f"env.group_size is {made.group_size}; a group has at least one rollout: use 1 or more")
    return made


def _make_desks(session: FileSession, journal: CallJournal, fatal: Fatal) -> list[ModelDesk]:
    """One desk for each model of the file. Servers of one model share one."""
    model, config = session.policy.model, session.config
    assert isinstance(model, MeteredModel)
    listed = session.env.servers or ({},)
    first = _make_desk(model, config.model, session, journal, fatal, listed[0])
    desks = [first]
    for place, server in enumerate(listed[1:], 1):
        if server["model_name"] == listed[0]["model_name"]:
            desks.append(first)
            continue
        has_key = place < len(session.keys) and session.keys[place]
        tree = make_model_tree([server], session.env.settings, name_key_var(place) if has_key else "")
        settings = convert_tree(
            {name: value for name, value in tree.items() if name != "type"}, OpenAISettings, "model"
        )
        other = cast(MeteredModel, build_model(settings, session.ledger, tell=session.tell))
        desks.append(_make_desk(other, settings, session, journal, fatal, server))
    return desks


def _make_desk(
    model: MeteredModel,
    settings: Any,
    session: FileSession,
    journal: CallJournal,
    fatal: Fatal,
    server: Mapping[str, Any],
) -> ModelDesk:
    text = None
    if isinstance(settings, OpenAISettings) and settings.mode == "chat":
        text = make_text_model(settings, build_endpoints(settings))
    scorer = None
    if isinstance(settings, OpenAISettings) and settings.mode == "token" and settings.engine in ("atropos", "vllm"):
        scorer = PromptScorer(settings, build_endpoints(settings))
    return ModelDesk(
        model,
        session.ledger,
        journal,
        fatal,
        sampling=session.policy.sampling,
        text=text,
        scorer=scorer,
        eval_requests=int(server.get("num_requests_for_eval", 64)),
    )


def _make_views(session: FileSession, desks: list[ModelDesk]) -> list[FileServer]:
    settings = session.env.settings
    thinking = Thinking(bool(settings["thinking_mode"]), settings["reasoning_effort"], settings["max_reasoning_tokens"])
    loop = asyncio.get_running_loop()
    configs = [APIServerConfig(**each) for each in session.env.servers or ({},)]
    for config, desk in zip(configs, desks, strict=True):
        config.model_name = desk.name
    for config, key in zip(configs, session.keys, strict=False):
        config.api_key = key
    return [FileServer(desk, config, loop, thinking) for desk, config in zip(desks, configs, strict=True)]


def _make_logger(trackers: TrackerSet) -> Callable[[dict[str, Any]], None]:
    """Keeps the numbers and tables of a file's metrics. Steps count the logs."""
    steps = iter(range(1_000_000_000))

    def log(metrics: dict[str, Any]) -> None:
        values: dict[str, float | Table] = {}
        for name, value in metrics.items():
            if isinstance(value, bool | int | float):
                values[name] = float(value)
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
