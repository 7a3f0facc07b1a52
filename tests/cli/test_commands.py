"""The list of commands: one line each, in groups."""

import re

import pytest

from ludus.cli.commands import COMMANDS, GROUPS, Listing, format_commands
from ludus.command import Command


@pytest.mark.parametrize("listing", COMMANDS, ids=lambda listing: listing.name)
def test_the_module_of_a_command_defines_it(listing: Listing):
    command = listing.load()
    assert isinstance(command, Command)
    assert command.run.__module__ == listing.place.partition(":")[0]


def test_names_are_unique_and_summaries_fit_a_line():
    names = [listing.name for listing in COMMANDS]
    assert len(set(names)) == len(names)
    assert max(len(line) for line in format_commands().splitlines()) <= 100


def test_every_command_is_listed_once_under_its_group():
    text = format_commands()
    assert re.findall(r"^(\S.*):$", text, re.M) == list(GROUPS.values())
    sections = dict(zip(GROUPS, text.split("\n\n"), strict=True))
    for listing in COMMANDS:
        assert f"\n  {listing.name} " in sections[listing.group]
        assert text.count(f"\n  {listing.name} ") == 1
