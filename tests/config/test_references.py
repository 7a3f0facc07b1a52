"""What users bring is found by name, module or file."""

import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli_kit import make_tokenizer
from tests.config_kit import find_problem, write_text

from ludus.config import load, to_record, to_yaml
from ludus.config.build_agent import build_env, build_harness
from ludus.config.build_models import build_ledger, build_model
from ludus.config.build_tools import open_registry
from ludus.config.build_training import build_proposer, build_rule, has_optimizer
from ludus.config.references import ENV as ENV_SEAM
from ludus.config.references import (
    GATE,
    HARNESS,
    MODEL,
    PARSER,
    PROPOSER,
    SANDBOX,
    SEAMS,
    SOURCE,
    TOOL,
    TRACKER,
    Seam,
    load_env_class,
    load_object,
    load_parser,
    make_instance,
)
from ludus.config.secrets import list_secrets
from ludus.envs.gsm8k import Gsm8k
from ludus.errors import ConfigError
from ludus.reflact.train_settings import TrainSettings
from ludus.tokens import find_token_model
from ludus.types import Sampling

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

        async def verify(self, rollout, box):
            return Score.of(1.0)
"""


def test_an_environment_in_a_file(tmp_path: Path):
    path = write_text(tmp_path, ENV, "tiny.py")
    for name in (str(path), f"{path}:Tiny"):
        env = build_env(load([], [("env.name", name), ("env.size", "2")]))
        assert [task.id for task in env.tasks("train")] == ["0", "1"]
    assert load_env_class(str(path)) is load_env_class(f"{path}:Tiny")


def test_an_environment_in_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_text(tmp_path, ENV, "tiny_module_of_a_test.py")
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
def test_an_environment_that_cannot_be_found_is_refused_with_the_reason(name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load([], [("env.name", name)])
    assert message in str(caught.value)


def test_an_environment_that_fails_to_import_shows_its_own_error(tmp_path: Path):
    path = write_text(tmp_path, "\ndef broken():\n    return 1 / 0\n\nbroken()\n", "broken.py")
    message = find_problem(env__name=str(path))
    for word in ("ZeroDivisionError", f'"{path}", line 3', "return 1 / 0"):
        assert word in message
    assert "importlib" not in message
    assert "SyntaxError" in find_problem(env__name=str(write_text(tmp_path, "def (", "syntax.py")))


def test_a_file_with_no_or_several_environments_is_refused(tmp_path: Path):
    assert "no class derived" in find_problem(env__name=str(write_text(tmp_path, "x = 1", "none.py")))
    two = write_text(tmp_path, ENV + "\n    class Other(Tiny, frozen=True):\n        pass\n", "two.py")
    assert f"{two}:Tiny, {two}:Other" in find_problem(env__name=str(two))


def test_an_environment_s_field_may_not_take_our_names(tmp_path: Path):
    path = write_text(tmp_path, ENV.replace("size: int", "limit: int").replace("self.size", "3"), "clash.py")
    assert "has a field 'limit'" in find_problem(env__name=str(path))


@pytest.mark.parametrize("fact", ['name: str = "tiny"', "sandbox: None = None", "toolsets: tuple[str, ...] = ()"])
def test_a_fact_about_an_environment_is_no_option(tmp_path: Path, fact: str):
    name = fact.partition(":")[0]
    path = write_text(tmp_path, ENV.replace("size: int", f"{fact}\n        size: int"), f"option_{name}.py")
    assert f"makes an option of '{name}'" in find_problem(env__name=str(path))


def test_an_environment_may_import_modules_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_text(tmp_path, "SIZE = 3\n", "beside_the_environment.py")
    importing = ENV.replace("from typing", "from beside_the_environment import SIZE\n    from typing")
    path = write_text(tmp_path, importing.replace("= 3", "= SIZE"), "importing.py")
    assert load_env_class(str(path)).name == "tiny"


def test_an_environment_without_a_name_is_refused_with_the_fix(tmp_path: Path):
    path = write_text(tmp_path, ENV.replace('name: ClassVar[str] = "tiny"', "pass"), "nameless.py")
    assert "has no name; add: name: ClassVar[str]" in find_problem(env__name=str(path))


def test_an_error_of_the_environment_s_constructor_is_a_config_error(tmp_path: Path):
    picky = ENV + "\n        def __post_init__(self) -> None:\n            raise ValueError('size must be even')\n"
    path = write_text(tmp_path, picky, "picky.py")
    assert find_problem(env__name=str(path), env__size="3") == "env: size must be even"


def test_objects_by_reference(tmp_path: Path):
    path = write_text(tmp_path, "value = 5", "script.py")
    assert load_object(f"{path}:value", "x") == 5
    with pytest.raises(ConfigError, match=r"x: .* has no 'valeu'; did you mean 'value'"):
        load_object(f"{path}:valeu", "x")


# ---- every seam ---------------------------------------------------------------------------------------------------

BROUGHT = """
from dataclasses import dataclass
from typing import ClassVar

