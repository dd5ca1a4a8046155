"""A system call filter, assembled by hand: what no kernel, compiler or framework needs and an escape does.

Refused calls fail with EPERM, so an honest library that merely probes goes on. The filter asks for SPEC_ALLOW: older
kernels otherwise turn on a mitigation for filtered processes only, which would make a candidate slower than the judge.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

from fk_core.child import syscalls

_LD_ABS, _JEQ, _JGE, _JSET, _RET, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_X32_BIT = 0x40000000
_SET_MODE_FILTER, _SPEC_ALLOW, _TSYNC = 1, 1 << 2, 1 << 0
_NEW_NAMESPACES = 0x7E020000  # user, pid, net, ipc, uts, cgroup and mount, as flags of clone

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where that architecture lacks the call
_REFUSED: dict[str, tuple[int, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "migrate_pages": (256, 238),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
# What outlives every process, and no namespace of its own takes along: System V objects and POSIX queues.
_REFUSED_IPC: dict[str, tuple[int, int | None]] = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR, _CONNECT = (41, 198), (53, 199), (42, 203)
_SETPRIORITY, _PRLIMIT = (141, 140), (302, 261)


def supported() -> bool:
    """Whether the numbers of this machine's calls are known here."""
    return platform.machine() in _AUDIT_ARCH


def assemble(machine: str, *, connect: bool, ipc: bool) -> bytes:
    """The filter program. ``connect`` False also refuses reaching named Unix sockets, ``ipc`` False making or finding
    System V objects and message queues."""
    column = 0 if machine == "x86_64" else 1
    refuse = _op(_RET, _ERRNO | errno.EPERM)
    allow = _op(_RET, _ALLOW)
    program = [_op(_LD_ABS, _ARCH), _op(_JEQ, _AUDIT_ARCH[machine], 1, 0), _op(_RET, _KILL), _op(_LD_ABS, _NR)]
    if machine == "x86_64":
        program += [_op(_JGE, _X32_BIT, 0, 1), refuse]
    for numbers in (_REFUSED if ipc else _REFUSED | _REFUSED_IPC).values():
        number = numbers[column]
        if number is not None:
            program += [_op(_JEQ, number, 0, 1), refuse]
    # The C library falls back to clone, whose flags can be read here, where clone3 seems not to exist.
    program += [_op(_JEQ, _CLONE3[column], 0, 1), _op(_RET, _ERRNO | errno.ENOSYS)]
    program += [_op(_JEQ, _CLONE[column], 0, 4), _op(_LD_ABS, _ARG0), _op(_JSET, _NEW_NAMESPACES, 0, 1), refuse, allow]
    unix_only = [_op(_LD_ABS, _ARG0), _op(_JEQ, socket.AF_UNIX, 1, 0), refuse]
    program += [_op(_JEQ, _SOCKETPAIR[column], 0, 4), *unix_only, allow]
    if connect:
        program += [_op(_JEQ, _SOCKET[column], 0, 4), *unix_only, allow]
    else:
        # Datagram sockets reach a named socket without connect.
        streams = [_op(_LD_ABS, _ARG1), _op(_AND, 0xF), _op(_JEQ, socket.SOCK_DGRAM, 0, 1), refuse]
        program += [_op(_JEQ, _SOCKET[column], 0, 8), *unix_only, *streams, allow]
        program += [_op(_JEQ, _CONNECT[column], 0, 1), refuse]
    program += [_op(_JEQ, _SETPRIORITY[column], 0, 4), _op(_LD_ABS, _ARG1), _op(_JEQ, 0, 1, 0), refuse, allow]
    program += [_op(_JEQ, _PRLIMIT[column], 0, 4), _op(_LD_ABS, _ARG0), _op(_JEQ, 0, 1, 0), refuse, allow]
    program.append(allow)
    return b"".join(program)


def restrict(*, connect: bool, ipc: bool) -> None:
    """Put this process and all it starts under the filter; needs no_new_privs.

    Raises ``OSError``, also on a machine whose calls have other numbers.
    """
    if not supported():
        raise OSError(errno.ENOSYS, f"no system call filter for {platform.machine()}")
    program = assemble(platform.machine(), connect=connect, ipc=ipc)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    flags = _SPEC_ALLOW | _TSYNC
    syscalls.syscall(syscalls.SYS_SECCOMP, _SET_MODE_FILTER, flags, header, what="seccomp filter")


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
