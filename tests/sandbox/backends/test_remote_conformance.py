"""The contract of `Sandbox`, on every remote backend: the very tests that the local ones pass."""

import importlib.util
from pathlib import Path


def _suite() -> dict[str, object]:
    path = Path(__file__).parent.parent / "test_conformance.py"
    spec = importlib.util.spec_from_file_location("ludus_conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: test for name, test in vars(module).items() if name.startswith("test_")}


globals().update(_suite())
