"""Texts of agents become HTML that does nothing, whatever they contain."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.view_kit import HOSTILE

from ludus.view.markup import render_code, render_json, render_markdown, show_hidden

TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "del", "code", "pre", "span", "blockquote", "ul", "ol", "li", "a"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def check_inert(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    for tag, attributes in reader.found:
        assert tag in TAGS
        assert set(attributes) <= {"class", "href", "rel", "target", "start"}
        if "href" in attributes:
            assert re.match(r"(https?://|mailto:)", attributes["href"] or "", re.IGNORECASE)
            assert "noopener" in (attributes["rel"] or "")


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "<script>alert(1)</script>",
        "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1)) [d](vbscript:x) [e](file:///etc)",
        '<https://a.b/"onmouseover=alert(1)> <javascript:alert(1)>',
        "![x](https://evil.example/p.png) ![y](javascript:alert(1))",
        "[a]: javascript:alert(1)\n\n[a] [a][a]",
        '```html"><script>alert(1)</script>\n<script>x</script>\n```',
        "| a |\n|:-:|\n| <img src=x onerror=y> |",
        "<!-- x --> <![CDATA[ <svg/onload=alert(1)> ]]>",
        "> " * 200 + "deep",
        "*" * 3000 + "[" * 3000,
    ],
)
def test_hostile_markdown_is_inert(text: str):
    check_inert(render_markdown(text))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("<>\"'&[]()!`*_|~:/#-= \n\tjavscriptonerhl\u202e\x00\x1b\ud83d"), max_size=120))
def test_any_text_is_inert(text: str):
    check_inert(render_markdown(text))
    check_inert(render_code(text, "html"))
    check_inert(render_json(text)[1])


def test_hidden_characters_are_shown():
    shown = show_hidden("a\x1b[31m\u202eb\u200b\x00\ud83d\n\tc")
    assert shown == "a␛[31m⟨U+202E⟩b⟨U+200B⟩␀⟨U+D83D⟩\n\tc"
    shown.encode()


def test_a_picture_of_the_web_is_not_fetched():
    html = render_markdown("![a cat](https://example.com/cat.png)")
    assert "<img" not in html and "https://example.com/cat.png" in html


def test_code_is_highlighted_by_classes():
    assert '<span class="hl-' in render_code("x = 1\n", "python")
    assert render_code("x", "no such language") == "" == render_code("x" * 5000, "python")
    assert render_json("{'not json'}") == ("{'not json'}", "")
