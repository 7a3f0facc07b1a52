"""The agents that Ludus knows, and their installations on this host."""

import os
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.harness import Harness
from ludus.harness.known import CODEX, KNOWN, find_harness, find_installation


def test_a_known_agent_is_found_by_name():
    assert find_harness("codex") is CODEX
    assert all(harness.name == name and harness.command for name, harness in KNOWN.items())
    with pytest.raises(ConfigError, match=r"'mien' is unknown; did you mean 'mine'\?"):
        find_harness("mien", ["mine"])


def test_relative_mounts_are_in_the_folder_of_agents(tmp_path: Path):
    (tmp_path / "codex").mkdir()
    tmp_path.chmod(0o755)
    for part in tmp_path.parents:
        if os.geteuid() == 0 and not part.stat().st_mode & 0o001:
            pytest.skip(f"slots may not enter {part}")
    assert find_installation(CODEX, tmp_path).mounts == ((str(tmp_path / "codex"), "/opt/agents/codex"),)


def test_the_version_that_is_installed_is_on_the_record(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / ".version").write_text("1.2.3\n")
    assert find_installation(Harness(name="tiny", command="true"), tmp_path).label == "tiny@1.2.3"


def test_an_agent_that_is_not_installed_is_refused_with_the_fix(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"codex is not installed.*scripts/setup-agents codex"):
        find_installation(CODEX, tmp_path)


def test_a_folder_that_slots_cannot_see_is_refused(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("slots run as the driver's own user")
    (tmp_path / "codex").mkdir()
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match="slots run as other users"):
        find_installation(CODEX, tmp_path)