from ludus.env import Env
from ludus.harness import Harness
from ludus.parsers import Format
from ludus.parsers.shapes import JsonCalls
from ludus.reflact.gate import judge
from ludus.reflact.proposers import Proposer
from ludus.sandbox.backend import SlotBackend
from ludus.sources import Source
from ludus.tools import tool
from ludus.types import Completion, Message


class MyEnv(Env, frozen=True):
    name: ClassVar[str] = "mine"

    def tasks(self, split):
        return ()

    async def verify(self, rollout, box):
        raise ValueError("there are no tasks")


@dataclass(frozen=True)
class MyProposer(Proposer):
    name: ClassVar[str] = "mine"
    needs_optimizer: ClassVar[bool] = True
    rounds: int = 1

    async def reflect(self, view, batch, rollouts):
        return ()


def my_rule(gate, candidate, current, best):
    return judge(gate, candidate, current, best)


class MyModel:
    name = "mine"

    def __init__(self, answer: str, times: int = 1):
        self.answer, self.times = answer, times

    async def complete(self, messages, tools, sampling):
        return Completion(Message("assistant", self.answer * self.times))

    async def close(self):
        pass


class MyBackend(SlotBackend):
    name = "mine"

    async def create(self, spec):
        raise OSError("no slots today")


@tool
async def my_tool(number: int) -> str:
    '''Double a number.'''
    return str(2 * number)


class MyTracker:
    def start(self, run):
        pass

    def log(self, values, step):
        pass

    def close(self):
        pass


class MySource(Source):
    def name_env(self, name):
        return {"env.name": name}


MY_PARSER = Format((JsonCalls("=>{call}<="),))
MY_HARNESS = Harness(name="mine", command="true")
"""

NAMES = {
    ENV_SEAM: "MyEnv",
    PROPOSER: "MyProposer",
    GATE: "my_rule",
    MODEL: "MyModel",
    SANDBOX: "MyBackend",
    TOOL: "my_tool",
    PARSER: "MY_PARSER",
    HARNESS: "MY_HARNESS",
    TRACKER: "MyTracker",
    SOURCE: "MySource",
}
EACH_SEAM = pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.kind)


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    """A folder with one of each kind in `brought.py`, and a package that registers them all as `installed-mine`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path, BROUGHT, "brought.py")
    entries = "".join(f"[{seam.group}]\ninstalled-mine = brought:{name}\n" for seam, name in NAMES.items())
    metadata = tmp_path / "brought-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entries)
    yield tmp_path
    sys.modules.pop("brought", None)


@EACH_SEAM
@pytest.mark.parametrize("form", ["brought.py:{}", "brought.py", "brought:{}", "installed-mine"])
def test_what_users_bring_is_found_by_file_module_and_entry_point(brought: Path, seam: Seam, form: str):
    reference = form.format(NAMES[seam])
    assert seam.knows(reference)
    place = "brought.py" if form.startswith("brought.py") else "brought"
    assert seam.load(reference) is load_object(f"{place}:{NAMES[seam]}", "x")


@EACH_SEAM
def test_an_unknown_name_is_refused_with_a_suggestion(brought: Path, seam: Seam):
    assert not seam.knows("installed-mime")
    with pytest.raises(ConfigError) as caught:
        seam.load("installed-mime")
    message = f"{seam.setting}: unknown {seam.kind} 'installed-mime'; did you mean 'installed-mine'? (your own: "
    assert str(caught.value).startswith(message)


