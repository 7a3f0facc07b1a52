"""Build HTML. Every text that is not `Html` is escaped. Pure."""

from html import escape


class Html(str):
    """Markup, which is not escaped."""


def el(tag: str, classes: str, *children: str, **attributes: str | float) -> Html:
    """An element. Children that are not `Html` are escaped. `_` in the name of an attribute stands for `-`."""
    named = {"class": classes, **attributes} if classes else attributes
    markup = "".join(f' {name.replace("_", "-")}="{escape(_format_value(value))}"' for name, value in named.items())
    return Html(f"<{tag}{markup}>{join_html(children)}</{tag}>")


def join_html(children: "list[str] | tuple[str, ...]") -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def make_table(head: tuple[str, ...], rows: "list[tuple[str, ...]]") -> Html:
    """A table of texts; empty if it has no rows. On narrow screens each cell is shown below the name of its column."""
    if not rows:
        return Html()
    top = el("tr", "head", *(el("th", "", cell) for cell in head))
    body = (
        el("tr", "", *(el("td", "", cell, data_name=name) for name, cell in zip(head, row, strict=True)))
        for row in rows
    )
    return el("table", "", top, *body)


def _format_value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
