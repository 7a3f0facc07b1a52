"""A system-call filter for slots. It refuses calls that no task needs and in which kernel bugs are often found.

The filter is a deny list in classic BPF, assembled here for x86-64 and AArch64. Other machines have no filter. It
refuses calls that reach other processes (`ptrace`, `process_vm_*`, `kcmp`, `pidfd_getfd`), calls that reach into the
kernel (`bpf`, `perf_event_open`, `userfaultfd`, `io_uring_*`, modules, key rings), and calls that change the machine or
its mounts (`mount` and its newer variants, `reboot`, `swapon`, clocks). It refuses new namespaces, and sockets of other
families than unix, internet and netlink, because a network namespace does not contain all families (`vsock` reaches the
hypervisor from any). A refused call fails with EPERM, with EAFNOSUPPORT for a socket, or with ENOSYS if programs have a
fallback for it. A call of another architecture (32-bit programs on a 64-bit kernel, x32) kills the program: there the
numbers have other meanings, and this list does not apply.

The namespaces and the missing capabilities already forbid most of this. The filter also makes the kernel code behind
these calls unreachable. Programs, compilers, debug builds and databases run under it; debuggers and `strace` do not.
"""

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in the kernel's `seccomp_data`. For an argument, the offset of its lower half."""
_X32 = 0x4000_0000
_NAMESPACES = 0x7E02_0080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME. In `clone`, the bit of NEWTIME is part
of the exit signal and is not checked."""
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_TIOCSETD = 0x5423
"""Sets the line discipline of a terminal. That makes the kernel load modules that are rarely maintained."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK."""


@dataclass(frozen=True)
class _Machine:
    audit: int
    """AUDIT_ARCH_*: the kernel's number for the architecture of a call."""
    denied: Mapping[str, int]
    clone: int
    unshare: int
    ioctl: int
    socket: int
    socketpair: int
    x32: bool = False
    owners: tuple[int, ...] = ()
    """Calls that change owners, users and groups, or make devices."""


_NEWER = {  # the same numbers on every machine
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "set_mempolicy_home_node": 450,
}
_X86_64 = {
    "ptrace": 101, "syslog": 103, "uselib": 134, "ustat": 136, "sysfs": 139, "vhangup": 153, "modify_ldt": 154,
    "pivot_root": 155, "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
    "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
    "query_module": 178, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227, "mbind": 237,
    "set_mempolicy": 238, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51, "vhangup": 58,
    "quotactl": 60, "acct": 89, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112,
    "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170,
    "adjtimex": 171, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "mbind": 235,
    "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
_ABSENT = {"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "memfd_secret", "_sysctl", "uselib"}
"""Refused with ENOSYS, as if the kernel did not have them: their callers have a fallback."""
_CLONE3 = 435
MACHINES = {
    "x86_64": _Machine(
        0xC000_003E,
        {**_X86_64, **_NEWER},
        clone=56,
        unshare=272,
        ioctl=16,
        socket=41,
        socketpair=53,
        x32=True,
        owners=(92, 93, 94, 260, 105, 106, 113, 114, 116, 117, 119, 122, 123, 126),
    ),
    "aarch64": _Machine(
        0xC000_00B7,
        {**_AARCH64, **_NEWER},
        clone=220,
        unshare=97,
        ioctl=29,
        socket=198,
        socketpair=199,
        owners=(54, 55, 91, 143, 144, 145, 146, 147, 149, 151, 152, 159),
    ),
}


def build_filter(machine: str | None = None, *, as_root: bool = False) -> bytes:
    """Build the filter for a machine, by default this one, in the kernel's format; empty if there is none.

    `as_root`: for slots whose only user is root. Calls that change an owner, a user or a group do nothing and succeed,
    because there is no other user to change to. Package managers expect that of root.
    """
    found = MACHINES.get(machine or platform.machine())
    return b"".join(_assemble(found, as_root=as_root)) if found else b""


def _assemble(machine: _Machine, *, as_root: bool) -> list[bytes]:
    """Assemble the program. Each rule is a jump over its own return, so that no label has to be resolved."""
    code = [
        _encode_step(_LOAD, _ARCHITECTURE),
        _encode_step(_JUMP_EQUAL, machine.audit, 1, 0),
        _encode_step(_RETURN, _KILL),
        _encode_step(_LOAD, _NUMBER),
    ]
    if machine.x32:
        code += [_encode_step(_JUMP_AT_LEAST, _X32, 0, 1), _encode_step(_RETURN, _KILL)]
    for name, number in machine.denied.items():
        code += _refuse_call(number, errno.ENOSYS if name in _ABSENT else errno.EPERM)
    for number in machine.owners if as_root else ():
        code += _refuse_call(number, 0)
    # The arguments of clone3 are in memory, which a filter cannot read. The C library falls back to clone.
    code += _refuse_call(_CLONE3, errno.ENOSYS)
    code += _refuse_bits(machine.clone, _FIRST_ARGUMENT, _NAMESPACES & ~0xFF)
    code += _refuse_bits(machine.unshare, _FIRST_ARGUMENT, _NAMESPACES)
    code += _refuse_value(machine.ioctl, _SECOND_ARGUMENT, (_TIOCSTI, _TIOCLINUX, _TIOCSETD))
    for number in (machine.socket, machine.socketpair):
        code += _refuse_others(number, _FIRST_ARGUMENT, _SOCKET_FAMILIES, errno.EAFNOSUPPORT)
    return [*code, _encode_step(_RETURN, _ALLOW)]


def _refuse_call(number: int, error: int) -> list[bytes]:
    return [_encode_step(_JUMP_EQUAL, number, 0, 1), _encode_step(_RETURN, _ERRNO | error)]


def _refuse_bits(number: int, argument: int, bits: int) -> list[bytes]:
    test = [
        _encode_step(_LOAD, argument),
        _encode_step(_JUMP_ANY_BIT, bits, 0, 1),
        _encode_step(_RETURN, _ERRNO | errno.EPERM),
    ]
    return [_encode_step(_JUMP_EQUAL, number, 0, len(test) + 1), *test, _encode_step(_RETURN, _ALLOW)]


def _refuse_value(number: int, argument: int, values: Sequence[int]) -> list[bytes]:
    test = [_encode_step(_LOAD, argument)]
    for value in values:
        test += [_encode_step(_JUMP_EQUAL, value, 0, 1), _encode_step(_RETURN, _ERRNO | errno.EPERM)]
    return [_encode_step(_JUMP_EQUAL, number, 0, len(test) + 1), *test, _encode_step(_RETURN, _ALLOW)]


def _refuse_others(number: int, argument: int, values: Sequence[int], error: int) -> list[bytes]:
    test = [_encode_step(_LOAD, argument)]
    for value in values:
        test += [_encode_step(_JUMP_EQUAL, value, 0, 1), _encode_step(_RETURN, _ALLOW)]
    return [_encode_step(_JUMP_EQUAL, number, 0, len(test) + 1), *test, _encode_step(_RETURN, _ERRNO | error)]


def _encode_step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
