"""Text games, played from their beginning. These functions run in a scoring process.

`play` takes all commands of a game so far and returns its state after them. So a game has no state of its own that
could be lost, a rollout can be judged from its record alone, and a crash in a game's engine (it is C code) costs one
process. A process keeps the games that it played last, to continue them instead of playing them again.
"""

import contextlib
import importlib
import io
import os
import re
import tempfile
from collections import OrderedDict
from importlib.metadata import version
from pathlib import Path
from typing import Any

KEPT = 8
"""How many games a process keeps open."""
_WORD = 9
"""How many characters of a word the engine looks at."""
_OUTSIDE = frozenset({"save", "restore", "restart", "script", "transcrip", "unscript", "noscript", "quit", "q", "undo"})
_OPEN: "OrderedDict[str, tuple[list[str], Any, dict[str, Any]]]" = OrderedDict()
"""Games that can be continued, by file: the commands so far, the engine, and its state. It only saves time."""


def play(file: str, commands: list[str]) -> dict[str, Any]:
    """The state of a game after the commands: what is shown, which commands are possible, and whether it is won."""
    played, engine, state = _OPEN.pop(file, ([], None, {}))
    if engine is None or played != commands[: len(played)]:
        if engine is not None:
            engine.close()
        engine = _start(file)
        played, state = [], _describe(engine.reset(), 0.0, False)
    for command in commands[len(played) :]:
        if not state["done"] and is_outside(command) and command not in state["commands"]:
            state = {**state, "shown": "The game does not take that command."}
        elif not state["done"]:
            with contextlib.redirect_stdout(io.StringIO()):
                state = _describe(*engine.step(command))
    _OPEN[file] = (list(commands), engine, state)
    while len(_OPEN) > KEPT:
        _OPEN.popitem(last=False)[1][1].close()
    return state


def is_outside(command: str) -> bool:
    """Whether a command is about the program and not about the world of the game. Such commands write and read files of
    this host, which other rollouts of the game could read. A line may have several commands: `look. save`."""
    return any(word[:_WORD] in _OUTSIDE for word in re.findall(r"\w+", command.lower()))


def _describe(found: Any, score: float, done: bool) -> dict[str, Any]:
    shown = re.sub(r"(?m)^> .*$", "", str(found["feedback"] or "")).strip()
    return {
        "shown": re.sub(r"\n{3,}", "\n\n", shown),
        "commands": sorted(found["admissible_commands"] or ()),
        "won": bool(found["won"]),
        "score": float(score or 0.0),
        "most": float(found.get("max_score") or 1.0),
        "done": bool(done),
    }


def _start(file: str) -> Any:
    textworld: Any = importlib.import_module("textworld")
    wanted = textworld.EnvInfos(won=True, admissible_commands=True, max_score=not file.endswith(".tw-pddl"))
    wrappers: list[Any] = []
    if file.endswith(".tw-pddl"):
        wrappers = [importlib.import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler]
    return textworld.start(file, request_infos=wanted, wrappers=wrappers)


# ---- games from a seed ----------------------------------------------------------------------------------------------


def make_game(seed: int, rooms: int, objects: int, quest: int) -> dict[str, Any]:
    """Make a game with TextWorld, or find it if it was made before. Returns its file and a way to win it."""
    textworld: Any = importlib.import_module("textworld")
    generator: Any = importlib.import_module("textworld.generator")
    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, rooms, objects, quest
    file = name_game(seed, rooms, objects, quest)
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=file.parent) as work:
            options.path = str(Path(work) / "game.z8")
            generator.compile_game(generator.make_game(options), options)
            (Path(work) / "game.json").replace(file.with_suffix(".json"))
            Path(options.path).replace(file)  # last: a game that is there is complete
    game: Any = generator.game.Game.load(str(file.with_suffix(".json")))
    return {"file": str(file), "walkthrough": list(game.metadata["walkthrough"])}


def name_game(seed: int, rooms: int, objects: int, quest: int) -> Path:
    """The file of a game. Another version of TextWorld makes other games."""
    return find_games_folder() / f"{version('textworld')}-{seed}-{rooms}-{objects}-{quest}.z8"


def find_games_folder() -> Path:
    """A folder of this user for games that were made, among the temporary files."""
    folder = Path(tempfile.gettempdir()) / f"ludus-textworld-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user: remove it")
    return folder
