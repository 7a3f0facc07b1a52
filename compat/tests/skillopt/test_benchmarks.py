"""SkillOpt's benchmarks as environments of Ludus."""

import json
from pathlib import Path

import pytest

from ludus.compat.skillopt.config_file import read_config
from ludus.config import assemble
from ludus.config.build_agent import build_env
from ludus.config.reading import Layer
from ludus.errors import ConfigError
from ludus.reflact.splits import load_splits

ROWS = [
    {"id": f"q{n}", "question": f"Question {n}?", "context": "[DOC] nothing", "answers": [f"answer {n}"]}
    for n in range(20)
]


def load(path: Path):
    config = assemble([Layer(str(path), read_config(path).tree)])
    return config, load_splits(build_env(config), config.data)


def test_a_benchmark_is_ludus_own_environment_with_their_data(tmp_path: Path):
    """Without the package: of a folder of splits, or of a file that is divided with their seed."""
    for split, rows in (("train", ROWS[:5]), ("val", ROWS[5:8]), ("test", ROWS[8:])):
        (tmp_path / "splits" / split).mkdir(parents=True)
        (tmp_path / "splits" / split / "items.json").write_text(json.dumps(rows))
    (tmp_path / "all.json").write_text(json.dumps(ROWS))
    path = tmp_path / "theirs.yaml"
    path.write_text(f"env: {{name: searchqa, split_mode: split_dir, split_dir: '{tmp_path / 'splits'}', limit: 4}}")
    config, splits = load(path)
    assert config.env.name == "searchqa"
    assert [task.id for task in splits.selection] == ["q5", "q6", "q7"]
    assert (len(splits.train), len(splits.test)) == (4, 4)
    divided = {}
    for seed in (42, 7):
        path.write_text(f"train: {{seed: {seed}}}\nenv: {{name: searchqa, data_path: '{tmp_path / 'all.json'}'}}")
        _, splits = load(path)
        divided[seed] = ([task.id for task in splits.train], [task.id for task in splits.selection])
    assert divided[7] == divided[42] and (len(divided[7][0]), len(divided[7][1])) == (4, 2)


@pytest.mark.parametrize("name", ["alfworld", "docvqa", "livemathematicianbench", "officeqa", "spreadsheetbench"])
def test_the_other_benchmarks_need_no_package_either(tmp_path: Path, name: str):
    path = tmp_path / "theirs.yaml"
    path.write_text(f"env: {{name: {name}, split_mode: split_dir, split_dir: d}}")
    config = assemble([Layer(str(path), read_config(path).tree)])
    assert (config.env.name, config.options["path"], config.data.mode) == (name, "d", "splits")


def test_what_a_benchmark_does_not_have_is_refused(tmp_path: Path):
    path = tmp_path / "theirs.yaml"
    path.write_text("env: {name: searchqa, data_root: x, max_steps: 3}")
    with pytest.raises(ConfigError, match=r"env\.data_root belongs to a benchmark.*\n.*env\.max_steps"):
        read_config(path)
    path.write_text("env: {name: officeqa, data_dirs: [a, b]}")
    with pytest.raises(ConfigError, match=r"env\.data_dirs: the documents must be in one folder, not in 2"):
        read_config(path)
