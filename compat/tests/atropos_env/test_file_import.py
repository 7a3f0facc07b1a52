"""How files are imported: on their own, or as modules of their package."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ludus.compat.atropos_env.file_import import find_root, import_file, name_package


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_file_finds_the_modules_beside_it_and_those_of_its_repository(tmp_path: Path):
    (tmp_path / "pyproject.toml").touch()
    write(tmp_path / "zoo_shared", numbers="VALUE = 3\n")
    folder = write(tmp_path / "zoo_envs" / "deep", beside_zoo="MORE = 4\n")
    text = "from zoo_shared.numbers import VALUE\nfrom beside_zoo import MORE\n"
    (folder / "my_env.py").write_text(text)
    before, paths = set(sys.modules), list(sys.path)
    with import_file(folder / "my_env.py") as module:
        assert (module.VALUE, module.MORE) == (3, 4)
        assert sys.modules[module.__name__] is module
    assert sys.path == paths
    assert "ludus_file_my_env" not in set(sys.modules) - before


def test_a_file_that_imports_from_its_package_is_a_module_of_it(tmp_path: Path):
    (tmp_path / "pyproject.toml").touch()
    write(tmp_path / "zoo_a", common="WORD = 'up'\n")
    folder = write(tmp_path / "zoo_a" / "deep", data="ITEMS = [1]\n")
    (folder / "my_env.py").write_text(
        "from .data import ITEMS\nfrom ..common import WORD\nimport zoo_a.deep.data as d\n"
    )
    with import_file(folder / "my_env.py") as module:
        assert module.__name__ == "zoo_a.deep.my_env"
        assert (module.ITEMS, module.WORD) == ([1], "up")
        assert module.d.ITEMS is module.ITEMS
    assert not [name for name in sys.modules if name.startswith("zoo_a")]


def test_a_package_that_imports_the_file_has_it_once(tmp_path: Path):
    folder = write(tmp_path / "zoo_b", __init__="from .my_env import Thing\n", data="X = 1\n")
    (folder / "my_env.py").write_text("from .data import X\nclass Thing: pass\n")
    with import_file(folder / "my_env.py") as module:
        assert sys.modules["zoo_b"].Thing is module.Thing


def test_a_relative_import_that_the_file_can_do_without_makes_no_package(tmp_path: Path):
    folder = write(tmp_path / "zoo_c", __init__="raise RuntimeError('not for scripts')\n", data_zoo="X = 1\n")
    text = "try:\n    from .data_zoo import X\nexcept ImportError:\n    from data_zoo import X\n"
    (folder / "my_env.py").write_text(text)
    with import_file(folder / "my_env.py") as module:
        assert module.X == 1


def test_the_root_is_that_of_the_repository_else_above_the_package(tmp_path: Path):
    folder = write(tmp_path / "a" / "b" / "c", my_env="")
    assert find_root(folder / "my_env.py") == folder.parent
    (folder / "__init__.py").touch()
    (folder.parent / "__init__.py").touch()
    assert find_root(folder / "my_env.py") == tmp_path / "a"
    (tmp_path / ".git").mkdir()
    assert find_root(folder / "my_env.py") == tmp_path


def test_a_file_that_cannot_be_read_as_python_fails_when_it_is_imported(tmp_path: Path):
    path = write(tmp_path, bad_env="def (:\n") / "bad_env.py"
    with pytest.raises(SyntaxError), import_file(path):
        pass


def test_relative_imports_that_mean_provided_modules_make_the_file_one_of_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("zoo_p", "zoo_p.envs", "zoo_p.agent"):
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    write(tmp_path, data="ITEMS = [1]\n", my_env="from .data import ITEMS\nfrom ..agent import __name__ as agent\n")
    write(tmp_path / "zoo_q", data="ITEMS = [2]\n", my_env="from .data import ITEMS\nfrom ...none import x\n")
    with import_file(tmp_path / "my_env.py", "zoo_p.envs") as module:
        assert module.__name__ == "zoo_p.envs.ludus_file_my_env"
        assert (module.ITEMS, module.agent) == ([1], "zoo_p.agent")
    assert sys.modules["zoo_p.envs"].__path__ == []
    with pytest.raises(ImportError), import_file(tmp_path / "zoo_q" / "my_env.py", "zoo_p.envs"):
        raise AssertionError("a module above the package does not exist")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import zoo_missing", "pip install zoo_missing"),
        ("from sklearn_zoo.deep import x", "pip install sklearn_zoo"),
        ("raise ModuleNotFoundError(name='yaml')", "pip install pyyaml"),
        ("raise ModuleNotFoundError(name='atroposlib.zoo')", "pip install atroposlib"),
        ("import json.zoo", "'json.zoo' is not here"),
        ("raise ValueError('x')", ""),
        (
            "try:\n    import zoo_missing\nexcept ImportError:\n    raise RuntimeError('sorry')",
            "pip install zoo_missing",
        ),
    ],
)
def test_a_package_that_a_file_lacks_is_named_with_its_command(line: str, said: str):
    with pytest.raises(Exception) as caught:
        exec(line, {})
    assert said in name_package(caught.value) and bool(said) is bool(name_package(caught.value))
