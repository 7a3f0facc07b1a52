"""What users bring is found by name, module or file."""

import sys
from pathlib import Path

import pytest
from tests.config_kit import find_problem, write_text

from ludus.config import load
from ludus.config.build_agent import build_env
from ludus.config.references import load_env_class, load_object
from ludus.errors import ConfigError

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
    path = write_text(tmp_path, ENV, "tiny.py")
    for name in (str(path), f"{path}:Tiny"):
        env = build_env(load([], [("env.name", name), ("env.size", "2")]))
        assert [task.id for task in env.tasks("train")] == ["0", "1"]
    assert load_env_class(str(path)) is load_env_class(f"{path}:Tiny")


def test_an_environment_in_a_module_beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
def test_an_environment_that_cannot_be_found_says_why(name: str, message: str):
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


def test_a_file_with_no_or_several_environments_says_so(tmp_path: Path):
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


def test_an_environment_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_text(tmp_path, "SIZE = 3\n", "beside_the_environment.py")
    importing = ENV.replace("from typing", "from beside_the_environment import SIZE\n    from typing")
    path = write_text(tmp_path, importing.replace("= 3", "= SIZE"), "importing.py")
    assert load_env_class(str(path)).name == "tiny"


def test_an_environment_without_a_name_says_how_to_give_it_one(tmp_path: Path):
    path = write_text(tmp_path, ENV.replace('name: ClassVar[str] = "tiny"', "pass"), "nameless.py")
    assert "has no name; add: name: ClassVar[str]" in find_problem(env__name=str(path))


def test_an_environment_s_own_objection_is_a_config_error(tmp_path: Path):
    picky = ENV + "\n        def __post_init__(self) -> None:\n            raise ValueError('size must be even')\n"
    path = write_text(tmp_path, picky, "picky.py")
    assert find_problem(env__name=str(path), env__size="3") == "env: size must be even"


def test_objects_by_reference(tmp_path: Path):
    path = write_text(tmp_path, "value = 5", "script.py")
    assert load_object(f"{path}:value", "x") == 5
    with pytest.raises(ConfigError, match=r"x: .* has no 'valeu'; did you mean 'value'"):
        load_object(f"{path}:valeu", "x")