@EACH_SEAM
def test_an_import_that_fails_shows_its_own_error(tmp_path: Path, seam: Seam):
    path = write_text(tmp_path, "\ndef broken():\n    return 1 / 0\n\nbroken()\n", "broken.py")
    with pytest.raises(ConfigError) as caught:
        seam.load(f"{path}:X")
    message = str(caught.value)
    assert message.startswith(f"{seam.setting}: importing {path} failed:\n")
    assert "ZeroDivisionError" in message and f'"{path}", line 3' in message and "importlib" not in message


@EACH_SEAM
def test_another_kind_is_refused_with_what_it_must_be(brought: Path, seam: Seam):
    write_text(brought, "NUMBER = 5\n", "number.py")
    with pytest.raises(ConfigError) as caught:
        seam.load("number.py:NUMBER")
    assert f"{seam.setting}: 'number.py:NUMBER' is not a" in str(caught.value)
    assert f"it must be {seam.must_be}" in str(caught.value)
    with pytest.raises(ConfigError, match=r"number\.py has no "):
        seam.load("number.py")


@EACH_SEAM
def test_a_file_with_several_asks_for_one(brought: Path, seam: Seam):
    again = {name: BROUGHT.replace(name, f"{name}2") for name in NAMES.values()}
    write_text(brought, BROUGHT + again[NAMES[seam]], "several.py")
    with pytest.raises(ConfigError, match=rf"several {seam.kind}s; choose one: several\.py:{NAMES[seam]}"):
        seam.load("several.py")


def test_a_built_in_name_wins(brought: Path):
    metadata = brought / "brought-1.0.dist-info" / "entry_points.txt"
    metadata.write_text("[ludus.envs]\ngsm8k = brought:MyEnv\n")
    assert ENV_SEAM.load("gsm8k") is Gsm8k
    assert ENV_SEAM.list_names().count("gsm8k") == 1


async def test_a_model_class_of_the_user_is_built_and_recorded(brought: Path):
    flags = [("model.type", "brought.py:MyModel"), ("model.options.answer", "ha"), ("model.options.times", "2")]
    found = load([], flags)
    model = build_model(found.model, build_ledger(found))
    assert (await model.complete([], [], Sampling())).message.content == "haha"
    record = to_record(found)["model"]
    assert record == {"type": "brought.py:MyModel", "options": {"answer": "ha", "times": 2}}
    assert load([write_text(brought, to_yaml(found))]) == found
    optimizer = load([], [(f"optimizer.{path.partition('.')[2]}", words) for path, words in flags])
    assert to_record(optimizer)["optimizer"] == record


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model.type": "brought.py:MyModel"}, "model.options.answer: not set; expected text"),
        (
            {"model.type": "brought:MyModel", "model.options": "{answer: a, tims: 2}"},
            "model.options.tims: unknown setting; did you mean 'model.options.times'?",
        ),
        (
            {"model.type": "brought.py", "model.options": "{answer: a, times: many}"},
            "model.options.times: expected a whole number, got 'many'",
        ),
        ({"model.type": "brought.py:MyEnv"}, "model.type: 'brought.py:MyEnv' is not a model: it must be a class with"),
        ({"model.type": "nowhere.py:M"}, "model.type: there is no file"),
    ],
)
def test_a_model_that_cannot_be_made_names_the_setting(brought: Path, flags: dict[str, str], message: str):
    found = load([], list(flags.items()))
    with pytest.raises(ConfigError) as caught:
        build_model(found.model, build_ledger(found))
    assert message in str(caught.value)


