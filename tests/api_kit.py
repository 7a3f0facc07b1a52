"""Groups as environments send them, and the trajectory server in this process with a clock of the test's own."""

import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.http_client import Client
from ludus.rl.api.group_log import SEGMENT_BYTES
from ludus.rl.api.service import TrajectoryServer
from ludus.rl.api.trajectory_run import TrajectoryRun
from ludus.rl.server_settings import ApiSettings

TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 4,
    "max_token_len": 64,
    "checkpoint_dir": "/c",
    "save_checkpoint_interval": 5,
    "starting_step": 0,
    "num_steps": 100,
}
ENV = {"max_token_length": 64, "desired_name": "e", "weight": 1.0, "group_size": 2}


def make_wire_group(size: int = 2, tag: int = 0, length: int = 3, **fields: Any) -> dict[str, Any]:
    """A group whose first id is the tag."""
    rows = [[tag, *range(10, 9 + length)] for _ in range(size)]
    return {"tokens": rows, "masks": [[-100, *row[1:]] for row in rows], "scores": [0.5] * size, **fields}


def read_tags(batch: list[dict[str, Any]]) -> list[int]:
    return [group["tokens"][0][0] for group in batch]


@dataclass
class Reply:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Api:
    """A client of the server."""

    url: str
    run: TrajectoryRun
    now: float = 1000.0
    told: list[str] = field(default_factory=list)
    client: Client = field(default_factory=Client)

    async def call(self, method: str, path: str, value: Any = None, **headers: str) -> Reply:
        """`value`: bytes are sent as they are, anything else as JSON."""
        body = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
        sent = [(name.replace("_", "-"), text) for name, text in headers.items()]
        response = await self.client.request(method, self.url + path, sent, body)
        names = ("content-encoding", "retry-after", "x-ludus-batch-id", "x-ludus-waiting-for", "x-ludus-server")
        found = {name: response.get_header(name) for name in names if response.get_header(name)}
        content = response.body
        if found.get("content-encoding") == "gzip" and content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return Reply(response.status, content, found)

    async def get(self, path: str, **headers: str) -> Any:
        return (await self.call("GET", path, **headers)).json

    async def post(self, path: str, value: Any, **headers: str) -> Any:
        return (await self.call("POST", path, value, **headers)).json

    async def start(self, env: dict[str, Any] | None = None, **fields: Any) -> None:
        """A trainer registers and starts; an environment registers."""
        await self.post("/register", TRAINER | fields)
        await self.get("/batch")
        await self.post("/register-env", ENV | (env or {}))

    async def take(self) -> list[int] | None:
        """The tags of the next batch."""
        batch = (await self.get("/batch"))["batch"]
        return None if batch is None else read_tags(batch)


@asynccontextmanager
async def serve_api(
    folder: Path, *, token: str = "", segment_bytes: int = SEGMENT_BYTES, **settings: Any
) -> AsyncGenerator[Api, None]:
    """The server in this process, on a free port."""
    told: list[str] = []
    chosen = ApiSettings(port=0, **settings)
    run = TrajectoryRun(folder, chosen, 1000.0, told.append, segment_bytes=segment_bytes)
    try:
        holder: list[Api] = []
        server = TrajectoryServer(run, chosen, token=token, clock=lambda: holder[0].now)
        async with server:
            api = Api(server.url, run, told=told)
            holder.append(api)
            try:
                yield api
            finally:
                await api.client.close()
    finally:
        run.close()
