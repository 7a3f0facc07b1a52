"""Settings: one precedence rule, problems in words, nothing secret anywhere."""

import sys
import textwrap
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml

from ludus.config import FREE, load, to_record, to_yaml
from ludus.config.build_agent import build_env, build_policy
from ludus.config.build_models import build_ledger, build_model, build_models
from ludus.config.build_tools import build_distribution
from ludus.config.build_training import build_train_settings
from ludus.config.reading import describe_type
from ludus.config.references import load_env_class, load_object
from ludus.config.secrets import find_proxy, list_secrets
from ludus.config.settings_page import read_field_docs, render_settings_page
from ludus.config.tree import SECTIONS, Config, ModelSettings, SameSettings
from ludus.envs.gsm8k import Gsm8k
from ludus.errors import ConfigError
from ludus.models.anthropic import AnthropicSettings
from ludus.models.embedded import EmbeddedSettings
from ludus.models.openai import OpenAISettings
from ludus.reflact.gate import Gate
from ludus.reflact.train_settings import Appendix, DataSettings, SlowUpdate, TrainSettings
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backends import SandboxSettings
from ludus.tools.toolsets import BUILTIN
from ludus.types import Sampling


def written(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def problem(*files: Path, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(files, [(path.replace("__", "."), words) for path, words in flags.items()])
    return str(caught.value)


# ---- one rule -----------------------------------------------------------------------------------------------------


def test_nothing_given_is_the_defaults():
    assert load() == Config()


def test_defaults_then_files_in_order_then_flags(tmp_path: Path):
    first = written(tmp_path, "run: {seed: 1, retries: 5}\nenv: {name: gsm8k, split: test}", "1.yaml")
    second = written(tmp_path, "run: {seed: 2}\nsampling: {temperature: 0}", "2.yaml")
    found = load([first, second], [("run.seed", "3"), ("run.seed", "4")])
    assert (found.run.seed, found.run.retries, found.run.concurrency) == (4, 5, 16)
    assert load([second, first]).run.seed == 1
    assert (found.env.split, found.sampling.temperature) == ("test", 0.0)


def test_mappings_merge_and_lists_replace(tmp_path: Path):
    first = written(tmp_path, "tools: {enabled: [file, todo], web: {provider: brave}}", "1.yaml")
    second = written(tmp_path, "tools: {enabled: [code], web: {api_key_var: BRAVE}}", "2.yaml")
    tools = load([first, second]).tools
    assert tools.enabled == ("code",)
    assert (tools.web.provider, tools.web.api_key_var) == ("brave", "BRAVE")


def test_an_empty_file_and_an_empty_section_change_nothing(tmp_path: Path):
    first = written(tmp_path, "run: {seed: 1}", "1.yaml")
    second = written(tmp_path, "run:\n  # seed: 7\n", "2.yaml")
    assert load([first, second, written(tmp_path, "# nothing\n", "3.yaml")]).run.seed == 1


@pytest.mark.parametrize(
    ("path", "words", "expected"),
    [
        ("env.group_size", "4", 4),
        ("env.limit", "null", None),
        ("env.split", "no", "no"),
        ("env.split", "2024-01-01", "2024-01-01"),
        ("env.split", "a: b", "a: b"),
        ("env.split", "", ""),
        ("env.ids", "a, b", ("a", "b")),
        ("env.ids", "[a, 'b,c']", ("a", "b,c")),
        ("env.ids", "7", ("7",)),
        ("env.ids", "null", None),
        ("sampling.temperature", "1e-3", 0.001),
        ("sampling.temperature", "1", 1.0),
        ("sampling.tool_choice", "required", "required"),
        ("sampling.tool_choice", "null", None),
        ("sampling.extra", "{top_k: 3}", {"top_k": 3}),
        ("sampling.extra.chat.deep", "true", {"chat": {"deep": True}}),
        ("sandbox.network", "true", True),
        ("run.resume", "yes", True),
        ("agent.system", "{not: yaml", "{not: yaml"),
        ("tools.distributions.mine.file", "50", {"mine": {"file": 50.0}}),
    ],
)
def test_a_flag_is_read_as_its_field_takes_it(path: str, words: str, expected: object):
    section, name = path.split(".")[:2]
    assert getattr(getattr(load([], [(path, words)]), section), name) == expected


def test_a_flag_goes_into_what_an_earlier_flag_set():
    flags = [("sampling.extra", "{a: 1}"), ("sampling.extra.b", "2")]
    assert load([], flags).sampling.extra == {"a": 1, "b": 2}


def test_the_environment_s_fields_lie_beside_ours():
    found = load([], [("env.name", "gsm8k"), ("env.group_size", "4"), ("env.path", "12")])
    assert (found.env.group_size, found.options) == (4, {"path": "12"})
    assert build_env(found) == Gsm8k(path="12")


def test_the_model_s_type_is_embedded_until_something_is_said():
    assert isinstance(load().model, EmbeddedSettings)
    assert isinstance(load([], [("model.name", "x")]).model, OpenAISettings)
    assert isinstance(load([], [("model.type", "anthropic")]).model, AnthropicSettings)


# ---- problems in words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("run.sed", "did you mean 'run.seed'?"),
        ("env.groop_size", "did you mean 'env.group_size'?"),
        ("run.group_size", "did you mean 'env.group_size'?"),
        ("group_size", "did you mean 'env.group_size'?"),
        ("modle.name", "did you mean 'model'?"),
        ("tools.web.providr", "did you mean 'tools.web.provider'?"),
        ("tools.mcp.x.comand", "did you mean 'tools.mcp.x.command'?"),
        ("budget.zzz", "known in 'budget': calls, dollars, tokens"),
        ("model.retry.firsst", "did you mean 'model.retry.first'?"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(path: str, near: str):
    with pytest.raises(ConfigError) as caught:
        load([], [(path, "1"), ("model.name", "x")])
    unknown = path.split(".")[0] if path.startswith("modle") else path
    assert str(caught.value) == f"{unknown}: unknown setting; {near}"


def test_the_kind_of_a_model_is_a_near_name_too():
    assert problem(model__tpye="openai") == "model.tpye: unknown setting; did you mean 'model.type'?"
    price = problem(model__type="scripted", model__script="m.py:f", model__price={"prompt": 1})
    assert price.startswith("model.price: unknown setting; another model.type has it; this one knows script")


def test_an_unknown_option_of_the_environment_is_refused_with_the_nearest_name():
    assert problem(env__name="gsm8k", env__pth="x") == "env.pth: unknown setting; did you mean 'env.path'?"
    assert problem(env__name="terminal-test", env__path="x").startswith("env.path: unknown setting; ")


def test_options_without_an_environment_are_unknown():
    assert "env.path: unknown setting" in problem(env__path="x")


@pytest.mark.parametrize(
    ("path", "words", "message"),
    [
        ("run.seed", "abc", "run.seed: expected a whole number, got 'abc'"),
        ("run.seed", "1.5", "run.seed: expected a whole number, got 1.5"),
        ("run.seed", "true", "run.seed: expected a whole number, got true"),
        ("env.group_size", "0", "env.group_size: expected a whole number of at least 1, got 0"),
        ("env.limit", "-3", "env.limit: expected a whole number of at least 1 or null, got -3"),
        ("limits.turns", "0", "limits.turns: expected a whole number of at least 1, got 0"),
        ("limits.tool_seconds", "-1", "limits.tool_seconds: expected a number above 0, got -1"),
        ("run.resume", "maybe", "run.resume: expected true or false, got 'maybe'"),
        ("budget.dollars", "0", "budget.dollars: expected a number above 0 or null, got 0"),
        ("sampling.temperature", ".inf", "sampling.temperature: expected a number or null, got inf"),
        ("tools.web.provider", "x", "tools.web.provider: expected one of (empty), brave, searxng, tavily, got 'x'"),
        ("sampling.extra", "5", "sampling.extra: expected a mapping, got 5"),
        ("run", "5", "run: expected a mapping, got 5"),
        ("env", "gsm8k", "env: expected a mapping, got 'gsm8k'"),
        ("tools.mcp.x.command.y", "1", "tools.mcp.x.command: expected a list of texts, got {'y': 1}"),
        ("model.type", "openay", "model.type: 'openay' is not one; did you mean 'openai'?"),
    ],
)
def test_a_wrong_value_names_the_setting_what_was_expected_and_what_was_given(path: str, words: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load([], [(path, words)])
    assert str(caught.value) == message


def test_a_problem_in_a_file_names_the_file(tmp_path: Path):
    path = written(tmp_path, "run: {sed: 1}\nmodel: {name: 4}")
    assert problem(path).splitlines() == [
        f'{path}: model.name: expected text, got 4 (put it in quotes: "…")',
        f"{path}: run.sed: unknown setting; did you mean 'run.seed'?",
    ]


def test_all_problems_are_told_at_once():
    assert len(problem(run__seed="x", run__sed="1", budget__calls="-1").splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("run:\n  seed: [1", 2, "expected"),
        ("run:\n  seed: 1\n  seed: 2\n", 3, "the key 'seed' is there twice"),
        ("run:\n\tseed: 1\n", 2, "cannot start any token"),
        ("run:\n  [seed]: 1\n", 2, "a key must be a word"),
        ("a: !!python/object:os.system x\n", 1, "could not determine a constructor"),
    ],
)
def test_bad_yaml_names_file_and_line(tmp_path: Path, text: str, line: int, why: str):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = problem(path)
    assert message.startswith(f"{path}, line {line}: not valid YAML: ")
    assert why in message


def test_a_file_that_is_not_settings_says_so(tmp_path: Path):
    assert "expected settings in sections" in problem(written(tmp_path, "- a\n- b\n"))
    assert "No such file" in problem(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in problem(tmp_path / "binary.yaml")


def test_interpolation_is_not_a_thing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEED", "5")
    assert load([], [("env.split", "${SEED}")]).env.split == "${SEED}"


def test_types_in_words():
    assert describe_type(int | None) == "a whole number or null"
    assert describe_type(tuple[str, ...]) == "a list of texts"
    assert describe_type(Path) == "Path (which only code can give)"


# ---- records ------------------------------------------------------------------------------------------------------

FULL = [
    ("env.name", "gsm8k"),
    ("env.path", "items.jsonl"),
    ("env.limit", "3"),
    ("model.base_url", "http://127.0.0.1:1/v1"),
    ("model.name", "m"),
    ("model.servers", "[http://127.0.0.1:2/v1]"),
    ("model.price", "{prompt: 1, completion: 2}"),
    ("sampling.stop", '["\\n", x]'),
    ("tools.mcp.files.command", "[server, --stdio]"),
    ("tools.mcp.files.only", "read"),
    ("budget.dollars", "2.5"),
]


@pytest.mark.parametrize("flags", [[], FULL, [("model.type", "anthropic")], [("model.type", "azure")]])
def test_printed_settings_load_to_the_same(tmp_path: Path, flags: list[tuple[str, str]]):
    found = load([], flags)
    path = written(tmp_path, to_yaml(found))
    assert load([path]) == found
    assert to_yaml(load([path])) == to_yaml(found)


def test_the_record_leaves_nothing_out():
    record = to_record(load([], FULL))
    assert set(record) == set(SECTIONS)
    assert record["env"]["path"] == "items.jsonl"
    assert record["model"]["type"] == "openai"
    assert record["sampling"]["temperature"] == Sampling().temperature
    assert yaml.safe_load(to_yaml(load([], FULL))) == record


def test_every_setting_that_may_change_on_resume_exists():
    record = to_record(load([], [("model.name", "x"), ("optimizer.name", "x")]))
    for path in FREE:
        section, _, name = path.partition(".")
        assert section in record and (not name or name in record[section]), path


# ---- secrets ------------------------------------------------------------------------------------------------------

SERVER = [("model.base_url", "http://127.0.0.1:9/v1"), ("model.name", "m")]


def test_no_key_is_needed_where_none_is_named():
    model = build_model(load([], SERVER).model, build_ledger(Config()))
    assert model.name == "m"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_variable_names_it_the_field_and_the_fix(monkeypatch: pytest.MonkeyPatch, value: str | None):
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    settings = load([], [*SERVER, ("model.api_key_var", "MY_KEY")])
    with pytest.raises(ConfigError) as caught:
        build_model(settings.model, build_ledger(settings))
    for word in ("model.api_key_var", "MY_KEY", "export MY_KEY=", "not set or empty"):
        assert word in str(caught.value)


def test_anthropic_and_azure_need_a_key_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    settings = load([], [("model.type", "anthropic"), ("model.name", "m")])
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        build_model(settings.model, build_ledger(settings))


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


# ---- environments -------------------------------------------------------------------------------------------------

ENV = """
    from collections.abc import Iterator
    from typing import ClassVar
    from ludus.env import Env
    from ludus.types import Rollout, Score, Task

    class Tiny(Env, frozen=True):
        name: ClassVar[str] = "tiny"
        size: int = 3

        def tasks(self, split: str) -> Iterator[Task]:
            yield from (Task(id=str(n), prompt="?") for n in range(self.size))
"""


def test_an_environment_in_a_file_of_one_s_own(tmp_path: Path):
    path = written(tmp_path, ENV, "tiny.py")
    for name in (str(path), f"{path}:Tiny"):
        env = build_env(load([], [("env.name", name), ("env.size", "2")]))
        assert [task.id for task in env.tasks("train")] == ["0", "1"]
    assert load_env_class(str(path)) is load_env_class(f"{path}:Tiny")


def test_an_environment_in_a_module_beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, ENV, "tiny_module_of_a_test.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_env_class("tiny_module_of_a_test:Tiny").name == "tiny"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8", "env.name: unknown environment 'gsm8'; did you mean 'gsm8k'?"),
        ("none.py", "env.name: there is no file"),
        ("no_such_module:X", "No module named 'no_such_module'"),
        ("ludus.envs.gsm8k:Gsm9k", "env.name: ludus.envs.gsm8k has no 'Gsm9k'; did you mean 'Gsm8k'?"),
        ("ludus.envs.gsm8k:Item", "is not an environment"),
        (":X", "env.name: ':X' should be module:name or file.py:name"),
    ],
)
def test_an_environment_that_cannot_be_found_says_why(name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load([], [("env.name", name)])
    assert message in str(caught.value)


def test_an_environment_that_fails_to_import_shows_its_own_error(tmp_path: Path):
    path = written(tmp_path, "\ndef broken():\n    return 1 / 0\n\nbroken()\n", "broken.py")
    message = problem(env__name=str(path))
    for word in ("ZeroDivisionError", f'"{path}", line 3', "return 1 / 0"):
        assert word in message
    assert "importlib" not in message
    assert "SyntaxError" in problem(env__name=str(written(tmp_path, "def (", "syntax.py")))


def test_a_file_with_no_or_several_environments_says_so(tmp_path: Path):
    assert "no class derived" in problem(env__name=str(written(tmp_path, "x = 1", "none.py")))
    two = written(tmp_path, ENV + "\n    class Other(Tiny, frozen=True):\n        pass\n", "two.py")
    assert f"{two}:Tiny, {two}:Other" in problem(env__name=str(two))


def test_an_environment_s_field_may_not_take_our_names(tmp_path: Path):
    path = written(tmp_path, ENV.replace("size: int", "limit: int").replace("self.size", "3"), "clash.py")
    assert "has a field 'limit'" in problem(env__name=str(path))


@pytest.mark.parametrize("fact", ['name: str = "tiny"', "sandbox: None = None", "toolsets: tuple[str, ...] = ()"])
def test_a_fact_about_an_environment_is_no_option(tmp_path: Path, fact: str):
    name = fact.partition(":")[0]
    path = written(tmp_path, ENV.replace("size: int", f"{fact}\n        size: int"), f"option_{name}.py")
    assert f"makes an option of '{name}'" in problem(env__name=str(path))


def test_an_environment_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    written(tmp_path, "SIZE = 3\n", "beside_the_environment.py")
    importing = ENV.replace("from typing", "from beside_the_environment import SIZE\n    from typing")
    path = written(tmp_path, importing.replace("= 3", "= SIZE"), "importing.py")
    assert load_env_class(str(path)).name == "tiny"


def test_an_environment_without_a_name_says_how_to_give_it_one(tmp_path: Path):
    path = written(tmp_path, ENV.replace('name: ClassVar[str] = "tiny"', "pass"), "nameless.py")
    assert "has no name; add: name: ClassVar[str]" in problem(env__name=str(path))


def test_an_environment_s_own_objection_is_a_config_error(tmp_path: Path):
    picky = ENV + "\n        def __post_init__(self) -> None:\n            raise ValueError('size must be even')\n"
    path = written(tmp_path, picky, "picky.py")
    assert problem(env__name=str(path), env__size="3") == "env: size must be even"


def test_the_sandbox_section_overrides_the_environment_s_slot():
    plain = build_env(load([], [("env.name", "terminal-test")]))
    changed = build_env(load([], [("env.name", "terminal-test"), ("sandbox.network", "true")]))
    assert plain.sandbox == SandboxSpec()
    assert changed.sandbox == SandboxSpec(network=True)
    assert changed.name == plain.name and plain.sandbox == SandboxSpec()
    textual = build_env(load([], [("env.name", "gsm8k"), ("sandbox.network", "true")]))
    assert textual.sandbox is None


def test_the_sandbox_section_has_every_setting_of_a_slot_that_is_plain():
    ours = {f.name for f in msgspec.structs.fields(SandboxSettings)}
    assert {f.name for f in msgspec.structs.fields(SandboxSpec)} - ours == {"env", "base", "caches"}, (
        "those are the environment's own"
    )


# ---- models, policies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([("model.name", "m")], "model.base_url: which server?"),
        ([("model.base_url", "http://h/v1")], "model.name: which model?"),
        ([("model.base_url", "h:80/v1"), ("model.name", "m")], "should start with http:// or https://"),
        ([("model.type", "scripted")], "model.script: which function?"),
        ([("model.type", "scripted"), ("model.script", "math:pi")], "neither a function nor a list"),
    ],
)
def test_a_model_that_cannot_be_built_names_the_setting(flags: list[tuple[str, str]], message: str):
    settings = load([], flags)
    with pytest.raises(ConfigError) as caught:
        build_model(settings.model, build_ledger(settings))
    assert message in str(caught.value)


