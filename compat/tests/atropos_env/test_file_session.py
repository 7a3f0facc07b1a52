"""What a file finds when it is set up: its servers with their keys, its folder for evaluations, its metrics."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from compat.tests.file_kit import flags, read_jsonl, write_files
from tests.cli_kit import Ludus
from tests.http_kit import chat_reply

TWO = """
from pathlib import Path
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer


class Two(BaseEnv):
    name = "two"

    @classmethod
    def config_init(cls):
        address = Path("address.txt").read_text()
        return BaseEnvConfig(group_size=1, total_steps=1, use_wandb=False, tokenizer_name="."), [
            APIServerConfig(model_name="actor", base_url=address + "/actor/v1", api_key="key-of-the-actor"),
            APIServerConfig(model_name="judge", base_url=address + "/judge/v1", api_key="key-of-the-judge"),
            APIServerConfig(model_name="open", base_url=address + "/open/v1", api_key=""),
        ]

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        self.iter += 1
        return self.iter

    async def collect_trajectories(self, item):
        asked = [{"role": "user", "content": "q"}]
        replies = [await server.chat_completion(messages=asked, n=1) for server in self.server.servers]
        keys = [config.api_key for config in self.server_configs]
        row = tokenize_for_trainer(self.tokenizer, [*asked, {"role": "assistant", "content": "a"}])
        said = [reply.choices[0].message.content for reply in replies]
        return {"tokens": [row["tokens"]], "masks": [row["masks"]], "scores": [1.0], "said": said, "keys": keys}, []

    async def evaluate(self, *args, **kwargs):
        folder = Path(self.config.data_dir_to_save_evals)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.txt").write_text("x")
        await self.evaluate_log(metrics={"eval/x": 0.25}, samples=[{"a": 1}])
"""


@contextmanager
def serve_models() -> Generator[tuple[str, list[tuple[str, str]]]]:
    """A chat server that says who was asked. Yields its address, and (model, key) of the requests."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = self.path.split("/")[1]
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((name, self.headers.get("Authorization") or ""))
            body = json.dumps(chat_reply(f"I am {name}")).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for place in ("", "_1", "_2"):
        monkeypatch.delenv(f"LUDUS_FILE_API_KEY{place}", raising=False)
    write_files(tmp_path, two=TWO)
    return tmp_path


def test_each_server_gets_its_own_key_and_none_is_recorded(ludus: Ludus, folder: Path):
    with serve_models() as (address, asked):
        Path("address.txt").write_text(address)
        done = ludus("process", "atropos:two.py", "--out", "run", "--json")
    assert done.code == 0, done.err
    assert sorted(asked) == [("actor", "Bearer key-of-the-actor"), ("judge", "Bearer key-of-the-judge"), ("open", "")]
    (group,) = read_jsonl("run/atropos_groups.jsonl")
    assert group["said"] == ["I am actor", "I am judge", "I am open"]
    assert all(b"key-of-the" not in path.read_bytes() for path in Path("run").rglob("*") if path.is_file())


@pytest.mark.parametrize(("words", "place"), [((), "run/evals"), (("--env.data_dir_to_save_evals", "mine"), "mine")])
def test_a_file_has_a_folder_for_evaluations(ludus: Ludus, words: tuple[str, ...], place: str):
    Path("address.txt").write_text("http://127.0.0.1:1")
    done = ludus("evaluate", "atropos:two.py", "--out", "run", "--json", *words, *flags("empty"))
    assert done.code == 0, done.err
    assert {path.name for path in Path(place).iterdir()} == {"own.txt", "metrics.json", "samples.jsonl"}
    assert json.loads(done.out)["metrics"] == {"eval/x": 0.25}


def test_a_group_has_at_least_one_rollout(ludus: Ludus):
    Path("address.txt").write_text("http://127.0.0.1:1")
    done = ludus("process", "atropos:two.py", "--out", "run", "--env.group_size", "0", *flags("empty"))
    assert done.code == 2 and "env.group_size" in done.err
