"""A staged patch: bytes that do not change stay, and nothing private gets in."""

from pathlib import Path

import pytest
from tests.sleep_kit import write_live

from ludus.errors import ConfigError
from ludus.skill import Skill, render_file
from ludus.skill_folder import read_skill
from ludus.sleep.adoption import adopt, find_obstacle
from ludus.sleep.night import DIFF, NIGHT, PROPOSED, RECEIPT, Night, Receipt, read_struct, write_struct
from ludus.sleep.staging import make_files, read_base_diff, read_live, stage, write_diff


def make_receipt(live: Path) -> Receipt:
    return Receipt(
        night="n", skill="forms", live=str(live), base="", proposal="", base_files={}, proposed_files={}, changes=(),
        measured=True, claim="better",
    )  # fmt: skip


def change(skill: Skill, old: str, new: str) -> Skill:
    return skill.change_text(skill.text.replace(old, new))


def test_a_folder_of_nights_may_be_reached_through_a_link(tmp_path: Path):
    """A home or a temporary folder is a link on some systems. A night must not find out after its training."""
    path = write_live(tmp_path / "skills")
    (tmp_path / "real").mkdir()
    (tmp_path / "nights").symlink_to("real")
    write_struct(tmp_path / "nights" / NIGHT, Night(name="n", begun=0.0))
    live = read_live(path)
    folder = tmp_path / "nights" / "night"
    receipt = stage(folder, live, change(live.skill, "every field", "each field"), make_receipt(path))
    assert find_obstacle(folder, receipt) == [] and read_base_diff(folder, receipt) == ""
    adopt(folder, receipt, "ada")
    assert "each field" in (path / "SKILL.md").read_text()
    adopt(folder, receipt, "ada", "revert")
    assert read_live(path) == live


def test_a_package_is_staged_and_adopted(tmp_path: Path):
    path = write_live(tmp_path / "skills")
    live = read_live(path)
    skill = change(live.skill, "every field", "every field, dates as ISO").remove_file("references/old.md")
    write_struct(tmp_path / NIGHT, Night(name="n", begun=0.0))
    receipt = stage(tmp_path / "night", live, skill, make_receipt(path))
    assert receipt.changes == ("SKILL.md has other content", "references/old.md was removed")
    assert (receipt.base, receipt.proposal) == (live.skill.hash, skill.hash)
    diff = (tmp_path / "night" / DIFF).read_text()
    assert "+Fill every field, dates as ISO." in diff and "+++ /dev/null" in diff
    assert read_struct(tmp_path / "night" / RECEIPT, Receipt) == receipt
    adopt(tmp_path / "night", receipt, "ada")
    assert read_skill(path) == skill
    (path / "SKILL.md").write_text("mine\n")
    assert "+mine" in read_base_diff(tmp_path / "night", receipt)


def test_carriage_returns_stay(tmp_path: Path):
    path = tmp_path / "SKILL.md"
    path.write_bytes(b"# A\r\n\r\nOne.\r\n")
    live = read_live(path)
    files = make_files(live, change(live.skill, "One.", "One.\nTwo."))
    assert files[""].content == b"# A\r\n\r\nOne.\r\nTwo.\r\n"


def test_front_matter_that_was_added_to_a_text_stays(tmp_path: Path):
    path = tmp_path / "SKILL.md"
    path.write_text(render_file(Skill("Do it.\n"), "forms", "Fills forms."))
    live = read_live(path)
    assert live.skill.text == "Do it.\n"
    new = make_files(live, Skill("Do it twice.\n"))[""].content.decode()
    assert new.startswith("---\nname: forms\ndescription: Fills forms.\n") and new.endswith("Do it twice.\n")


def test_what_is_not_changed_keeps_its_bytes(tmp_path: Path):
    path = write_live(tmp_path / "skills")
    (path / "references" / "data.bin").write_bytes(b"\xff\x00")
    live = read_live(path)
    assert {name: file.content for name, file in make_files(live, live.skill).items()} == dict(live.contents)
    assert write_diff(live, make_files(live, live.skill)) == ""


@pytest.mark.parametrize("line", ["Write to eve.rogers@corp-mail.io", "Use AKIAIOSFODNN7EXAMPLQ as key"])
def test_lines_with_private_data_are_not_staged(tmp_path: Path, line: str):
    path = write_live(tmp_path / "skills")
    live = read_live(path)
    with pytest.raises(ConfigError, match="looks like a secret or personal data") as error:
        stage(tmp_path / "night", live, change(live.skill, "every field", line), make_receipt(path))
    assert "eve.rogers" not in str(error.value) and "AKIA" not in str(error.value)
    assert not (tmp_path / "night" / PROPOSED).exists()


def test_a_link_to_a_live_skill_is_resolved_once(tmp_path: Path):
    path = write_live(tmp_path / "skills")
    (tmp_path / "link").symlink_to(path)
    assert read_live(tmp_path / "link").path == str(path)
