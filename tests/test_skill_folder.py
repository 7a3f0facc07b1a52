"""Packages as folders: what is kept as it is, what is refused and why, and that nothing outside is read."""

import os
import socket
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.skill import (
    DOCUMENT,
    FILE_BYTES,
    PACKAGE_FILES,
    Edit,
    Skill,
    SkillFile,
    apply_edits,
    change_description,
    find_path_fault,
    make_file,
    parse_file,
    render_file,
)
from ludus.skill_folder import read_package, read_skill, render_package, write_package

HEAD = "---\nname: unit-work\ndescription: Converts units. Use it for lengths.\n---\n\n"
DOC = f"{HEAD}# Units\n\nRead references/units.md.\n"


def make_folder(place: Path, files: dict[str, bytes] | None = None, document: str = DOC) -> Path:
    folder = place / "unit-work"
    for path, content in {DOCUMENT: document.encode(), **(files or {})}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_a_folder_is_one_value_with_one_hash(tmp_path: Path):
    folder = make_folder(tmp_path, {"references/units.md": b"1 in = 2.54 cm\n", "scripts/c.py": b"print(1)\n"})
    (folder / "scripts/c.py").chmod(0o755)
    skill = read_skill(folder)
    assert skill.paths == ("SKILL.md", "references/units.md", "scripts/c.py")
    assert skill.front and skill.front.name == "unit-work"
    assert skill.files[1].executable and skill.files[1].is_script and not skill.files[0].is_script
    (folder / "scripts/c.py").chmod(0o644)
    other = read_skill(folder)
    (folder / "scripts/c.py").write_bytes(b"print(2)\n")
    assert len({skill.hash, other.hash, read_skill(folder).hash, Skill(skill.text).hash}) == 4


def test_a_document_alone_has_the_hash_and_the_stored_form_that_it_always_had(tmp_path: Path):
    skill = read_skill(make_folder(tmp_path))
    assert skill == Skill(DOC)
    assert msgspec.json.decode(msgspec.json.encode(skill)) == {"text": DOC}
    assert skill == read_skill(tmp_path / "unit-work" / "SKILL.md")


def test_what_is_no_text_is_kept_byte_for_byte(tmp_path: Path):
    data = bytes(range(256))
    skill = read_package(make_folder(tmp_path, {"assets/x.bin": data, "assets/latin.txt": "é".encode("latin-1")}))
    stored = msgspec.json.decode(msgspec.json.encode(skill), type=Skill)
    assert stored == skill and stored.hash == skill.hash
    file = skill.get_file("assets/x.bin")
    assert file and file.content == data and skill.read("assets/x.bin") is None
    write_package(render_package(skill, "unit-work", "x"), tmp_path / "copy")
    assert read_package(tmp_path / "copy") == skill


def test_caches_and_version_control_are_no_part_of_a_package(tmp_path: Path):
    folder = make_folder(tmp_path, {".git/HEAD": b"x", "scripts/__pycache__/c.pyc": b"x", "scripts/c.py": b"pass\n"})
    assert read_package(folder).paths == ("SKILL.md", "scripts/c.py")


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "SKILL.md", "missing"])
def test_a_link_is_refused_and_never_followed(tmp_path: Path, target: str):
    (tmp_path / "secret").write_text("the secret")
    folder = make_folder(tmp_path)
    (folder / "notes.md").symlink_to(target)
    with pytest.raises(ConfigError, match=r"notes\.md is a link"):
        read_package(folder)


def test_a_linked_folder_and_a_linked_document_are_refused(tmp_path: Path):
    folder = make_folder(tmp_path)
    (folder / "references").symlink_to("/etc")
    with pytest.raises(ConfigError, match="references is a link"):
        read_package(folder)
    (folder / "references").unlink()
    (folder / DOCUMENT).unlink()
    (folder / DOCUMENT).symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match=r"SKILL\.md is a link"):
        read_package(folder)


def test_pipes_and_sockets_are_refused_without_waiting(tmp_path: Path):
    folder = make_folder(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="pipe is a pipe"):
        read_package(folder)
    (folder / "pipe").unlink()
    here = Path.cwd()
    os.chdir(folder)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as held:
            held.bind("s")
            with pytest.raises(ConfigError, match="a pipe, a socket or a device"):
                read_package(folder)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("name", ["a\nb.md", "a\x1b[31m.md", "b\\c.md", "skill.md", os.fsdecode(b"\xff.md"), "x" * 201])
def test_names_that_cannot_be_kept_are_refused_in_one_line(tmp_path: Path, name: str):
    folder = make_folder(tmp_path, {name: b"x"})
    with pytest.raises(ConfigError) as caught:
        read_package(folder)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["über.md", "with space.md", "-rf", "$(id).md", "'quoted'.md", "..dots"])
def test_odd_names_that_are_harmless_are_kept(tmp_path: Path, name: str):
    skill = read_package(make_folder(tmp_path, {f"references/{name}": b"x"}))
    assert skill.paths[1] == f"references/{name}"


