"""Markup: everything that is not markup is escaped."""

from ludus.reflact.report.html_tags import Html, el, join_html, make_table


def test_markup_is_made_of_elements_only():
    assert el("p", "x", "a < b", el("b", "", "&")) == '<p class="x">a &lt; b<b>&amp;</b></p>'
    assert el("line", "", x1=1.5, text_anchor='"') == '<line x1="1.5" text-anchor="&quot;"></line>'
    assert join_html([Html("<i>"), "<i>"]) == "<i>&lt;i&gt;"
    assert make_table(("a",), []) == ""
