"""A small policy for tests of the built-in trainer. They run with `make test-trainers`, where PyTorch is installed."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'rl' is not installed: make test-trainers")
pytest.importorskip("tokenizers")

from ludus.rl.grpo_settings import GrpoSettings  # noqa: E402
from ludus.rl.net_files import load_net  # noqa: E402
from ludus.rl.policy_net import NetShape, PolicyNet  # noqa: E402
from ludus.rl.tiny_policy import PARSER, TinyRecipe, make_tiny_policy  # noqa: E402
from ludus.rl.torch_trainer import TorchTrainer  # noqa: E402
from ludus.rl.trainers import TrainingRow  # noqa: E402
from ludus.tokens.codec import Codec  # noqa: E402
from ludus.types import Tokens  # noqa: E402

RECIPE = TinyRecipe(demonstrations=200, steps=3, hidden_size=32, heads=2)


@cache
def make_folder() -> Path:
    """The files of a policy that has seen almost nothing."""
    folder = Path(mkdtemp(prefix="ludus-tiny-"))
    make_tiny_policy(folder, RECIPE)
    return folder


def make_net(seed: int = 0, **shape: Any) -> PolicyNet:
    torch.manual_seed(seed)
    fields = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        **shape,
    }
    net = PolicyNet(NetShape(**fields))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    return net


def make_trainer(**settings: Any) -> TorchTrainer:
    folder = make_folder()
    codec = Codec.open(folder, PARSER)
    fields = {"weights": str(folder), "learning_rate": 1e-3, "slots": 4, "context": 64, **settings}
    return TorchTrainer(load_net(folder), codec, GrpoSettings(**fields), name="small", base=str(folder))


def make_row(ids: tuple[int, ...], advantage: float, old: tuple[float, ...], **fields: Any) -> TrainingRow:
    """A row of which the last ids, as many as there are logprobs, were sampled."""
    prompt = len(ids) - len(old)
    tokens = Tokens(ids, (False,) * prompt + (True,) * len(old), (None,) * prompt + old)
    return TrainingRow(tokens=tokens, advantage=advantage, version=0, **fields)
