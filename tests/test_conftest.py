"""Examples of property tests are the same whichever tests ran before."""

import importlib.util
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st


def list_examples() -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []

    @settings(max_examples=200)
    @given(st.floats(0, 1), st.text(max_size=20))
    def collect(number: float, text: str) -> None:
        found.append((number, text))

    collect()
    return found


def test_a_module_that_is_loaded_changes_no_examples(tmp_path: Path, monkeypatch):
    before = list_examples()
    path = tmp_path / "loaded_later.py"
    path.write_text("".join(f"x{n} = 0.{n}12345\ny{n} = 'constant {n}'\n" for n in range(40)))
    spec = importlib.util.spec_from_file_location("loaded_later", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "loaded_later", module)
    assert list_examples() == before
