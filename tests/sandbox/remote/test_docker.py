"""Containers of a real Docker engine and of real Podman: what the common contract does not cover, and failures."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest
from tests.sandbox.remote.engine_standin import EngineStandin, make_response

from ludus.errors import SandboxError
from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.backend import Mount
from ludus.sandbox.backend_settings import DockerSettings, PodmanSettings
from ludus.sandbox.engine_images import EngineImage
from ludus.sandbox.owner import make_owner_mark
from ludus.sandbox.remote.docker import OWNER, Docker, EngineEvent, Podman, build_container, judge_events, split_image
from ludus.sandbox.remote.docker_api import DockerApi

SPEC = SandboxSpec(disk_mb=32, memory_mb=256, processes=100)


@pytest.fixture(params=["docker", "docker_single", "podman"])
def engine(request):
    """The maker of fleets, and the engine's socket."""
    socket = request.getfixturevalue("podman_socket" if request.param == "podman" else "docker_socket")
    return request.getfixturevalue(f"{request.param}_fleet"), str(socket)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def containers(socket: str) -> list[dict]:
    """The containers of this test, without those of the session's pools."""
    filters = json.dumps({"label": [OWNER, "test=yes"]})
    return json.loads(await DockerApi(socket).request("GET", "/containers/json", {"all": "true", "filters": filters}))


async def none_left(socket: str) -> None:
    for _ in range(2000):
        if not await containers(socket):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(await containers(socket))


TEST = {"labels": {"test": "yes"}}


MANY = b"""
import os, time
count = 0
try:
    while count < 1000:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        count += 1
except OSError:
    print(count)
"""

# ---- slots ---------------------------------------------------------------------------------------------------------


async def test_a_slot_is_isolated_from_its_container_and_the_network(engine):
    make, socket = engine

    fleet = make(**TEST)
    try:
        box = await fleet.create(SPEC)
        seen = await box.exec(
            "id -u; pwd; touch /x /etc/x /usr/x; cat /root/secret; ls /var/lib/ludus*; kill -9 1; "
            "(exec 3<>/dev/tcp/10.255.255.1/80) 2>&1 | head -1; ls /sys/class/net 2>/dev/null; id -un"
        )
        lines = seen.stdout.decode().splitlines()
        assert lines[0] != "0"
        assert lines[1] == "/workspace"
        assert lines[-1] == "agent"
        assert b"of the image's root" not in seen.stdout
        assert any("unreachable" in line for line in lines)
        assert (await box.exec("ls /x /etc/x /usr/x")).stdout == b""
        status = (await box.exec("grep -E '^(CapEff|CapPrm|NoNewPrivs):' /proc/self/status")).stdout.decode()
        assert re.findall(r"\t(\w+)", status) == ["0" * 16, "0" * 16, "1"]
        await box.exec("kill -9 -1")  # whatever it hits, the slot goes on
        assert (await box.exec("echo on")).stdout == b"on\n"
        await box.close()
    finally:
        await fleet.close()
    await none_left(socket)


async def test_limits_hold_and_the_slot_goes_on(engine):
    make, _ = engine

    fleet = make(**TEST)
    try:
        box = await fleet.create(SPEC)
        hog = await box.exec("python3 -c \"x = b'x' * (600 << 20); print('has it')\"")
        assert hog.exit_code != 0
        assert b"has it" not in hog.stdout
        full = await box.exec("head -c 50000000 /dev/zero >big; stat -c %s big")
        assert int(full.stdout) < 34 << 20
        assert b"No space left" in full.stderr
        many = await box.exec("python3 -", stdin=MANY)
        assert 10 < int(many.stdout) < 100
        await box.settle()
        assert (await box.exec("echo on; rm big")).stdout == b"on\n"
        await box.close()
    finally:
        await fleet.close()


async def test_a_dirty_slot_is_reset(engine):
    make, _ = engine

    fleet = make(**TEST)
    try:
        box = await fleet.create(SPEC)
        await box.exec(
            "for d in . /tmp /var/tmp /dev/shm ~; do mkdir $d/dirt; echo x >$d/dirt/x; chmod 0 $d/dirt; done; "
            "export X=1; cd /tmp; sleep 620.5 & setsid sleep 620.25 &"
        )
        await box.reset()
        left = await box.exec(
            "pwd; ls -A . /tmp /var/tmp /dev/shm ~ | grep dirt; echo [$X]; pgrep -af '^sleep 620' || echo none"
        )
        assert left.stdout == b"/workspace\n[]\nnone\n"
        await box.close()
    finally:
        await fleet.close()


