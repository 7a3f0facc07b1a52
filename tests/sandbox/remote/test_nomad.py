"""Slots of Nomad jobs, against a stand-in of its documented HTTP API that really runs them."""

import asyncio
import json

import pytest
from tests.sandbox.remote import machinery

from ludus.errors import SandboxError
from ludus.http_client import Client
from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.agent_files import collect_files
from ludus.sandbox.backend import Mount
from ludus.sandbox.backend_settings import NomadSettings
from ludus.sandbox.owner import make_owner_mark
from ludus.sandbox.remote.fleet import open_fleet
from ludus.sandbox.remote.nomad import Nomad, build_job

SPEC = SandboxSpec(disk_mb=32)


async def ask(nomad, method: str, path: str, body: object = None):
    async with Client() as client:
        data = b"" if body is None else json.dumps(body).encode()
        response = await client.request(method, nomad.address + path, (("X-Nomad-Token", nomad.token),), data)
        return json.loads(response.body)


async def jobs(nomad) -> list[str]:
    return [entry["ID"] for entry in await ask(nomad, "GET", "/v1/jobs?prefix=test")]


async def test_a_job_ends_with_its_last_slot(nomad, nomad_fleet):
    fleet = nomad_fleet(job_prefix="test", slots=2, idle_seconds=0.05)
    boxes = await asyncio.gather(*(fleet.create(SPEC) for _ in range(3)))
    assert len(await jobs(nomad)) == 2
    await asyncio.gather(*(box.close() for box in boxes))
    for _ in range(2000):
        if not await jobs(nomad):
            break
        await asyncio.sleep(0.05)
    assert await jobs(nomad) == []
    await fleet.close()


async def test_a_short_failure_of_nomad_is_retried(nomad, nomad_fleet):
    fleet = nomad_fleet(job_prefix="test", api_seconds=5.0)
    await ask(nomad, "POST", "/standin", {"status": 500, "times": 2})
    box = await fleet.create(SPEC)
    assert (await box.exec("echo on")).stdout == b"on\n"
    await fleet.close()
    assert await jobs(nomad) == []


@pytest.mark.parametrize(
    ("trouble", "change", "words"),
    [
        ({"status": 500, "times": 50}, {"start_seconds": 3.0}, "Nomad replied with status 500: .*No cluster leader"),
        ({"delay": 2, "times": 50}, {"start_seconds": 3.0, "api_seconds": 0.2}, "Nomad cannot be reached"),
        ({"times": 0}, {"start_seconds": 3.0, "address": "http://127.0.0.1:1"}, "Nomad cannot be reached: .*refused"),
        ({"times": 0}, {"memory_mb": 200_000}, "no room for a job: memory"),
        ({"times": 0}, {"python": "python9"}, "failed: .*python9 not found"),
        ({"times": 0}, {"python": "/bin/false"}, "failed: .*Exit Code: 1"),
        ({"times": 0}, {"datacenters": ()}, "400: .*validation"),
    ],
)
async def test_a_lasting_failure_of_nomad_is_reported_and_leaves_nothing(nomad, nomad_fleet, trouble, change, words):
    fleet = nomad_fleet(job_prefix="test", **change)
    await ask(nomad, "POST", "/standin", trouble)
    with pytest.raises(SandboxError, match=words):
        await fleet.create(SPEC)
    await ask(nomad, "POST", "/standin", {"times": 0})
    await fleet.close()


async def test_a_wrong_token_is_refused_for_good(nomad):
    backend = Nomad(NomadSettings(address=nomad.address), {"token": "wrong"})
    with pytest.raises(SandboxError, match="403: Permission denied") as refused:
        await backend.launch(SPEC)
    assert not refused.value.retryable
    await backend.close()


