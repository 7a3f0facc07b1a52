"""No secret is in the settings, and those that they name are masked."""

from pathlib import Path

import pytest
from tests.config_kit import SERVER

from ludus.config import load, to_yaml
from ludus.config.build_models import build_ledger, build_model
from ludus.config.secrets import (
    find_audits_folder,
    find_proxy,
    find_view_folder,
    find_weights_folder,
    list_secrets,
)
from ludus.errors import ConfigError


def test_key_values_are_known_for_masking_and_nowhere_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    monkeypatch.setenv("OTHER", "other-secret")
    settings = load([], [*SERVER, ("model.api_key_var", "MY_KEY"), ("model.header_vars.X-Org", "OTHER")])
    assert list_secrets(settings) == ("sk-very-secret", "other-secret")
    model = build_model(settings.model, build_ledger(settings))
    assert "secret" not in to_yaml(settings) + repr(settings) + repr(model)


@pytest.mark.parametrize(
    ("path", "words", "setting"),
    [
        ("model.api_key_var", "sk-abc-123-SECRET", "model.api_key_var"),
        ("model.base_url", "http://me:SECRET@host/v1", "model.base_url"),
        ("model.base_url", "https://SECRET@host/v1", "model.base_url"),
        ("model.proxy", "http://me:SECRET@proxy:1", "model.proxy"),
        ("model.proxy", "me:SECRET@proxy:1", "model.proxy"),
        ("model.headers.Authorization", "Bearer SECRET", "model.headers.Authorization"),
        ("model.headers", "{X-Api-Key: SECRET}", "model.headers.X-Api-Key"),
        ("tools.mcp.a.env.MY_TOKEN", "SECRET", "tools.mcp.a.env.MY_TOKEN"),
        ("tools.mcp.a.url", "https://host/mcp?api_key=SECRET", "tools.mcp.a.url"),
        ("agent.harnesses.mine", "{command: run, env: {OPENAI_API_KEY: SECRET}}", "agent.harnesses.mine.env"),
    ],
)
def test_a_secret_in_a_setting_is_refused_and_not_repeated(path: str, words: str, setting: str):
    with pytest.raises(ConfigError) as caught:
        load([], [("model.name", "m"), (path, words)])
    assert str(caught.value).startswith(f"{setting}: ")
    assert "SECRET" not in str(caught.value)


def test_proxies_come_from_the_setting_or_the_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert find_proxy("https://api.example.com/v1", "") == "http://proxy:3128"
    assert find_proxy("https://127.0.0.1/v1", "") == ""
    assert find_proxy("http://api.example.com/v1", "") == ""
    assert find_proxy("https://api.example.com/v1", "none") == ""
    assert find_proxy("http://api.example.com", "http://mine:1") == "http://mine:1"
    monkeypatch.setenv("https_proxy", "me:hidden-words@proxy:3128")
    assert find_proxy("https://api.example.com/v1", "") == "http://me:hidden-words@proxy:3128"
    assert list_secrets(load()) == ("hidden-words",)
    monkeypatch.setenv("https_proxy", "socks5://me:hidden-words@proxy:1080")
    with pytest.raises(ConfigError, match=r"the proxy for api\.example\.com is a socks5 one") as caught:
        find_proxy("https://api.example.com/v1", "")
    assert "hidden-words" not in str(caught.value)


def test_what_can_be_fetched_or_made_again_is_in_one_cache_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/h")
    for given, base in (("/x", "/x/ludus"), ("", "/h/.cache/ludus")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        found = (find_weights_folder(), find_audits_folder(), find_view_folder())
        assert found == (Path(base, "weights"), Path(base, "audits"), Path(base, "view"))