@pytest.mark.parametrize("kind", ["docker", "podman"])
async def test_a_container_that_the_engine_ended_is_not_the_agents_doing(request, kind):
    make = request.getfixturevalue(f"{kind}_fleet")
    socket = str(request.getfixturevalue(f"{kind}_socket"))

    fleet = make(slots=1, **TEST)
    try:
        box = await fleet.create(SPEC)
        (container,) = await containers(socket)
        await DockerApi(socket).request("POST", f"/containers/{container['Id']}/kill", {"signal": "KILL"}, {})
        for _ in range(2):
            with pytest.raises(SandboxError) as ended:
                await box.exec("true")
            assert not ended.value.evidence.inside
            if kind == "docker":  # Podman's service may keep no events
                assert "the engine ended the container" in ended.value.evidence.outside
    finally:
        await fleet.close()


async def test_a_link_that_broke_while_the_container_runs_is_not_the_agents_doing(docker_single_fleet):
    fleet = docker_single_fleet(**TEST)
    try:
        box = await fleet.create(SPEC)
        await box._remote._link._channel.close()
        with pytest.raises(SandboxError) as lost:
            await box.exec("true")
        assert lost.value.evidence.outside
    finally:
        await fleet.close()


@pytest.mark.parametrize(
    ("actions", "inside", "outside"),
    [
        (("create", "start", "oom", "die", "destroy"), "used all memory", ""),
        (("create", "start", "oom", "kill", "die"), "used all memory", ""),
        (("create", "start", "kill", "die"), "", "engine ended the container"),
        (("create", "start", "stop", "died"), "", "engine ended the container"),
        (("create", "start", "die 0", "destroy"), "", "connection to the container broke"),
        (("create", "start", "die 137", "destroy"), "", ""),
        ((), "", ""),
        (("create", "start", "die", "destroy"), "", ""),
    ],
)
def test_the_engines_events_say_who_ended_a_container(actions, inside, outside):
    lines = [
        {"Action": action.split()[0], "Actor": {"ID": "x", "Attributes": {"exitCode": action.partition(" ")[2]}}}
        for action in actions
    ]
    evidence = judge_events(msgspec.convert(lines, list[EngineEvent]))
    assert (inside in evidence.inside, outside in evidence.outside) == (True, True)
    assert (bool(evidence.inside), bool(evidence.outside)) == (bool(inside), bool(outside))


async def test_commands_run_as_root_for_images_that_expect_it(docker_fleet, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "f").write_text("shared")
    fleet = docker_fleet(slots=1, root=True, mounts=(Mount(source=str(cache), target="/cache"),), **TEST)
    try:
        box = await fleet.create(SPEC)
        did = await box.exec("id -u; echo x >/etc/made && cat /etc/made /root/secret /cache/f; echo x >/cache/f")
        assert did.stdout == b"0\nx\nof the image's root\nshared"
        assert b"Read-only" in did.stderr
        await box.close()
    finally:
        await fleet.close()


async def test_read_only_image_environment_and_caches(docker_fleet, tmp_path):
    (tmp_path / "f").write_text("shared")
    tmp_path.chmod(0o755)
    for slots in (1, 2):
        fleet = docker_fleet(slots=slots, read_only=True, env={"FROM": "profile", "BOTH": "p"}, **TEST)
        try:
            spec = SandboxSpec(disk_mb=32, env=(("BOTH", "s"),), caches=((str(tmp_path), "/opt/cache"),))
            box = await fleet.create(spec)
            assert (await box.exec("cat /opt/cache/f; echo $FROM $BOTH")).stdout == b"sharedprofile s\n"
            assert (await box.exec("touch /opt/cache/g")).exit_code != 0
            await box.close()
        finally:
            await fleet.close()


