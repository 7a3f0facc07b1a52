"""A causal transformer: the policy that the built-in trainer trains.

    ids ──> embedding ──> n × (attention, feed-forward) ──> norm ──> logits

It is the architecture of Llama, Mistral, SmolLM2, Qwen2 and Qwen3 (dense), with the parameter names of their files, so
that one small implementation trains all of them, and the tiny policy of `ludus.rl.tiny_policy`. `NetShape` says how
large a net is and which of the families' variants it has.

There are two ways through the net with the same result. `forward` takes whole sequences: for training. `prefill` and
`decode` keep keys and values of earlier positions in a `Cache`: for sampling. LoRA is a second, low-rank path beside a
linear layer, whose own weights stay as they are.
"""

import math
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from ludus.rl.torch_import import Tensor, torch

nn: Any = torch.nn
functional: Any = torch.nn.functional

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers that can have a LoRA path."""


class NetShape(Struct, frozen=True, kw_only=True):
    """The size of a net, under the names that the families' `config.json` has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    """Biases of the projections to queries, keys and values, as Qwen2 has them."""
    norm_heads: bool = False
    """A norm of each head's queries and keys, as Qwen3 has it."""


class RmsNorm(nn.Module):
    """RMSNorm: divides by the root mean square, and scales."""

    def __init__(self, size: int, eps: float) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        upcast = x.float()
        scaled = upcast * torch.rsqrt(upcast.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weight


class LowRank(nn.Module):
    """A linear layer with frozen weights, and a trained path of low rank beside it. The path starts at zero."""

    def __init__(self, base: Any, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        self.enabled = True
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        own = self.base(x)
        return own + self.lora_B(self.lora_A(x)) * self.scale if self.enabled else own


@dataclass
class Cache:
    """Keys and values of the positions so far, (B, H, T, C) for each layer, and the length of each row."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor  # (B,)


class Attention(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        nn.Module.__init__(self)
        self.shape = shape
        size, bias = shape.hidden_size, shape.attention_bias
        self.q_proj = nn.Linear(size, shape.num_attention_heads * shape.head_dim, bias=bias)
        self.k_proj = nn.Linear(size, shape.num_key_value_heads * shape.head_dim, bias=bias)
        self.v_proj = nn.Linear(size, shape.num_key_value_heads * shape.head_dim, bias=bias)
        self.o_proj = nn.Linear(shape.num_attention_heads * shape.head_dim, size, bias=False)
        if shape.norm_heads:
            self.q_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)
            self.k_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, C), with rotary position embeddings."""
        rows, length, _ = x.shape
        split = (rows, length, -1, self.shape.head_dim)
        q, k, v = self.q_proj(x).view(split), self.k_proj(x).view(split), self.v_proj(x).view(split)
        if self.shape.norm_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return _rotate(q, *rotary), _rotate(k, *rotary), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Mix the values by the match of queries and keys. `mask` (B, 1, T, S) is true where a query may look; None is
        causal."""
        grouped = self.shape.num_key_value_heads != self.shape.num_attention_heads
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        rows, _, length, _ = mixed.shape
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        nn.Module.__init__(self)
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        nn.Module.__init__(self)
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), rotary)
        return self.finish(x, q, k, v, None)

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn.attend(q, k, v, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """All of the net but the last layer."""

    def __init__(self, shape: NetShape) -> None:
        nn.Module.__init__(self)
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)


class PolicyNet(nn.Module):
    """Ids to the logits of the next id."""

    def __init__(self, shape: NetShape) -> None:
        nn.Module.__init__(self)
        self.shape = shape
        self.model = Trunk(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self.register_buffer("inverse_frequencies", shape.rope_theta**-steps, persistent=False)

    @property
    def device(self) -> Any:
        return self.model.embed_tokens.weight.device

    def forward(self, ids: Tensor) -> Tensor:
        """The states (B, T, C) after each position of whole sequences (B, T). `lm_head` makes logits of them."""
        rotary = self._make_rotary(torch.arange(ids.shape[1], device=ids.device)[None])
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x, rotary)
        return self.model.norm(x)

    def score_sampled(self, ids: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """The logprob of each sampled id given those before it, and the entropy of the net there: both (N,), row after
        row. The first id of a row has nothing before it and is left out."""
        wanted = sampled[:, 1:]
        logits = self.lm_head(self.forward(ids[:, :-1])[wanted]).float()
        logprobs = functional.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, ids[:, 1:][wanted][:, None])[:, 0], entropy

    # ---- sampling -------------------------------------------------------------------------------------------------

    def make_cache(self, rows: int, length: int) -> Cache:
        shape = self.shape
        size = (rows, shape.num_key_value_heads, length, shape.head_dim)
        kind = {"device": self.device, "dtype": self.model.embed_tokens.weight.dtype}
        return Cache(
            [torch.zeros(size, **kind) for _ in self.model.layers],
            [torch.zeros(size, **kind) for _ in self.model.layers],
            torch.zeros(rows, dtype=torch.long, device=self.device),
        )

    def prefill(self, ids: Tensor) -> tuple[Tensor, Cache]:
        """The logits (1, V) after one whole prompt (1, T), and its keys and values."""
        rotary = self._make_rotary(torch.arange(ids.shape[1], device=ids.device)[None])
        keys: list[Tensor] = []
        values: list[Tensor] = []
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            q, k, v = block.self_attn.project(block.input_layernorm(x), rotary)
            keys.append(k)
            values.append(v)
            x = block.finish(x, q, k, v, None)
        lengths = torch.full((1,), ids.shape[1], dtype=torch.long, device=self.device)
        return self.lm_head(self.model.norm(x[:, -1])).float(), Cache(keys, values, lengths)

    def decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """Add one id to every row (B,) and return the logits (B, V) after it. `cache` is changed in place."""
        rows = torch.arange(ids.shape[0], device=self.device)
        rotary = self._make_rotary(cache.lengths[:, None])
        positions = torch.arange(cache.keys[0].shape[2], device=self.device)
        mask = (positions[None] <= cache.lengths[:, None])[:, None, None]
        x = self.model.embed_tokens(ids[:, None])
        for block, keys, values in zip(self.model.layers, cache.keys, cache.values, strict=True):
            q, k, v = block.self_attn.project(block.input_layernorm(x), rotary)
            keys[rows, :, cache.lengths] = k[:, :, 0].to(keys.dtype)
            values[rows, :, cache.lengths] = v[:, :, 0].to(values.dtype)
            x = block.finish(x, q, keys.to(q.dtype), values.to(q.dtype), mask)
        cache.lengths += 1
        return self.lm_head(self.model.norm(x[:, 0])).float()

    def _make_rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B, 1, T, C) of the rotary embeddings at positions (B, T)."""
        angles = positions[..., None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + rotated * sin).to(x.dtype)


# ---- LoRA -----------------------------------------------------------------------------------------------------------


def add_lora(net: PolicyNet, rank: int, alpha: float) -> None:
    """Freeze the net, and add a LoRA path to each linear layer of its blocks."""
    net.requires_grad_(False)
    for block in net.model.layers:
        for part in (block.self_attn, block.mlp):
            for name in LORA_TARGETS:
                if hasattr(part, name):
                    setattr(part, name, LowRank(getattr(part, name), rank, alpha).to(net.device))


def list_lora(net: PolicyNet) -> dict[str, LowRank]:
    """The LoRA paths by the names of their layers."""
    return {name: module for name, module in net.named_modules() if isinstance(module, LowRank)}
