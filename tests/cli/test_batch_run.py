"""What `ludus process` and `ludus evaluate` share."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli_kit import (
    LUDUS,
    SUMS_MODELS,
    Ludus,
    read_calls,
    script_flags,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_quiet_prints_the_path_alone(ludus: Ludus):
    assert ludus("evaluate", "sums.py", "--out", "r", "--quiet", *script_flags()) == (0, "r\n", "")


def test_ids_and_limits_choose_tasks(ludus: Ludus):
    one = ludus("evaluate", "sums.py", "--out", "a", "--json", "--env.ids", "sum-2", *script_flags())
    assert json.loads(one.out)["summary"]["overall"]["tasks"] == 1
    two = ludus("evaluate", "sums.py", "--out", "b", "--json", "--env.limit", "2", *script_flags())
    assert json.loads(two.out)["summary"]["overall"]["tasks"] == 2


def test_a_run_without_any_score_ends_with_1(ludus: Ludus):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("broken"))
    assert code == 1
    assert "ludus evaluate --resume --out r   4 rollouts have no score: run them again" in out


def test_one_rollout_without_a_score_is_singular(ludus: Ludus):
    out = ludus("evaluate", "sums.py", "--out", "r", "--env.limit", "1", *script_flags("broken")).out
    assert "ludus evaluate --resume --out r   1 rollout has no score: run it again" in out


def test_failed_rollouts_are_stated_and_run_again_on_resume(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", *script_flags("half_broken"))
    assert code == 0
    assert "ludus evaluate --resume --out r   2 rollouts have no score: run them again" in out
    (folder / "models.py").write_text(SUMS_MODELS.replace("raise ModelError", "pass  # "))
    again = subprocess.run(
        [*LUDUS, "evaluate", "--resume", "--out", "r", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout)["summary"]["overall"]["scored"] == 4
    assert sorted(read_calls(folder)) == ["0+0", "1+1", "2+2", "3+3"]


def test_settings_are_checked_before_a_run_directory_is_made(
    ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = ["--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m", "--model.api_key_var", "NO_SUCH_KEY"]
    code, _, err = ludus("evaluate", "sums.py", "--out", "r", *server)
    assert code == 2
    assert "model.api_key_var: the environment variable NO_SUCH_KEY is not set" in err
    for tools in ("--tools.enabled=nothing", "--tools.enabled=terminal", "--tools.distribution=terminal_tasks"):
        assert ludus("evaluate", "sums.py", "--out", "r", tools, *script_flags()).code == 2
    assert not (folder / "r").exists()


def test_an_environment_that_breaks_on_import_shows_its_error(ludus: Ludus, folder: Path):
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    code, _, err = ludus("evaluate", "bad.py")
    assert code == 2
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in err