async def test_a_snapshot_starts_other_slots(docker_fleet):
    fleet = docker_fleet(**TEST)
    try:
        box = await fleet.create(SPEC)
        await box.exec("mkdir d; echo base >d/f; ln -s d/f link; chmod 750 d")
        forked = await fleet.snapshot(box)
        await box.exec("echo changed >d/f")
        other = await fleet.create(forked)
        await other.exec("echo mine >>link")
        assert (await other.exec("cat d/f; stat -c %a d")).stdout == b"base\nmine\n750\n"
        await other.reset()
        assert (await other.exec("cat d/f")).stdout == b"base\n"
        assert (await box.exec("cat d/f")).stdout == b"changed\n"
    finally:
        await fleet.close()


# ---- failures -------------------------------------------------------------------------------------------------------


async def test_a_container_that_dies_fails_its_slot_and_the_next_slot_gets_another(engine):
    make, socket = engine

    fleet = make(**TEST)
    try:
        box = await fleet.create(SPEC)
        running = asyncio.create_task(box.exec("sleep 30"))
        await asyncio.sleep(0.2)
        (entry,) = await containers(socket)
        await DockerApi(socket).request("POST", f"/containers/{entry['Id']}/kill")
        with pytest.raises(SandboxError) as died:
            await running
        assert died.value.retryable
        assert not box.alive
        again = await fleet.create(SPEC)
        assert (await again.exec("echo on")).stdout == b"on\n"
        for each in (box, again):
            await each.close()
    finally:
        await fleet.close()
    await none_left(socket)


async def test_a_paused_container_is_noticed(docker_fleet, docker_socket):
    fleet = docker_fleet(lapse_seconds=1.0, **TEST)
    engine = DockerApi(str(docker_socket))
    try:
        box = await fleet.create(SPEC)
        (entry,) = await containers(str(docker_socket))
        await engine.request("POST", f"/containers/{entry['Id']}/pause")
        with pytest.raises(SandboxError, match="did not reply"):
            await box.exec("sleep 30")
        await box.close()
    finally:
        await fleet.close()
    await none_left(str(docker_socket))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": "ludus-test:nowhere", "pull": False}, "no image 'ludus-test:nowhere'"),
        ({"python": "python9"}, "python9"),
        ({"python": "/bin/true"}, "runs no slots"),
        ({"memory_mb": 1}, "6MB|memory"),
        ({"network": "no-such-network"}, "no-such-network"),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(docker_fleet, docker_socket, change, words):
    fleet = docker_fleet(**TEST, **change)
    try:
        with pytest.raises(SandboxError, match=words):
            await fleet.create(SandboxSpec(disk_mb=32, network="network" in change))
    finally:
        await fleet.close()
    await none_left(str(docker_socket))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 500 -\r\nContent-Length: 24\r\n\r\n" + b'{"message":"disk full"}\n', "500: disk full"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n[", "hung up"),
        (b"", "hung up"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<a/>", "not understood"),
        (None, "within 0.3 s"),
    ],
    ids=["500", "half", "nothing", "not-http", "not-json", "slow"],
)
async def test_an_engine_that_fails_is_reported_soon(tmp_path, answer, words):
    path = tmp_path / "engine.sock"
    async with EngineStandin(path, answer):
        backend = Docker(DockerSettings(image="x", socket=str(path), api_seconds=0.3))
        with pytest.raises(SandboxError, match=words):
            await backend.launch(SPEC)
        await backend.close()


async def test_an_image_that_is_not_there_is_fetched(tmp_path):
    path = tmp_path / "engine.sock"
    missing = make_response(404, b'{"message":"No such image"}')
    for report, words in (
        (b'{"status":"Pulling"}\n{"error":"manifest unknown"}\n', "cannot be fetched: manifest unknown"),
        (b'{"status":"Pulling"}\n{"status":"Done"}\n', "500: full"),
    ):
        refused = make_response(500, b'{"message":"full"}')
        async with EngineStandin(
            path, make_response(200, b"[]"), missing, make_response(200, report), refused
        ) as engine:
            backend = Docker(DockerSettings(image="host/a/b:v1", socket=str(path)))
            with pytest.raises(SandboxError, match=words):
                await backend.launch(SPEC)
            await backend.close()
            assert b"POST /images/create?fromImage=host%2Fa%2Fb&tag=v1 HTTP/1.1" in engine.requests