def test_large_files_and_many_files_are_refused_with_the_limit(tmp_path: Path):
    folder = make_folder(tmp_path, {"big.bin": b"\0" * (FILE_BYTES + 1)})
    with pytest.raises(ConfigError, match=r"big\.bin has more than 1,048,576 bytes"):
        read_package(folder)
    with (folder / "big.bin").open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(ConfigError, match=r"big\.bin has more than"):
        read_package(folder)
    (folder / "big.bin").unlink()
    for number in range(5):
        (folder / f"{number}.bin").write_bytes(b"\0" * FILE_BYTES)
    with pytest.raises(ConfigError, match="together"):
        read_package(folder)
    many = make_folder(tmp_path / "many", {f"r/{number}": b"" for number in range(PACKAGE_FILES + 1)})
    with pytest.raises(ConfigError, match="500 files"):
        read_package(many)


def test_a_deep_folder_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="8 parts"):
        read_package(make_folder(tmp_path, {"/".join("abcdefghi"): b"x"}))


def test_a_document_of_other_bytes_is_refused(tmp_path: Path):
    (tmp_path / "skill.md").write_bytes(b"\xff\xfeA\x00")
    with pytest.raises(ConfigError, match=r"skill\.md is not UTF-8 text"):
        read_skill(tmp_path / "skill.md")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path):
    folder = make_folder(tmp_path, {"r.md": b"x"})
    (folder / "r.md").chmod(0)
    with pytest.raises(ConfigError, match=r"r\.md cannot be read"):
        read_package(folder)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"\xff\xfe-\0-\0", "not UTF-8"),
        (b"\xef\xbb\xbf---\nname: a\n", "byte order mark"),
        (b"---\nname: Not Allowed\ndescription: x\n---\n", "name"),
        (b"---\nname: a\ndescription: x\nextra: 1\n---\n", "extra"),
    ],
)
def test_a_document_that_agents_cannot_read_is_refused(tmp_path: Path, document: bytes, reason: str):
    folder = make_folder(tmp_path)
    (folder / DOCUMENT).write_bytes(document)
    with pytest.raises(ConfigError, match=reason):
        read_package(folder)


def test_a_folder_without_a_document_is_no_skill(tmp_path: Path):
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match=r"has no SKILL\.md"):
        read_skill(tmp_path / "x")
    with pytest.raises(ConfigError, match="there is no file"):
        read_skill(tmp_path / "y")


def test_front_matter_that_stands_for_a_text_without_end_is_refused():
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ConfigError, match="anchors or aliases"):
        _ = Skill(f"---\n{bomb}---\n").front
    with pytest.raises(ConfigError, match="at most 20,000"):
        _ = Skill(f"---\nname: a\ndescription: {'x' * 30_000}\n---\n").front
    with pytest.raises(ConfigError):
        _ = Skill(f"---\nname: a\ndescription: x\nmetadata: {'[' * 9_000}\n---\n").front


# ---- writing --------------------------------------------------------------------------------------------------------


def test_writing_replaces_a_folder_as_a_whole(tmp_path: Path):
    skill = Skill(DOC, (SkillFile("references/a.md", "a\n"), SkillFile("scripts/b.sh", "#!/bin/sh\n", b"", True)))
    target = tmp_path / "out" / "unit-work"
    write_package(render_package(skill, "unit-work", "x"), target)
    assert os.access(target / "scripts/b.sh", os.X_OK)
    write_package(render_package(skill.remove_file("references/a.md"), "unit-work", "x"), target)
    assert not (target / "references").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["unit-work"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "", "."])
def test_no_path_leads_out_of_a_package(tmp_path: Path, path: str):
    with pytest.raises(ValueError):
        write_package({path: (b"x", False)}, tmp_path / "out")
    with pytest.raises(ValueError):
        Skill("", (SkillFile(path, "x"),))
    assert apply_edits(Skill("x"), [Edit("write", "x", path=path)])[1][0].status.startswith("skipped")


STAMP = {"ludus-version": "3", "ludus-claim": "+4.0 points (95 %: +1.0 to +7.0): 'tested' # on test"}


@pytest.mark.parametrize(
    "document",
    [
        "plain text\n",
        DOC,
        "---\nname: a\ndescription: b\nmetadata:\n  author: me\n---\ntext",
        "---\nname: a\nmetadata:\n    author: me\n    ludus: x\ndescription: b\n---\n\ntext\n",
        "---\nname: a\ndescription: >\n  folded\n  text\nmetadata: {a: b}\n---\ntext",
        "",
    ],
)
def test_a_stamped_document_is_read_as_the_text_that_was_measured(document: str):
    skill = Skill(document, (SkillFile("r.md", "x"),))
    text = render_file(skill, "task-skill", "What to do.", {**STAMP, "ludus-skill": skill.hash})
    assert parse_file(text).text == document
    front = Skill(text).front
    assert front is not None
    if "{a: b}" not in document:
        assert front.metadata["ludus-claim"] == STAMP["ludus-claim"]
        assert front.metadata["ludus-skill"] == skill.hash


def test_a_stamp_on_another_text_is_part_of_the_text():
    text = render_file(Skill(DOC), "x", "y", STAMP) + "More.\n"
    assert parse_file(text) == Skill(text)


