"""Paths in the home folder of a slot."""

from ludus.sandbox import Sandbox


async def resolve_path(path: str, box: Sandbox) -> str:
    """The path with `~/` replaced by the slot's home."""
    if not path.startswith("~/"):
        return path
    home = await box.exec('printf %s "$HOME"')
    return home.stdout.decode() + path[1:]
