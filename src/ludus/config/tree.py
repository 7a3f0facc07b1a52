"""The tree of settings: one field of `Config` for each section.

The settings of a section are defined beside the code that they configure (`ludus.settings` says how). Here are only the
tree itself, which models there are, and lists that are made from the tree.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import field

from ludus.agent_settings import AgentSettings
from ludus.batch_settings import BatchSettings
from ludus.config.reading import list_types
from ludus.engines.settings import EngineSettings
from ludus.env import EnvSettings
from ludus.gateway.settings import GatewaySettings
from ludus.library_settings import LibrarySettings
from ludus.models.ledger import RunBudget
from ludus.models.settings import AnthropicSettings, AzureSettings, EmbeddedSettings, OpenAISettings, ScriptedSettings
from ludus.planning.settings import PlanSettings
from ludus.policy import RunLimits
from ludus.reflact.train_settings import ClaimSettings, DataSettings, TrainSettings
from ludus.rl.grpo_settings import GrpoSettings
from ludus.rl.server_settings import ApiSettings
from ludus.rl.settings import RlSettings
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.worker_settings import ServeSettings
from ludus.runner import RunSettings
from ludus.sandbox.backends import SandboxSettings
from ludus.settings import Settings
from ludus.sleep_settings import SleepSettings
from ludus.tools.settings import ToolsSettings
from ludus.trackers import TrackingSettings
from ludus.trigger_settings import TriggerSettings
from ludus.types import Sampling


class OwnModelSettings(Settings, frozen=True, tag_field="type", tag="own"):
    """A model class of your own (`docs/extending.md`). `model.type` is `module:Class`, a file (`mine.py`,
    `mine.py:Class`), or the name that an installed package has given it."""

    reference: str
    """The reference that was given as the type. Records have it there, too."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The parameters of the class's constructor. They are recorded: no secrets here."""


ModelSettings = (
    OpenAISettings | AzureSettings | AnthropicSettings | EmbeddedSettings | ScriptedSettings | OwnModelSettings
)


class SameSettings(Settings, frozen=True, tag_field="type", tag="same"):
    """The agent's own model, or no model at all if the proposer needs none."""


class NoModelSettings(Settings, frozen=True, tag_field="type", tag="none"):
    """No model."""


JudgeSettings = NoModelSettings | ModelSettings
OptimizerSettings = SameSettings | ModelSettings
TrainerSettings = GrpoSettings | TinkerSettings


class Config(Settings, frozen=True):
    """All settings of a run."""

    env: EnvSettings = EnvSettings()
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The environment's own fields. In files and flags they are in the `env` section."""
    agent: AgentSettings = AgentSettings()
    model: ModelSettings = EmbeddedSettings()
    sampling: Sampling = Sampling()
    limits: RunLimits = RunLimits()
    tools: ToolsSettings = ToolsSettings()
    sandbox: SandboxSettings = SandboxSettings()
    run: RunSettings = RunSettings()
    batch: BatchSettings = BatchSettings()
    engine: EngineSettings = EngineSettings()
    budget: RunBudget = RunBudget()
    train: TrainSettings = TrainSettings()
    data: DataSettings = DataSettings()
    optimizer: OptimizerSettings = SameSettings()
    claim: ClaimSettings = ClaimSettings()
    claim_model: JudgeSettings = NoModelSettings()
    judge: JudgeSettings = NoModelSettings()
    second_judge: JudgeSettings = NoModelSettings()
    vision: JudgeSettings = NoModelSettings()
    gateway: GatewaySettings = GatewaySettings()
    rl: RlSettings = RlSettings()
    trainer: TrainerSettings = GrpoSettings()
    serve: ServeSettings = ServeSettings()
    api: ApiSettings = ApiSettings()
    tracking: TrackingSettings = TrackingSettings()
    plan: PlanSettings = PlanSettings()
    triggers: TriggerSettings = TriggerSettings()
    library: LibrarySettings = LibrarySettings()
    sleep: SleepSettings = SleepSettings()


SECTIONS: Mapping[str, Any] = {f.name: f.type for f in msgspec.structs.fields(Config) if f.name != "options"}

CONTENT = "content"
"""A section in the record of a training run: hashes of the files that its settings name. It is not a setting."""
TRAINING = frozenset({"train", "data", "optimizer", "claim", "claim_model"})
"""Sections that only training uses."""
SHARDS = frozenset({"batch"})
"""Sections that only `ludus batch` uses."""
CATALOGUE = frozenset({"triggers"})
"""Sections that only `ludus triggers` uses."""
PACKAGES = frozenset({"library"})
"""Sections that only `ludus library` uses."""
WEIGHTS = frozenset({"rl", "trainer", "serve", "api", "tracking"})
"""Sections that only the training of weights uses. Batches do not record them."""

PLAN = frozenset({"plan", "sleep"})
"""The sections of a plan and of a night. No run records them: they say nothing about what is run."""


def _list_changeable() -> Iterator[str]:
    groups = ((section, option) for section, kind in SECTIONS.items() for option in list_types(kind))
    for section, option in groups:
        if isinstance(option, msgspec.inspect.StructType):
            yield from (f"{section}.{name}" for name in getattr(option.cls, "may_change", ()))


MAY_CHANGE = frozenset({"budget", "engine", "gateway", "claim", "claim_model", *WEIGHTS, *_list_changeable()})
"""Settings that may change when a run is resumed. They decide how fast and how far it goes, not its results."""
