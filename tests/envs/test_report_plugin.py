import subprocess
import sys
from pathlib import Path

from ludus.envs import report_plugin


def run_pytest(folder: Path, test: str, *options: str) -> None:
    (folder / "ludus_report.py").write_text(Path(report_plugin.__file__).read_text())
    (folder / "test_it.py").write_text(test)
    env = {"PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p ludus_report"}
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder), str(folder), *options]
    subprocess.run(command, env=env, cwd=folder, capture_output=True, check=False)


def test_it_reports_each_phase_after_the_secret_and_removes_the_secret(tmp_path: Path):
    (tmp_path / "secret").write_text("s3")
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    run_pytest(tmp_path, "def test_a(): ...\n\n\ndef test_b():\n    assert 0\n", "--continue-on-collection-errors")
    lines = (tmp_path / "report").read_text().splitlines()
    assert all(line.startswith("s3 ") for line in lines)
    assert [line for line in lines if '"call"' in line and "test_a" in line] == [
        's3 ["test_it.py::test_a", "call", "passed", ""]'
    ]
    assert any('["test_broken.py", "collect", "failed"' in line for line in lines)
    assert lines[-1] == 's3 ["end", 1]'
    assert not (tmp_path / "secret").exists()


def test_a_second_run_reports_nothing(tmp_path: Path):
    run_pytest(tmp_path, "def test_a(): ...\n")
    assert not (tmp_path / "report").exists()