async def test_an_engine_that_comes_back_is_used_again(docker_fleet, docker_socket, tmp_path):
    path = tmp_path / "engine.sock"
    fleet = docker_fleet(socket=str(path), **TEST)
    try:
        with pytest.raises(SandboxError):
            await fleet.create(SPEC)
        path.symlink_to(docker_socket)
        box = await fleet.create(SPEC)
        assert (await box.exec("echo on")).stdout == b"on\n"
        await box.close()
    finally:
        await fleet.close()


async def test_no_engine_at_all(tmp_path):
    backend = Docker(DockerSettings(image="x", socket=str(tmp_path / "none.sock")))
    with pytest.raises(SandboxError, match=r"none.sock cannot be reached.*No such file"):
        await backend.launch(SPEC)
    await backend.close()


async def test_a_cut_connection_to_the_engine_ends_the_slot_and_the_container(docker_fleet, docker_socket, tmp_path):
    """A proxy between driver and engine is shut down, as when the engine restarts or its socket disappears."""

    cut: list[asyncio.StreamWriter] = []

    async def proxy(reader, writer):
        there, back = await asyncio.open_unix_connection(str(docker_socket))
        cut.extend((writer, back))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async def copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    path = tmp_path / "proxy.sock"
    server = await asyncio.start_unix_server(proxy, path)
    fleet = docker_fleet(socket=str(path), **TEST)
    try:
        box = await fleet.create(SPEC)
        running = asyncio.create_task(box.exec("sleep 30"))
        await asyncio.sleep(0.2)
        for writer in cut:
            writer.close()
        with pytest.raises(SandboxError):
            await running
        await none_left(str(docker_socket))  # it ended by itself: its stdin is closed
        await box.close()
    finally:
        await fleet.close()
        server.close()


async def test_a_storm_of_slots_and_cancelled_starts_leaves_nothing(docker_fleet, docker_socket):
    fds = open_files()
    fleet = docker_fleet(slots=8, **TEST)
    boxes = await asyncio.gather(*(fleet.create(SPEC) for _ in range(20)))
    assert len(await containers(str(docker_socket))) == 3
    outputs = await asyncio.gather(*(box.exec(f"echo {i}") for i, box in enumerate(boxes)))
    assert [result.stdout for result in outputs] == [b"%d\n" % i for i in range(20)]
    other = SandboxSpec(disk_mb=16)
    tasks = [asyncio.create_task(fleet.create(other)) for _ in range(4)]
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.gather(*(box.close() for box in boxes))
    await fleet.close()
    await none_left(str(docker_socket))
    assert open_files() == fds


# ---- drivers that died ----------------------------------------------------------------------------------------------


async def test_what_dead_drivers_left_is_removed(docker_fleet, docker_socket):
    engine = DockerApi(str(docker_socket))
    host, boot, _, _ = make_owner_mark().split("_")
    marks = {"dead": f"{host}_{boot}_999999_1", "alive": make_owner_mark(), "elsewhere": "otherhost_b_1_2"}
    for name, mark in marks.items():
        body = {"Image": "ludus-test:latest", "Cmd": ["true"], "Labels": {OWNER: mark, "test": "yes"}}
        await engine.request("POST", "/containers/create", {"name": f"sweep-{name}"}, body)
    fleet = docker_fleet(**TEST)
    try:
        box = await fleet.create(SPEC)
        names = {name for entry in await containers(str(docker_socket)) for name in entry["Names"]}
        assert "/sweep-dead" not in names
        assert {"/sweep-alive", "/sweep-elsewhere"} < names
        await box.close()
    finally:
        await fleet.close()
        for name in ("alive", "elsewhere"):
            await engine.request("DELETE", f"/containers/sweep-{name}", {"force": "true"})


# ---- pure -----------------------------------------------------------------------------------------------------------


