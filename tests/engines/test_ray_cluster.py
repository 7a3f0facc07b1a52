"""What is said if there is no Ray, another version of it, or no cluster."""

import importlib
import sys
from types import ModuleType

import pytest

from ludus.engines.ray_cluster import RayCluster
from ludus.errors import ConfigError


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install 'ludus-train\[ray\]'"):
        RayCluster("")


def test_ray_is_too_old(monkeypatch: pytest.MonkeyPatch):
    old = ModuleType("ray")
    old.__dict__["__version__"] = "2.9.3"
    monkeypatch.setitem(sys.modules, "ray", old)
    with pytest.raises(ConfigError, match=r"Ray 2\.9\.3 is installed, and 2\.49 or later is needed"):
        RayCluster("")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "engine.address: ray:// is Ray's client"),
        ("127.0.0.1:1", "engine.address: there is no Ray cluster at 127.0.0.1:1. Start one with `ray start --head`"),
        ("nowhere", "engine.address: 'nowhere' should be HOST:PORT of the cluster's head, or auto"),
        ("head:port", "engine.address: 'head:port' should be HOST:PORT"),
    ],
)
def test_there_is_no_cluster(address: str, message: str):
    with pytest.raises(ConfigError) as caught:
        RayCluster(address)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not importlib.import_module("ray").is_initialized()
