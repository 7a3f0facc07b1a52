"""The notations of arguments: what each writes, it reads."""

from typing import Any

import pytest
from tests.parser_kit import WEATHER

from ludus.parsers.markup_reader import TextSource
from ludus.parsers.notations import JSON, Braces, Nested, Notation, Tags
from ludus.parsers.offered_tools import OfferedTools
from ludus.parsers.values import IncompleteText, MalformedText

TAGS = Tags("<p={key}>\n{value}\n</p>\n")
NESTED = Nested("]")
ARGUMENTS = {"city": "Paris", "days": 3}


def read(notation: Notation, text: str, stop: str = "</call>", *, final: bool = True) -> tuple[Any, int]:
    return notation.read(TextSource(text, final, OfferedTools([WEATHER])), 0, "get_weather", stop)


@pytest.mark.parametrize(
    ("notation", "text", "closed"),
    [
        (JSON, '{"city": "Paris", "days": 3}', True),
        (Braces("<q>"), "{city:<q>Paris<q>,days:3}", True),
        (TAGS, "<p=city>\nParis\n</p>\n<p=days>\n3\n</p>\n", False),
        (NESTED, "]<city>Paris]</city>]<days>3]</days>", False),
    ],
    ids=["json", "braces", "tags", "nested"],
)
def test_a_notation_reads_what_it_writes(notation: Notation, text: str, closed: bool) -> None:
    stop = "]</call>" if notation is NESTED else "</call>"
    assert notation.write(ARGUMENTS) == text
    assert read(notation, text + stop, stop) == (ARGUMENTS, len(text))
    assert notation.closed is closed


def test_json_may_be_missing_but_nothing_else() -> None:
    assert read(JSON, "</call>") == ({}, 0)
    with pytest.raises(IncompleteText):
        read(JSON, "</ca", final=False)
    with pytest.raises(MalformedText, match="expected a JSON object"):
        read(JSON, "oops</call>")


def test_a_tagged_value_ends_at_its_tag_or_at_the_next_argument() -> None:
    assert read(TAGS, "<p=city>\nRome\n<p=days>2</p></call>")[0] == {"city": "Rome", "days": 2}
    assert read(TAGS, "<p=city>\nRome\n</call>")[0] == {"city": "Rome"}
    with pytest.raises(IncompleteText):
        read(TAGS, "<p=city>\nRome")
    with pytest.raises(MalformedText):
        read(TAGS, "<q=city>Rome</q></call>")


def test_a_type_in_the_tag_decides_instead_of_the_schema() -> None:
    hinted = Tags('<p k="{key}" string="{string}">{value}</p>', also=('<p k="{key}">{value}</p>',))
    text = '<p k="city" string="false">1</p><p k="days" string="true">3</p></call>'
    assert read(hinted, text)[0] == {"city": 1, "days": "3"}
    assert read(hinted, '<p k="city">1</p></call>')[0] == {"city": "1"}
    assert hinted.write({"a": "x", "b": 1}) == '<p k="a" string="true">x</p><p k="b" string="false">1</p>'


def test_values_in_xml_are_escaped_as_cdata() -> None:
    xml = Tags('<p k="{key}">{value}</p>', xml=True)
    text = xml.write({"city": "a < b"})
    assert text == '<p k="city"><![CDATA[a < b]]></p>'
    assert read(xml, f"{text}</call>")[0] == {"city": "a < b"}
    assert read(xml, '<p k="city">a &lt; b</p></call>')[0] == {"city": "a < b"}


def test_lists_and_objects_are_tags_inside_tags() -> None:
    value = {"where": {"street": "a"}, "also": ["x", "y"]}
    text = NESTED.write(value)
    assert text == "]<where>]<street>a]</street>]</where>]<also>]<item>x]</item>]<item>y]</item>]</also>"
    assert read(NESTED, f"{text}]</call>", "]</call>")[0] == value
    with pytest.raises(MalformedText, match="text beside tags"):
        read(NESTED, "]<where>oops]<street>a]</street>]</where>]</call>", "]</call>")
