"""`python -m ludus.compat.hermes FILE.py process …`: a file of Hermes, started as a program and not changed.

The modules that it imports exist while it runs. What its `cli()` does is the same as `ludus process hermes:FILE.py`.
"""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ludus.compat.atropos_env.provided_modules import provide_modules
from ludus.compat.hermes_env.modules import list_hermes_modules


def run_file(argv: Sequence[str]) -> int:
    """Run a file as a program. Returns its exit code."""
    if not argv or not Path(argv[0]).is_file():
        print("usage: python -m ludus.compat.hermes FILE.py process|serve|evaluate|train …", file=sys.stderr)
        return 2
    path = Path(argv[0]).resolve()
    before, sys.argv = sys.argv, list(argv)
    try:
        with provide_modules(list_hermes_modules(), [path.parent, *path.parents[1:4]]):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
    return 0
