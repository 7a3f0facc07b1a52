"""The recipes: every setting, its type, its default and what it is for.

The string beneath a field is its documentation: `ludus config` and the reference page are made from it. A secret is
never a setting; settings that end in `_var` or `_vars` name the environment variables that hold one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from ludus.agent import Limits
from ludus.models.http import Timeouts
from ludus.models.server import Price
from ludus.models.servers import Retry
from ludus.types import Sampling

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings."""


class EnvConfig(Recipe, frozen=True):
    """What is asked. Beside these keys stand the environment's own, such as `env.path` of `gsm8k`."""

    name: str = ""
    """A built-in name (`ludus envs`), `module:Class`, or a file: `my_env.py`, `my_env.py:Class`."""
    split: str = "train"
    """Which tasks: `train`, `test`, or whatever else the environment has."""
    limit: Count | None = None
    """Use only the first so many tasks of the split."""
    ids: tuple[str, ...] | None = None
    """Use only the tasks with these ids."""
    group_size: Count = 1
    """How many rollouts of each task."""


class AgentConfig(Recipe, frozen=True):
    """What the agent is told, beside the environment's own text."""

    system: str = ""
    """System text, added after the environment's."""
    skill: str = ""
    """A file with instructions (such as a SKILL.md), added after the system text."""


class ServerConfig(Recipe, frozen=True):
    """What model servers of every kind need to be told."""

    base_url: str = ""
    """The server's address."""
    name: str = ""
    """The model's name as the server knows it."""
    api_key_var: str = ""
    """The NAME of the environment variable that holds the key; empty for a server that needs none."""
    servers: tuple[str, ...] = ()
    """Addresses of further servers of the same model; a request goes to the least loaded healthy one."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with every request. They are recorded: no secrets here."""
    header_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Headers whose values are secret: header → NAME of the environment variable."""
    omit: tuple[str, ...] = ()
    """Request fields that the server refuses, such as `seed` or `temperature`."""
    timeouts: Timeouts = Timeouts()
    """Time limits of one request, in seconds."""
    retry: Retry = Retry()
    """How often and how soon a request is repeated after a connection error, a 429 or a 5xx."""
    concurrency: Count = 256
    """Requests under way at once, per server."""
    requests_per_minute: Positive | None = None
    """Rate limit, per server; null for none."""
    tokens_per_minute: Positive | None = None
    """Rate limit, per server; null for none."""
    price: Price = Price()
    """Dollars per million tokens, for the cost in reports and for `budget.dollars`."""
    proxy: str = ""
    """Address of an HTTP proxy; empty: what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say; `none`: no proxy."""


class OpenAIConfig(ServerConfig, frozen=True, tag_field="type", tag="openai"):
    """Any server that speaks OpenAI's chat completions: OpenAI, OpenRouter, vLLM, SGLang, llama.cpp and others.
    `base_url` most often ends in `/v1`."""

    max_tokens_field: str = "max_tokens"
    """How the server calls the limit; OpenAI's reasoning models want `max_completion_tokens`."""


class AzureConfig(ServerConfig, frozen=True, tag_field="type", tag="azure"):
    """Azure OpenAI. `base_url` is the resource (`https://<name>.openai.azure.com`), `name` the deployment."""

    api_key_var: str = "AZURE_OPENAI_API_KEY"
    """The NAME of the environment variable that holds the key."""
    api_version: str = "2024-10-21"
    """The version of the API."""
    max_tokens_field: str = "max_tokens"
    """How the server calls the limit; OpenAI's reasoning models want `max_completion_tokens`."""


class AnthropicConfig(ServerConfig, frozen=True, tag_field="type", tag="anthropic"):
    """The Anthropic Messages API."""

    base_url: str = "https://api.anthropic.com"
    """The server's address, up to where `/v1/messages` is added."""
    api_key_var: str = "ANTHROPIC_API_KEY"
    """The NAME of the environment variable that holds the key."""
    version: str = "2023-06-01"
    """The version of the API."""
    cache: bool = True
    """Mark the conversation for the server's prompt cache."""


class EmbeddedConfig(Recipe, frozen=True, tag_field="type", tag="embedded"):
    """A small model in this process, without key or account: for trying Ludus, not for results."""

    weights: str = ""
    """A GGUF file to use instead of the one that is fetched."""
    threads: Annotated[int, Meta(ge=1)] = 2
    """How many cores it may use."""


class ScriptedConfig(Recipe, frozen=True, tag_field="type", tag="scripted"):
    """A function in place of a model: `(messages, tools, sampling) -> reply`. For tests and dry runs."""

    script: str = ""
    """`module:function` or `file.py:function`; also the name of a list of replies."""
    name: str = "scripted"
    """What the record calls it."""


ModelConfig = OpenAIConfig | AzureConfig | AnthropicConfig | EmbeddedConfig | ScriptedConfig


