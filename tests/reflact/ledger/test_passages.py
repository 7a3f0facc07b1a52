"""The passages of a skill, and texts that lack some of them."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.reflact.ledger.passages import drop_passages, list_passages
from ludus.skill import Skill, SkillFile

DOCUMENT = """---
name: a
description: b
---
# Title

Intro that goes
over two lines.

## Rules
- one
  more of it
- two
  - nested

1. first
2. second

```py
# no heading

code
```

<!-- KEEP_START -->
- keep me
<!-- KEEP_END -->

## Example

Input:

```text
1 + 1
```

Output:

```text
2
```

## Last
Bye.
"""


def test_items_paragraphs_code_and_examples_are_passages_and_protected_parts_are_not():
    texts = [passage.text for passage in list_passages(Skill(DOCUMENT))]
    assert texts[:5] == [
        "Intro that goes\nover two lines.",
        "- one\n  more of it",
        "- two\n  - nested",
        "1. first",
        "2. second",
    ]
    assert texts[5].startswith("```py") and texts[5].endswith("code\n```")
    assert texts[6].startswith("## Example") and texts[6].endswith("2\n```")
    assert texts[7:] == ["Bye."]


def test_a_heading_goes_with_the_last_passage_below_it():
    text = drop_passages(Skill(DOCUMENT), {"P8"}).text
    assert "## Last" not in text and "# Title" in text
    text = drop_passages(Skill(DOCUMENT), {f"P{n}" for n in range(1, 9)}).text
    assert "keep me" in text and text.startswith("---\nname: a") and "## Rules" in text
    assert drop_passages(Skill("# Only\n\n- x\n"), {"P1"}).text == ""
    assert drop_passages(Skill("# Nothing below\n"), {"P1"}).text == "# Nothing below\n"


_LINES = st.sampled_from(
    ["# H", "## Example", "- a", "  - b", "text", "", "```", "<!-- KEEP_START -->", "<!-- KEEP_END -->", "1. x"]
)


@given(st.lists(_LINES, max_size=14))
def test_a_document_is_its_passages_and_what_stays(lines: list[str]):
    skill = Skill("\n".join(lines))
    passages = list_passages(skill)
    assert drop_passages(skill, set()) == skill
    assert drop_passages(skill, {"P0", "P99"}) == skill
    for passage in passages:
        assert passage.text and passage.text in skill.text
    left = drop_passages(skill, {passage.id for passage in passages})
    assert not list_passages(left) or "```" in skill.text


def test_references_have_passages_and_scripts_have_none():
    files = (
        SkillFile("references/a.md", "# A\n\n- three\n- four\n"),
        SkillFile("scripts/x.md", "no passage\n", b"", True),
    )
    skill = Skill("- one\n- two\n", files)
    found = [(each.id, each.text, each.path) for each in list_passages(skill)]
    assert found[:2] == [("P1", "- one", ""), ("P2", "- two", "")]
    assert found[2:] == [("P3", "- three", "references/a.md"), ("P4", "- four", "references/a.md")]
    less = drop_passages(skill, {"P1", "P4"})
    assert (less.text, less.read("references/a.md"), less.files[1]) == ("- two\n", "# A\n\n- three\n", files[1])
    assert drop_passages(skill, {"P3", "P4"}).read("references/a.md") == ""
