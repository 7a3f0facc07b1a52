"""The descriptors that backends give a shell are those that its script uses."""

from pathlib import Path

import ludus.sandbox
from ludus.sandbox.shell_starter import SHELL_FDS


def test_the_script_of_the_shell_uses_the_descriptors_of_its_starter():
    script = (Path(ludus.sandbox.__file__).parent / "slot_scripts" / "inner.sh").read_text()
    ends = SHELL_FDS
    assert f"read -r -d '' -u {ends.command} " in script
    assert f"printf '\\0r\\0' >&{ends.status};" in script
    assert f"</dev/null >&{ends.stdout} 2>&{ends.stderr} " in script
    assert all(f"{fd}{way}&-" in script for fd, way in zip(ends, "<>>>", strict=True))
