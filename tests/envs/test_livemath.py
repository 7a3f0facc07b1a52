"""LiveMathematicianBench on rows in its format."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.env_checks import validate
from ludus.envs.livemath import LiveMathematicianBench, find_label
from ludus.errors import ConfigError
from ludus.runner import Runner

CHOICES = [{"label": label, "text": f"It is {word}."} for label, word in zip("ABCD", ["one", "two", "three", "four"])]  # noqa: B905
ROW = {
    "no": 3,
    "question": "How many?",
    "choices": CHOICES,
    "correct_choice": CHOICES[2],
    "theorem_type": ["Counting", "Existence"],
    "theorem": "There are three.",
    "sketch": "Count them.",
}


def write(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> LiveMathematicianBench:
    path = tmp_path / "qa_202601_final.json"
    path.write_text(json.dumps(rows))
    return LiveMathematicianBench(path=str(path), **options)


async def test_it_is_valid(tmp_path: Path):
    env = write(tmp_path, ROW, {**ROW, "no": 4})
    tasks = list(env.tasks("test"))
    assert [task.id for task in tasks] == ["202601:3", "202601:4"]
    assert tasks[0].kind == "Counting"
    assert "There are three." not in tasks[0].prompt
    assert (await validate(Runner(env), "test", tasks)).ok


def test_the_order_depends_on_seed_and_id_and_the_answer_moves_with_it(tmp_path: Path):
    plain = next(write(tmp_path, ROW, shuffle_choices=False).tasks("test"))
    assert plain.answer["label"] == "C"
    found = {str(next(write(tmp_path, ROW, seed=seed).tasks("test")).answer) for seed in range(8)}
    assert len(found) > 3
    for seed in range(8):
        answer = next(write(tmp_path, ROW, seed=seed).tasks("test")).answer
        assert answer["choices"]["ABCD".index(answer["label"])] == "It is three."


def test_theorem_and_sketch_are_shown_on_demand(tmp_path: Path):
    prompt = next(write(tmp_path, ROW, use_theorem=True, use_sketch=True).tasks("test")).prompt
    assert "There are three." in prompt and "Count them." in prompt


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("<answer>b</answer>", "B"),
        ("so\n(C)", "C"),
        ("<answer>It is  two.</answer>", "B"),
        ("<answer>A: it is one</answer>", "A"),
        ("<answer>E</answer>", ""),
        ("Because", ""),
        ("", ""),
    ],
)
def test_labels(reply: str, label: str):
    assert find_label(reply, [each["text"] for each in CHOICES]) == label


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**ROW, "choices": CHOICES[:1]}, "row 1: choices: there are 1"),
        ({**ROW, "correct_choice": {"label": "X", "text": "?"}}, "row 1: correct_choice: 0 choices have its label 'X'"),
        ({**ROW, "choices": "A"}, r"row 1: .*\$\.choices"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, row).tasks("test"))
