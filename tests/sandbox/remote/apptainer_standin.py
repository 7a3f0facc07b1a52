#!/usr/bin/env python3
"""A stand-in of the `apptainer` command, for what Ludus calls: `apptainer exec [option]... IMAGE COMMAND...`.

It follows the documented command line: an option that it does not know is an error. IMAGE is a folder with a root file
system (a "sandbox" image). As with the real one, the program runs as the calling user (LUDUS_STANDIN_USER makes that an
ordinary one), sees the image read-only or under a layer in memory, and with --containall has its own processes, an
empty home, an empty /tmp and a clean environment. Made with bubblewrap; --memory, --cpus and --pids-limit are accepted
and not enforced.
"""

import os
import sys
from pathlib import Path

FLAGS = {"--containall", "--contain", "--no-home", "--cleanenv", "--writable-tmpfs", "--nv", "--fakeroot", "--net"}
VALUES = {"--bind", "--memory", "--cpus", "--pids-limit", "--network", "--pwd", "--env"}


def fail(message: str) -> None:
    sys.exit(f'Error for command "exec": {message}')


def main() -> None:
    if sys.argv[1:2] == ["version"]:
        print("1.3.4-standin")
        return
    if sys.argv[1:2] != ["exec"]:
        sys.exit('Error for command "apptainer": unknown command')
    flags, values, rest = set(), [], sys.argv[2:]
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        if option in FLAGS:
            flags.add(option)
        elif option in VALUES:
            values.append((option, value or rest.pop(0)))
        else:
            fail(f"unknown flag: {option}")
    if len(rest) < 2:
        fail("requires at least 2 arg(s)")
    image, *command = rest
    if not Path(image).is_dir():
        sys.exit(f"FATAL:   could not open image {image}: no such file or directory")
    run(str(Path(image).resolve()), flags, values, command)


def run(image: str, flags: set[str], values: list[tuple[str, str]], command: list[str]) -> None:
    user = int(os.environ.get("LUDUS_STANDIN_USER", os.getuid()))
    bwrap = [os.environ["LUDUS_STANDIN_BWRAP"]]
    bwrap += ["--unshare-user", "--uid", str(user), "--gid", str(user)] if user else ["--cap-add", "ALL"]
    layer = ("--tmp-overlay", "/") if "--writable-tmpfs" in flags else ("--ro-overlay", "/")
    bwrap += ["--overlay-src", image, *(layer if "--writable-tmpfs" in flags else ("--overlay-src", image, *layer))]
    bwrap += ["--proc", "/proc", "--dev", "/dev", "--die-with-parent"]
    if "--containall" in flags:
        bwrap += ["--unshare-pid", "--unshare-ipc", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/root"]
    if "--net" in flags and ("--network", "none") in values:
        bwrap += ["--unshare-net"]
    for option, value in values:
        if option == "--bind":
            source, target, *_ = value.split(":")
            bwrap += ["--ro-bind" if value.endswith(":ro") else "--bind", source, target]
    if "--cleanenv" in flags or "--containall" in flags:
        bwrap += ["--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    bwrap += ["--setenv", "APPTAINER_CONTAINER", image, "--chdir", "/", "--", *command]
    prefix = []
    if os.getuid() == 0 and user != 0:
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    os.execvp([*prefix, *bwrap][0], [*prefix, *bwrap])


if __name__ == "__main__":
    main()
