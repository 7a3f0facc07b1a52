"""Every name on docs/api.md can be imported from the module that the page names."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ROWS = re.findall(r"^\| `(ludus[\w.]*)` \| (.*?) \|", PAGE, re.M)


def test_the_page_has_the_parts_of_the_package():
    assert {module.split(".")[1] for module, _ in ROWS} >= {
        "types", "env", "policy", "rollout", "runner", "run", "models", "sandbox", "tools", "verify", "reflact",
        "config",
    }  # fmt: skip


@pytest.mark.parametrize(("module", "names"), ROWS, ids=[f"{module}-{n}" for n, (module, _) in enumerate(ROWS)])
def test_every_name_exists(module: str, names: str):
    if module == "ludus.rl.torch_trainer":
        pytest.importorskip("torch", reason="the extra 'rl' is not installed")
    found = import_module(module)
    listed = re.findall(r"`(\w+)`", names)
    assert listed
    assert [name for name in listed if not hasattr(found, name)] == []


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize(("code", "printed"), [*zip(EXAMPLES, ("[", "0."), strict=True)], ids=["a group", "a run"])
def test_the_examples_run(code: str, printed: str, tmp_path: Path):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(printed)
