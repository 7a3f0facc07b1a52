"""The built-in trainer: GRPO with PyTorch, on one machine.

For every sampled id, with r the ratio of its probability under the policy now and under the policy that sampled it
(from the recorded logprob), and A the advantage of its rollout:

    loss = - sum over ids of min(r·A, clip(r, 1 - low, 1 + high)·A) / n  +  kl · (KL divergence from the start)

n is the number of sampled ids in the largest step so far. So long and short rollouts have the same weight per id, and a
step in which few groups had different scores is a small one: late in a run it would else be mostly noise. There is no
critic and no reward model. An update is a pure function of the weights, the state of the optimizer, the rows and the
version, so that a run which continues from a checkpoint makes the same versions.
"""

import asyncio
import copy
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError
from ludus.models import Model
from ludus.rl.grpo_settings import TINY, GrpoSettings
from ludus.rl.net_files import load_net, save_adapter, save_net
from ludus.rl.policy_net import PolicyNet, add_lora, list_lora
from ludus.rl.tiny_policy import PARSER, find_tiny_policy, pad_rows
from ludus.rl.torch_engine import TorchEngine
from ludus.rl.torch_import import Tensor, torch
from ludus.rl.trainers import PolicyUpdate, TrainingDiverged, TrainingRow, UpdateMetrics, check_finite
from ludus.tokens.codec import Codec
from ludus.tokens.model import TokenModel

STATE = "state.pt"
FACTS = "trainer.json"


class AdapterSampler(Protocol):
    """Samples from the policy in another process, which gets the LoRA paths after each update."""

    async def load_adapter(self, folder: Path, version: int, name: str) -> Model:
        """A model of this name that samples with the LoRA paths in `folder` (in the form of peft).

        Raises:
            ModelUnusable: the server did not load them.
        """
        ...

    async def close(self) -> None: ...


class _SavedFacts(Struct, frozen=True):
    """What a checkpoint says about itself."""

    version: int
    largest: int
    weights: str
    settings: dict[str, Any]


@dataclass
class _Sums:
    """What an update adds up over its sampled ids."""

    loss: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    gradients: list[float] = field(default_factory=list[float])
    tokens: int = 0
    logprobs: dict[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])
    """Of the rows of the first step, by their `id`: before it, the weights are those of the version before."""