async def test_an_allocation_that_is_stopped_fails_its_slots(nomad, nomad_fleet, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.link._RETRY_PAUSES", (0.1, 0.1))

    fleet = nomad_fleet(job_prefix="test")
    box = await fleet.create(SPEC)
    running = asyncio.create_task(box.exec("sleep 30"))
    await asyncio.sleep(0.2)
    (name,) = await jobs(nomad)
    await ask(nomad, "DELETE", f"/v1/job/{name}?purge=true")
    with pytest.raises(SandboxError):
        await running
    await box.close()
    again = await fleet.create(SPEC)
    assert (await again.exec("echo on")).stdout == b"on\n"
    await fleet.close()


async def test_what_dead_drivers_left_is_purged(nomad, nomad_fleet):
    host, boot, _, _ = make_owner_mark().split("_")
    marks = (f"{host}_{boot}_999999_1", make_owner_mark(), "otherhost_b_1_2")
    names = [f"test-{mark}-aaaa" for mark in marks]
    settings = NomadSettings(driver="raw_exec", python="/bin/sleep")
    for name in names:
        await ask(nomad, "POST", "/v1/jobs", {"Job": build_job(settings, SPEC, name, "t")})
    fleet = nomad_fleet(job_prefix="test")
    await fleet.create(SPEC)
    assert set(names) & set(await jobs(nomad)) == set(names[1:])
    await fleet.close()
    fleet = nomad_fleet(job_prefix="test", purge_on_start=True)
    await fleet.create(SPEC)
    assert set(names) & set(await jobs(nomad)) == set()
    await fleet.close()


async def test_the_docker_driver_runs_in_a_real_engine(folder, docker_socket, tmp_path):
    """The stand-in passes the settings of Nomad's docker driver on to the engine."""

    daemon = machinery.start_nomad(tmp_path, docker_socket)
    nomad = next(daemon)

    try:
        settings = NomadSettings(address=nomad.address, image=machinery.IMAGE, slots=2, env={"FROM": "profile"})
        backend = Nomad(settings, {"token": nomad.token})
        server = await backend.launch(SPEC)
        assert server.info.isolation == "namespaces"
        box = await server.open(SPEC, _nothing)
        seen = await box.exec("pwd; echo $FROM; cat /secrets/slotd.json; env | grep -c NOMAD_; touch /x")
        assert seen.stdout == b"/workspace\nprofile\n0\n"
        assert (await box.exec("(exec 3<>/dev/tcp/127.0.0.1/22) 2>&1")).exit_code != 0
        await box.close()
        await server.close()
        await backend.close()
    finally:
        daemon.close()


async def test_a_task_has_the_image_that_it_names(docker_socket, tmp_path):
    named = "ludus-test-task:1"
    (tmp_path / "Dockerfile").write_text(f"FROM {machinery.IMAGE}\nENV A=b\nWORKDIR /srv/work\n")
    engine = ("docker", "--host", f"unix://{docker_socket}")
    machinery.run_command(*engine, "build", "--tag", named, str(tmp_path))
    (tmp_path / "nomad").mkdir()
    daemon = machinery.start_nomad(tmp_path / "nomad", docker_socket)
    nomad = next(daemon)

    try:
        fleet = open_fleet(Nomad(NomadSettings(address=nomad.address), {"token": nomad.token}))
        spec = SandboxSpec(disk_mb=16, image=ImageSpec(name=named))
        box = await fleet.create(spec)
        seen = await box.exec("pwd; id -u; echo $A; cat /secrets/* /local/*; env | grep -c NOMAD_; echo x >/etc/x")
        assert seen.stdout == b"/srv/work\n0\nb\n0\n"
        assert (await box.exec("(exec 3<>/dev/tcp/127.0.0.1/22) 2>&1")).exit_code != 0
        await box.settle()
        files = await collect_files(box)
        assert [entry.path for entry in files.entries if not entry.is_folder] == ["etc/x"]
        with pytest.raises(SandboxError, match="'nomad' pulls images by name, and /x has none"):
            await fleet.create(SandboxSpec(image=ImageSpec(folder="/x")))
        await fleet.close()
    finally:
        daemon.close()


async def _nothing() -> None:
    pass


async def test_the_singularity_driver_runs_apptainer(apptainer, open_folder, monkeypatch):

    command, root = apptainer
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/sbin:/usr/bin:/sbin:/bin")
    daemon = machinery.start_nomad(open_folder)
    nomad = next(daemon)

    try:
        settings = NomadSettings(address=nomad.address, driver="singularity", image=str(root), slots=2)
        config = build_job(settings, SPEC, "n", "t")["TaskGroups"][0]["Tasks"][0]["Config"]
        assert config["command"] == "apptainer"
        assert config["args"][0] == "exec"
        assert "${NOMAD_SECRETS_DIR}:/secrets:ro" in config["args"]
        backend = Nomad(settings, {"token": nomad.token})
        server = await backend.launch(SPEC)
        assert server.info.isolation == "namespaces"
        box = await server.open(SPEC, _nothing)
        assert (await box.exec("pwd; cat /secrets/slotd.json")).stdout == b"/workspace\n"
        await server.close()
        await backend.close()
    finally:
        daemon.close()


def test_the_job_that_is_submitted():
    settings = NomadSettings(
        image="i", slots=3, gpus=1, namespace="ns", mounts=(Mount(source="/a", target="/b"),), privileged=True
    )
    asked = build_job(settings, SandboxSpec(memory_mb=100, disk_mb=10), "name", "secret-token")
    task = asked["TaskGroups"][0]["Tasks"][0]
    assert (asked["Type"], asked["Namespace"], task["Driver"]) == ("batch", "ns", "docker")
    assert task["Resources"]["MemoryMB"] == 3 * (100 + 30 + 64) + 96
    assert task["Resources"]["Devices"] == [{"Name": "nvidia/gpu", "Count": 1}]
    assert task["Config"]["privileged"] is True
    assert task["Config"]["volumes"] == ["/a:/b:ro"]
    assert "secret-token" not in json.dumps([task["Config"], task["Env"]])
    secret = next(t for t in task["Templates"] if t["DestPath"].startswith("secrets/"))
    assert (secret["Perms"], json.loads(secret["EmbeddedTmpl"])["token"]) == ("0600", "secret-token")