def test_only_the_description_is_replaced():
    skill = Skill("---\nname: a\ndescription: >\n  one\n\n  two\nlicense: MIT\n---\ntext\n", (SkillFile("r.md", "x"),))
    changed = change_description(skill, "Colons: 'quotes' and # signs")
    assert changed.front and changed.front.description == "Colons: 'quotes' and # signs"
    assert changed.front.license == "MIT" and changed.body == skill.body and changed.files == skill.files
    with pytest.raises(ConfigError, match="1,024"):
        change_description(skill, "x" * 1025)
    with pytest.raises(ConfigError, match="no description"):
        change_description(Skill("text"), "x")


# ---- edits ----------------------------------------------------------------------------------------------------------

CODE = "def f():\n    return 2\n"
PACKAGE = Skill(DOC, (SkillFile("r.md", "one\ntwo\n"), SkillFile("scripts/c.py", "def f():\n    return 1\n")))


@pytest.mark.parametrize(
    ("edit", "path", "text", "status"),
    [
        (Edit("append", "three", path="r.md"), "r.md", "one\ntwo\n\nthree\n", "applied_append"),
        (Edit("replace", "    return 2", "    return 1", path="scripts/c.py"), "scripts/c.py", CODE, "applied_replace"),
        (Edit("append", "new", path="references/new.md"), "references/new.md", "new\n", "applied_append"),
        (Edit("write", "#!/bin/sh\n", path="scripts/n"), "scripts/n", "#!/bin/sh\n", "applied_write"),
        (Edit("delete", "", "one\n", path="r.md"), "r.md", "two\n", "applied_delete"),
        (Edit("append", "x", path="SKILL.md"), "", f"{DOC.rstrip()}\n\nx\n", "applied_append"),
        (Edit("replace", "x", "one", path="none.md"), "none.md", None, "skipped_file_not_found"),
        (Edit("remove", path="none.md"), "none.md", None, "skipped_file_not_found"),
        (Edit("remove", path="r.md"), "r.md", None, "applied_remove"),
        (Edit("remove"), "", DOC, "skipped_document"),
        (Edit("write", "x", path="SKILL.md"), "", DOC, "skipped_document"),
        (Edit("write", "x", path="r.md/x"), "r.md/x", None, "skipped_bad_path"),
        (Edit("write", "x" * (FILE_BYTES + 1), path="big.md"), "big.md", None, "skipped_bad_path"),
        (Edit("write", " \n", path="e.md"), "e.md", None, "skipped_empty_content"),
    ],
)  # fmt: skip
def test_an_edit_changes_the_file_at_its_path(edit: Edit, path: str, text: str | None, status: str):
    changed, [report] = apply_edits(PACKAGE, [edit])
    assert (changed.read(path), report.status) == (text, status)
    untouched = [each for each in PACKAGE.paths if each != (path or DOCUMENT)]
    assert [changed.read(each) for each in untouched] == [PACKAGE.read(each) for each in untouched]


def test_protected_parts_of_a_file_stay():
    guarded = "<!-- APPENDIX_START -->\nkeep\n<!-- APPENDIX_END -->\n"
    skill = Skill("x", (SkillFile("r.md", guarded), SkillFile("x.bin", "", b"\xff")))
    edits = [Edit("remove", path="r.md"), Edit("write", "x", path="r.md"), Edit("delete", "", "keep", path="r.md")]
    changed, reports = apply_edits(skill, [*edits, Edit("append", "x", path="x.bin")])
    assert changed == skill
    assert [r.status for r in reports] == ["skipped_protected_region"] * 3 + ["skipped_not_text"]


PATHS = st.sampled_from(["r.md", "a/b.md", "a", "scripts/c.py", "../x", "SKILL.md", "", "x\ny"])
EDITS = st.builds(
    Edit,
    st.sampled_from(["append", "insert_after", "replace", "delete", "write", "remove"]),
    st.sampled_from(["", "one", "two\n", "<!-- APPENDIX_START -->", "#!/bin/sh\n"]),
    st.sampled_from(["", "one", "two"]),
    path=PATHS,
)


@given(st.lists(EDITS, max_size=8))
def test_whatever_edits_are_made_a_package_stays_one(edits: list[Edit]):
    changed, reports = apply_edits(PACKAGE, edits)
    assert len(reports) == len(edits)
    assert not any(find_path_fault(file.path) for file in changed.files)
    assert changed.text.startswith(HEAD.rstrip())
    stored = msgspec.json.decode(msgspec.json.encode(changed), type=Skill)
    assert stored == changed and stored.hash == changed.hash


@given(st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "é"]), st.binary(max_size=8), max_size=4))
def test_the_hash_depends_on_every_byte_and_not_on_the_order(files: dict[str, bytes]):
    one = Skill("x", tuple(make_file(path, files[path]) for path in sorted(files)))
    other = Skill("x")
    for path in sorted(files, reverse=True):
        other = other.put_file(make_file(path, files[path]))
    assert one.hash == other.hash
    for path in files:
        assert one.put_file(make_file(path, files[path] + b"!")).hash != one.hash
        assert one.remove_file(path).hash != one.hash