def open_trainer(
    settings: GrpoSettings,
    cache: Path,
    *,
    make_codec: Callable[[str | Path, str], Codec] = Codec.open,
    make_sampler: Callable[[Codec], AdapterSampler] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> "TorchTrainer":
    """Load the policy that the settings name, and make its trainer. `cache` is where the tiny policy is kept.
    `make_codec` opens a tokenizer with a parser, and `make_sampler` makes what samples in place of this process.

    Raises:
        ConfigError: the settings cannot work.
    """
    if make_sampler is not None and not settings.lora_rank:
        raise ConfigError("trainer.lora_rank: a server can only be given LoRA weights; set a rank, such as 16")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    tiny = settings.weights == TINY
    folder = find_tiny_policy(cache, tell=tell) if tiny else Path(settings.weights).expanduser()
    parser = settings.parser or (PARSER if tiny else "hermes")
    net = load_net(folder)
    codec = make_codec(settings.tokenizer or folder, parser)
    sampler = make_sampler(codec) if make_sampler is not None else None
    return TorchTrainer(net, codec, settings, name=_name_weights(folder, tiny), base=str(folder), sampler=sampler)


def _name_weights(folder: Path, tiny: bool) -> str:
    """A name that differs where weights differ."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                digest.update(block)
    return f"{TINY if tiny else folder.resolve().name}-{digest.hexdigest()[:8]}"


class TorchTrainer:
    """A `Trainer` that holds the net in this process."""

    def __init__(
        self,
        net: PolicyNet,
        codec: Codec,
        settings: GrpoSettings,
        *,
        name: str,
        base: str = "",
        sampler: AdapterSampler | None = None,
    ) -> None:
        self.codec = codec
        self.settings = settings
        self._name = name
        self._base = base
        self._sampler = sampler
        self._version = 0
        self._largest = 0
        """The number of sampled ids in the largest step so far."""
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device: Any = torch.device(device)
        if settings.dtype == "bfloat16" and self._device.type == "cpu":
            raise ConfigError("trainer.dtype: bfloat16 is for GPUs; on the CPU it is slow, and many cannot compute it")
        self._net = net.to(self._device)
        if settings.lora_rank:
            with _seeded(settings.seed):
                add_lora(self._net, settings.lora_rank, settings.lora_alpha)
        self._trained: dict[str, Tensor] = {n: p for n, p in self._net.named_parameters() if p.requires_grad}
        self._reference = self._copy_net() if settings.kl and not settings.lora_rank else None
        self._optimizer: Any = torch.optim.AdamW(
            self._trained.values(), lr=choose_learning_rate(settings), weight_decay=settings.weight_decay
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int:
        return self._version

    # ---- sampling -------------------------------------------------------------------------------------------------

    async def get_model(self, name: str) -> Model:
        if self._sampler is not None:
            with tempfile.TemporaryDirectory(prefix="ludus-adapter-") as folder:
                self.save_adapter(Path(folder))
                return await self._sampler.load_adapter(Path(folder), self._version, name)
        engine = TorchEngine(
            self._copy_net(),
            name=name,
            tokenizer=self.codec.tokenizer,
            slots=self.settings.slots,
            context=self.settings.context,
            precision=self._choose_precision,
        )
        return TokenModel(engine, self.codec, name=name)

    def save_adapter(self, folder: Path) -> None:
        """Write the LoRA paths in the form of peft."""
        rank, alpha = self.settings.lora_rank, self.settings.lora_alpha
        save_adapter(self._net, folder, base=self._base, rank=rank, alpha=alpha)

    def _copy_net(self) -> PolicyNet:
        """The net as it is now. Weights that are not trained are shared."""
        shared: dict[int, Any] = {id(p): p for p in self._net.parameters() if not p.requires_grad}
        return copy.deepcopy(self._net, shared).requires_grad_(False)

    def _choose_precision(self) -> Any:
        kind = self.settings.dtype
        if kind == "bfloat16" or (kind == "auto" and self._device.type == "cuda"):
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()

    # ---- learning -------------------------------------------------------------------------------------------------

    async def update(self, rows: Sequence[TrainingRow]) -> PolicyUpdate:
        return await asyncio.to_thread(self._update, list(rows))

    def _update(self, rows: list[TrainingRow]) -> PolicyUpdate:
        started = time.monotonic()
        several = self.settings.passes * self.settings.minibatches > 1
        before = copy.deepcopy((self._read_trained(), self._optimizer.state_dict())) if several else None
        largest = self._largest
        sums = _Sums()
        try:
            for part in _plan_parts(rows, self.settings, self._version):
                self._take_step(part, sums)
        except TrainingDiverged:
            if before is not None:
                self._restore(*before)
            self._largest = largest
            self._optimizer.zero_grad(set_to_none=True)
            raise
        self._version += 1
        logprobs = tuple(sums.logprobs.get(id(row), ()) for row in rows) if self.settings.minibatches == 1 else ()
        metrics = _make_metrics(sums, self.settings, started)
        return PolicyUpdate(version=self._version, metrics=metrics, logprobs=logprobs)

    def _take_step(self, rows: Sequence[TrainingRow], sums: _Sums) -> None:
        """One step of the optimizer. Raises `TrainingDiverged` before anything is changed."""
        total = max(self._largest, sum(sum(row.tokens.sampled[1:]) for row in rows))
        for batch in _split_rows(rows, self.settings.batch_tokens):
            self._add_gradient(batch, total, sums)
        norm = torch.nn.utils.clip_grad_norm_(self._trained.values(), self.settings.max_gradient).item()
        sums.gradients.append(norm)
        check_finite(UpdateMetrics(loss=sums.loss, gradient=norm))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._largest = total

    def _add_gradient(self, rows: Sequence[TrainingRow], total: int, sums: _Sums) -> None:
        """Add the gradient of some rows. Losses are sums over ids, divided by `total`."""
        settings = self.settings
        ids, sampled = (each.to(self._device) for each in pad_rows([row.tokens for row in rows]))
        places = [
            (row.advantage, old)
            for row in rows
            for old, was in zip(row.tokens.logprobs[1:], row.tokens.sampled[1:], strict=True)
            if was
        ]
        advantages, old = torch.tensor(places, dtype=torch.float32, device=self._device).unbind(1)
        with self._choose_precision():
            new, entropy = self._net.score_sampled(ids, sampled)
        change = new - old
        ratio = change.exp()
        held = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
        gain = torch.minimum(ratio * advantages, held * advantages)
        loss = -gain.sum()
        if settings.kl:
            apart = _estimate_kl(new, self._score_reference(ids, sampled)).sum()
            loss = loss + settings.kl * apart
            sums.reference_kl += apart.item()
        (loss / total).backward()
        if not sums.gradients:
            counts = [sum(row.tokens.sampled[1:]) for row in rows]
            parts = new.detach().split(counts)
            sums.logprobs |= {id(row): tuple(part.tolist()) for row, part in zip(rows, parts, strict=True)}
        with torch.no_grad():
            sums.loss += loss.item()
            sums.kl += _estimate_kl(old, new).sum().item()
            sums.entropy += entropy.sum().item()
            sums.clipped += (ratio * advantages > gain).sum().item()
            sums.ratio = max(sums.ratio, ratio.max().item())
            sums.tokens += len(places)

    def _score_reference(self, ids: Tensor, sampled: Tensor) -> Tensor:
        """The logprobs of the policy that training started from."""
        with torch.no_grad(), self._choose_precision():
            if self._reference is not None:
                return self._reference.score_sampled(ids, sampled)[0]
            with _without_lora(self._net):
                return self._net.score_sampled(ids, sampled)[0]

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    async def save(self, folder: Path) -> None:
        """Write the policy as a folder that can be trained or served (with LoRA: the adapter in the form of peft), and
        beside it the state of the optimizer."""
        await asyncio.to_thread(self._save, folder)

    def _save(self, folder: Path) -> None:
        if self.settings.lora_rank:
            self.save_adapter(folder)
        else:
            save_net(self._net, folder)
            self.codec.tokenizer.save(folder / "tokenizer.json")
            config = Path(self._base) / "tokenizer_config.json"
            if config.is_file():
                shutil.copy(config, folder)
        state = {"weights": self._read_trained(), "optimizer": self._optimizer.state_dict()}
        if self._reference is not None:
            state["reference"] = self._reference.state_dict()
        torch.save(state, folder / STATE)
        facts = _SavedFacts(self._version, self._largest, self._name, _list_binding(self.settings))
        (folder / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2))

    async def load(self, folder: Path) -> None:
        try:
            facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=_SavedFacts)
            state = await asyncio.to_thread(torch.load, folder / STATE, map_location=self._device, weights_only=True)
        except Exception as error:  # files that are cut or damaged raise many kinds of exceptions
            raise ConfigError(
                f"the checkpoint {folder} cannot be read ({error}): remove it to continue from the one before"
            ) from error
        if facts.weights != self._name or facts.settings != _list_binding(self.settings):
            raise ConfigError(f"the checkpoint {folder} is of another policy or of other trainer settings")
        self._restore(state["weights"], state["optimizer"])
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])
        self._version, self._largest = facts.version, facts.largest

    def _read_trained(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._trained.items()}

    def _restore(self, weights: dict[str, Tensor], optimizer: Any) -> None:
        with torch.no_grad():
            for name, value in self._trained.items():
                value.copy_(weights[name])
        self._optimizer.load_state_dict(optimizer)

    async def close(self) -> None:
        if self._sampler is not None:
            await self._sampler.close()


# ---- decisions ------------------------------------------------------------------------------------------------------


def choose_learning_rate(settings: GrpoSettings) -> float:
    if settings.learning_rate is not None:
        return settings.learning_rate
    return 8e-4 if settings.weights == TINY else 1e-4 if settings.lora_rank else 1e-5


def _list_binding(settings: GrpoSettings) -> dict[str, Any]:
    """The settings that a checkpoint must have been made with."""
    free = {*GrpoSettings.may_change, "weights", "device", "threads"}
    return {name: value for name, value in msgspec.structs.asdict(settings).items() if name not in free}


def _plan_parts(rows: Sequence[TrainingRow], settings: GrpoSettings, version: int) -> list[list[TrainingRow]]:
    """The rows of each optimizer step. With several steps, their order is sampled anew in every pass."""
    parts: list[list[TrainingRow]] = []
    for number in range(settings.passes):
        order = list(rows)
        if settings.minibatches > 1:
            Random(f"{settings.seed}/{version}/{number}").shuffle(order)
        count = min(settings.minibatches, len(order))
        parts += [order[place::count] for place in range(count)]
    return parts


def _split_rows(rows: Sequence[TrainingRow], most: int) -> list[list[TrainingRow]]:
    """Batches of rows of similar length, each with at most `most` tokens with its padding, or one row."""
    batches: list[list[TrainingRow]] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if batches and (len(batches[-1]) + 1) * len(row.tokens) <= most:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _estimate_kl(first: Tensor, second: Tensor) -> Tensor:
    """An estimate of KL(first ‖ second) at ids that `first` drew: never negative, and without bias."""
    change = second - first
    return change.exp() - 1 - change


def _make_metrics(sums: _Sums, settings: GrpoSettings, started: float) -> UpdateMetrics:
    count = max(1, sums.tokens)
    return UpdateMetrics(
        loss=sums.loss / count,
        kl=max(0.0, sums.kl / count),  # rounding can make it negative
        reference_kl=sums.reference_kl / count if settings.kl else None,
        entropy=sums.entropy / count,
        clipped=sums.clipped / count,
        ratio=sums.ratio,
        gradient=max(sums.gradients, default=0.0),
        tokens=sums.tokens // settings.passes,
        seconds=time.monotonic() - started,
    )


@contextmanager
def _seeded(seed: int) -> Any:
    """Sample from a seed, and leave the random state as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _without_lora(net: PolicyNet) -> Any:
    paths = list_lora(net).values()
    for path in paths:
        path.enabled = False
    try:
        yield
    finally:
        for path in paths:
            path.enabled = True
