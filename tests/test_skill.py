"""Skill documents: edits are literal and reported, and protected parts stay unchanged."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.skill import (
    APPENDIX,
    APPENDIX_TITLE,
    GUIDANCE,
    KEEP,
    Edit,
    Skill,
    SkillFile,
    add_front_matter,
    add_notes,
    apply_edits,
    find_protected_parts,
    make_name,
    normalize_note,
    parse_file,
    protect,
    read_guidance,
    read_notes,
    remove_regions,
    render_file,
    set_guidance,
    set_notes,
)

SLOW = f"{GUIDANCE.start}\nguide\n{GUIDANCE.end}"
DOCUMENT = f"# Title\n\n## A\n- x\n- x\n\n{SLOW}\n"
FRONT = "---\nname: my-skill\ndescription: Does things.\n---\n"


def apply_one(edit: Edit, text: str = DOCUMENT, *, lenient: bool = False) -> tuple[str, str]:
    skill, (report,) = apply_edits(Skill(text), [edit], lenient=lenient)
    return skill.text, report.status


# ---- identity -----------------------------------------------------------------------------------------------------


def test_a_skill_is_identified_by_the_first_sixteen_hex_digits_of_the_hash_of_its_text():
    assert Skill("body").hash == "230d8358dc8e8890"
    assert re.fullmatch(r"[0-9a-f]{16}", Skill("").hash)
    assert Skill("a").hash != Skill("a ").hash


# ---- front matter -------------------------------------------------------------------------------------------------


def test_front_matter_is_read_and_the_body_is_the_rest():
    skill = Skill(FRONT + "\nBody\n")
    assert skill.front is not None
    assert (skill.front.name, skill.front.description) == ("my-skill", "Does things.")
    assert skill.body == "Body\n"


def test_a_plain_document_has_no_front_matter():
    for text in ("", "# Title\n", "---\nA rule, not a head\n---\n", "---\nname: x\n"):
        assert Skill(text).front is None
        assert Skill(text).body == text


def test_all_fields_of_the_form_are_read():
    head = "name: a\ndescription: b\nlicense: MIT\ncompatibility: c\nallowed-tools: Read\nmetadata:\n  k: v\n"
    front = Skill(f"---\n{head}---\n").front
    assert front is not None
    assert (front.license, front.allowed_tools, front.metadata) == ("MIT", "Read", {"k": "v"})


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("name: Bad Name\ndescription: d\n", "lower-case"),
        ("name: -a\ndescription: d\n", "lower-case"),
        ("name: a--b\ndescription: d\n", "lower-case"),
        (f"name: {'a' * 65}\ndescription: d\n", "64"),
        ("name: a\ndescription: ' '\n", "description"),
        (f"name: a\ndescription: {'d' * 1025}\n", "1,024"),
        ("name: a\n", "description"),
        ("name: a\ndescription: d\ncolour: red\n", "colour"),
        ("name: [\ndescription: d\n", "front matter"),
        ("name: a\nname: b\ndescription: d\n", "'name' more than once"),
        (f"name: a\ndescription: d\nmetadata: {'[' * 15_000}\n", "nested more than 20 deep"),
        (f"name: a\ndescription: d\nmetadata: {'{a: ' * 3_000}\n", "nested more than 20 deep"),
        (f"name: a\ndescription: d\ncompatibility: {'c' * 501}\n", "500"),
    ],
)
def test_front_matter_that_is_not_in_form_is_refused_with_the_reason(head: str, says: str):
    with pytest.raises(ConfigError, match=says):
        _ = Skill(f"---\n{head}---\nBody\n").front


@pytest.mark.parametrize("text", ["", "Body\n", "\n\nBody", "---\n\nno head\n", "- a\n---\n- b\n"])
def test_a_file_has_a_head_and_gives_back_the_very_text(text: str):
    file = render_file(Skill(text), "orders", "Says: do it.")
    front = Skill(file).front
    assert front is not None and (front.name, front.description) == ("orders", "Says: do it.")
    assert parse_file(file) == Skill(text)
    assert render_file(parse_file(file), "orders", "Says: do it.") == file


def test_a_file_that_somebody_wrote_or_changed_is_taken_as_it_is():
    own = FRONT + "\nBody\n"
    assert render_file(Skill(own), "orders", "Another.") == own
    changed = render_file(Skill("Body\n"), "orders", "Mine.").replace("Body", "My body")
    for text in (own, changed, "Body\n", "---\nname: 3\n---\n", ""):
        assert parse_file(text) == Skill(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("SearchQAAdapter", "searchqaadapter"), ("my_env.py", "my-env-py"), ("é", "skill"), ("a" * 63 + "-b", "a" * 63)],
)
def test_any_text_can_be_made_a_name(text: str, name: str):
    assert make_name(text) == name
    assert add_front_matter(Skill("x"), name, "d").front is not None


def test_a_head_can_be_given_to_a_document_that_has_none():
    skill = add_front_matter(Skill("\nBody\n"), "my-skill", "Says: do it.")
    assert skill.front is not None
    assert skill.front.description == "Says: do it."
    assert skill.body.strip() == "Body"
    assert add_front_matter(skill, "other", "Other.") == skill
    with pytest.raises(ConfigError):
        add_front_matter(Skill("x"), "Not A Name", "d")


# ---- edits, as the original makes them ----------------------------------------------------------------------------

NEW = "N"
CONFORMANCE = [
    (Edit("append", NEW), f"# Title\n\n## A\n- x\n- x\n\nN\n\n{SLOW}\n", "applied_append_before_protected_region"),
    (Edit("insert_after", NEW, "## A"), f"# Title\n\n## A\n\nN\n- x\n- x\n\n{SLOW}\n", "applied_insert_after"),
    (
        Edit("insert_after", NEW, "unknown"),
        f"# Title\n\n## A\n- x\n- x\n\nN\n\n{SLOW}\n",
        "applied_insert_after_fallback_before_protected_region",
    ),
    (Edit("replace", NEW, "- x"), f"# Title\n\n## A\nN\n- x\n\n{SLOW}\n", "applied_replace"),
    (Edit("delete", "", "- x"), f"# Title\n\n## A\n\n- x\n\n{SLOW}\n", "applied_delete"),
    (Edit("replace", NEW, "guide"), DOCUMENT, "skipped_protected_region"),
    (Edit("swap", NEW, "- x"), DOCUMENT, "skipped_unknown_op"),  # type: ignore[arg-type]
    (Edit("replace", NEW, ""), DOCUMENT, "skipped_replace_missing_target"),
    (Edit("replace", NEW, "nowhere"), DOCUMENT, "skipped_replace_target_not_found"),
    (Edit("delete", "", ""), DOCUMENT, "skipped_delete_missing_target"),
    (Edit("delete", "", "nowhere"), DOCUMENT, "skipped_delete_target_not_found"),
]


@pytest.mark.parametrize(("edit", "text", "status"), CONFORMANCE, ids=lambda v: v if isinstance(v, str) else "")
def test_lenient_edits_are_those_of_skillopt(edit: Edit, text: str, status: str):
    assert apply_one(edit, lenient=True) == (text, status)


def test_without_a_region_an_append_goes_to_the_end():
    assert apply_one(Edit("append", " N\n"), "body\n\n\n") == ("body\n\nN\n", "applied_append")
    assert apply_one(Edit("append", "N"), "") == ("N\n", "applied_append")
    fallback = apply_one(Edit("insert_after", "N", "zzz"), "body", lenient=True)
    assert fallback == ("body\n\nN\n", "applied_insert_after_fallback_append")


# ---- edits, as ours are made --------------------------------------------------------------------------------------


def test_an_ambiguous_target_is_reported_and_nothing_is_changed():
    skill, (report,) = apply_edits(Skill(DOCUMENT), [Edit("replace", "N", "- x")])
    assert (skill.text, report.status, report.matches) == (DOCUMENT, "skipped_ambiguous_target", 2)


def test_overlapping_occurrences_make_a_target_ambiguous():
    assert apply_one(Edit("delete", "", "aa"), "aaa")[1] == "skipped_ambiguous_target"


def test_an_insertion_after_a_text_that_is_not_there_is_reported_as_missing_and_not_appended():
    assert apply_one(Edit("insert_after", "N", "unknown")) == (DOCUMENT, "skipped_insert_after_target_not_found")
    assert apply_one(Edit("insert_after", "N", "")) == (DOCUMENT, "skipped_insert_after_missing_target")


def test_a_target_that_is_also_in_a_protected_region_is_changed_where_it_is_free():
    text = f"guide me\n\n{SLOW}\n"
    assert apply_one(Edit("replace", "lead", "guide"), text) == (f"lead me\n\n{SLOW}\n", "applied_replace")


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("target", ["- x\n\n<!-- SLOW", "END -->\n", f"- x\n\n{SLOW}\n", SLOW])
def test_a_target_that_overlaps_a_protected_region_in_part_is_refused(target: str, lenient: bool):
    for op in ("replace", "delete", "insert_after"):
        assert apply_one(Edit(op, "N", target), lenient=lenient) == (DOCUMENT, "skipped_protected_region")


def test_an_edit_cannot_touch_the_front_matter():
    text = FRONT + "\nDoes things. Really.\n"
    assert apply_one(Edit("replace", "other", "my-skill"), text) == (text, "skipped_protected_region")
    assert apply_one(Edit("insert_after", "x: y", "name: my-skill"), text) == (text, "skipped_protected_region")
    assert apply_one(Edit("replace", "N", "Does things. R"), text)[0] == FRONT + "\nNeally.\n"


def test_a_skill_that_is_only_a_head_can_be_added_to():
    for text in (FRONT, FRONT.rstrip()):
        assert apply_one(Edit("append", "N"), text) == (FRONT + "\nN\n", "applied_append")


def test_markers_in_the_content_of_an_edit_are_taken_out():
    nested = "<!-- SLOW_<!-- APPENDIX_END -->UPDATE_START -->"
    kept = f"{KEEP.start}ab<!-- KEEP_<!-- SLOW_UPDATE_END -->END -->"
    for content in (f"a{GUIDANCE.start}b{APPENDIX.end}", f"ab{nested}", kept):
        assert apply_one(Edit("append", content), "body") == ("body\n\nab\n", "applied_append")


def test_what_a_proposal_writes_can_be_changed_and_removed_again():
    """An optimizer cannot make a file of its own permanent: neither by markers nor by front matter."""
    locked = f"---\nname: a\ndescription: b\n---\n{KEEP.start}\nDo this.\n{KEEP.end}\n"
    made, _ = apply_edits(Skill("body\n"), [Edit("write", locked, path="references/a.md")])
    assert KEEP.start not in (made.read("references/a.md") or "")
    for edit in (Edit("write", "new\n", path="references/a.md"), Edit("remove", path="references/a.md")):
        assert apply_edits(made, [edit])[1][0].applied
    users = Skill("body\n", (SkillFile("references/a.md", f"{KEEP.start}\nmine\n{KEEP.end}\n"),))
    assert not apply_edits(users, [Edit("remove", path="references/a.md")])[1][0].applied


@pytest.mark.parametrize(
    ("content", "added"),
    [
        ("Run:\n```sh\nls", "Run:\n```sh\nls\n```"),
        ("~~~~\n```\n~~~", "~~~~\n```\n~~~\n~~~~"),
        ("```\nls\n```", "```\nls\n```"),
        ("Write `a` and ``b``.", "Write `a` and ``b``."),
    ],
)
def test_a_block_of_code_is_not_left_open(content: str, added: str):
    """All that follows would be a part of it."""
    assert apply_one(Edit("append", content), "body") == (f"body\n\n{added}\n", "applied_append")
    after = apply_one(Edit("insert_after", content, "body"), "body\nend\n")[0]
    assert f"{added}\n" in after and after.endswith("\nend\n")
    assert apply_one(Edit("replace", "```py\nnew", "```sh\nold"), "```sh\nold\n```\n")[0] == "```py\nnew\n```\n"


def test_an_edit_without_content_adds_nothing():
    assert apply_one(Edit("append", f" {APPENDIX.start}\n"), "body") == ("body", "skipped_empty_content")
    assert apply_one(Edit("insert_after", " ", "body"), "body") == ("body", "skipped_empty_content")


def test_a_replacement_without_content_deletes():
    assert apply_one(Edit("replace", "", "b"), "abc") == ("ac", "applied_replace")


def test_edits_are_made_in_order_each_on_what_the_last_one_left():
    skill, reports = apply_edits(
        Skill("a\n"), [Edit("append", "b"), Edit("replace", "c", "b"), Edit("delete", "", "b")]
    )
    assert skill.text == "a\n\nc\n"
    assert [r.status for r in reports] == ["applied_append", "applied_replace", "skipped_delete_target_not_found"]
    assert [r.applied for r in reports] == [True, True, False]


# ---- protection ---------------------------------------------------------------------------------------------------


def test_a_rewrite_that_lost_the_protected_parts_gets_them_back():
    old = add_notes(set_guidance(Skill(FRONT + "\nBody\n"), "guide"), ["note"])
    new = protect(old, "New body\n\n\n")
    assert find_protected_parts(new.text) == find_protected_parts(old.text)
    assert new.text.startswith(FRONT + "\nNew body\n\n" + GUIDANCE.start)
    assert (read_guidance(new), read_notes(new)) == ("guide", ("note",))


def test_a_rewrite_that_kept_them_is_left_alone():
    old = set_guidance(Skill("Body\n"), "guide")
    assert protect(old, f"Better\n\n{SLOW}\n\nand after it").text == f"Better\n\n{SLOW}\n\nand after it\n"


def test_a_rewrite_cannot_change_or_invent_protected_parts():
    old = set_guidance(Skill("Body\n"), "guide")
    forged = f"{FRONT}New\n\n{GUIDANCE.start}\nforged\n{GUIDANCE.end}\n{APPENDIX.start}\n- n\n{APPENDIX.end}\n"
    assert protect(old, forged).text == f"New\n\n{SLOW}\n"
    assert protect(Skill("Body\n"), forged).text == "New\n"
    assert protect(Skill("Body\n"), f"New {GUIDANCE.start}\n").text == "New\n"


# ---- regions ------------------------------------------------------------------------------------------------------


def test_guidance_is_appended_once_and_then_replaced_where_it_is():
    first = set_guidance(Skill("body"), "one")
    assert first.text == f"body\n\n{GUIDANCE.start}\none\n{GUIDANCE.end}\n"
    later = set_guidance(Skill(first.text + "\nafter\n"), "two")
    assert later.text == f"body\n\n{GUIDANCE.start}\ntwo\n{GUIDANCE.end}\n\nafter\n"
    assert read_guidance(later) == "two"
    assert set_guidance(later, "two") == later
    assert read_guidance(Skill("body")) == ""


def test_several_blocks_of_guidance_become_one_and_other_blank_lines_stay():
    text = f"a\n\n\n\nb\n\n{SLOW}\n\nc\n\n{SLOW}\n\nd\n"
    assert set_guidance(Skill(text), "g").text == f"a\n\n\n\nb\n\n{GUIDANCE.start}\ng\n{GUIDANCE.end}\n\nc\n\nd\n"


def test_notes_are_added_once_each():
    skill = add_notes(Skill("body"), ["n1.", "N1", " ", "n2\nmore"])
    assert read_notes(skill) == ("n1.", "n2 more")
    assert skill.text == f"body\n\n{APPENDIX.start}\n{APPENDIX_TITLE}\n- n1.\n- n2 more\n{APPENDIX.end}\n"
    assert add_notes(skill, ["N1!", "n2  MORE;"]) != skill
    assert add_notes(skill, ["n2  MORE;"]) == skill
    assert read_notes(set_notes(skill, ["all"])) == ("all",)
    assert add_notes(Skill("body"), []) == Skill("body")


def test_notes_that_differ_in_case_space_or_final_punctuation_are_the_same():
    assert normalize_note("  Check   the UNIT .; ") == normalize_note("check the unit")
    assert normalize_note("a.b") != normalize_note("ab")


def test_a_region_that_lacks_a_marker_is_none():
    text = f"a {GUIDANCE.start} b"
    assert find_protected_parts(text) == ("",)
    assert remove_regions(text) == "a  b"


# ---- whatever comes in --------------------------------------------------------------------------------------------

PIECES = [
    "- x\n",
    "word ",
    "\n",
    GUIDANCE.start,
    GUIDANCE.end,
    APPENDIX.start,
    APPENDIX.end,
    SLOW + "\n",
    FRONT,
    "---\n",
    "<!-- ",
    "é\u2028",
]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
edits = st.builds(
    Edit,
    op=st.sampled_from(["append", "insert_after", "replace", "delete", "other"]),
    content=texts,
    target=texts | st.sampled_from(["x", "- x", "word", "guide", "\n"]),
)


@settings(deadline=None)
@given(texts, st.lists(edits, max_size=4), st.booleans())
def test_no_edit_ever_changes_a_protected_part(text: str, changes: list[Edit], lenient: bool):
    skill, reports = apply_edits(Skill(text), changes, lenient=lenient)
    assert find_protected_parts(skill.text) == find_protected_parts(text)
    assert len(reports) == len(changes)
    if not any(report.applied for report in reports):
        assert skill.text == text
    assert all(r.status.startswith(("applied", "skipped")) for r in reports)


@settings(deadline=None)
@given(texts, texts)
def test_no_rewrite_ever_changes_a_protected_part(old: str, new: str):
    result = protect(Skill(old), new)
    assert find_protected_parts(result.text) == find_protected_parts(old)
    assert protect(Skill(old), result.text).text == result.text


@settings(deadline=None)
@given(texts, st.lists(texts, max_size=3))
def test_a_skill_gets_back_the_guidance_and_the_notes_it_was_given(text: str, given_notes: list[str]):
    skill = set_guidance(Skill(text), "be good")
    assert read_guidance(skill) == "be good"
    noted = add_notes(skill, given_notes)
    assert read_guidance(noted) == "be good"
    assert add_notes(noted, given_notes) == noted


@settings(deadline=None)
@given(texts, st.sampled_from(["x", "- x", "word", "\n", "zz"]))
def test_an_edit_of_one_place_changes_that_place_only(text: str, target: str):
    skill, (report,) = apply_edits(Skill(text), [Edit("delete", "", target)])
    if report.applied:
        assert text.count(target) >= 1
        assert len(skill.text) == len(text) - len(target)


@pytest.mark.parametrize("front", ["a: " + "[" * 9_000, 'name: a\ndescription: "\\ud800"'])
def test_front_matter_that_cannot_be_read_or_written_is_an_error_of_the_settings(front: str):
    with pytest.raises(ConfigError, match="front matter"):
        _ = Skill(f"---\n{front}\n---\nbody\n").front
