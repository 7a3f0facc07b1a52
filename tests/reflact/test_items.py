"""Items as text, and the credit that they get."""

from ludus.reflact.items import (
    FORMS,
    Document,
    Suggestion,
    credit_item,
    credit_merged,
    describe_item,
    number_items,
    summarize_item,
)
from ludus.skill import Edit


def test_items_in_words():
    items = [Edit("append", "x"), Suggestion("clarify", "Say it.", "t"), Document("text", "t", ("c",))]
    assert [summarize_item(item) for item in items] == ["append: x", "clarify: t. Say it.", "rewrite: t. c"]
    assert (
        number_items([credit_item(items[0], "success", "ab")]) == "[1] from 2 success rollouts\nop: append\ncontent: x"
    )
    assert number_items([]) == "None."


def test_credit_replaces_what_an_item_claims():
    claimed = Edit("append", "x", support=99, level=5, evidence=("z",))
    credited = credit_item(claimed, "success", ["a", "b", "a"])
    assert (credited.source, credited.support, credited.level, credited.evidence) == ("success", 2, 0, ("a", "b"))


def test_a_merged_item_has_the_evidence_of_all_its_parents():
    parents = [
        credit_item(Edit("append", "x"), source, tasks) for source, tasks in (("failure", "ab"), ("success", "bc"))
    ]
    merged = credit_merged(Edit("append", "y"), parents, 2)
    assert (merged.source, merged.support, merged.level, merged.evidence) == ("mixed", 3, 2, ("a", "b", "c"))
    assert credit_merged(parents[1], parents[:1], 1).source == "failure"


def test_every_update_mode_has_its_form():
    assert {mode: (form.item, form.limited) for mode, form in FORMS.items()} == {
        "patch": (Edit, True),
        "rewrite_from_suggestions": (Suggestion, True),
        "full_rewrite_minibatch": (Document, False),
    }


def test_a_description_has_the_change_and_not_its_origin():
    assert describe_item(Edit("replace", "new", "old", support=3)) == "op: replace\ntarget: old\ncontent: new"
    suggestion = Suggestion("clarify", "Say it.", "t", priority="high")
    assert describe_item(suggestion) == "kind: clarify\ntitle: t\ninstruction: Say it.\npriority: high"
    assert describe_item(Document("text", "t")) == "title: t\nchanges: not said\ndocument:\ntext"
