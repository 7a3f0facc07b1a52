"""GRPO: the loss is the one that plain arithmetic gives, and an update can be undone, repeated and continued."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.torch_kit import make_folder, make_row, make_trainer, torch

from ludus.errors import ConfigError
from ludus.models import Model
from ludus.rl.grpo_settings import GrpoSettings
from ludus.rl.net_files import load_net
from ludus.rl.torch_trainer import STATE, TorchTrainer, choose_learning_rate, open_trainer
from ludus.rl.trainers import TrainingDiverged, TrainingRow
from ludus.types import Message, Sampling, Tokens

ROWS = [
    make_row((5, 6, 7, 8), 0.5, (-2.0, -3.0)),
    make_row((5, 6, 9), -0.5, (-1.0,)),
    make_row((11, 6, 9, 4, 3), 1.5, (-9.0, -1.0, -0.1)),
]


def read_weights(trainer: TorchTrainer) -> dict[str, Any]:
    return {name: value.clone() for name, value in trainer._net.state_dict().items()}  # pyright: ignore


def score(trainer: TorchTrainer, row: TrainingRow) -> list[float]:
    """The logprobs of the sampled ids of a row under the trainer's policy."""
    with torch.no_grad():
        net, tokens = trainer._net, row.tokens  # pyright: ignore
        found, _ = net.score_sampled(torch.tensor([tokens.ids]), torch.tensor([tokens.sampled]))
    return found.tolist()


def compute_loss(rows: Sequence[TrainingRow], new: Sequence[Sequence[float]], low: float, high: float) -> float:
    """The loss in plain arithmetic."""
    terms: list[float] = []
    for row, values in zip(rows, new, strict=True):
        old = [value for value in row.tokens.logprobs if value is not None]
        for before, now in zip(old, values, strict=True):
            ratio = math.exp(now - before)
            held = min(max(ratio, 1 - low), 1 + high)
            terms.append(-min(ratio * row.advantage, held * row.advantage))
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 0.5)])
@pytest.mark.parametrize("batch_tokens", [1, 10_000])
async def test_the_loss_is_the_arithmetic_one(low: float, high: float, batch_tokens: int):
    trainer = make_trainer(clip_low=low, clip_high=high, batch_tokens=batch_tokens)
    new = [score(trainer, row) for row in ROWS]
    update = await trainer.update(ROWS)
    assert update.metrics.loss == pytest.approx(compute_loss(ROWS, new, low, high), rel=1e-4)
    assert [list(values) for values in update.logprobs] == [pytest.approx(values, rel=1e-4) for values in new]
    changes = [
        now - before
        for row, values in zip(ROWS, new, strict=True)
        for before, now in zip([v for v in row.tokens.logprobs if v is not None], values, strict=True)
    ]
    assert update.metrics.kl == pytest.approx(sum(math.exp(c) - 1 - c for c in changes) / len(changes), rel=1e-3)
    assert update.metrics.ratio == pytest.approx(math.exp(max(changes)), rel=1e-3)
    assert update.metrics.tokens == 6
    assert update.version == trainer.version == 1


async def test_the_size_of_batches_does_not_change_the_update():
    small, large = make_trainer(batch_tokens=1), make_trainer(batch_tokens=10_000)
    for trainer in (small, large):
        await trainer.update(ROWS)
    for name, value in read_weights(small).items():
        assert torch.allclose(value, read_weights(large)[name], atol=1e-5), name


async def test_good_ids_become_likelier_and_bad_ones_less_likely():
    trainer = make_trainer()
    on_policy = [make_row(r.tokens.ids, r.advantage, tuple(score(trainer, r))) for r in ROWS]
    before = [sum(score(trainer, row)) for row in on_policy]
    for _ in range(3):
        await trainer.update(on_policy)
    after = [sum(score(trainer, row)) for row in on_policy]
    assert after[0] > before[0] and after[1] < before[1] and after[2] > before[2]


async def test_ids_that_were_not_sampled_get_no_gradient():
    trainer = make_trainer()
    row = ROWS[0]
    await trainer.update([make_row(row.tokens.ids, 0.0, (-2.0, -3.0))])
    start = make_trainer()
    for name, value in read_weights(trainer).items():
        assert torch.equal(value, read_weights(start)[name]), name


