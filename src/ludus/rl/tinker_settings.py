"""The settings of training over Tinker. They need no client."""

from typing import ClassVar, Literal

from ludus.settings import Settings
from ludus.types import Count, Positive

TINKER_KEY = "TINKER_API_KEY"
"""The environment variable of the hosted service's key."""


class TinkerSettings(Settings, frozen=True, tag_field="type", tag="tinker"):
    """Training over Tinker's API: the hosted service, or SkyRL on your own machines (`pip install
    'ludus-train[tinker]'`). LoRA is trained and sampled over there."""

    base_model: str = ""
    """The policy to start from, as the service names it: `Qwen/Qwen3-8B`; for SkyRL the value of its `--base-model`."""
    base_url: str = ""
    """The address of a server of your own, such as `http://127.0.0.1:8800`; empty: the hosted service."""
    api_key_var: str = ""
    """The environment variable that holds the key; empty: `TINKER_API_KEY` for the hosted service, no key for a server
    of your own."""
    tokenizer: str = ""
    """The policy's tokenizer, as in `model.tokenizer`; empty: `base_model`."""
    parser: str = "hermes"
    """The format of its tool calls, as in `model.parser`."""
    template: str = ""
    """A chat template instead of its own, as in `model.template`."""
    lora_rank: Count = 32
    """The rank of the LoRA adapter."""
    learning_rate: Positive = 1e-4
    """The step size of Adam."""
    loss: Literal["importance_sampling", "ppo"] = "importance_sampling"
    """`importance_sampling`: the ratio of the new to the recorded probability times the advantage. `ppo`: the same,
    clipped; for rows that are older than the policy."""
    clip_low: Positive = 0.2
    """With `ppo`: no more gradient once an id's probability is this share below that of the sampler."""
    clip_high: Positive = 0.2
    """With `ppo`: no more gradient once an id's probability is this share above that of the sampler."""
    timeout: Positive = 1800.0
    """The longest wait for one answer, in seconds. The first request waits until the service has loaded the model."""
    seed: int = 0
    """The seed of LoRA's first weights."""

    may_change: ClassVar[tuple[str, ...]] = ("base_url", "api_key_var", "timeout")

    @property
    def key_variable(self) -> str:
        """The environment variable that holds the key; empty if none is needed."""
        return self.api_key_var or ("" if self.base_url else TINKER_KEY)
