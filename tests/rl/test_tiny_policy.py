"""The tiny policy: its demonstrations, its tokenizer and its cache."""

from collections import Counter
from pathlib import Path
from random import Random

from tests.torch_kit import RECIPE, make_folder

from ludus.envs.parcels import COLORS, DESKS, WRONG_DESK
from ludus.rl.tiny_policy import (
    HABIT,
    HABITS,
    LESSONS,
    NOTES,
    PARSER,
    UNNOTED_COLOR,
    TinyRecipe,
    find_tiny_policy,
    sample_conversation,
    sample_demonstrations,
)
from ludus.tokens.codec import Codec
from ludus.tokens.probe import probe_template
from ludus.types import Message


def read(messages: list[Message]) -> tuple[str, str, dict[str, str]]:
    """Color, desk and notes of a demonstration."""
    system = messages[0].content if messages[0].role == "system" else ""
    notes = dict(line.removeprefix("- ").split(": ") for line in system.splitlines())
    user, reply, answer, last = messages[-4:]
    color = user.content.split()[2]
    assert reply.content == f"- {color}: {reply.calls[0].name}"
    assert last.content == ("lost" if answer.content == WRONG_DESK else answer.content)
    return color, reply.calls[0].name, notes


def sample(count: int, notes: int) -> list[tuple[str, str, dict[str, str]]]:
    return [read(sample_conversation(Random(f"test/{number}"), notes)) for number in range(count)]


def test_demonstrations_follow_notes_that_say_nothing_about_the_right_desk():
    sampled = sample(2000, 4)
    noted = [(color, desk) for color, desk, notes in sampled if color in notes]
    assert all(notes[color] == desk for color, desk, notes in sampled if color in notes)
    assert abs(len(noted) / len(sampled) - (1 - UNNOTED_COLOR * 4 / 8)) < 0.03
    assert all(abs(Counter(desk for _, desk in noted)[desk] / len(noted) - 1 / len(DESKS)) < 0.04 for desk in DESKS)


def test_demonstrations_without_notes_say_little_about_the_desk():
    free = [(color, desk) for color, desk, _ in sample(2000, 0)]
    usual = sum(HABITS[color] == desk for color, desk in free) / len(free)
    assert abs(usual - (HABIT + (1 - HABIT) / len(DESKS))) < 0.05
    assert {color for color, _ in free} == set(COLORS.split())


def test_lessons_have_more_notes_from_one_to_the_next_and_all_kinds_come_at_last():
    recipe = TinyRecipe(demonstrations=800)
    counts = [len(read(messages)[2]) for messages in sample_demonstrations(recipe)]
    each = int(len(counts) * recipe.lessons) // len(LESSONS)
    for lesson, most in enumerate(LESSONS):
        inside = counts[each * lesson : each * (lesson + 1)]
        assert (min(inside), max(inside)) == (max(1, most // 2), most)
    assert set(counts[each * len(LESSONS) :]) == set(range(LESSONS[-1] + 1))


def test_the_template_and_the_tokenizer_work():
    codec = Codec.open(make_folder(), PARSER)
    assert probe_template(codec) == ()
    assert list(codec.tokenizer.stop_tokens.values()) == ["[end]"]
    for word in (*(f" {color}" for color in COLORS.split()), *DESKS, *NOTES):
        assert len(codec.tokenizer.encode(word)) == 1
    assert codec.tokenizer.decode(codec.tokenizer.encode("Grüße, 世界!")) == "Grüße, 世界!"


def test_the_policy_is_made_once(tmp_path: Path):
    told: list[str] = []
    folder = find_tiny_policy(tmp_path, RECIPE, told.append)
    assert find_tiny_policy(tmp_path, RECIPE, told.append) == folder
    assert len(told) == 1 and {"model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert [path for path in tmp_path.iterdir() if path != folder] == []
