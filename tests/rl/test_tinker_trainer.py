import socket

import msgspec
import pytest
from tests.cli_kit import make_tokenizer
from tests.rl import tinker_kit

from ludus.errors import ConfigError, ModelUnusable
from ludus.rl import tinker_engine, tinker_trainer
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.tinker_trainer import TinkerTrainer, check_address, find_gradient
from ludus.rl.trainers import TrainingDiverged, TrainingRow
from ludus.tokens.codec import Codec
from ludus.types import Message, Sampling, Tokens

ROW = TrainingRow(tokens=Tokens((5, 6, 7), (False, True, True), (None, -0.5, -1.0)), advantage=0.5, version=0)


@pytest.fixture
def service(monkeypatch):
    made = tinker_kit.Service()
    for module in (tinker_engine, tinker_trainer):
        monkeypatch.setattr(module, "import_tinker", made.make_module)
    return made


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"), "hello there")
    return Codec.open(folder, "hermes", template="chatml")


def make_trainer(codec, key="tml-key", **settings):
    return TinkerTrainer(TinkerSettings(base_model="tiny", **settings), codec, key)


async def run(main):
    return await main


async def test_an_update_is_a_gradient_and_a_step(service, codec):
    trainer = make_trainer(codec, learning_rate=3e-4)
    done = await run(trainer.update([ROW, ROW]))
    (data, loss, config) = service.gradients[0]
    assert (loss, config, service.steps, len(data)) == ("importance_sampling", None, 1, 2)
    assert data[0] == tinker_kit.Datum(
        [5, 6], {"target_tokens": [6, 7], "logprobs": [-0.5, -1.0], "advantages": [0.5, 0.5]}
    )
    assert (done.version, trainer.version) == (1, 1)
    assert (done.metrics.loss, done.metrics.kl, done.metrics.gradient, done.metrics.tokens) == (-0.5, 0.0, 0.75, 4)


async def test_ppo_is_sent_with_its_bounds(service, codec):
    await run(make_trainer(codec, loss="ppo", clip_low=0.25, clip_high=0.5).update([ROW]))
    assert service.gradients[0][1:] == ("ppo", {"clip_low_threshold": 0.75, "clip_high_threshold": 1.5})


async def test_a_loss_that_is_not_finite_takes_no_step(service, codec):
    trainer = make_trainer(codec)
    await trainer.update([ROW])
    service.shift = float("nan")
    for _ in range(2):  # the service has added up a gradient that is not finite: a second try must not use it
        with pytest.raises(TrainingDiverged):
            await trainer.update([ROW])
        service.shift = 0.0
    assert trainer.version == 1
    assert (service.steps, len(service.gradients)) == (1, 2)


async def test_every_version_samples_with_the_newest_weights(service, codec):
    trainer = make_trainer(codec)
    first = await trainer.get_model("tiny")
    await trainer.update([ROW])
    second = await trainer.get_model("tiny@1")
    sampling = Sampling(max_tokens=8)
    for model in (first, second):
        await model.complete([Message("user", "hi")], (), sampling)
    assert (first.name, second.name) == ("tiny", "tiny@1")
    old, new = service.samplers
    assert (old.version, len(old.requests), new.version, len(new.requests)) == (0, 0, 1, 2)


async def test_a_saved_state_is_loaded_by_another_trainer(service, codec, tmp_path):
    trainer = make_trainer(codec)
    for _ in range(2):
        await trainer.update([ROW])
    await trainer.save(tmp_path)
    await trainer.save(tmp_path)  # the loop may save a version again
    await trainer.update([ROW])
    other = make_trainer(codec)
    await other.get_model("tiny")  # a resumed run checks its model first
    await other.load(tmp_path)
    assert other.version == 2
    assert service.steps == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora_rank": 8}, r"trainer\.lora_rank: the saved state has 32, the settings 8"),
        ({"base_model": "other"}, r"trainer\.base_model: the saved state has 'tiny'"),
    ],
)
async def test_a_state_of_other_settings_is_refused(service, codec, tmp_path, change, words):
    await run(make_trainer(codec).save(tmp_path))
    settings = msgspec.structs.replace(TinkerSettings(base_model="tiny"), **change)
    with pytest.raises(ConfigError, match=words):
        await run(TinkerTrainer(settings, codec).load(tmp_path))


async def test_a_damaged_state_is_refused(service, codec, tmp_path):
    for content in (None, b'{"path": 1', b"{}"):
        if content is not None:
            (tmp_path / "tinker.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"tinker\.json is not the state of a Tinker trainer"):
            await run(make_trainer(codec).load(tmp_path))


async def test_a_model_that_the_service_does_not_have(service, codec):
    service.models = ("a", "b")
    with pytest.raises(ConfigError, match=r"trainer\.base_model: the service does not have 'tiny'. It has: a, b"):
        await run(make_trainer(codec).get_model("tiny"))


@pytest.mark.parametrize("request_name", ["capabilities", "create", "publish", "gradient", "step"])
async def test_a_failure_of_the_service_stops_the_run_and_says_what_failed(service, codec, request_name):
    trainer = make_trainer(codec)
    service.errors[request_name] = tinker_kit.Status(503, "out of order")
    with pytest.raises(ModelUnusable, match=r"out of order.*Resume the run"):
        await trainer.get_model("tiny")
        await trainer.update([ROW])
    assert trainer.version == 0


async def test_a_key_that_is_not_accepted(service, codec):
    service.errors["create"] = tinker_kit.Status(401, "who are you")
    with pytest.raises(ModelUnusable, match=r"trainer\.api_key_var"):
        await run(make_trainer(codec).get_model("tiny"))


async def test_the_key_goes_to_the_client_and_a_server_of_ones_own_needs_none(service, codec, monkeypatch):
    async def reach(base_url):
        pass

    monkeypatch.setattr(tinker_trainer, "check_address", reach)
    await run(make_trainer(codec).get_model("tiny"))
    assert service.options == {"api_key": "tml-key"}
    await run(make_trainer(codec, key="", base_url="http://127.0.0.1:1").get_model("tiny"))
    assert service.options == {"api_key": "tml-none", "base_url": "http://127.0.0.1:1"}


async def test_closing_ends_the_session_once(service, codec):
    trainer = make_trainer(codec)
    await trainer.get_model("tiny")
    await trainer.close()
    await trainer.close()
    assert service.sessions == 0


async def test_an_address_without_a_server_is_named_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ModelUnusable, match=rf"trainer\.base_url: no Tinker server at {url}"):
        await run(check_address(url))


def test_the_norm_of_the_gradient_is_found_under_any_prefix():
    assert find_gradient({"skyrl.ai/grad_norm": 2}) == 2.0
    assert find_gradient({"clock": 1.0}) is None
    assert find_gradient(None) is None
