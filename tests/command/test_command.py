"""The parser of a command, and dotted flags."""

import pytest
from tests.cli_kit import (
    Ludus,
)

from ludus.arguments import Arguments, make_argument
from ludus.cli.commands import COMMANDS
from ludus.command import CONFIG, Command, make_parser, split_flags


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help_with_an_example(ludus: Ludus, command: str):
    code, out, _ = ludus(command, "--help")
    assert code == 0
    assert f"example:\n  ludus {command}" in out


@pytest.mark.parametrize(
    ("typed", "rest", "flags", "lacking"),
    [
        (["process", "x", "--a.b", "1"], ["process", "x"], [("a.b", "1")], ""),
        (["--a.b=1=2", "--out", "d"], ["--out", "d"], [("a.b", "1=2")], ""),
        (["--a.b", "-1", "--a.c", ""], [], [("a.b", "-1"), ("a.c", "")], ""),
        (["--a.b=--x"], [], [("a.b", "--x")], ""),
        (["--a.b"], [], [], "a.b"),
        (["--a.b", "--a.c", "1"], [], [], "a.b"),
        (["my.env:X", "--config", "a.yaml"], ["my.env:X", "--config", "a.yaml"], [], ""),
    ],
)
def test_dotted_flags_are_taken_out(typed: list[str], rest: list[str], flags: list[tuple[str, str]], lacking: str):
    assert split_flags(typed) == (rest, flags, lacking)


def test_a_parser_has_the_arguments_of_its_command_and_help_on_settings():
    class GreetArguments(Arguments):
        name: str
        loud: bool

    command = Command(
        lambda arguments: 0,
        "ludus greet anna",
        (make_argument("name"), make_argument("--loud", action="store_true"), CONFIG),
        GreetArguments,
        "settings: none that matter",
    )
    parser = make_parser("greet", "greet somebody", command)
    arguments = parser.parse_args(["anna", "--loud", "--config", "a.yaml"], GreetArguments())
    assert (arguments.name, arguments.loud, arguments.config) == ("anna", True, ["a.yaml"])
    text = parser.format_help()
    assert "Greet somebody." in text
    assert text.endswith("example:\n  ludus greet anna\n\nsettings: none that matter\n")
    assert command.takes_settings and not Command(lambda arguments: 0, "").takes_settings
