"""The layers of one pool, without slots. `tests/sandbox/test_snapshots.py` uses them through slots."""

import os
import stat
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox.archive import ArchiveEntry, make_archive
from ludus.sandbox.local.host_dir import HostDir
from ludus.sandbox.local.layers import Layers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = HostDir()
    yield found
    found.close()


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "file").write_text("text")
    (folder / "file").chmod(0o4755)
    (folder / "link").symlink_to("/etc/passwd")
    return str(folder)


async def test_a_driver_that_is_not_root_uses_the_base_itself(host, base):
    layers = Layers(host, None)
    assert await layers.prepare((base,)) == ((base,), None)
    assert await layers.prepare(()) == ((), None)


@needs_root
async def test_root_copies_a_base_once_and_gives_it_to_one_user(host, base):
    layers = Layers(host, 0x6FFF_0000)
    ((copy,), user) = await layers.prepare((base,))
    assert await layers.prepare((base,)) == ((copy,), user)
    assert copy != base
    status = Path(copy, "file").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (user, user, 0o755)
    assert Path(copy, "link").lstat().st_uid == user
    assert Path(base, "file").stat().st_uid == 0
    assert Path("/etc/passwd").stat().st_uid == 0


async def test_a_snapshot_is_a_layer_with_the_user_of_its_base(host, base):
    layers = Layers(host, 0x6FFF_0000 if os.geteuid() == 0 else None)
    _, user = await layers.prepare((base,))
    layer = await layers.save(make_archive([ArchiveEntry("new", 0o644, data=b"x")]), (base,))
    assert Path(layer, "new").read_bytes() == b"x"
    (_, again), owner = await layers.prepare((base, layer))
    assert (again, owner) == (layer, user)


@needs_root
async def test_slots_without_a_common_base_have_different_users(host, base, tmp_path):
    (tmp_path / "other").mkdir()
    layers = Layers(host, 0x6FFF_0000)
    _, one = await layers.prepare((base,))
    _, two = await layers.prepare((str(tmp_path / "other"),))
    layer = await layers.save(make_archive([]), ())
    _, three = await layers.prepare((layer,))
    assert len({one, two, three}) == 3


async def test_a_broken_archive_leaves_no_layer(host):
    layers = Layers(host, None)
    before = sorted((host.path / "layers").iterdir())
    with pytest.raises(SandboxError, match="no snapshot could be made"):
        await layers.save(b"nonsense" * 100, ())
    assert sorted((host.path / "layers").iterdir()) == before


@needs_root
async def test_a_missing_base_is_not_retryable(host, tmp_path):
    layers = Layers(host, 0x6FFF_0000)
    with pytest.raises(SandboxError, match=r"sandbox.base '.*missing' cannot be used") as failed:
        await layers.prepare((str(tmp_path / "missing"),))
    assert not failed.value.retryable
