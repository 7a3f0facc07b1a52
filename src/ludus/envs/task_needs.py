"""What a task needs changed, and what its image has: recorded and read, for `verifier_files.py`.

The reference solution of a task shows what the task needs changed. When it is run, the files that it has changed are
recorded in the cache of images, under a hash of the task and its solution: another solution is another record.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.envs.task_folders import TaskFolder, list_task_files
from ludus.envs.verifier_files import ImageFacts, Needs, list_questions
from ludus.errors import VerifierError
from ludus.sandbox import WORKSPACE, Sandbox
from ludus.sandbox.archive import ArchiveEntry

_MOST_PATHS = 200_000
_VARIABLES = (
    *("BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "PERL5LIB", "CURL_HOME"),
    *("GIT_CONFIG", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_TEMPLATE_DIR", "PIP_CONFIG_FILE", "UV_CONFIG_FILE"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "INPUTRC", "WGETRC", "SYSTEM_WGETRC", "PSQLRC"),
    *("XDG_CONFIG_HOME", "NPM_CONFIG_USERCONFIG", "GCONV_PATH", "PYTHONUSERBASE"),
)
"""Variables that name what programs load when they start."""
_READ = r"""
printf '%s\0' "$PWD" "$HOME" "$PATH" "$PYTHONPATH"
for name in VARIABLES; do printf '%s:' "${!name}"; done
printf '\0'
IFS=:
for folder in $PATH; do [ -d "$folder" ] && ls -1 "$folder" | tr '\n' /; done
printf '\0'
while IFS= read -r -d '' path; do
    if [ -e "/$path" ] || [ -L "/$path" ]; then printf '%s\0' "$path"; fi
done
"""
_FACTS_FILE = "/tmp/.ludus-facts"


class _Record(Struct, frozen=True):
    paths: list[str]


async def read_facts(box: Sandbox, entries: Sequence[ArchiveEntry], tests: Path) -> ImageFacts:
    """What the image of a slot has that no agent has touched. `entries` are the agent's changes."""
    folder = (await box.exec("pwd", cwd=WORKSPACE)).stdout.decode(errors="replace").strip().strip("/")
    questions = dict.fromkeys(path for path in list_questions(entries, folder) if path)
    stdin = b"".join(path.encode(errors="surrogateescape") + b"\0" for path in questions)
    script = _READ.replace("VARIABLES", " ".join(_VARIABLES))
    done = await box.exec(f"({script}) >{_FACTS_FILE}", cwd=WORKSPACE, stdin=stdin, timeout=120)
    if done.exit_code != 0:
        raise VerifierError(f"the image could not be looked at: {done.text.strip()[-300:]}")
    data = await box.read(_FACTS_FILE, max_bytes=64 * 2**20)
    await box.exec(f"rm -f {_FACTS_FILE}")
    own, home, programs, modules, variables, names, *existing = data.decode(errors="surrogateescape").split("\0")
    return ImageFacts(
        folder=own.strip("/"),
        homes=frozenset({home.strip("/")}),
        program_folders=_split_paths(programs),
        module_folders=(*_split_paths(modules), *_find_changed_folders(tests)),
        startup=_split_paths(variables),
        programs=frozenset(names.split("/")),
        existing=frozenset(existing[:-1]),
    )


def _split_paths(text: str) -> tuple[str, ...]:
    """The absolute paths of a list, below the root."""
    return tuple(dict.fromkeys(part.strip("/") for part in text.split(":") if part.startswith("/") and part != "/"))


def _find_changed_folders(tests: Path) -> tuple[str, ...]:
    """The folders that test scripts go to."""
    texts = (path.read_text(errors="replace") for path in list_task_files(tests) if path.suffix == ".sh")
    found = (match for text in texts for match in re.findall(r"\bcd\s+[\"']?(/[\w./-]*)", text))
    return tuple(dict.fromkeys(path.strip("/") for path in found))


# ---- the record ---------------------------------------------------------------------------------------------------


def read_needs(cache: str, folder: TaskFolder) -> Needs:
    """What the reference solution of a task has changed, if it was run here."""
    try:
        record = msgspec.json.decode(_find_record(cache, folder).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return Needs()
    return Needs(frozenset(record.paths), is_known=True)


def write_needs(cache: str, folder: TaskFolder, paths: Iterable[str]) -> None:
    """Record what the reference solution has changed."""
    path = _find_record(cache, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(_Record(list(paths)[:_MOST_PATHS])))
    unfinished.rename(path)


def _find_record(cache: str, folder: TaskFolder) -> Path:
    default = "/var/cache/ludus/images" if os.geteuid() == 0 else "~/.cache/ludus/images"
    digest = hashlib.sha256(folder.hash_files().encode())
    for path in list_task_files(folder.solution) if folder.solution else ():
        digest.update(path.read_bytes())
    return Path(cache or default).expanduser() / "needs" / f"{digest.hexdigest()[:24]}.json"
