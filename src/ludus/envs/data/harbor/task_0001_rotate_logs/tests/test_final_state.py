import gzip
from pathlib import Path

HOME = Path("/home/user")


def test_old_log_is_compressed():
    assert gzip.decompress((HOME / "archive/old.log.gz").read_bytes()) == b"stopped\n"


def test_old_log_is_moved():
    assert (HOME / "archive").is_dir()
    assert not (HOME / "logs/old.log").exists()


def test_app_log_is_empty():
    assert (HOME / "logs/app.log").read_bytes() == b""
