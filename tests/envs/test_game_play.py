"""The folder of games; playing is tested with real games in tests/envs."""

from pathlib import Path

import pytest

from ludus.envs import game_play


def test_the_folder_of_games_belongs_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = game_play.find_games_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o077 == 0
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(PermissionError, match="belongs to another user"):
        game_play.find_games_folder()


def test_what_is_shown_has_no_prompt_and_no_status_line():
    found = {"feedback": "\n\nYou win.\n\n\n\n> -= Attic =-1/1", "admissible_commands": ["b", "a"], "won": 1}
    assert game_play._describe(found, 1, True) == {  # pyright: ignore[reportPrivateUsage]
        "shown": "You win.",
        "commands": ["a", "b"],
        "won": True,
        "score": 1.0,
        "most": 1.0,
        "done": True,
    }


@pytest.mark.parametrize("command", ["save", "RESTORE", "look. save", "look then script on", "transcripts", "q"])
def test_commands_about_the_program_are_outside_of_the_game(command: str):
    assert game_play.is_outside(command)


def test_commands_of_the_world_are_inside():
    assert not game_play.is_outside("take the safe from the scripted shelf, then look")