def test_options_hold_no_secrets(brought: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    flags = [("model.type", "brought.py:MyModel"), ("model.options.answer", "a")]
    with pytest.raises(ConfigError, match=r"model\.options\.api_key: looks like a secret.* in api_key_var"):
        load([], [*flags, ("model.options.api_key", "SECRET")])
    assert list_secrets(load([], [*flags, ("model.options.api_key_var", "MY_KEY")])) == ("sk-very-secret",)


def test_a_proposer_class_of_the_user_has_options_and_may_need_a_model(brought: Path):
    flags = [("train.proposer", "brought.py:MyProposer"), ("train.proposer_options.rounds", "3")]
    found = load([], flags)
    made = build_proposer(found.train)
    assert (made.name, getattr(made, "rounds", None)) == ("mine", 3)
    assert has_optimizer(found)
    assert found.train.identity["proposer_options"] == {"rounds": 3}
    assert "proposer_options" not in TrainSettings().identity
    with pytest.raises(ConfigError, match=r"train\.proposer_options\.round: unknown setting"):
        build_proposer(load([], [flags[0], ("train.proposer_options.round", "3")]).train)
    with pytest.raises(ConfigError, match=r"are in train\.exemplars"):
        build_proposer(load([], [("train.proposer", "exemplars"), ("train.proposer_options.a", "3")]).train)


def test_a_gate_rule_of_the_user_is_part_of_a_run_s_identity(brought: Path):
    assert build_rule(TrainSettings()) is None
    assert "rule" not in TrainSettings().identity["gate"] and "rule" not in to_record(load())["train"]["gate"]
    found = load([], [("train.gate.rule", "brought.py:my_rule")])
    rule = build_rule(found.train)
    assert rule is not None and getattr(rule, "__name__", "") == "my_rule"
    assert found.train.identity["gate"]["rule"] == "brought.py:my_rule"
    write_text(brought, "class Rule:\n    def __call__(self, gate, *others):\n        return others\n", "rule.py")
    made = build_rule(load([], [("train.gate.rule", "rule.py")]).train)
    assert made is not None and type(made).__name__ == "Rule"


async def test_a_tool_of_the_user_is_a_toolset_with_its_reference_as_name(brought: Path):
    write_text(
        brought,
        """
        from ludus.tools import tool
        from ludus.tools.toolsets import Toolset

        @tool(bound=True)
        async def look(box) -> str:
            '''Look around.'''
            return "nothing"

        BOTH = Toolset("both", "two tools", lambda box: [look.bind(box)])
        """,
        "more.py",
    )
    names = ("terminal", "brought.py:my_tool", "installed-mine", "more.py:look", "more.py:BOTH")
    tools = load([], [("tools.enabled", ",".join(names))]).tools

    async with open_registry(tools) as registry:
        registry = registry
    assert [leaf.name for leaf in registry.list_leaves(names)] == list(names)
    assert [leaf.needs_box for leaf in registry.list_leaves(names[1:])] == [False, False, True, False]
    (double,) = registry.make_tools(["brought.py:my_tool"], None)
    assert await double.run({"number": 4}) == "8"


def test_a_parser_of_the_user_reads_the_model_s_calls(brought: Path):
    parser = load_parser("brought.py:MY_PARSER", "model.parser")
    assert [call.name for call in parser.parse('=>{"name": "add", "arguments": {}}<=', ()).calls] == ["add"]
    assert load_parser("hermes", "model.parser").name == "hermes"
    with pytest.raises(ConfigError, match=r"model\.parser: unknown tool-call parser 'hermse'"):
        load_parser("hermse", "model.parser")
    with pytest.raises(ConfigError, match=r"unknown tool-call parser 'installed-mime'; did you mean 'installed-mine'"):
        load_parser("installed-mime", "model.parser")
    tokenizer = make_tokenizer(brought, "a few words")
    flags = {"base_url": "http://127.0.0.1:9/v1", "name": "toy", "mode": "token", "tokenizer": str(tokenizer)}
    found = load([], [*((f"model.{k}", v) for k, v in flags.items()), ("model.parser", "brought.py:MY_PARSER")])
    model = find_token_model(build_model(found.model, build_ledger(found)))
    assert model is not None
    assert model.codec.parser.parse('=>{"name": "add", "arguments": {}}<=', ()).calls


def test_a_harness_of_the_user_is_the_agent(brought: Path):
    for name in ("brought.py:MY_HARNESS", "installed-mine"):
        harness = build_harness(load([], [("agent.harness", name)]).agent)
        assert harness is not None and (harness.name, harness.command) == ("mine", "true")
    with pytest.raises(
        ConfigError, match=r"agent\.harness: 'installed-mime' is unknown; did you mean 'installed-mine'"
    ):
        build_harness(load([], [("agent.harness", "installed-mime")]).agent)


@pytest.mark.parametrize("kind", ["dataclass", "plain"])
def test_options_are_the_parameters_of_any_class(kind: str):
    @dataclass
    class Data:
        size: int
        names: tuple[str, ...] = ()

    class Plain:
        def __init__(self, size: int, names: tuple[str, ...] = ()) -> None:
            self.size, self.names = size, names
            if size < 0:
                raise ValueError("size is negative")

    made = make_instance(Data if kind == "dataclass" else Plain, {"size": "3", "names": ["a"]}, "x.options")
    assert (made.size, made.names) == (3, ("a",))
    with pytest.raises(ConfigError, match=r"x\.options\.size: not set; expected a whole number"):
        make_instance(type(made), {}, "x.options")
    with pytest.raises(ConfigError, match=r"x\.options\.nams: unknown setting; did you mean 'x\.options\.names'\?"):
        make_instance(type(made), {"size": 1, "nams": []}, "x.options")
    if kind == "plain":
        with pytest.raises(ConfigError, match=r"x\.options: Plain: size is negative"):
            make_instance(Plain, {"size": -1}, "x.options")


def test_a_file_that_exits_when_imported_is_a_config_error(brought: Path):
    write_text(brought, "import sys\nsys.exit(3)\n", "exits.py")
    for reference in ("exits.py", "exits.py:X", "exits:X"):
        with pytest.raises(ConfigError, match=r"env\.name: importing .* failed:(.|\n)*SystemExit: 3"):
            load_env_class(reference)
    write_text(brought, "raise KeyboardInterrupt\n", "interrupted.py")
    with pytest.raises(KeyboardInterrupt):
        load_env_class("interrupted.py")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("no_such_module:X", "importing 'no_such_module' failed"),
        ("brought:Nobody", "brought has no 'Nobody'"),
        ("brought", "'brought' should be module:name"),
        ("brought:MyModel", "'broken' is not an environment"),
    ],
)
def test_a_broken_entry_point_names_its_package(brought: Path, entry: str, message: str):
    (brought / "brought-1.0.dist-info" / "entry_points.txt").write_text(f"[ludus.envs]\nbroken = {entry}\n")
    with pytest.raises(ConfigError) as caught:
        ENV_SEAM.load("broken")
    assert str(caught.value).startswith(f"env.name 'broken' (an entry point of the package 'brought'): {message}")


