"""Every numbered example runs as its docstring says."""

import subprocess
import sys
from pathlib import Path

import pytest

from ludus.config.secrets import find_weights_folder
from ludus.errors import ConfigError
from ludus.models.weights import find_weights

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
NEEDS = {
    "06_words_and_weights.py": ("torch",),
    "07_rollouts_for_trl.py": ("trl",),
    "08_rows_from_foreign_sessions.py": ("anthropic", "tokenizers", "xllamacpp"),
}
"""The packages that an example needs. Without them the example is skipped."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path):
    if "ludus-train[rl]" in path.read_text():
        pytest.skip("it needs PyTorch and ten minutes")
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    if "xllamacpp" in NEEDS.get(path.name, ()):
        try:
            find_weights(None, find_weights_folder())
        except ConfigError as error:
            pytest.skip(str(error))
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the example printed nothing"


def test_the_examples_are_numbered_without_gaps():
    assert [p.name[:2] for p in EXAMPLES] == [f"{n:02}" for n in range(1, len(EXAMPLES) + 1)]
    assert EXAMPLES
