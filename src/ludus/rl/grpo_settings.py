"""The settings of the built-in trainer. They need no PyTorch."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count, Positive, Whole

TINY = "tiny"


class GrpoSettings(Settings, frozen=True, tag_field="type", tag="grpo"):
    """The built-in trainer: GRPO with PyTorch, in this process (`pip install 'ludus-train[rl]'`)."""

    weights: str = TINY
    """The policy to start from: a folder in the form of Hugging Face (Llama, Mistral, SmolLM2, Qwen2 or Qwen3), or
    `tiny`: a policy of 0.3 million weights that is made in a minute and can call the tools of `parcels`."""
    tokenizer: str = ""
    """Its tokenizer, as in `model.tokenizer`; empty: that of the folder."""
    parser: str = ""
    """The format of its tool calls, as in `model.parser`; empty: `hermes`, or that of the tiny policy."""
    template: str = ""
    """A chat template instead of its own, as in `model.template`."""
    lora_rank: Whole = 0
    """The rank of the LoRA paths that are trained; 0: all weights are trained."""
    lora_alpha: Positive = 32.0
    """The scale of the LoRA paths is this divided by the rank."""
    learning_rate: Positive | None = None
    """The step size of AdamW. Not set: 8e-4 for the tiny policy, 1e-4 with LoRA, 1e-5 without."""
    weight_decay: float = 0.0
    """The weight decay of AdamW."""
    clip_low: Positive = 0.2
    """An id's probability has no more gradient once it is this share below that of the sampler."""
    clip_high: Positive = 0.2
    """An id's probability has no more gradient once it is this share above that of the sampler."""
    kl: Annotated[float, Meta(ge=0)] = 0.0
    """The weight of the KL divergence from the policy that training started from; 0: no such term."""
    passes: Count = 1
    """How often an update goes through its rows."""
    minibatches: Count = 1
    """The number of optimizer steps of one pass."""
    max_gradient: Positive = 1.0
    """A gradient with a larger norm is scaled down to it."""
    batch_tokens: Count = 16_384
    """Tokens, with padding, that go through the net at once. It bounds the memory and does not change the result."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The numbers to compute with. `auto`: bfloat16 on a GPU (the trained weights stay float32), float32 on the CPU."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; `auto`: a GPU if there is one."""
    threads: Whole = 0
    """Threads of one operation on the CPU; 0: as PyTorch chooses."""
    vllm: str = ""
    """The address of a vLLM server (`http://127.0.0.1:8000/v1`) of the same weights, which samples with the LoRA
    weights of each version; empty: sampling is done in this process."""
    slots: Count = 64
    """Replies that are sampled at the same time."""
    context: Count = 512
    """The longest conversation, in tokens."""
    seed: int = 0
    """The seed of LoRA's first weights and of the order of rows."""

    may_change: ClassVar[tuple[str, ...]] = ("batch_tokens", "slots")