class WebConfig(Recipe, frozen=True):
    """Where the `web` toolsets search and read."""

    provider: Literal["", "tavily", "brave", "searxng"] = ""
    """Who answers; empty: the agent has no web tools."""
    api_key_var: str = ""
    """The NAME of the environment variable that holds the provider's key."""
    base_url: str = ""
    """The provider's address; needed for `searxng`, which is self-hosted."""
    allow_private: bool = False
    """Let the agent read pages from this machine and the local network."""


class McpConfig(Recipe, frozen=True):
    """An MCP server whose tools are offered as a toolset of its name. It runs outside the sandbox."""

    command: tuple[str, ...] = ()
    """Program and arguments of a server to start. Give this or `url`."""
    url: str = ""
    """Address of a server that speaks streamable HTTP."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables for the command. They are recorded: no secrets here."""
    env_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Variables for the command whose values are secret: variable → NAME of the variable here that holds it."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with every request to `url`. They are recorded: no secrets here."""
    header_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Headers whose values are secret: header → NAME of the environment variable."""
    cwd: str | None = None
    """The folder that the command starts in."""
    only: tuple[str, ...] = ()
    """Offer these of its tools; empty for all."""
    prefix: str = ""
    """Put before the tools' names, where they would collide with others."""
    parallel: bool = False
    """Its tools may run side by side in one turn."""
    start_seconds: Positive = 30.0
    """Time to start or reach it."""
    call_seconds: Positive | None = None
    """Time limit of one call; null: `limits.tool_seconds`."""


class ToolsConfig(Recipe, frozen=True):
    """What the agent may use. `ludus tools` lists toolsets and distributions."""

    enabled: tuple[str, ...] | None = None
    """Toolsets to offer; null: those that the environment asks for."""
    disabled: tuple[str, ...] = ()
    """Toolsets to leave out, whoever asks for them."""
    distribution: str = ""
    """Draw toolsets for each group at random from this distribution, instead of `enabled`."""
    distributions: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Distributions of your own: name → toolset → percent."""
    web: WebConfig = WebConfig()
    """The search provider."""
    mcp: dict[str, McpConfig] = field(default_factory=dict[str, McpConfig])
    """MCP servers: toolset name → server."""


class SandboxConfig(Recipe, frozen=True):
    """Where the agent acts. Settings that are null are the environment's to decide."""

    backend: Literal["bwrap", "local"] = "bwrap"
    """`bwrap` isolates; `local` runs commands on this machine as you: for trusted code only."""
    require_sandbox: bool = False
    """Refuse to run without isolation, whatever else is set."""
    max_slots: Count | None = None
    """Slots that may exist at once; null: as many as rollouts run at once."""
    warm: Whole = 2
    """Slots kept ready ahead of time."""
    network: bool | None = None
    """Whether commands may reach the network."""
    memory_mb: Count | None = None
    """Memory of a slot."""
    disk_mb: Count | None = None
    """What /workspace, /tmp and home may each hold."""
    processes: Count | None = None
    """Processes and threads that may live at once in a slot."""
    command_seconds: Positive | None = None
    """The default time limit of one command."""
    output_bytes: Count | None = None
    """How much of a command's output is kept."""


class RunConfig(Recipe, frozen=True):
    """How the run goes. `--out` and `--resume` are short for the first two."""

    out: str = ""
    """The run directory; empty: `runs/<env>-<time>`."""
    resume: bool = False
    """Go on with the run in `out`: what is finished there is not run again."""
    seed: int = 0
    """From which every rollout derives its own seed."""
    concurrency: Count = 16
    """Rollouts under way at once."""
    retries: Whole = 2
    """How often a rollout is run again, in a fresh slot, after a failure that is not the agent's."""


class BudgetConfig(Recipe, frozen=True):
    """Where to stop. A run that reaches one of these ends cleanly and can be resumed with a larger one."""

    tokens: Count | None = None
    """Prompt and completion tokens together; null for no limit."""
    dollars: Positive | None = None
    """By `model.price`; null for no limit."""
    calls: Count | None = None
    """Model calls; null for no limit."""


class Config(Recipe, frozen=True):
    """Everything that a run is told. Hashable by content through `to_record`."""

    env: EnvConfig = EnvConfig()
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The environment's own fields, all of them; written in the `env` section."""
    agent: AgentConfig = AgentConfig()
    model: ModelConfig = EmbeddedConfig()
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    tools: ToolsConfig = ToolsConfig()
    sandbox: SandboxConfig = SandboxConfig()
    run: RunConfig = RunConfig()
    budget: BudgetConfig = BudgetConfig()


SECTIONS: Mapping[str, Any] = {f.name: f.type for f in msgspec.structs.fields(Config) if f.name != "options"}

FREE = frozenset(
    {"run.out", "run.resume", "run.concurrency", "run.retries", "budget", "sandbox.max_slots", "sandbox.warm"}
    | {f"model.{name}" for name in ("servers", "timeouts", "retry", "concurrency", "proxy", "api_key_var", "price")}
    | {f"model.{name}" for name in ("base_url", "requests_per_minute", "tokens_per_minute")}
)
"""Settings that may differ when a run is resumed: they decide how fast and how far it goes, not what comes out."""
