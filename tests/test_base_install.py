"""What users install: the distributions build, and their commands work without extras and as the README says."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.cli_kit import script_flags, write_rules, write_sums
from tests.install_kit import (
    ROOT,
    Distributions,
    Done,
    Installation,
    add_packages,
    build_distributions,
    install,
    make_variables,
    run_words,
)
from tests.readme_kit import Block, read_blocks, write_script

from ludus.config.secrets import find_weights_folder
from ludus.errors import ConfigError
from ludus.models.weights import find_weights


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build_distributions(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def base(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """`pip install ludus-train`, from the wheel."""
    return install(tmp_path_factory.mktemp("base") / "venv", str(distributions.core_wheel))


@pytest.fixture(scope="module")
def demo(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What `make demo` installs, from the sdist."""
    return install(tmp_path_factory.mktemp("demo") / "venv", f"{distributions.core_sdist}[local]")


@pytest.fixture
def weights() -> Path:
    """The weights of the embedded model."""
    try:
        return find_weights(None, find_weights_folder())
    except ConfigError as error:
        pytest.skip(str(error))


def check_done(done: Done) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done.stdout


# ---- the distributions --------------------------------------------------------------------------------------------


def test_the_sdist_is_the_core_alone(distributions: Distributions):
    with tarfile.open(distributions.core_sdist) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert "src/ludus/cli/__init__.py" in names and "README.md" in names
    assert [name for name in names if name.startswith("compat/")] == []


IMPORT_ALL = """
import importlib, pkgutil
import ludus.compat
from ludus.errors import ConfigError

for module in pkgutil.walk_packages(ludus.compat.__path__, "ludus.compat."):
    try:
        importlib.import_module(module.name)
    except ConfigError as error:  # it needs an extra
        assert "pip install 'ludus-train[" in str(error), error
print(ludus.__file__, ludus.compat.__file__)
"""


def test_the_package_of_other_systems_is_installed_beside_the_core(
    distributions: Distributions, base: Installation, tmp_path: Path
):
    core, compat = list_files(distributions.core_wheel), list_files(distributions.compat_wheel)
    assert core & compat == set(), "removing one would remove files of the other"
    both = Installation(shutil.copytree(base.folder, tmp_path / "venv", symlinks=True))
    add_packages(both, str(distributions.compat_wheel))
    places = run_words([both.python, "-c", IMPORT_ALL], cwd=tmp_path).stdout.split()
    assert [Path(place).is_relative_to(both.folder) for place in places] == [True, True]


def list_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


# ---- without extras -----------------------------------------------------------------------------------------------


def test_the_base_has_no_extras(base: Installation):
    found = {path.name for path in base.folder.glob("lib/python*/site-packages/*")}
    assert "msgspec" in found and "ludus" in found
    assert not found & {"tokenizers", "jinja2", "xllamacpp", "pydantic", "numpy", "torch"}


HELP = """
import sys
from ludus.cli import main

for name in sys.argv[1:]:
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code
    print(f"{name}: {code}", file=sys.stderr)
"""


def test_every_command_answers_help(base: Installation, tmp_path: Path):
    commands = re.findall(r"^  ([a-z]+)  ", check_done(base.run_ludus("--help", cwd=tmp_path)), re.M)
    assert {"evaluate", "process", "train", "rl", "show", "gateway", "api"} <= set(commands)
    done = run_words([base.python, "-c", HELP, *commands], cwd=tmp_path)
    assert done.stderr.splitlines() == [f"{name}: 0" for name in commands]
    assert done.stdout.count("usage: ludus") == len(commands)


ROWS = {
    "tokens": [[5, 6, 7], [5, 6, 9]],
    "masks": [[-100, -100, 7], [-100, -100, 9]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, 1.0, -0.5], [1.0, 1.0, -2.0]],
}


def test_runs_are_made_read_compared_and_exported(base: Installation, tmp_path: Path):
    write_sums(tmp_path)
    model = script_flags()
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS) + "\n")
    for line, printed in {
        "validate sums.py": "sums",
        "evaluate sums.py --out first": "mean",
        "evaluate sums.py --out second": "mean",
        "process sums.py --env.group_size 2 --out groups": "groups",
        "show first": "mean",
        "show first sum-1": "1+1",
        "compare first second": "first",
        "export groups --format openai": '"role":"assistant"',
        "check rows.jsonl": "1 groups, 2 rows",
    }.items():
        words = line.split()
        flags = model if words[0] in ("evaluate", "process") else []
        assert printed in check_done(base.run_ludus(*words, *flags, cwd=tmp_path)), line


