"""Catalogues: what an agent sees of skills, read from folders."""

from pathlib import Path

import pytest

from ludus.catalogue import SkillCard, list_packages, make_catalogue, read_catalogue, render_catalogue
from ludus.errors import ConfigError


def write_skill(folder: Path, name: str, description: str = "Does it.") -> Path:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n\nWork.\n")
    return folder


def test_a_folder_of_packages_is_a_catalogue_sorted_by_name(tmp_path: Path):
    write_skill(tmp_path / "z", "zebra")
    write_skill(tmp_path / "a", "ape", "Climbs.")
    (tmp_path / "notes").mkdir()
    assert read_catalogue([tmp_path]).cards == (SkillCard("ape", "Climbs."), SkillCard("zebra", "Does it."))


def test_one_package_named_twice_is_in_it_once(tmp_path: Path):
    one = write_skill(tmp_path / "a", "ape")
    assert list_packages([one, tmp_path, tmp_path / "a"]) == [one]


def test_two_packages_of_one_name_are_refused(tmp_path: Path):
    write_skill(tmp_path / "a", "ape")
    write_skill(tmp_path / "b", "ape")
    with pytest.raises(ConfigError, match="two packages are called 'ape'"):
        read_catalogue([tmp_path])


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_place_without_skills_is_refused_by_name(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=name):
        read_catalogue([tmp_path / name])


def test_a_document_without_front_matter_cannot_be_chosen(tmp_path: Path):
    (tmp_path / "SKILL.md").write_text("Work.\n")
    with pytest.raises(ConfigError, match="front matter"):
        read_catalogue([tmp_path])


def test_another_description_is_another_text_and_another_hash():
    catalogue = make_catalogue([SkillCard("a", "One."), SkillCard("b", "Two\nlines.")])
    changed = catalogue.describe("a", "Three.")
    assert "- b: Two lines." in render_catalogue(catalogue).text
    assert render_catalogue(catalogue).hash != render_catalogue(changed).hash
    assert changed.get("b") == catalogue.get("b")
