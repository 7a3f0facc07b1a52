"""HTML without surprises: whatever is not markup already is escaped. Pure."""

from html import escape


class Html(str):
    """Text that is markup and stays as it is."""


def el(tag: str, classes: str, *children: str, **attributes: str | float) -> Html:
    """An element. Children that are not `Html` are text. `_` in the name of an attribute stands for `-`."""
    given = {"class": classes, **attributes} if classes else attributes
    words = "".join(f' {name.replace("_", "-")}="{escape(_plain(value))}"' for name, value in given.items())
    return Html(f"<{tag}{words}>{joined(children)}</{tag}>")


def joined(children: "list[str] | tuple[str, ...]") -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def table(head: tuple[str, ...], rows: "list[tuple[str, ...]]") -> Html:
    """A table of texts; nothing at all if it has no rows."""
    if not rows:
        return Html()
    top = el("tr", "", *(el("th", "", cell) for cell in head))
    return el("table", "", top, *(el("tr", "", *(el("td", "", cell) for cell in row)) for row in rows))


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