def test_a_skill_is_trained_and_its_steps_are_shown(base: Installation, tmp_path: Path):
    write_rules(tmp_path)
    check_done(base.run_ludus("train", "--config", "config.yaml", "--out", "run", cwd=tmp_path))
    assert "step 1" in check_done(base.run_ludus("show", "run", cwd=tmp_path))
    assert check_done(base.run_ludus("export", "run", "--format", "openai", cwd=tmp_path))


NEED_EXTRAS = {
    "evaluate sums.py": "local",
    "evaluate sums.py --model.mode token --model.name x --model.base_url http://127.0.0.1:9/v1": "tokens",
    "evaluate sums.py SCRIPTED --config mcp.yaml": "mcp",
    "evaluate terminal-test SCRIPTED --sandbox.backend modal": "modal",
    "evaluate math SCRIPTED": "math",
    "evaluate reasoning-gym SCRIPTED": "reasoning-gym",
    "evaluate textworld SCRIPTED": "textworld",
    "rl sums.py": "rl",
    "check rows.jsonl --tokenizer ./tokenizer.json": "tokens",
    "export run --retokenize ./tokenizer.json": "tokens",
    "export run --format openai --to rows.parquet": "parquet",
    "process atropos:sums.py": "atropos",
    "process hermes:sums.py": "hermes",
    "evaluate verifiers:gsm8k": "verifiers",
    "evaluate openenv:http://127.0.0.1:9": "openenv",
    "train skillopt:file.yaml": "skillopt",
    "train --skillopt file.yaml": "skillopt",
    "export run --format skillopt --to layout": "skillopt",
}
"""Commands that cannot work in the base install, and the extra that they have to name."""


@pytest.fixture(scope="module")
def project(base: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with files for commands that need extras, and a run."""
    folder = tmp_path_factory.mktemp("project")
    write_sums(folder)
    (folder / "rows.jsonl").write_text(json.dumps(ROWS) + "\n")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "file.yaml").write_text("env: {name: x}\n")
    (folder / "mcp.yaml").write_text("tools: {mcp: {server: {command: [server]}}}\n")
    check_done(base.run_ludus("evaluate", "sums.py", *script_flags(), "--out", "run", cwd=folder))
    return folder


@pytest.mark.parametrize(("line", "extra"), NEED_EXTRAS.items(), ids=NEED_EXTRAS)
def test_what_needs_an_extra_names_it(base: Installation, project: Path, line: str, extra: str):
    words = [word for part in line.split() for word in (script_flags() if part == "SCRIPTED" else [part])]
    done = base.run_ludus(*words, cwd=project)
    assert (done.returncode, f"pip install 'ludus-train[{extra}]'" in done.stderr) == (2, True), done.stderr


# ---- the README ---------------------------------------------------------------------------------------------------

PRELUDE = """
set -euo pipefail
make() {  # what a target does is tested where it is; here it has to exist
    local word
    for word in "$@"; do
        [[ $word == *=* ]] || grep "^$word:" "$PROJECT/Makefile" || { echo "there is no target $word" >&2; return 2; }
    done
}
pip() {  # what is built here, instead of what is published
    local word words=()
    for word in "$@"; do
        words+=("${word/#ludus-train/$WHEEL}")
    done
    "$TESTS_PYTHON" -m pip --python "$(command -v python)" --quiet "${words[@]}" --find-links "${WHEEL%/*}" \\
        -c "$PROJECT/constraints.txt"
}
"""

WITHOUT_EXTRAS = """
pip() { :; }
ludus() {  # the embedded model is an extra: the command has to say so, and is then run with a scripted model
    local code=0
    command ludus "$@" 2> errors.txt || code=$?
    cat errors.txt >&2
    if [ $code = 2 ] && grep -q "pip install 'ludus-train\\[local\\]'" errors.txt; then
        code=0
        command ludus "$@" --model.type scripted --model.script "$SCRIPT" || code=$?
    fi
    return $code
}
"""

LIMITED = """
ludus() {  # two tasks of an environment are enough
    case "$1 $*" in
        *--env.limit*) command ludus "$@" ;;
        evaluate*|process*) command ludus "$@" --env.limit 2 ;;
        *) command ludus "$@" ;;
    esac
}
"""

REPLY = "def reply(messages, tools, sampling):\n    return 'I do not know.'\n"


def run_readme(installation: Installation, distributions: Distributions, folder: Path, prelude: str) -> None:
    """Run the blocks of the README in a folder that looks like a checkout whose `.venv` is the installation."""
    home = folder / "ludus"
    home.mkdir()
    for name in ("Makefile", "configs", "docs", "examples", "scripts"):
        (home / name).symlink_to(ROOT / name)
    (home / ".venv").symlink_to(installation.folder)
    script = folder / "reply.py"
    script.write_text(REPLY)
    blocks = write_script(read_blocks((ROOT / "README.md").read_text()), folder)
    variables = make_variables(
        PATH=f"{installation.programs}:{os.environ['PATH']}",
        PROJECT=str(ROOT),
        SCRIPT=f"{script}:reply",
        TESTS_PYTHON=sys.executable,
        WHEEL=str(distributions.core_wheel),
    )
    done = subprocess.run(
        ["bash", "-c", prelude + blocks],
        cwd=home,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    check_done(done)


def test_the_readme_works_without_extras(base: Installation, distributions: Distributions, tmp_path: Path, bwrap: str):
    run_readme(base, distributions, tmp_path, PRELUDE + WITHOUT_EXTRAS)


def test_the_readme_works_after_the_demo(
    demo: Installation, distributions: Distributions, tmp_path: Path, bwrap: str, weights: Path
):
    run_readme(demo, distributions, tmp_path, PRELUDE + LIMITED)


PAGE = """
Save this as `capitals.py`. It is like `other.py`, which is not meant.