def test_the_request_that_makes_a_container():
    one = build_container(DockerSettings(image="i", cpus=1.5, gpus=-1), SandboxSpec(memory_mb=100, disk_mb=10), "me")
    host = one["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert (host["CapDrop"], "SYS_ADMIN" in host["CapAdd"]) == (["ALL"], False)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["NanoCpus"], host["PidsLimit"], host["AutoRemove"]) == (1_500_000_000, 288, True)
    assert host["Memory"] == host["MemorySwap"] == (100 + 30 + 64 + 96) << 20
    assert host["DeviceRequests"][0]["Count"] == -1
    assert "size=10m,nr_inodes=10240" in host["Tmpfs"]["/workspace"]
    many = build_container(DockerSettings(image="i", slots=4), SandboxSpec(network=True), "me")["HostConfig"]
    assert many["NetworkMode"] == "bridge"
    assert "SYS_ADMIN" in many["CapAdd"]
    assert "/workspace" not in many["Tmpfs"]


def test_the_container_of_a_task_s_image_has_one_slot_whatever_the_settings_are_for_others():
    spec = SandboxSpec(memory_mb=100, disk_mb=10, image=ImageSpec(name="t"), caches=(("/a", "/b"),))
    image = EngineImage("0123", {}, "/app", "me")
    body = build_container(DockerSettings(image="i", slots=4, root=True, read_only=True), spec, "me", image)
    host = body["HostConfig"]
    assert (body["Image"], body["User"], "WorkingDir" in body) == ("0123", "0:0", False)  # the folder is the image's
    assert host["Memory"] == (100 + 10 + 64 + 96) << 20
    assert (host["PidsLimit"], host["Tmpfs"], host["ReadonlyRootfs"]) == (288, {}, False)
    assert (host["CapDrop"], {"SYS_ADMIN", "SETFCAP"} <= set(host["CapAdd"])) == (["ALL"], True)
    assert host["Binds"] == ["/a:/b:ro"]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python", ("python", "latest")),
        ("python:3.11", ("python", "3.11")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:v1", ("host:5000/a/b", "v1")),
        ("a/b@sha256:00", ("a/b", "sha256:00")),
    ],
)
def test_the_name_of_an_image_is_split(image, parts):
    assert split_image(image) == parts


def test_podman_has_dockers_settings_and_a_socket_of_its_own():
    settings = PodmanSettings(image="i")
    assert (settings.socket, settings.network) == ("/run/podman/podman.sock", "bridge")
    assert Podman(settings).name == "podman"
    assert Docker.isolates(settings)


async def test_looking_at_an_engine_says_whether_it_replies_and_which_limits_it_has(tmp_path, monkeypatch):
    path = tmp_path / "engine.sock"

    class Here(DockerSettings, frozen=True, kw_only=True, tag="here"):
        socket: str = str(path)

    monkeypatch.setattr(Docker, "Settings", Here)

    off = await Docker.look()
    assert (off.state, off.message) == ("off", f"there is no {path}")
    needed = "--sandbox.backend docker --sandbox.docker.socket SOCKET --sandbox.docker.image IMAGE"
    assert off.remedy.endswith(f"use another socket: {needed}")
    info = b'{"ServerVersion":"27.1","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":false}'
    async with EngineStandin(path, make_response(200, info)):
        ready = await Docker.look()
    assert (ready.state, ready.message) == ("ready", "version 27.1 replies")
    assert ready.remedy == "use it with --sandbox.backend docker --sandbox.docker.image IMAGE"
    assert {limit.limit: limit.strong for limit in ready.limits} == {
        "memory": True,
        "processes": False,
        "disk": True,
        "time and output": True,
    }
    async with EngineStandin(path, make_response(500, b"")):
        assert (await Docker.look()).state == "broken"


async def test_looking_at_the_socket_of_the_settings(tmp_path):
    path = tmp_path / "other.sock"

    settings = DockerSettings(socket=str(path), image="python:3.12")
    assert (await Docker.look_with(settings)).message == f"there is no {path}"
    async with EngineStandin(path, make_response(200, b'{"ServerVersion":"27.1"}')):
        ready = await Docker.look_with(settings)
    assert (ready.state, ready.message) == ("ready", f"version 27.1 replies at {path}")
    flags = f"--sandbox.backend docker --sandbox.docker.socket {path} --sandbox.docker.image python:3.12"
    assert ready.remedy == f"use it with {flags}"
