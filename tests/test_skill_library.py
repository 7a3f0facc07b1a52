"""Libraries: packages read from folders as one value, and hostile ones."""

import os
from pathlib import Path

import pytest
from tests.library_kit import AGAIN, BAD, GOOD, build_library, make_skill, write_library

from ludus.errors import ConfigError
from ludus.skill import Skill, SkillFile
from ludus.skill_library import make_library, make_package, read_library


def test_a_folder_of_packages_is_one_value_sorted_by_name(tmp_path: Path):
    library = read_library(write_library(tmp_path, GOOD, BAD))
    assert library.names == ("alpha-good", "beta-bad")
    assert library == build_library(BAD, GOOD)
    assert library.get("beta-bad").skill == BAD


def test_the_hash_is_that_of_all_packages_and_no_other():
    library = build_library(GOOD, BAD)
    others = [
        library.leave_out("beta-bad"),
        library.put(AGAIN),
        library.put(Skill(GOOD.text + "x\n")),
        library.put(Skill(GOOD.text, (SkillFile("a.md", "x\n"),))),
        library.leave_out(*library.names),
    ]
    assert len({each.hash for each in (library, *others)}) == 6
    assert library.put(AGAIN).leave_out("alpha-again").hash == library.hash


def test_a_package_is_put_in_place_of_the_one_of_its_name():
    changed = build_library(GOOD, BAD).put(Skill(GOOD.text + "More.\n"))
    assert changed.names == ("alpha-good", "beta-bad")
    assert changed.get("alpha-good").skill.text.endswith("More.\n")


def test_two_packages_of_one_name_are_refused(tmp_path: Path):
    write_library(tmp_path / "a", GOOD)
    write_library(tmp_path / "b", GOOD)
    (tmp_path / "a" / "alpha-good").rename(tmp_path / "one")
    (tmp_path / "b" / "alpha-good").rename(tmp_path / "two")
    with pytest.raises(ConfigError, match="two packages are called 'alpha-good'"):
        read_library(tmp_path)


def test_one_skill_is_no_library(tmp_path: Path):
    with pytest.raises(ConfigError, match="is one skill: name the folder that it lies in"):
        read_library(write_library(tmp_path, GOOD) / "alpha-good")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no head at all\n", "no front matter"),
        ("---\nname: Bad Name\ndescription: x\n---\n", "Bad Name"),
        ("---\nname: ../up\ndescription: x\n---\n", "up"),
        ("---\nname: a\ndescription: &x [*x]\n---\n", "anchors"),
    ],
)
def test_a_package_that_no_agent_could_choose_is_refused_by_its_folder(tmp_path: Path, text: str, why: str):
    folder = write_library(tmp_path, GOOD)
    (folder / "odd").mkdir()
    (folder / "odd" / "SKILL.md").write_text(text)
    with pytest.raises(ConfigError, match=f"odd.*{why}"):
        read_library(folder)


def test_links_and_too_many_files_in_a_package_are_refused(tmp_path: Path):
    folder = write_library(tmp_path, GOOD)
    link = folder / "alpha-good" / "secret.md"
    link.symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="is a link"):
        read_library(folder)
    link.unlink()
    for number in range(501):
        (folder / "alpha-good" / f"{number}.md").write_text("x")
    with pytest.raises(ConfigError, match="more than 500 files"):
        read_library(folder)


def test_a_library_has_a_size_limit():
    large = SkillFile("large.md", "x" * 2**20)
    skills = [make_package(make_skill(f"s{number}", "x", files=(large,))) for number in range(17)]
    with pytest.raises(ConfigError, match="at most 16,777,216"):
        make_library(skills)
    with pytest.raises(ConfigError, match="at most 200"):
        make_library(make_package(make_skill(f"s{number}", "x")) for number in range(201))


def test_a_pipe_beside_the_packages_is_not_opened(tmp_path: Path):
    folder = write_library(tmp_path, GOOD)
    os.mkfifo(folder / "pipe")
    assert read_library(folder).names == ("alpha-good",)
