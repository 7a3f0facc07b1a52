"""The wire of the trajectory server: every route, its quirks, and what it refuses."""

import asyncio
import gzip
import json
import os
import tracemalloc
import urllib.error
import urllib.request
import zlib

import pytest
from tests.api_kit import ENV, TRAINER, make_wire_group, read_tags, serve_api

from ludus.errors import ConfigError
from ludus.rl.api import group_log
from ludus.rl.api.large_bodies import LARGE
from ludus.rl.api.posted_groups import KEYS
from ludus.rl.api.service import Refused, TrajectoryServer, decompress
from ludus.rl.atropos_client import AtroposClient
from ludus.rl.server_settings import ApiSettings

# ---- the wire -----------------------------------------------------------------------------------------------------


async def test_a_virgin_server(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        assert await api.get("/") == {"message": "AtroposLib API"}
        assert await api.get("/info") == {"batch_size": -1, "max_token_len": -1}
        assert await api.get("/wandb_info") == {"group": None, "project": None}
        message = "Trainer not registered. Call /register first."
        assert await api.get("/batch") == {"status": "error", "message": message, "batch": []}
        status = await api.get("/status")
        assert (status["current_step"], status["queue_size"]) == (0, 0)
        example = await api.get("/latest_example")
        assert list(example.values()) == [[]] * 9
        assert await api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
        assert (await api.post("/disconnect-env", {"env_id": 0}))["status"] == "failure"
        assert (await api.call("GET", "/status-env", {"env_id": 0})).status == 404
        reset = await api.call("GET", "/reset_data")
        assert (reset.status, reset.body) == (200, b"Reset successful")
        assert reset.headers["x-ludus-server"]


async def test_the_handshake_in_the_order_of_real_clients(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        reply = await api.call("POST", "/register", TRAINER)
        assert reply.json["uuid"] > 2**64
        assert await api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
        assert await api.get("/batch") == {"batch": None}
        first = await api.post("/register-env", ENV)
        assert first == {
            "status": "success",
            "env_id": 0,
            "wandb_name": "e_0",
            "checkpoint_dir": "/c",
            "starting_step": 0,
            "checkpoint_interval": 5,
            "num_steps": 100,
        }
        assert (await api.post("/register-env", ENV))["wandb_name"] == "e_1"
        assert await api.get("/info") == {"batch_size": 4, "max_token_len": 64}
        assert await api.get("/wandb_info") == {"group": "g", "project": "p"}
        assert await api.post("/scored_data", make_wire_group(tag=1, env_id=0)) == {"status": "received"}
        by_body = (await api.call("GET", "/status-env", {"env_id": 0})).json
        assert by_body == await api.get("/status-env?env_id=0")
        assert by_body["self_queue_size"] == 1
        several = [make_wire_group(tag=2, env_id=0), make_wire_group(1, 3, env_id=0)]
        assert await api.post("/scored_data_list", several) == {
            "status": "received",
            "groups_processed": 2,
            "buffered": 1,
            "last_buffer_size": 1,
        }
        reply = await api.call("GET", "/batch")
        assert read_tags(reply.json["batch"]) == [1, 2]
        assert all(tuple(group) == KEYS for group in reply.json["batch"])
        assert (await api.get("/status"))["current_step"] == 1
        assert (await api.post("/register-env", ENV))["starting_step"] == 1
        assert await api.post("/disconnect-env", {"env_id": 1}) == {"status": "success"}
        assert (await api.get("/latest_example"))["tokens"][0][0] == 3


async def test_batches_are_fifo_and_a_step_is_a_delivered_batch(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start(starting_step=7)
        for tag in range(6):
            await api.post("/scored_data", make_wire_group(tag=tag))
        assert [await api.take() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], None]
        assert (await api.get("/status"))["current_step"] == 10


async def test_a_group_is_passed_on_to_the_letter(tmp_path):
    group = make_wire_group(
        4,
        inference_logprobs=[[1.0, -1e-07, -0.1234567890123]] * 4,
        messages=[[{"role": "user", "content": "ü 😀 \\", "reward": None, "tool_calls": []}]] * 4,
        images=[{"a": [None, True]}],
        group_overrides={"sft": True},
        overrides=[{"set_advantage_to_zero": True}] * 4,
        distill_token_ids=[[[1, 2]] * 3] * 4,
        distill_logprobs=[[[-0.5, -1.5]] * 3] * 4,
        generation_params={"temperature": 0.7, "policy_version": 3},
    )

    async with serve_api(tmp_path / "api") as api:
        await api.start()
        assert await api.post("/scored_data", group) == {"status": "received"}
        assert (await api.get("/batch"))["batch"] == [{**dict.fromkeys(KEYS), **group}]


async def test_reset_forgets_all_but_the_maximal_length(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        await api.post("/scored_data", make_wire_group())
        await api.call("GET", "/reset_data")
        assert await api.get("/info") == {"batch_size": -1, "max_token_len": 64}
        assert (await api.get("/batch"))["status"] == "error"
        assert await api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
        assert (await api.get("/latest_example"))["tokens"]
        await api.post("/register", TRAINER | {"batch_size": 2})
        assert (await api.get("/info"))["batch_size"] == 2
        assert await api.take() is None


async def test_a_trainer_that_registers_twice(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        first = await api.post("/register", TRAINER)
        again = await api.post("/register", TRAINER)
        assert first["uuid"] != again["uuid"]
        assert "warning" not in again
        other = await api.post("/register", TRAINER | {"batch_size": 8})
        assert "batch_size" in other["warning"]
        assert "/reset_data" in other["warning"]
        assert (await api.get("/info"))["batch_size"] == 4


async def test_a_post_before_registration_is_kept(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        assert await api.post("/scored_data", make_wire_group(4, 6)) == {"status": "received"}
        await api.post("/register", TRAINER)
        assert (await api.get("/info"))["batch_size"] == 4
        assert await api.take() == [6]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/register", {k: v for k, v in TRAINER.items() if k != "batch_size"}),
        ("/register", TRAINER | {"batch_size": 0}),
        ("/register", b"not json"),
        ("/register-env", ENV | {"desired_name": None}),
        ("/register-env", ENV | {"weight": None}),
        ("/register-env", ENV | {"group_size": 0}),
        ("/disconnect-env", {}),
        ("/scored_data", {"tokens": [[1]]}),
        ("/scored_data", b""),
        ("/scored_data_list", {"tokens": [[1]]}),
        ("/scored_data_list", [make_wire_group(), {}]),
        ("/ack", {"batch_id": None}),
    ],
)
async def test_bad_bodies_are_422_in_the_format_of_the_wire(tmp_path, path, body):
    async with serve_api(tmp_path / "api") as api:
        reply = await api.call("POST", path, body)
        assert reply.status == 422
        assert reply.json["detail"][0]["loc"][0] == "body"
        assert reply.json["detail"][0]["msg"]
        assert len(api.run.state.backlog) == 0


async def test_unknown_paths_and_methods(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        assert (await api.call("GET", "/nothing")).status == 404
        assert (await api.call("POST", "/batch")).status == 405
        assert (await api.call("GET", "/status-env")).status == 422


# ---- compression --------------------------------------------------------------------------------------------------


async def test_gzip_both_ways(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        body = gzip.compress(json.dumps(make_wire_group(4, 1, length=400)).encode())
        assert (await api.call("POST", "/scored_data", body, Content_Encoding="gzip")).json == {"status": "received"}
        reply = await api.call("GET", "/batch", Accept_Encoding="deflate, gzip")
        assert reply.headers["content-encoding"] == "gzip"
        assert read_tags(reply.json["batch"]) == [1]
        small = await api.call("GET", "/info", Accept_Encoding="gzip")
        assert "content-encoding" not in small.headers
        await api.post("/scored_data", make_wire_group(4, 2, length=40_000))  # compressed in a thread
        reply = await api.call("GET", "/batch", Accept_Encoding="gzip")
        assert reply.headers["content-encoding"] == "gzip"
        assert len(reply.json["batch"][0]["tokens"][0]) == 40_000


@pytest.mark.parametrize(
    "body", [b"not gzip", gzip.compress(b'{"a":1}' * 100, mtime=0)[:-12], gzip.compress(b"{}", mtime=0) + b"junk"]
)
async def test_bad_gzip_is_400(tmp_path, body):
    async with serve_api(tmp_path / "api") as api:
        assert (await api.call("POST", "/scored_data", body, Content_Encoding="gzip")).status == 400


async def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    assert len(bomb) < 100_000

    async with serve_api(tmp_path / "api", body_mb=1) as api:
        reply = await api.call("POST", "/scored_data", bomb, Content_Encoding="gzip")
        assert reply.status == 413
        assert "api.body_mb" in reply.json["detail"]


def test_members_of_a_gzip_body_are_joined_and_limited_together():
    part = gzip.compress(b"x" * 600)
    assert decompress(part + part, 1200) == b"x" * 1200
    with pytest.raises(Refused) as caught:
        decompress(part + part, 1199)
    assert caught.value.reply[0] == 413


def test_gzip_data_in_many_members_is_refused():
    with pytest.raises(Refused) as caught:
        decompress(gzip.compress(b"") * 50_000, 1000)
    assert caught.value.reply[0] == 400


# ---- values that nobody can use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/register", TRAINER | {"batch_size": 10**12}, "batch_size"),
        ("/register", TRAINER | {"batch_size": 0}, "batch_size"),
        ("/register", TRAINER | {"starting_step": 2**63 - 1}, "starting_step"),
        ("/register", TRAINER | {"num_steps": 2**80}, "num_steps"),
        ("/register", TRAINER | {"wandb_group": "g" * 5000}, "wandb_group"),
        ("/register-env", ENV | {"weight": 1e308}, "weight"),
        ("/register-env", ENV | {"group_size": 10**12}, "group_size"),
        ("/register-env", ENV | {"min_batch_allocation": 1e308}, "min_batch_allocation"),
        ("/register-env", ENV | {"max_token_length": -(2**70)}, "max_token_length"),
        ("/disconnect-env", {"env_id": 2**70}, "env_id"),
        ("/ack", {"batch_id": 2**70}, "batch_id"),
        ("/scored_data", make_wire_group() | {"env_id": 2**70}, "env_id"),
        ("/scored_data", make_wire_group() | {"generation_params": {"policy_version": 2**70}}, "policy_version"),
        ("/scored_data", make_wire_group(1, 2**70), "tokens"),
        ("/scored_data", make_wire_group(1) | {"masks": [[1, 2**70, 1]]}, "masks"),
        ("/scored_data", make_wire_group(1) | {"inference_logprobs": [[0.0, 10**310, 0.0]]}, "inference_logprobs"),
    ],
)
async def test_a_value_that_is_too_large_is_refused_by_name_and_the_server_goes_on(tmp_path, path, fields, name):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        refused = await api.call("POST", path, fields)
        assert refused.status == 422 and name in refused.json["detail"][0]["loc"], refused.body
        assert await api.post("/scored_data_list", [make_wire_group(2, tag) for tag in range(2)])
        assert await api.take() == [0, 1]


async def test_headers_that_are_too_long_are_refused_by_name(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for name, path in (("X-Ludus-Consumer", "/batch"), ("X-Ludus-Batch-Ack", "/batch")):
            refused = await api.call("GET", path, **{name: "9" * 5000})
            assert refused.status == 422 and name in refused.json["detail"]
        refused = await api.call("POST", "/scored_data", make_wire_group(), **{"X-Ludus-Idempotency-Key": "k" * 5000})
        assert refused.status == 422 and "X-Ludus-Idempotency-Key" in refused.json["detail"]


async def test_the_name_of_an_environment_cannot_write_headers(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start({"desired_name": "a\r\nX-Ludus-Batch-Id: 666\r\n\r\nbody", "min_batch_allocation": 0.5})
        await api.post("/scored_data_list", [make_wire_group(2, tag) for tag in range(2)])
        reply = await api.call("GET", "/batch")
        assert "minimum share of a  X-Ludus-Batch-Id: 666" in reply.headers["x-ludus-waiting-for"]
        assert "x-ludus-batch-id" not in reply.headers and reply.json == {"batch": None}


async def test_a_list_of_too_many_groups_is_refused_whole(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        refused = await api.call("POST", "/scored_data_list", [make_wire_group()] * 1001)
        assert refused.status == 422 and "1,001 groups" in refused.json["detail"][0]["msg"]
        assert (await api.get("/status"))["queue_size"] == 0


@pytest.mark.parametrize("compress", [False, True])
async def test_a_large_body_is_checked_while_others_are_served(tmp_path, compress):
    """Megabytes of numbers as text, in a process beside the server."""
    row = ["12345"] * 150_000
    body = json.dumps({"tokens": [row, row], "masks": [row, row], "scores": ["1", "0"]}).encode()
    assert len(body) > LARGE
    headers = {"Content_Encoding": "gzip"} if compress else {}
    async with serve_api(tmp_path / "api") as api:
        posting = asyncio.ensure_future(
            api.call("POST", "/scored_data", gzip.compress(body, 1) if compress else body, **headers)
        )
        served = 0
        while not posting.done():
            await api.get("/info")
            served += 1
        assert served > 3
        assert (await posting).json == {"status": "received"}
        listed = await api.post("/scored_data_list", b"[" + body + b"]")
        assert listed["groups_processed"] == 1
        await api.post("/register", TRAINER)
        assert [len(group["tokens"][0]) for group in (await api.get("/batch"))["batch"]] == [150_000] * 2
        bad = await api.call("POST", "/scored_data", body.replace(b'["1", "0"]', b'["1", "x"]'))
        assert bad.status == 422 and bad.json["detail"][0]["loc"] == ["body", "scores", 1]


# ---- size, tokens, browsers ---------------------------------------------------------------------------------------


async def test_without_the_token_no_body_is_kept(tmp_path):
    async with serve_api(tmp_path / "api", token="hush") as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
        size = 64 << 20
        writer.write(f"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        tracemalloc.start()
        try:
            for _ in range(64):
                writer.write(bytes(1 << 20))
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert head.startswith(b"HTTP/1.1 401") and most < 16 << 20
        writer.close()
        await writer.wait_closed()


async def ask(url: str, path: str, headers: dict[str, str]) -> int:
    """The status of a GET with exactly these headers, and the server's own Host if they have none."""
    request = urllib.request.Request(url + path, headers=headers)

    def send() -> int:
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(send)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Referer": "https://evil.example/page"}, 403),
        ({"Host": "localhost:9", "Origin": "http://localhost:9"}, 200),
        ({"Host": "api.localhost"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "10.0.0.7"}, 200),
    ],
)
async def test_a_page_in_a_browser_cannot_reset_the_run(tmp_path, headers, status):
    async with serve_api(tmp_path / "api") as api:
        await api.post("/register", TRAINER)
        assert await ask(api.url, "/reset_data", headers) == status
        assert ((await api.get("/info"))["batch_size"] == -1) == (status == 200)


async def test_with_a_token_any_name_will_do(tmp_path):
    async with serve_api(tmp_path / "api", token="hush") as api:
        headers = {"Host": "trajectories.example", "Authorization": "Bearer hush"}
        assert await ask(api.url, "/status", headers) == 200


async def test_a_body_of_100_megabytes(tmp_path):
    """It is accepted within the limit, delivered as it came, and refused beyond the limit."""
    group = make_wire_group(4, 1)
    text = "z" * (100 * 1024 * 1024)

    async with serve_api(tmp_path / "api", body_mb=128) as api:
        await api.start()
        assert (await api.post("/scored_data", group | {"images": text})) == {"status": "received"}
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{api.url}/batch", timeout=60).read())
        assert json.loads(body)["batch"][0]["images"] == text

    async with serve_api(tmp_path / "small", body_mb=2) as api:
        reply = await api.call("POST", "/scored_data", group | {"images": text[: 3 << 20]})
        assert reply.status == 413
        assert (await api.call("GET", "/status")).status == 200


async def test_a_wrong_token_is_401_and_changes_nothing(tmp_path):
    async with serve_api(tmp_path / "api", token="hush") as api:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "hush"}):
            for method, path in (("POST", "/register"), ("GET", "/reset_data"), ("GET", "/metrics")):
                assert (await api.call(method, path, TRAINER, **headers)).status == 401
        assert not api.run.state.registered
        assert (await api.call("POST", "/register", TRAINER, Authorization="Bearer hush")).status == 200


async def test_pages_in_a_browser_cannot_reach_a_server_without_a_token(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        assert (await api.call("GET", "/reset_data", Sec_Fetch_Site="cross-site")).status == 403
        assert (await api.call("GET", "/status", Sec_Fetch_Site="none")).status == 200


async def test_a_port_in_use_is_an_error_that_says_what_to_do(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        port = int(api.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="--port"):
            async with TrajectoryServer(api.run, ApiSettings(port=port)):
                pass


# ---- batches with acknowledgement ---------------------------------------------------------------------------------


async def test_a_trainer_with_acknowledgements_gets_its_batch_until_it_has_it(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for tag in range(4):
            await api.post("/scored_data", make_wire_group(tag=tag))
        first = await api.call("GET", "/batch", X_Ludus_Consumer="trainer")
        again = await api.call("GET", "/batch", X_Ludus_Consumer="trainer")
        assert first.headers["x-ludus-batch-id"] == again.headers["x-ludus-batch-id"]
        assert first.body == again.body
        id = first.headers["x-ludus-batch-id"]
        following = await api.call("GET", "/batch", X_Ludus_Consumer="trainer", X_Ludus_Batch_Ack=id)
        assert read_tags(following.json["batch"]) == [2, 3]
        last = int(following.headers["x-ludus-batch-id"])
        assert await api.post("/ack", {"batch_id": last}) == {"status": "success"}
        assert await api.post("/ack", {"batch_id": last}) == {"status": "unknown"}
        assert (await api.call("GET", "/batch", X_Ludus_Consumer="trainer")).json == {"batch": None}
        assert (await api.call("GET", "/batch", X_Ludus_Consumer="t", X_Ludus_Batch_Ack="x")).status == 422


async def test_a_repeated_post_with_its_key_counts_once(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for _ in range(3):
            reply = await api.call("POST", "/scored_data", make_wire_group(), X_Ludus_Idempotency_Key="k")
            assert reply.json == {"status": "received"}
        assert (await api.get("/status"))["queue_size"] == 1


async def test_the_client_of_our_workers(tmp_path):
    async with serve_api(tmp_path / "api", token="hush") as api:
        client = AtroposClient(api.url, token="hush")
        try:
            assert await client.register(ENV) is None
            await api.call("POST", "/register", TRAINER, Authorization="Bearer hush")
            await api.call("GET", "/batch", Authorization="Bearer hush")
            place = await client.register(ENV)
            assert place is not None
            await client.post_groups([make_wire_group(env_id=0, length=500)], "key")
            await client.post_groups([make_wire_group(env_id=0, length=500)], "key")
            assert (await client.read_status(place.env_id)).queue_size == 1
            assert client.keeps_state
            await client.disconnect(place.env_id)
        finally:
            await client.close()


# ---- faults -------------------------------------------------------------------------------------------------------


async def test_a_slow_trainer_gets_back_pressure_and_then_everything_in_order(tmp_path):
    async with serve_api(tmp_path / "api", backlog_groups=4) as api:
        await api.start()
        for tag in range(4):
            await api.post("/scored_data", make_wire_group(tag=tag))
        reply = await api.call("POST", "/scored_data", make_wire_group(tag=9))
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert await api.take() == [0, 1]
        assert await api.post("/scored_data", make_wire_group(tag=9)) == {"status": "received"}
        assert await api.take() == [2, 3]


async def test_environments_of_different_group_sizes(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start(batch_size=8, env={"group_size": 8})
        for size in (2, 3, 1):
            await api.post("/register-env", ENV | {"group_size": size})
        sizes = [3, 8, 2, 3, 1, 2, 3, 2, 8]
        owner = {8: 0, 2: 1, 3: 2, 1: 3}
        for tag, size in enumerate(sizes):
            await api.post("/scored_data", make_wire_group(size, tag, env_id=owner[size]))
        seen = []
        while (tags := await api.take()) is not None:
            assert sum(sizes[tag] for tag in tags) == 8
            seen += tags
        assert sorted(seen) == list(range(9))


async def test_a_jump_of_the_clock_changes_only_who_counts_as_alive(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start(env={"min_batch_allocation": 0.5})
        await api.post("/scored_data", make_wire_group(tag=1))
        await api.post("/scored_data", make_wire_group(tag=2))
        assert await api.take() is None
        api.now -= 10_000_000
        assert await api.take() is None
        assert "minimum share" in (await api.get("/status"))["waiting_for"]
        api.now += 20_000_000
        assert await api.take() == [1, 2]


async def test_a_batch_larger_than_all_that_can_arrive_is_told(tmp_path):
    async with serve_api(tmp_path / "api", backlog_groups=2) as api:
        await api.start(batch_size=64)
        for tag in range(2):
            await api.post("/scored_data", make_wire_group(tag=tag))
        status = await api.get("/status")
        assert "backlog is full with 4" in status["waiting_for"]
        reply = await api.call("GET", "/batch")
        assert reply.json == {"batch": None}
        assert "backlog is full" in reply.headers["x-ludus-waiting-for"]


async def test_a_group_larger_than_a_batch_is_refused_with_the_reason(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        reply = await api.call("POST", "/scored_data", make_wire_group(5))
        assert reply.status == 422
        assert "5 sequences, and a batch 4" in reply.json["detail"][0]["msg"]


async def test_a_full_disk_is_507_and_what_was_accepted_is_delivered(tmp_path, monkeypatch):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for tag in range(2):
            await api.post("/scored_data", make_wire_group(tag=tag))

        def fail(file: int, parts: list[bytes]) -> int:
            if sum(map(len, parts)) > 200:
                raise OSError(28, os.strerror(28))
            return os.writev(file, parts)

        fake = type("Os", (), {**vars(os), "writev": fail})
        with monkeypatch.context() as context:
            context.setattr(group_log, "os", fake)
            reply = await api.call("POST", "/scored_data", make_wire_group(tag=2))
            assert reply.status == 507
            assert "No space left" in reply.json["detail"]
            assert await api.take() == [0, 1]
        assert await api.post("/scored_data", make_wire_group(tag=3)) == {"status": "received"}
        assert len(api.run.state.backlog) == 1


async def test_flushed_posts_share_a_flush_and_are_all_answered(tmp_path):
    async with serve_api(tmp_path / "api", sync="disk") as api:
        await api.start()
        flushes = 0
        prepare = api.run.prepare_sync

        def count():
            nonlocal flushes
            flushes += 1
            return prepare()

        api.run.prepare_sync = count
        posts = (api.post("/scored_data", make_wire_group(tag=tag)) for tag in range(16))
        replies = await asyncio.gather(*posts)
        assert replies == [{"status": "received"}] * 16
        assert 1 <= flushes <= 16
        assert await api.take() is not None


async def test_a_restarted_server_knows_everything(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for tag in range(5):
            await api.post("/scored_data", make_wire_group(tag=tag, env_id=0))
        assert await api.take() == [0, 1]
    async with serve_api(tmp_path / "api") as api:
        assert await api.get("/info") == {"batch_size": 4, "max_token_len": 64}
        assert (await api.get("/status"))["current_step"] == 1
        assert (await api.get("/status-env?env_id=0"))["queue_size"] == 3
        assert await api.take() == [2, 3]


async def test_many_environments_and_trainers_at_once_get_every_group_once(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start(batch_size=4)

        async def feed(first: int) -> None:
            for tag in range(first, first + 8):
                await api.post("/scored_data", make_wire_group(tag=tag))

        seen: list[int] = []

        async def drain() -> None:
            while len(seen) < 8 * 64:
                seen.extend(await api.take() or ())

        await asyncio.gather(*(feed(8 * number) for number in range(64)), *(drain() for _ in range(8)))
        assert sorted(seen) == list(range(8 * 64))


async def test_metrics_count(tmp_path):
    async with serve_api(tmp_path / "api") as api:
        await api.start()
        for tag in range(3):
            await api.post("/scored_data", make_wire_group(tag=tag))
        await api.call("POST", "/scored_data", {})
        await api.take()
        text = (await api.call("GET", "/metrics")).body.decode()
        values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        assert values["ludus_api_groups_accepted_total"] == "3"
        assert values["ludus_api_groups_refused_total"] == "1"
        assert values["ludus_api_backlog_groups"] == "1"
        assert values["ludus_api_batches_total"] == "1"
        assert values["ludus_api_step"] == "1"
