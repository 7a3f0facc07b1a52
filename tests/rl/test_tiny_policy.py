"""The tiny policy: its demonstrations, its tokenizer and its cache."""

from pathlib import Path
from random import Random

from tests.torch_kit import RECIPE, make_folder

from ludus.envs.parcels import COLORS, DESKS, WRONG_DESK
from ludus.rl.tiny_policy import HABIT, HABITS, PARSER, find_tiny_policy, sample_conversation
from ludus.tokens.codec import Codec
from ludus.tokens.probe import probe_template


def sample(count: int) -> list[tuple[str, str, dict[str, str]]]:
    """Color, desk and notes of demonstrations."""
    found: list[tuple[str, str, dict[str, str]]] = []
    for number in range(count):
        messages = sample_conversation(Random(f"test/{number}"))
        system = messages[0].content if messages[0].role == "system" else ""
        notes = dict(line.removeprefix("- ").split(": ") for line in system.splitlines())
        user, reply, answer, last = messages[-4:]
        color = user.content.split()[2]
        assert reply.content == f"- {color}: {reply.calls[0].name}"
        assert last.content == ("lost" if answer.content == WRONG_DESK else answer.content)
        found.append((color, reply.calls[0].name, notes))
    return found


def test_demonstrations_follow_notes_and_else_say_little_about_the_desk():
    sampled = sample(3000)
    assert all(notes[color] == desk for color, desk, notes in sampled if color in notes)
    free = [(color, desk) for color, desk, notes in sampled if color not in notes]
    usual = sum(HABITS[color] == desk for color, desk in free) / len(free)
    assert abs(usual - (HABIT + (1 - HABIT) / len(DESKS))) < 0.05
    assert {color for color, _ in free} == set(COLORS.split())


def test_the_template_and_the_tokenizer_work():
    codec = Codec.open(make_folder(), PARSER)
    assert probe_template(codec) == ()
    assert list(codec.tokenizer.stop_tokens.values()) == ["[end]"]
    for word in (*(f" {color}" for color in COLORS.split()), *DESKS):
        assert len(codec.tokenizer.encode(word)) == 1
    assert codec.tokenizer.decode(codec.tokenizer.encode("Grüße, 世界!")) == "Grüße, 世界!"


def test_the_policy_is_made_once(tmp_path: Path):
    told: list[str] = []
    folder = find_tiny_policy(tmp_path, RECIPE, told.append)
    assert find_tiny_policy(tmp_path, RECIPE, told.append) == folder
    assert len(told) == 1 and {"model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert [path for path in tmp_path.iterdir() if path != folder] == []
