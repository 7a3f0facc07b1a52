"""docs/environments.md: its code and its commands, in the order in which an author types them."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli_kit import Ludus

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
FILES = {match[1]: match[0] for match in re.finditer(r"(?<=```python\n)# (\w+\.py)\n.*?(?=```)", PAGE, re.S)}
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
SHOWN = {
    "ludus new env word-games": "a package with the environment 'word-games'",
    "ludus validate word-games/src/word_games/env.py": "no problems",
    "ludus validate fixes.py": "no problems",
    "ludus validate shop.py": "no problems",
    "ludus show runs/shop two": "Cancelled: ['A1', 'B2'].",
    "ludus show runs/fixes middle": "All 2 tests passed.",
    "ludus rescore runs/fixes": "1 of 1 rollouts judged, 1 task: 0 higher, 0 lower, 1 unchanged",
    "ludus compare runs/fixes runs/fixes-again": "+0.000",
}
"""What some commands print."""


def test_the_page_has_the_files_and_commands():
    assert set(FILES) == {"fixes.py", "shop.py", "agent.py"}
    assert set(SHOWN) <= set(COMMANDS)


def test_an_author_follows_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ludus: Ludus):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for command in COMMANDS:
        code, out, err = ludus(*shlex.split(command)[1:])
        assert code == 0, f"{command}\n{out}\n{err}"
        assert SHOWN.get(command, "") in out, f"{command}\n{out}"


def test_the_facts_are_those_of_the_class():
    from ludus.env import EnvFacts

    (table,) = re.findall(r"\| field \| meaning \|\n\|---\|---\|\n(.*?)\n\n", PAGE, re.S)
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(EnvFacts.__struct_fields__)


@pytest.mark.parametrize("code", [c for c in re.findall(r"```python\n(.*?)```", PAGE, re.S) if not c.startswith("# ")])
def test_other_code_runs(code: str):
    exec(code, {"__name__": "page"})


def test_the_table_of_constants_is_that_of_the_data():
    from ludus.envs.reasoning import read_constants

    (table,) = re.findall(r"\| generator \| best constant \| it earns \|\n\|---\|---\|---\|\n(.*?)\n\n", PAGE, re.S)
    shown = [tuple(cell.strip(" `") for cell in row.strip("| ").split(" | ")) for row in table.splitlines()]
    known = [(name, each) for name, each in read_constants().items() if each.score >= 0.2]
    known.sort(key=lambda row: -row[1].score)
    assert shown == [(name, " ".join(each.answer.split()), f"{each.score:.2f}") for name, each in known]