@pytest.mark.parametrize(
    ("name", "near"), [("installed-mime", "installed-mine"), ("opanai", "openai"), ("own", "known: anthropic, azure")]
)
@pytest.mark.parametrize("section", ["model", "optimizer"])
def test_an_unknown_model_type_is_refused_with_the_names_that_there_are(
    brought: Path, section: str, name: str, near: str
):
    with pytest.raises(ConfigError) as caught:
        load([], [(f"{section}.type", name), (f"{section}.reference", "brought.py:MyModel")])
    message = str(caught.value)
    assert message.startswith(f"{section}.type: unknown model type '{name}'; ") and near in message
    assert message.endswith(" (your own: module:Class, or a file such as my_model.py)")
    assert "own," not in message and ", own" not in message
    file = write_text(brought, f"{section}:\n  type: {name}\n")
    with pytest.raises(ConfigError, match=rf"^{file}: {section}\.type: unknown model type '{name}'"):
        load([file])


def test_a_model_without_a_type_is_asked_for_one():
    message = find_problem(model__type="")
    assert message == "model.type: not set; known: anthropic, azure, embedded, openai, scripted"


@pytest.mark.parametrize("setting", ["tools.enabled", "tools.disabled"])
async def test_an_unknown_toolset_is_refused_with_the_names_that_there_are(brought: Path, setting: str):
    async def open_tools(name: str) -> None:
        async with open_registry(load([], [(setting, name)]).tools):
            pass

    for name, near in {"termnal": "terminal", "installed-mime": "installed-mine"}.items():
        with pytest.raises(ConfigError) as caught:
            await open_tools(name)
        assert str(caught.value) == (
            f"{setting}: unknown toolset '{name}'; did you mean '{near}'? "
            "(your own: module:name, or a file such as my_tool.py)"
        )


def test_a_constructor_that_fails_names_the_class_and_its_setting():
    class Fails:
        def __init__(self, size: int = 1) -> None:
            raise RuntimeError("no server")

    with pytest.raises(ConfigError, match=r"^model\.type: Fails could not be made: RuntimeError: no server"):
        make_instance(Fails, {}, "model.options", "model.type")