def test_every_kind_of_model_can_be_built(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEY", "some-key-value")
    for kind in ("openai", "azure", "anthropic"):
        settings = load([], [*SERVER, ("model.type", kind), ("model.api_key_var", "KEY")])
        assert build_model(settings.model, build_ledger(settings)).name == "m"
    script = load([], [("model.type", "scripted"), ("model.script", "ludus.models.scripted:say")])
    assert build_model(script.model, build_ledger(script)).name == "scripted"


def test_a_policy_leaves_the_toolsets_to_the_environment_unless_told():
    def toolsets(*flags: tuple[str, str]) -> tuple[str, ...] | None:
        settings = load([], [("env.name", "terminal-test"), ("model.type", "scripted"), *flags])
        model = build_model(load([], [*SERVER]).model, build_ledger(settings))
        return build_policy(settings, build_env(settings), model, BUILTIN).toolsets

    assert toolsets() is None
    assert toolsets(("tools.disabled", "terminal")) == ("file",)
    assert toolsets(("tools.enabled", "coding"), ("tools.disabled", "code")) == ("terminal", "file")
    assert toolsets(("tools.enabled", "[]")) == ()
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        toolsets(("tools.enabled", "terminl"))


def test_a_skill_is_read_from_its_file(tmp_path: Path):
    def policy(path: str):
        settings = load([], [("env.name", "gsm8k"), ("agent.skill", path)])
        return build_policy(
            settings, build_env(settings), build_model(load([], SERVER).model, build_ledger(settings)), BUILTIN
        )

    skill = policy(str(written(tmp_path, "Be brief.", "SKILL.md"))).skill
    assert skill is not None and skill.text == "Be brief."
    with pytest.raises(ConfigError, match=r"agent\.skill"):
        policy("none.md")


def test_distributions_by_name_and_of_one_s_own():
    def found(*flags: tuple[str, str], env: str = "terminal-test"):
        settings = load([], [("env.name", env), *flags])
        return build_distribution(settings, build_env(settings), BUILTIN)

    own = found(("tools.distribution", "mine"), ("tools.distributions.mine", "{file: 50}"))
    assert own is not None and own.percent == (("file", 50.0),)
    assert found() is None
    with pytest.raises(ConfigError, match="exclude each other"):
        found(("tools.distribution", "safe"), ("tools.enabled", "file"))
    with pytest.raises(ConfigError, match="this run has none of its toolsets"):
        found(("tools.distribution", "safe"))
    with pytest.raises(ConfigError, match="toolset 'terminal' works in a sandbox"):
        found(("tools.distribution", "development"), env="gsm8k")


def test_objects_by_reference(tmp_path: Path):
    path = written(tmp_path, "value = 5", "script.py")
    assert load_object(f"{path}:value", "x") == 5
    with pytest.raises(ConfigError, match=r"x: .* has no 'valeu'; did you mean 'value'"):
        load_object(f"{path}:valeu", "x")


# ---- the reference ------------------------------------------------------------------------------------------------


def test_the_reference_has_every_setting():
    page = render_settings_page()
    for section, values in to_record(load([], FULL)).items():
        assert f"## {section}" in page
        for name, value in values.items():
            if name != "type" and not (isinstance(value, dict) and value):
                assert f"`{section}.{name}" in page, (section, name)
    for path in ("env.path", "tools.web.provider", "tools.mcp.<name>.command", "model.retry.retries"):
        assert f"| `{path}` |" in page


def test_every_setting_of_ours_says_what_it_is_for():
    from ludus.config import tree

    for name, recipe in vars(tree).items():
        if isinstance(recipe, type) and issubclass(recipe, tree.Recipe) and recipe is not Config:
            missing = {f.name for f in msgspec.structs.fields(recipe)} - set(read_field_docs(recipe))
            assert not missing, (name, missing)
            assert recipe.__doc__, name
    assert {kind.__name__ for kind in get_args(ModelSettings)} >= {"OpenAISettings", "EmbeddedSettings"}


@pytest.mark.parametrize("recipe", [TrainSettings, DataSettings, SlowUpdate, Appendix, Gate])
def test_every_setting_of_training_says_what_it_is_for(recipe: type[msgspec.Struct]):
    assert {f.name for f in msgspec.structs.fields(recipe)} == set(read_field_docs(recipe))


def test_the_optimizer_is_the_agent_s_model_until_something_is_said():
    assert isinstance(load().optimizer, SameSettings)
    assert isinstance(load([], [("optimizer.name", "x")]).optimizer, OpenAISettings)
    agent, optimizer = build_models(load(), build_ledger(Config()))
    assert optimizer is not None and optimizer.name == agent.name
    alone = load([], [("train.proposer", "exemplars")])
    assert build_models(alone, build_ledger(alone))[1] is None
    assert not build_train_settings(alone).memory and not build_train_settings(alone).slow.enabled
    assert build_train_settings(load()) == TrainSettings()


def test_the_optimizer_s_key_is_masked_and_its_problems_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPTIMIZER_KEY", "sk-optimizer-secret")
    flags = [("optimizer.name", "o"), ("optimizer.api_key_var", "OPTIMIZER_KEY")]
    assert list_secrets(load([], flags)) == ("sk-optimizer-secret",)
    with pytest.raises(ConfigError, match=r"optimizer\.base_url: which server"):
        build_models(load([], flags), build_ledger(Config()))
    assert "optimizer.headers.Authorization" in problem(optimizer__headers__Authorization="Bearer SECRET")


# ---- the examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_loads_and_builds(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    found = load([path])
    assert build_model(found.model, build_ledger(found)).name
