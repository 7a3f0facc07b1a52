"""What takes past work off this machine, and what does not."""

import pytest

from ludus.config import load
from ludus.errors import ConfigError
from ludus.sleep.destinations import is_local, list_departures, list_models, require_permission


def read(*words: str):
    return load(flags=list(zip(words[::2], words[1::2], strict=True)))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:8000", True),
        ("http://127.9.9.9", True),
        ("http://10.0.0.7:8000", False),
        ("https://models.example.com", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://localhost@evil.example.com", False),
    ],
)
def test_loopback_only_is_this_machine(address: str, local: bool):
    assert is_local(address) is local
    assert not is_local(address, "http://proxy.example.com:3128")


LOCAL = ("model.base_url", "http://127.0.0.1:1/v1", "model.name", "m")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model.base_url", "https://a.example.com/v1", "model.name", "m"), "model: m at a.example.com"),
        ((*LOCAL, "model.servers", "[https://b.example.com/v1]"), "at b.example.com"),
        ((*LOCAL, "model.proxy", "http://p.example.com:1"), "model: m"),
        (("optimizer.type", "anthropic", "optimizer.name", "c"), "optimizer: c at api.anthropic.com"),
        (("model.type", "mine.py:Model"), "wherever mine.py:Model sends it"),
        (("sandbox.network", "true"), "sandbox.network"),
        (("sandbox.backend", "ssh", "sandbox.ssh.hosts", "[h]"), "sandbox.backend: ssh"),
        (("tools.enabled", "[terminal, web]"), "tools.enabled: web"),
        (("tools.enabled", "[debugging]"), "tools.enabled: debugging"),
        (("tools.enabled", "[terminal, 'mine.py:post']"), "tools.enabled: mine.py:post"),
        (("tools.distribution", "terminal_web"), "tools.distribution terminal_web: web"),
        (("tools.distributions.d", "{terminal: 50, moa: 1}", "tools.distribution", "d"), "tools.distribution d: moa"),
        (("train.proposer", "mine.py:Proposer"), "train.proposer: mine.py:Proposer"),
        (("engine.type", "ray"), "engine.type: ray"),
        (("tracking.use", "[wandb]"), "tracking.use: wandb"),
    ],
)
def test_what_leaves_is_refused_by_name_and_can_be_allowed(words: tuple[str, ...], said: str):
    config = read(*words)
    models = list_models(config, has_optimizer=True)
    assert any(said in each for each in list_departures(config, models))
    with pytest.raises(ConfigError, match=r"sleep\.remote"):
        require_permission(config, models)
    allowed = read(*words, "sleep.remote", "true")
    assert require_permission(allowed, list_models(allowed, has_optimizer=True))


def test_models_on_this_machine_need_no_permission():
    tools = ("tools.enabled", "[coding]", "tools.disabled", "[web]")
    for words in (
        LOCAL,
        ("model.type", "embedded"),
        tools,
        ("tools.distribution", "terminal_only"),
        ("tracking.use", "[tensorboard]"),
    ):
        config = read(*words)
        assert require_permission(config, list_models(config, has_optimizer=True)) == []


def test_slots_without_isolation_are_refused_even_if_allowed():
    config = read("sandbox.backend", "local", "sleep.remote", "true")
    with pytest.raises(ConfigError, match="without isolation"):
        require_permission(config, list_models(config, has_optimizer=False))
