"""`slotd` as one file, and the commands that start it on the other side.

The file is a zip that Python runs. Beside `slotd/` it contains the modules that slotd shares with the local backends,
unchanged and under their own names. What those import from Ludus (an error, a result) is replaced by
`slotd/bundle_stubs.py`.
"""

import io
import zipfile
from functools import cache
from pathlib import Path

from ludus.sandbox.local.host_dir import SCRIPTS, join_lines

SHARED = (
    *("shell.py", "shell_channel.py", "shell_starter.py", "processes.py"),
    *("teardown.py", "seccomp.py", "syscalls.py"),
)
"""These import only the standard library, each other, `SandboxError` and `ExecResult`."""
_SANDBOX = Path(__file__).parent.parent
_LATER_ANNOTATIONS = "from __future__ import annotations\n"
"""With it, older Pythons do not evaluate annotations, so newer syntax in them does no harm."""
_MAIN = """\
from ludus.sandbox.slotd.main import main
raise SystemExit(main())
"""
_FIND = """\
import base64, os, runpy, sys
fd = os.memfd_create("slotd")
with open(sys.argv[1], "rb") as file:
    data = base64.b64decode(file.read())
while data:
    data = data[os.write(fd, data):]
sys.argv = ["slotd", "http", *sys.argv[2:]]
runpy.run_path("/proc/self/fd/%d" % fd, run_name="__main__")
"""
_RECEIVE = """\
import os, runpy, sys
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, min(size - len(data), 65536))
        if not piece:
            sys.exit("slotd: the program did not arrive")
        data += piece
    return data
fd = os.memfd_create("slotd")
data = take(int.from_bytes(take(4), "big"))
while data:
    data = data[os.write(fd, data):]
sys.argv = ["slotd", "stdio"]
runpy.run_path("/proc/self/fd/%d" % fd, run_name="__main__")
"""


@cache
def build_bundle() -> bytes:
    """The zip file. The same sources always give the same bytes."""
    stubs = (_SANDBOX / "slotd" / "bundle_stubs.py").read_text()
    files = {
        "__main__.py": _MAIN,
        "ludus/__init__.py": "",
        "ludus/errors.py": stubs,
        "ludus/sandbox/__init__.py": stubs,
        "ludus/sandbox/slot_scripts/inner.line": join_lines((SCRIPTS / "inner.sh").read_text()),
        "ludus/sandbox/slot_scripts/ops.sh": (SCRIPTS / "ops.sh").read_text(),
        "ludus/sandbox/slot_scripts/python.sh": (SCRIPTS / "python.sh").read_text(),
    }
    for name in SHARED:
        files[f"ludus/sandbox/{name}"] = _LATER_ANNOTATIONS + (_SANDBOX / name).read_text()
    for path in sorted((_SANDBOX / "slotd").glob("*.py")):
        files[f"ludus/sandbox/slotd/{path.name}"] = path.read_text()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text.encode(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def build_receive_command(python: str) -> list[str]:
    """A command that reads the bundle from its stdin and becomes slotd. Its text is always the same, on one line, and
    contains nothing secret."""
    return [python, "-I", "-c", f"exec({_RECEIVE!r})"]


def build_shipment() -> bytes:
    """What to write first to the stdin of a `build_receive_command`: the length of the bundle and the bundle."""
    program = build_bundle()
    return len(program).to_bytes(4, "big") + program


def build_file_command(python: str, program: str, config: str, port: str) -> list[str]:
    """A command that becomes a slotd that listens on `port`. `program` is a file with the bundle in base64, `config` a
    file with the settings and the token."""
    return [python, "-I", "-c", f"exec({_FIND!r})", program, config, port]
