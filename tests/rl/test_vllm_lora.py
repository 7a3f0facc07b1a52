from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.cli_kit import make_tokenizer

from ludus.errors import ModelUnusable
from ludus.models.server import Endpoint, ServerSettings
from ludus.rl.vllm_lora import VllmAdapters, explain_refusal
from ludus.tokens.codec import Codec
from ludus.tokens.engine_standin import RequestRefused, StandIn
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Message, Sampling

WEIGHTS = "adapter_model.safetensors"


class LoraServer(StandIn):
    """vLLM with --enable-lora. It may read the files of an adapter at any request that uses it."""

    def __init__(self, toy):
        super().__init__(toy)
        self.refuses = False
        self.adapters: dict[str, Path] = {}
        self.used: list[str] = []
        """What was in the file of the adapter at each request."""

    def _route(self, path, body):
        if path == "/v1/load_lora_adapter":
            folder = Path(body["lora_path"])
            if self.refuses or body["lora_name"] in self.adapters or not (folder / WEIGHTS).is_file():
                raise RequestRefused("no adapter there")
            self.adapters[body["lora_name"]] = folder
            return "Success"
        if path == "/v1/unload_lora_adapter":
            if body["lora_name"] not in self.adapters:
                raise RequestRefused("no such adapter")
            del self.adapters[body["lora_name"]]
            return "Success"
        if path == "/v1/completions":
            if body["model"] not in self.adapters:
                return None
            self.used.append((self.adapters[body["model"]] / WEIGHTS).read_text())
        return super()._route(path, body)

    @property
    def weights(self):
        return sorted((folder / WEIGHTS).read_text() for folder in self.adapters.values())


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    return Codec.open(make_tokenizer(tmp_path_factory.mktemp("tokenizer"), "hello there"), "hermes")


def write_adapter(folder, words):
    folder.mkdir(exist_ok=True)
    (folder / WEIGHTS).write_text(words)
    return folder


async def say(model):
    return await model.complete([Message("user", "hi")], (), Sampling(max_tokens=20))


@asynccontextmanager
async def serve_adapters(codec, servers=1):
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(LoraServer(ToyEngine(codec.tokenizer, lambda _: "Hello.")))
            for _ in range(servers)
        ]
        endpoints = [Endpoint(f"{server.url}/v1") for server in started]
        settings = ServerSettings(base_url=endpoints[0].base_url, name="toy")
        adapters = VllmAdapters(settings, codec, *endpoints)
        try:
            yield adapters, started
        finally:
            await adapters.close()
        assert not any(server.adapters for server in started), "close removes the adapters"
        assert not adapters._folder.exists(), "close removes the files"


async def test_each_version_is_an_adapter_of_its_own_and_only_the_newest_stays(codec, tmp_path):
    async with serve_adapters(codec) as (adapters, servers):
        models = []
        for version in range(3):
            folder = write_adapter(tmp_path / "adapter", f"weights {version}")
            models.append(await adapters.load_adapter(folder, version, f"m@{version}"))
            folder.joinpath(WEIGHTS).unlink()  # the caller's folder is not needed any more
            assert (await say(models[-1])).message.content == "Hello."
            assert servers[0].weights == [f"weights {version}"]
        kept = list(adapters._folder.iterdir())
        for model in models:
            await model.close()
        assert [model.name for model in models] == ["m@0", "m@1", "m@2"] and len(kept) == 1
        assert servers[0].used == ["weights 0", "weights 1", "weights 2"]


async def test_an_older_model_goes_on_with_the_newest_weights(codec, tmp_path):
    async with serve_adapters(codec) as (adapters, servers):
        first = await adapters.load_adapter(write_adapter(tmp_path / "a", "old"), 0, "m@0")
        await say(first)
        second = await adapters.load_adapter(write_adapter(tmp_path / "b", "new"), 1, "m@1")
        await say(first)
        await first.close()
        await second.close()
        assert servers[0].used == ["old", "new"]


async def test_the_files_of_an_adapter_stay_while_a_request_uses_it(codec, tmp_path):
    async with serve_adapters(codec) as (adapters, servers):
        await adapters.load_adapter(write_adapter(tmp_path / "a", "old"), 0, "m@0")
        with adapters.hold() as name:
            await adapters.load_adapter(write_adapter(tmp_path / "b", "new"), 1, "m@1")
            await adapters.load_adapter(write_adapter(tmp_path / "c", "newest"), 2, "m@2")
            during = servers[0].weights
            assert name in servers[0].adapters
        await adapters.load_adapter(write_adapter(tmp_path / "d", "last"), 3, "m@3")
        assert (during, servers[0].weights) == (["newest", "old"], ["last"])


async def test_an_adapter_that_does_not_load_leaves_the_last_good_one(codec, tmp_path):
    async with serve_adapters(codec) as (adapters, servers):
        model = await adapters.load_adapter(write_adapter(tmp_path / "good", "good"), 0, "m@0")
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(ModelUnusable, match=r"the adapter was not loaded, the last good weights stay.*no adapter"):
            await adapters.load_adapter(empty, 1, "m@1")
        await say(model)
        await model.close()
        assert (servers[0].weights, servers[0].used) == (["good"], ["good"])
        assert len(list(adapters._folder.iterdir())) == 1


async def test_if_one_server_refuses_all_servers_go_on_with_the_last_good_weights(codec, tmp_path):
    async with serve_adapters(codec, servers=3) as (adapters, servers):
        model = await adapters.load_adapter(write_adapter(tmp_path / "good", "good"), 0, "m@0")
        servers[1].refuses = True
        with pytest.raises(ModelUnusable):
            await adapters.load_adapter(write_adapter(tmp_path / "new", "new"), 1, "m@1")
        found = [server.weights for server in servers]
        servers[1].refuses = False
        again = await adapters.load_adapter(write_adapter(tmp_path / "new", "new"), 1, "m@1")
        await model.close()
        await again.close()
        assert (found, [server.weights for server in servers]) == ([["good"]] * 3, [["new"]] * 3)


async def test_a_server_that_is_not_there_is_named(codec, tmp_path):
    with pytest.raises(ModelUnusable, match=r"127\.0\.0\.1:9/v1/load_lora_adapter: .*Is vLLM running"):
        adapters = VllmAdapters(ServerSettings(base_url="http://127.0.0.1:9/v1", name="toy"), codec)
        try:
            await adapters.load_adapter(write_adapter(tmp_path / "a", "x"), 0, "m")
        finally:
            await adapters.close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"not found", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (500, b"LoRA rank 64 is greater than max_lora_rank 16", "--max-lora-rank of at least trainer.lora_rank"),
        (500, b"\xff broken", "the last good weights stay"),
    ],
)
def test_a_refusal_says_what_to_do(status, body, words):
    assert words in explain_refusal("http://h/v1/load_lora_adapter", status, body)
