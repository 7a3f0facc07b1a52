"""Images that a real engine builds, in slots of bubblewrap."""

import tempfile
from pathlib import Path

import pytest
from tests.sandbox.remote import machinery

from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.sandbox.profiles import open_pool


async def test_a_slot_has_the_image_that_docker_built(
    docker_socket: Path, bwrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker_socket}")
    (tmp_path / "x.txt").write_text("copied")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {machinery.IMAGE} AS first\nCOPY x.txt /made/x.txt\nFROM {machinery.IMAGE}\nENV A='two words'\n"
        "WORKDIR /app\nCOPY --from=first /made/ .\n"
    )
    with tempfile.TemporaryDirectory(prefix="ludus-engine-") as cache:
        Path(cache).chmod(0o755)
        image = ImageSpec(engine="docker", folder=str(tmp_path), cache=cache)

        async def go() -> str:
            async with open_pool("bwrap") as pool, pool.lease(SandboxSpec(image=image)) as box:
                return (await box.exec('pwd; cat x.txt; echo " $A"; id -u; python3 -c "print(1)"')).text

        assert await go() == "/app\ncopied two words\n0\n1\n"
