"""`ludus config`: the reference of all settings, as Markdown (docs/configuration.md)."""

from ludus.arguments import Arguments
from ludus.command import Command
from ludus.config.settings_page import render_settings_page


def run(arguments: Arguments) -> int:
    print(render_settings_page(), end="")
    return 0


COMMAND = Command(run, "ludus config > settings.md")
