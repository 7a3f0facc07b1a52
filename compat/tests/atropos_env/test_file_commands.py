"""Files of other systems at the command line: how they are named, started and configured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from compat.tests.file_kit import ENVIRONMENTS, flags, read_jsonl, write_files
from tests.cli_kit import Ludus

ARITHMETIC = "atropos_arithmetic_env.py"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUDUS_FILE_API_KEY", "")  # commands set it
    write_files(tmp_path, ARITHMETIC, "hermes_repo_fix_env.py", "hermes_notes_env.py")
    return tmp_path


def read_config(ludus: Ludus, file: str, *words: str, command: str = "process"):
    done = ludus(command, file, "--print-config", *words)
    assert done.code == 0, done.err
    return yaml.safe_load(done.out)


def test_a_file_starts_by_itself_when_its_imports_are_changed(folder: Path):
    text = (ENVIRONMENTS / ARITHMETIC).read_text()
    (folder / "own.py").write_text(
        re.sub(r"(?m)^from atroposlib[\w.]* import", "from ludus.compat.atroposlib import", text)
    )
    words = ["process", "--env.total_steps", "1", *flags("sums"), "--out", "run", "--quiet"]
    done = subprocess.run([sys.executable, "own.py", *words], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert read_jsonl("run/atropos_groups.jsonl")[0]["scores"] == [1.0] * 4
    wrong = subprocess.run([sys.executable, "own.py", "dance"], capture_output=True, text=True, cwd=folder, check=False)
    assert wrong.returncode == 2 and "process|serve|evaluate|train" in wrong.stderr


def test_a_file_of_hermes_imports_from_one_module(folder: Path):
    text = (ENVIRONMENTS / "hermes_notes_env.py").read_text()
    (folder / "own.py").write_text(
        re.sub(r"(?m)^from (atroposlib|environments)[\w.]* import", "from ludus.compat.hermes import", text)
    )
    code = "import own, ludus.compat.hermes as base; assert issubclass(own.NotesEnv, base.HermesAgentBaseEnv)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr


def test_names_of_both_systems_work_together(ludus: Ludus):
    Path("theirs.yaml").write_text(
        "env: {group_size: 8, use_wandb: false, max_num_workers: 3, rollout_server_url: 'http://h:1'}\n"
        "openai: [{model_name: big, base_url: 'http://h:9/v1', server_type: sglang, tokenizer_name: ., timeout: 60}]\n"
        "slurm: false\ntesting: false\ntinker: {lora_rank: 4}\n"
    )
    words = ["--config", "theirs.yaml", "--env.total_steps=5", "--run.retries", "0", "--model.price.prompt", "2"]
    found = read_config(ludus, f"atropos:{ARITHMETIC}", *words, "--slurm", "False", command="serve")
    assert found["env"]["settings"]["group_size"] == 8 and found["env"]["settings"]["total_steps"] == 5
    assert found["run"]["concurrency"] == 24 and found["run"]["retries"] == 0
    model = found["model"]
    assert (model["name"], model["base_url"], model["mode"], model["engine"]) == (
        "big",
        "http://h:9/v1",
        "token",
        "sglang",
    )
    assert model["tokenizer"] == "." and model["timeouts"]["total"] == 60.0 and model["price"]["prompt"] == 2.0
    assert found["serve"]["server"] == "http://h:1" and found["serve"]["steps"] == 5
    assert found["serve"]["eval_every"] == 25 and found["serve"]["eval_handling"] == "stop"


def test_flat_settings_of_hermes_become_a_sandbox(ludus: Ludus):
    found = read_config(
        ludus, "hermes:hermes_repo_fix_env.py", "--env.tool_pool_mode", "modal", "--env.check_timeout_s", "5"
    )
    sandbox = found["sandbox"]
    assert sandbox["backend"] == "modal" and sandbox["modal"]["app"] == "repo-fix" and sandbox["max_slots"] == 8
    assert sandbox["modal"]["env"] == {"PYTHONDONTWRITEBYTECODE": "1"} and sandbox["network"] is False
    assert found["env"]["settings"]["check_timeout_s"] == 5.0
    nomad = read_config(ludus, "hermes:hermes_repo_fix_env.py", "--env.nomad_address", "http://n:4646")["sandbox"]
    assert nomad["backend"] == "nomad" and nomad["nomad"]["address"] == "http://n:4646"
    docker = read_config(ludus, "hermes:hermes_notes_env.py", "--env.terminal_backend", "docker")["sandbox"]
    assert docker["backend"] == "docker" and docker["docker"]["image"]
    lists = read_config(
        ludus, "hermes:hermes_notes_env.py", "--env.enabled_toolsets", '["terminal"]', "--env.disabled_toolsets", "None"
    )
    assert lists["env"]["settings"]["enabled_toolsets"] == ["terminal"]
    assert lists["env"]["settings"]["disabled_toolsets"] is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--env.grup_size", "4"], "env.grup_size: unknown setting; did you mean 'group_size'"),
        (["--env.group_size", "many"], "env.group_size"),
        (["--env.split", "test"], "env.split is not for a file that chooses its own items"),
        (["--openai.server_type", "trl"], "use openai, vllm or sglang"),
        (["--openai.modell", "x"], "openai.modell: unknown setting"),
        (["--testing", "True"], "--model.type scripted"),
        (["--slurm", "true", "--openai.base_url", ""], "servers are not searched on SLURM nodes"),
        (["--env.max_batches_offpolicy", "0"], "at least 1"),
        (["--nonsense.x", "1"], "unknown setting"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(ludus: Ludus, words: list[str], problem: str):
    done = ludus("process", f"atropos:{ARITHMETIC}", "--print-config", *words)
    assert done.code == 2 and problem in done.err, done.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--env.terminal_backend", "daytona"], "env.terminal_backend is 'daytona'"),
        (["--env.purge_job_on_shutdown", "false"], "jobs are always removed"),
        (["--env.modal_workspace_base", "/x"], "slots always see their files at /workspace"),
        (["--env.tool_pool_mode", "moon"], "tool_pool_mode"),
        (["--env.max_agent_turns", "0"], "env.max_agent_turns"),
    ],
)
def test_what_a_slot_cannot_be_is_refused_with_a_sentence(ludus: Ludus, words: list[str], problem: str):
    done = ludus("process", "hermes:hermes_notes_env.py", "--print-config", *words)
    assert done.code == 2 and problem in done.err, done.err


def test_a_file_that_is_no_environment_is_named(ludus: Ludus):
    Path("nothing.py").write_text("x = 1\n")
    Path("two.py").write_text(
        "from atroposlib.envs.base import BaseEnv\nclass One(BaseEnv): pass\nclass Two(BaseEnv): pass\n"
    )
    Path("broken.py").write_text("import no_such_thing\n")
    for file, problem in {
        "nothing.py": "no class derived from BaseEnv",
        "two.py": "choose one: two.py:One, two.py:Two",
        "broken.py": "No module named 'no_such_thing'",
        "missing.py": "there is no file",
    }.items():
        done = ludus("process", f"atropos:{file}")
        assert done.code == 2 and problem in done.err, done.err
    assert "atroposlib" not in sys.modules


def test_a_key_is_used_and_never_recorded(ludus: Ludus):
    words = [
        "--openai.api_key",
        "sk-very-secret-key-1234",
        "--openai.base_url",
        "http://127.0.0.1:1/v1",
        "--out",
        "run",
    ]
    found = ludus("process", f"atropos:{ARITHMETIC}", "--print-config", *words)
    assert "very-secret" not in found.out + found.err
    assert yaml.safe_load(found.out)["model"]["api_key_var"] == "LUDUS_FILE_API_KEY"


@pytest.mark.parametrize("command", ["process", "train"])
def test_a_key_that_was_typed_is_not_in_the_run_directory(ludus: Ludus, command: str):
    words = ["--openai.api_key", "sk-very-secret-key-1234", "--env.total_steps", "6", "--out", "run"]
    words += ["--data.ratio", "1:1:1", "--train.proposer", "exemplars"] if command == "train" else []
    done = ludus(command, f"atropos:{ARITHMETIC}", *words, *flags("sums"))
    assert done.code == 0, done.err
    assert all(b"very-secret" not in path.read_bytes() for path in Path("run").rglob("*") if path.is_file())