Save this as `hello.py`:

```python
print("hello")
```

<!-- not run: needs a GPU -->
```bash
train
```

```
output
```

```bash
# a comment
python hello.py
```

```python
print("run")
```

```python
# other.py
print("other")
```
"""


def test_blocks_are_saved_run_or_left_out(tmp_path: Path):
    saved, left_out, typed, run, named = read_blocks(PAGE)
    assert saved == Block("python", 'print("hello")\n', 7, "", "hello.py")
    assert (left_out.not_run, left_out.code) == ("needs a GPU", "train\n")
    assert (typed.code, run.file, named.file) == ("# a comment\npython hello.py\n", "", "other.py")
    variables = make_variables(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = write_script([saved, left_out, typed, run], tmp_path)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert check_done(done) == "--- line 7\n--- line 20\nhello\n--- line 25\nrun\n"


# ---- the demo -----------------------------------------------------------------------------------------------------

TINY_LUDUS = """#!/usr/bin/env bash
case $1 in
    train) set -- "$@" --model.type scripted --model.script "$SCRIPT" ;;
    process) set -- "$@" --env.limit 1 ;;
esac
exec "$LUDUS_PROGRAM" "$@"
"""
"""The command with a scripted model in place of minutes of training, and with one task."""


def test_the_commands_that_the_demo_prints_work(demo: Installation, tmp_path: Path, bwrap: str, weights: Path):
    (tmp_path / "reply.py").write_text(
        "from ludus.envs.orders import Orders\n"
        "TASKS = [task for split in ('train', 'validation', 'test') for task in Orders().tasks(split)]\n"
        "ANSWERS = {task.prompt: task.answer for task in TASKS}\n"
        "def reply(messages, tools, sampling):\n"
        "    return ANSWERS[messages[-1].content] if len(messages) > 8 else 'Hello!'\n"
    )
    ludus = tmp_path / "ludus"
    ludus.write_text(TINY_LUDUS)
    ludus.chmod(0o755)
    variables = make_variables(
        LUDUS=str(ludus),
        LUDUS_PROGRAM=shutil.which("ludus", path=demo.programs) or "",
        SCRIPT=f"{tmp_path}/reply.py:reply",
    )

    def run(*words: str, cwd: Path) -> str:
        return check_done(subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300))

    printed = run("scripts/demo", str(tmp_path / "run"), cwd=ROOT).rpartition("Next:\n")[2]
    commands = [line.strip().split("  ")[0].split() for line in printed.splitlines()]
    show, process = (words for words in commands if words[0] == str(ludus) and words[1] in ("show", "process"))
    assert "step 1" in run(*show, cwd=tmp_path)
    assert "pass@1" in run(*process, cwd=tmp_path)
