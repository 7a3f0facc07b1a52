"""Texts of agents as inert HTML: Markdown and code, and what no browser may do with them.

The texts are hostile: models, tools and tasks write them. Raw HTML is text here; links lead only to http, https and
mailto; pictures of the web are links, which nothing fetches by itself; there are classes and no styles. Characters that
are not shown, or that turn the direction of a text around, become visible marks. The length of what is rendered is
bounded by the caller.
"""

import re
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING

import msgspec

from ludus.hidden_text import HIDDEN_RANGES

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

LONGEST = 20_000
"""Characters of a text that are rendered. What is longer is shown in pieces."""
LONGEST_LINE = 4_000
"""Longer lines are not highlighted: they are data, not code."""

_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
_HIDDEN = re.compile(
    "(?!\r)[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in HIDDEN_RANGES) + "\u200c\u200d\ud800-\udfff]"
)
"""Hidden characters and halves of characters. Joiners count here wherever they are."""


def show_hidden(text: str) -> str:
    """The text with every hidden character as a visible mark: `␛` for Escape, `⟨U+202E⟩` for a turn of direction."""
    return _HIDDEN.sub(_name_hidden, text.replace("\r\n", "\n")) if not text.isprintable() else text


def _name_hidden(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def render_markdown(text: str) -> str:
    """Markdown as inert HTML. The caller has cut the text."""
    return _make_renderer().render(show_hidden(text))


def render_code(text: str, language: str) -> str:
    """Code as inert HTML with classes; empty if the language is not known, or it is no code."""
    shown = show_hidden(text)
    if any(len(line) > LONGEST_LINE for line in shown.split("\n")):
        return ""
    marked = _highlight(shown, language)
    return f'<pre class="code"><code>{marked}</code></pre>' if marked else ""


def render_json(text: str) -> tuple[str, str]:
    """A text that should be JSON, indented, and as HTML. Both are the text itself if it is not."""
    try:
        pretty = msgspec.json.format(text.encode(errors="replace"), indent=2).decode()
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return text, ""
    return pretty, render_code(pretty, "json") if len(pretty) <= LONGEST else ""


def _highlight(text: str, language: str) -> str:
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter  # not from the package: it is not ready for threads
    from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    if not re.fullmatch(r"[\w+#.-]{1,30}", language):
        return ""
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return ""
    return highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="hl-"))


@lru_cache(maxsize=1)
def _make_renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 20, "highlight": _mark_fence})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = _is_safe_link
    parser.add_render_rule("image", _render_image)
    parser.add_render_rule("link_open", _open_link)
    for name in ("th_open", "td_open"):  # the alignment would be a style
        parser.add_render_rule(name, _open_cell)
    return parser


def _mark_fence(text: str, language: str, _: str) -> str:
    if any(len(line) > LONGEST_LINE for line in text.split("\n")):
        return escape(text)
    return _highlight(text, language) or escape(text)


def _is_safe_link(url: str) -> bool:
    return _LINK.match(url) is not None


def _render_image(
    renderer: "RendererHTML", tokens: "list[Token]", place: int, options: "OptionsDict", env: "EnvType"
) -> str:
    """A picture of the web is never fetched: its address is shown."""
    token = tokens[place]
    source, words = str(token.attrs.get("src", "")), token.content
    return f'<span class="picture">{escape(words or "picture")}: {escape(source)}</span>'


def _open_link(
    renderer: "RendererHTML", tokens: "list[Token]", place: int, options: "OptionsDict", env: "EnvType"
) -> str:
    target = str(tokens[place].attrs.get("href", ""))
    return f'<a href="{escape(target)}" rel="noopener noreferrer nofollow" target="_blank">'


def _open_cell(
    renderer: "RendererHTML", tokens: "list[Token]", place: int, options: "OptionsDict", env: "EnvType"
) -> str:
    return f"<{tokens[place].tag}>"
