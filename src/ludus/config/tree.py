"""The recipes: every setting, its type, its default and what it is for.

The string beneath a field is its documentation: `ludus config` and the reference page are made from it. A secret is
never a setting; settings that end in `_var` or `_vars` name the environment variables that hold one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from ludus.agent import Limits
from ludus.http_client import Timeouts
from ludus.models.server import Price
from ludus.models.server_pool import Retry
from ludus.reflact.train_settings import DataSettings, TrainSettings
from ludus.sandbox.settings import (
    ApptainerSettings,
    DockerSettings,
    ModalSettings,
    NomadSettings,
    PodmanSettings,
    Profile,
    SshSettings,
)
from ludus.settings import Settings as Recipe
from ludus.types import Count, Positive, Sampling, Whole


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


class HarnessConfig(Recipe, frozen=True):
    """A command-line agent, or changes to one that Ludus knows: what is null or not named stays as it is there. In
    command and env, `{prompt}`, `{model}`, `{url}` (OpenAI's base URL), `{anthropic_url}`, `{key}` and `{workspace}`
    are replaced."""

    command: str | None = None
    """Run by bash in /workspace. What is asked is on its standard input."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables, such as OPENAI_BASE_URL: "{url}" and OPENAI_API_KEY: "{key}"."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Files to write before the start: path → text. `~/` is the slot's home."""
    skills: str | None = None
    """The folder in which the agent looks for skills, for `agent.skill_as: file`."""
    model: str | None = None
    """The model's name as the agent is told; null: its real name."""
    mounts: dict[str, str] = field(default_factory=dict[str, str])
    """What the agent needs of this machine: folder here → where the slot sees it, read-only."""


class AgentConfig(Recipe, frozen=True):
    """What the agent is told, beside the environment's own text, and who it is."""

    system: str = ""
    """System text, added after the environment's."""
    skill: str = ""
    """A file with instructions (such as a SKILL.md), added after the system text."""
    skill_as: Literal["text", "file", "both"] = "text"
    """How the agent gets it: in the system text; as a file in its slot, in the Agent Skills form, whose path the system
    text names; both."""
    examples_as: Literal["text", "turns"] = "text"
    """Where the skill's worked examples stand: in its text, or as earlier turns of the conversation."""
    harness: str = ""
    """A command-line agent that acts in place of Ludus's own loop: `mini-swe-agent`, `codex`, `claude-code` (see
    docs/agents.md), or one of `harnesses`. Its model calls go to `model`."""
    harnesses: dict[str, HarnessConfig] = field(default_factory=dict[str, HarnessConfig])
    """Command-line agents of your own, or changes to known ones: name → recipe."""


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
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    engine: Literal["vllm", "sglang", "llamacpp", "atropos", "vllm_chat"] = "vllm"
    """In token mode, what the server is. `atropos`: the `/generate` server of its trainers; `vllm_chat`: vLLM renders
    and parses itself and tells the ids, so drift costs rows."""
    tokenizer: str = ""
    """In token mode: a `tokenizer.json`, a folder, a GGUF file, or `owner/name` on the hub; empty: what `model.name`
    says."""
    parser: str = "auto"
    """In token mode, the format that the model writes tool calls in (`docs/parsers.md`)."""
    template: str = ""
    """In token mode, a chat template in place of the model's own: a file, or `chatml`."""
    history: Literal["template", "append"] = "template"
    """In token mode, what the model sees of its past: what the template makes of it, or replies as sampled."""


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
    threads: Count = 2
    """How many cores it may use."""
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    parser: str = "hermes"
    """In token mode, the format that the model writes tool calls in (`docs/parsers.md`)."""
    template: str = "chatml"
    """In token mode, the chat template: a file, or `chatml`; empty: the one in the weights."""
    history: Literal["template", "append"] = "template"
    """In token mode, what the model sees of its past: what the template makes of it, or replies as sampled."""


class ScriptedConfig(Recipe, frozen=True, tag_field="type", tag="scripted"):
    """A function in place of a model: `(messages, tools, sampling) -> reply`. For tests and dry runs."""

    script: str = ""
    """`module:function` or `file.py:function`; also the name of a list of replies."""
    name: str = "scripted"
    """What the record calls it."""


ModelConfig = OpenAIConfig | AzureConfig | AnthropicConfig | EmbeddedConfig | ScriptedConfig


class SameConfig(Recipe, frozen=True, tag_field="type", tag="same"):
    """The agent's own model; for a proposer that asks nobody, no model at all."""


OptimizerConfig = SameConfig | ModelConfig


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

    backend: Literal["bwrap", "local", "docker", "podman", "ssh", "apptainer", "nomad", "modal"] = "bwrap"
    """`bwrap` isolates; `local` runs commands on this machine as you: for trusted code only; what the others need is
    said in the section of their name."""
    profile: str | None = None
    """Use this one of `profiles`; null: the one that the environment names, else `backend`."""
    require_sandbox: bool = False
    """Refuse to run without isolation, whatever else is set."""
    max_slots: Count | None = None
    """Slots that may exist at once; null: as many as rollouts run at once."""
    warm: Whole = 2
    """Slots kept ready ahead of time."""
    acquire_seconds: Positive = 600.0
    """How long a rollout waits for a slot before it fails."""
    idle_seconds: Positive | None = None
    """Close slots that were kept ready for so long; null: keep them."""
    lifetime_seconds: Positive | None = None
    """Take a slot back that one rollout has held for so long, which fails it; null: never."""
    starts_per_second: Positive | None = None
    """Make slots no faster than this; null for no limit."""
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
    docker: DockerSettings | None = None
    """For `backend: docker`."""
    podman: PodmanSettings | None = None
    """For `backend: podman`."""
    ssh: SshSettings | None = None
    """For `backend: ssh`."""
    apptainer: ApptainerSettings | None = None
    """For `backend: apptainer`."""
    nomad: NomadSettings | None = None
    """For `backend: nomad`."""
    modal: ModalSettings | None = None
    """For `backend: modal`."""
    profiles: dict[str, Profile] = field(default_factory=dict[str, Profile])
    """Further kinds of slots by name: `backend`, and the settings of that backend's section."""


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


class ExemplarsConfig(Recipe, frozen=True):
    """How the proposer `exemplars` makes worked examples."""

    most: Count = 12
    """Examples that a skill may have."""
    chars: Count = 1_200
    """How long an example may be, question and answer together."""
    alike: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """Share of common words from which two examples are near-duplicates."""


class TrainConfig(TrainSettings, Recipe, frozen=True):
    """How `ludus train` trains the skill. Any change here makes it another run."""

    proposer: Literal["analysts", "exemplars"] = "analysts"
    """Who has the ideas. `analysts`: the optimizer's model reads rollouts and proposes edits. `exemplars`: worked
    examples and rules out of rollouts and references, without any model."""
    exemplars: ExemplarsConfig = ExemplarsConfig()
    """For `proposer: exemplars`."""
    sampling: Sampling = Sampling()
    """How the optimizer's replies are drawn; their length is `reply_tokens`, their seeds are the run's."""
    prompts: str = ""
    """A folder with prompts that replace ours by file name; those in a folder `<env name>` in it, for that one only."""


class GatewayConfig(Recipe, frozen=True):
    """Where and how `ludus gateway` serves the model to agents (`docs/gateway.md`)."""

    host: str = "127.0.0.1"
    """The address to listen on. Any other than loopback needs `token_var`."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8100
    """The port to listen on; 0: a free one."""
    token_var: str = ""
    """The NAME of the environment variable that holds the token that agents must give as API key."""
    enforce: bool = True
    """Draw every reply as the `sampling` section says, whatever agents ask for."""
    session: BudgetConfig = BudgetConfig()
    """What one session may take; `budget` is for all of them together."""
    idle_seconds: Positive = 600.0
    """A session that is not used for so long is closed and written."""
    body_mb: Count = 32
    """The longest request."""
    atropos: bool = False
    """Serve the routes of Atropos' managed-server proxy too (`/sessions/create`, …)."""


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
    train: TrainConfig = TrainConfig()
    data: DataSettings = DataSettings()
    optimizer: OptimizerConfig = SameConfig()
    gateway: GatewayConfig = GatewayConfig()


SECTIONS: Mapping[str, Any] = {f.name: f.type for f in msgspec.structs.fields(Config) if f.name != "options"}

CONTENT = "content"
"""The section of a training run's record that says what its settings pointed at; it is no setting."""
TRAINING = frozenset({"train", "data", "optimizer"})
"""Sections that only training reads."""

_PLACE = (
    "servers", "timeouts", "retry", "concurrency", "proxy", "api_key_var", "price", "base_url", "requests_per_minute",
    "tokens_per_minute",
)  # fmt: skip
FREE = frozenset(
    {"run.out", "run.resume", "run.concurrency", "run.retries", "budget", "gateway"}
    | {f"sandbox.{name}" for name in ("max_slots", "warm", "acquire_seconds", "idle_seconds", "starts_per_second")}
    | {f"{role}.{name}" for role in ("model", "optimizer") for name in _PLACE}
)
"""Settings that may differ when a run is resumed: they decide how fast and how far it goes, not what comes out."""
