import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.cli_kit import make_tokenizer

from ludus.errors import ModelUnusable
from ludus.models.server import Endpoint, ServerSettings
from ludus.rl.vllm_lora import ADAPTER, VllmAdapters, explain_refusal
from ludus.tokens.codec import Codec
from ludus.tokens.engine_standin import RequestRefused, StandIn
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Message, Sampling

WEIGHTS = "adapter_model.safetensors"


class LoraServer(StandIn):
    """vLLM with --enable-lora: an adapter is read when it is loaded, and again at each request."""

    def __init__(self, toy, *, refuses=False):
        super().__init__(toy)
        self.refuses = refuses
        self.folder: Path | None = None

    def _route(self, method, path, body):
        if path == "/v1/load_lora_adapter":
            assert body["lora_name"] == ADAPTER and body["load_inplace"] is True
            folder = Path(body["lora_path"])
            if self.refuses or not (folder / WEIGHTS).is_file():
                raise RequestRefused("no adapter there")
            self.folder = folder
            return "Success"
        if path == "/v1/completions":
            assert body["model"] == ADAPTER and self.folder is not None
            assert (self.folder / WEIGHTS).is_file(), "the folder of the weights in use is gone"
        return super()._route(method, path, body)

    @property
    def weights(self):
        return "" if self.folder is None else (self.folder / WEIGHTS).read_text()

    @property
    def salts(self):
        return [body["cache_salt"] for path, body in self.requests if path == "/v1/completions"]


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    return Codec.open(make_tokenizer(tmp_path_factory.mktemp("tokenizer"), "hello there"), "hermes")


def write_adapter(folder, words):
    folder.mkdir(exist_ok=True)
    (folder / WEIGHTS).write_text(words)
    return folder


async def say(model):
    return await model.complete([Message("user", "hi")], (), Sampling(max_tokens=20))


def run(codec, main, servers=1):
    async def start():
        async with AsyncExitStack() as stack:
            started = [
                await stack.enter_async_context(LoraServer(ToyEngine(codec.tokenizer, lambda _: "Hello.")))
                for _ in range(servers)
            ]
            endpoints = [Endpoint(f"{server.url}/v1") for server in started]
            settings = ServerSettings(base_url=endpoints[0].base_url, name="toy")
            adapters = VllmAdapters(settings, codec, *endpoints)
            try:
                return await main(adapters, started)
            finally:
                await adapters.close()

    return asyncio.run(start())


def test_each_version_gets_a_folder_of_its_own_and_the_last_one_is_kept(codec, tmp_path):
    async def main(adapters, servers):
        models = []
        for version in range(3):
            folder = write_adapter(tmp_path / "adapter", f"weights {version}")
            models.append(await adapters.load_adapter(folder, version, f"m@{version}"))
            folder.joinpath(WEIGHTS).unlink()  # the caller's folder is not needed any more
            completion = await say(models[-1])
            assert completion.message.content == "Hello."
            assert servers[0].weights == f"weights {version}"
        kept = list(servers[0].folder.parent.iterdir())
        for model in models:
            await model.close()
        return [model.name for model in models], kept, servers[0]

    names, kept, server = run(codec, main)
    assert names == ["m@0", "m@1", "m@2"]
    assert kept == [server.folder]
    assert len(set(server.salts)) == 3
    assert not server.folder.exists(), "close removes the files"


def test_an_older_model_goes_on_with_the_weights_in_use(codec, tmp_path):
    async def main(adapters, servers):
        first = await adapters.load_adapter(write_adapter(tmp_path / "a", "old"), 0, "m@0")
        await say(first)
        second = await adapters.load_adapter(write_adapter(tmp_path / "b", "new"), 1, "m@1")
        await say(first)
        await first.close()
        await second.close()
        return servers[0].salts

    before, after = run(codec, main)
    assert before != after


def test_an_adapter_that_does_not_load_leaves_the_last_good_one(codec, tmp_path):
    async def main(adapters, servers):
        model = await adapters.load_adapter(write_adapter(tmp_path / "good", "good"), 0, "m@0")
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(ModelUnusable, match=r"the adapter was not loaded, the last good weights stay.*no adapter"):
            await adapters.load_adapter(empty, 1, "m@1")
        await say(model)
        await model.close()
        return servers[0].weights, len(list(servers[0].folder.parent.iterdir()))

    assert run(codec, main) == ("good", 1)


def test_if_one_server_refuses_all_servers_have_the_last_good_weights(codec, tmp_path):
    async def main(adapters, servers):
        model = await adapters.load_adapter(write_adapter(tmp_path / "good", "good"), 0, "m@0")
        servers[1].refuses = True
        with pytest.raises(ModelUnusable):
            await adapters.load_adapter(write_adapter(tmp_path / "new", "new"), 1, "m@1")
        found = [server.weights for server in servers]
        servers[1].refuses = False
        again = await adapters.load_adapter(write_adapter(tmp_path / "new", "new"), 1, "m@1")
        await model.close()
        await again.close()
        return found, [server.weights for server in servers]

    assert run(codec, main, servers=3) == (["good"] * 3, ["new"] * 3)


def test_a_server_that_is_not_there_is_named(codec, tmp_path):
    async def main():
        adapters = VllmAdapters(ServerSettings(base_url="http://127.0.0.1:9/v1", name="toy"), codec)
        try:
            await adapters.load_adapter(write_adapter(tmp_path / "a", "x"), 0, "m")
        finally:
            await adapters.close()

    with pytest.raises(ModelUnusable, match=r"127\.0\.0\.1:9/v1/load_lora_adapter: the adapter was not loaded"):
        asyncio.run(main())


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
