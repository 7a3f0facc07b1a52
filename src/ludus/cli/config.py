"""`ludus config`: the reference of all settings, as Markdown (docs/configuration.md)."""

from ludus.cli.command import Arguments, Command
from ludus.config.settings_page import reference


def run(arguments: Arguments) -> int:
    print(reference(), end="")
    return 0


COMMAND = Command(run, "ludus config > settings.md")