async def test_a_loss_that_is_not_a_number_changes_nothing():
    for settings in ({}, {"passes": 2, "minibatches": 2}):
        trainer = make_trainer(**settings)
        await trainer.update(ROWS)
        before, bad = read_weights(trainer), make_row((5, 6, 7), float("nan"), (-1.0,))
        with pytest.raises(TrainingDiverged, match="the loss is nan"):
            await trainer.update([*ROWS, bad])
        assert trainer.version == 1
        assert all(torch.equal(value, before[name]) for name, value in read_weights(trainer).items())
        await trainer.update(ROWS)
        again = make_trainer(**settings)
        for _ in range(2):
            await again.update(ROWS)
        assert all(torch.equal(value, read_weights(again)[name]) for name, value in read_weights(trainer).items())


@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, {"kl": 0.1}, {"lora_rank": 4, "kl": 0.1}, {"minibatches": 2, "passes": 2}]
)
async def test_a_saved_state_continues_exactly(tmp_path: Path, settings: dict[str, Any]):
    whole = make_trainer(**settings)
    for _ in range(4):
        await whole.update(ROWS)
    first = make_trainer(**settings)
    for _ in range(2):
        await first.update(ROWS)
    await first.save(tmp_path)
    second = make_trainer(**settings)
    await second.load(tmp_path)
    assert second.version == 2
    for _ in range(2):
        await second.update(ROWS)
    for name, value in read_weights(whole).items():
        assert torch.equal(value, read_weights(second)[name]), name


async def test_a_checkpoint_can_be_trained_further_by_another_run_or_loaded_elsewhere(tmp_path: Path):
    trainer = make_trainer()
    await trainer.update(ROWS)
    await trainer.save(tmp_path)
    found = load_net(tmp_path).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in read_weights(trainer).items())
    assert (tmp_path / "tokenizer.json").exists()
    assert open_trainer(GrpoSettings(weights=str(tmp_path), parser="pythonic"), tmp_path).version == 0


async def test_a_state_of_other_settings_and_a_damaged_one_are_refused(tmp_path: Path):
    trainer = make_trainer()
    await trainer.save(tmp_path)
    with pytest.raises(ConfigError, match="other trainer settings"):
        await make_trainer(kl=0.5).load(tmp_path)
    state = tmp_path / STATE
    state.write_bytes(state.read_bytes()[:50])
    with pytest.raises(ConfigError, match="cannot be read"):
        await make_trainer().load(tmp_path)


async def test_the_kl_term_holds_the_policy_back():
    free, held = make_trainer(), make_trainer(kl=5.0)
    rows = [make_row(r.tokens.ids, r.advantage, tuple(score(free, r))) for r in ROWS]
    for _ in range(20):
        await free.update(rows)
        update = await held.update(rows)
    start = [value for row in rows for value in score(make_trainer(), row)]

    def measure(trainer: TorchTrainer) -> float:
        now = [value for row in rows for value in score(trainer, row)]
        return sum(abs(a - b) for a, b in zip(start, now, strict=True))

    assert measure(held) < measure(free)
    assert update.metrics.reference_kl is not None and update.metrics.reference_kl > 0


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}])
async def test_the_model_samples_from_the_version_that_it_was_made_of(settings: dict[str, Any]):
    """Its recorded logprobs are those that the trainer computes, so that the first ratio is 1."""

    async def reply(model: Model, seed: int) -> Tokens:
        sampling = Sampling(max_tokens=6, seed=seed)
        completion = await model.complete([Message("user", "Send 7 red lamps.")], [], sampling)
        assert completion.tokens is not None
        return completion.tokens

    trainer = make_trainer(**settings)
    await trainer.update(ROWS)
    model = await trainer.get_model("small@1")
    replies = [await reply(model, seed) for seed in range(3)]
    rows = [TrainingRow(tokens=tokens, advantage=1.0, version=1) for tokens in replies]
    before = [await reply(model, 1)]
    update = await trainer.update(rows)
    assert update.metrics.ratio == pytest.approx(1.0, abs=1e-3)
    assert [await reply(model, 1)] == before, "an update changes the model of an earlier version"
    await model.close()


def test_learning_rates():
    assert choose_learning_rate(GrpoSettings()) == 8e-4
    assert choose_learning_rate(GrpoSettings(weights="x", lora_rank=8)) == 1e-4
    assert choose_learning_rate(GrpoSettings(weights="x")) == 1e-5
    assert choose_learning_rate(GrpoSettings(learning_rate=0.5)) == 0.5


def test_a_server_needs_lora():
    settings = GrpoSettings(weights=str(make_folder()))
    with pytest.raises(ConfigError, match="a server can only be given LoRA"):
        open_trainer(settings, Path("/nowhere"), make_sampler=lambda codec: None)  # pyright: ignore


def test_bfloat16_is_refused_on_the_cpu():
    with pytest.raises(ConfigError, match="bfloat16"):
        make_trainer(dtype="bfloat16", device="cpu")
