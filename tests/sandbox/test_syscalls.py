"""System calls through ctypes, made in a child process with namespaces of its own."""

import errno
import json
import subprocess
import sys

import pytest

from ludus.sandbox.syscalls import Libc, _unescape, list_mounts_below, write_proc_file

SCRIPT = """
import json, os, socket, sys
from ludus.sandbox import syscalls

folder = sys.argv[1]
libc = syscalls.Libc()
user = 0 if os.geteuid() == 0 else syscalls.NEWUSER
try:
    libc.unshare(user | syscalls.NEWNS | syscalls.NEWUTS | syscalls.NEWNET)
    libc.mount("", "/", flags=syscalls.REC | syscalls.PRIVATE)
except PermissionError:
    sys.exit(77)
libc.mount("tmpfs", folder, "tmpfs", syscalls.NOSUID | syscalls.NODEV)
found = [[point, bool(flags & syscalls.NOSUID), bool(flags & syscalls.RDONLY)]
         for point, flags in syscalls.list_mounts_below(os.path.dirname(folder))]
libc.detach(folder)
left = syscalls.list_mounts_below(os.path.dirname(folder))
libc.sethostname("other")
with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    with socket.socket() as before:
        down = before.connect_ex(server.getsockname()) != 0
    syscalls.start_loopback()
    with socket.socket() as after:
        up = after.connect_ex(server.getsockname()) == 0
libc.forbid_new_privileges()
status = open("/proc/self/status").read()
print(json.dumps([found, left, os.uname().nodename, down, up, "NoNewPrivs:\\t1" in status]))
"""


def test_mounts_host_name_and_loopback_of_new_namespaces(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[str(folder), True, False]], [], "other", True, True, True]


def test_a_failed_call_is_an_error_with_its_name_and_target():
    with pytest.raises(OSError, match="mount: ") as failed:
        Libc().mount("tmpfs", "/no/such/folder", "tmpfs")
    assert failed.value.errno in (errno.ENOENT, errno.EPERM)
    assert failed.value.filename == "/no/such/folder"


def test_a_folder_without_mounts_has_none(tmp_path):
    assert list_mounts_below(str(tmp_path)) == []


def test_escapes_of_the_kernel_are_undone():
    assert _unescape(r"/a\040b\011c\134d") == "/a b\tc\\d"


def test_a_file_of_proc_is_not_created():
    with pytest.raises(FileNotFoundError):
        write_proc_file("/tmp/no-such-file-of-proc", "x")
