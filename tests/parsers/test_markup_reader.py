"""Markup in a text that may still be growing."""

import pytest

from ludus.parsers.markup_reader import MAX_FIELD, Spelling, TextSource, escape, unescape
from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.values import IncompleteText, MalformedText


def source(text: str, *, final: bool = True) -> TextSource:
    return TextSource(text, final, OfferedTools())


def test_white_space_has_more_than_one_spelling() -> None:
    assert source(" \n\\nĠx").skip_space(0) == 5
    assert source("x").skip_space(0) == 0


def test_the_end_of_a_growing_text_is_not_an_end() -> None:
    assert source("ab").get_char(2) == ""
    with pytest.raises(IncompleteText):
        source("ab", final=False).get_char(2)


def test_a_literal_must_be_there() -> None:
    assert source("<a>b").expect("<a>", 0) == 3
    with pytest.raises(IncompleteText):
        source("<a", final=False).expect("<a>", 0)
    with pytest.raises(MalformedText, match="expected '<a>'") as caught:
        source("x<b>").expect("<a>", 1)
    assert caught.value.at == 1


def test_a_closing_tag_may_be_missing_or_cut() -> None:
    assert source("</a>b").skip_optional("</a>", 0) == 4
    assert source("b").skip_optional("</a>", 0) == 0
    assert source("</").skip_optional("</a>", 0) == 2, "a complete text may end inside of it"
    with pytest.raises(IncompleteText):
        source("</", final=False).skip_optional("</a>", 0)


def test_a_spelling_reads_what_it_writes() -> None:
    spelling = Spelling('<invoke name="{name}">\n<id>{id}</id>')
    text = spelling.write(name='a "b" & c', id="7")
    assert text == '<invoke name="a &quot;b&quot; &amp; c">\n<id>7</id>'
    assert spelling.read(source(text), 0) == ({"name": 'a "b" & c', "id": "7"}, len(text))
    assert spelling.opener == "<invoke"


def test_white_space_between_tags_may_differ() -> None:
    spelling = Spelling("<a>\n<b>{name}</b>")
    for text in ("<a><b>x</b>", "<a>  \n<b> x </b>"):
        assert spelling.read(source(text), 0)[0] == {"name": "x"}


def test_fields_have_a_length_and_characters() -> None:
    spelling = Spelling("<f={name}>")
    with pytest.raises(MalformedText, match="expected a name"):
        spelling.read(source("<f=>"), 0)
    with pytest.raises(MalformedText):
        spelling.read(source(f"<f={'x' * (MAX_FIELD + 1)}>"), 0)
    with pytest.raises(IncompleteText):
        spelling.read(source("<f=abc", final=False), 0)


def test_forgotten_closing_tags_are_skipped_as_far_as_they_are_there() -> None:
    spelling = Spelling("</b>\n</a>")
    assert spelling.close(source("</b> </a>!"), 0) == 9
    assert spelling.close(source("</b> text"), 0) == 4
    assert spelling.close(source("text"), 0) == 0


def test_entities() -> None:
    assert escape('"&') == "&quot;&amp;"
    assert unescape("&lt;&gt;&quot;&apos;&amp;lt;") == "<>\"'&lt;"
