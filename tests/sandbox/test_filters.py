"""The call filter for both architectures, run by a small interpreter, and the splitting of hidden paths."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

import pytest

from fk_core.child import landlock, seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000


def judge(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the kernel would answer: a machine for the few instructions that the filter uses."""
    data = struct.pack("<IIQ6Q", number, ARCH[machine], 0, *(list(arguments) + [0] * 6)[:6])
    code = [struct.unpack("<HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    register, at = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            register = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x54:
            register &= value
        elif operation == 0x06:
            return value
        else:
            holds = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[operation]
            at += if_true if holds else if_false


NUMBERS = {
    "x86_64": {
        "read": 0,
        "clone": 56,
        "clone3": 435,
        "socket": 41,
        "socketpair": 53,
        "connect": 42,
        "prlimit": 302,
        "ptrace": 101,
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "mq_open": 240,
    },
    "aarch64": {
        "read": 63,
        "clone": 220,
        "clone3": 435,
        "socket": 198,
        "socketpair": 199,
        "connect": 203,
        "prlimit": 261,
        "ptrace": 117,
        "shmget": 194,
        "semget": 190,
        "msgget": 186,
        "mq_open": 180,
    },
}
SIGCHLD, NEWUSER, NEWNET, VM_THREAD = 17, 0x10000000, 0x40000000, 0x003D0F00


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("connect", [True, False])
@pytest.mark.parametrize("ipc", [True, False])
def test_filter(machine: str, connect: bool, ipc: bool) -> None:
    program = seccomp.assemble(machine, connect=connect, ipc=ipc)
    number = NUMBERS[machine]
    unix, inet, stream, dgram = socket.AF_UNIX, socket.AF_INET, 1 | socket.SOCK_CLOEXEC, 2 | socket.SOCK_CLOEXEC
    assert judge(program, machine, number["read"]) == ALLOW
    assert judge(program, machine, number["ptrace"]) == REFUSE
    assert judge(program, machine, number["clone3"]) == ABSENT
    for name in ("shmget", "semget", "msgget", "mq_open"):
        assert judge(program, machine, number[name]) == (ALLOW if ipc else REFUSE)
    assert judge(program, machine, number["clone"], SIGCHLD) == ALLOW
    assert judge(program, machine, number["clone"], VM_THREAD) == ALLOW
    assert judge(program, machine, number["clone"], SIGCHLD | NEWUSER) == REFUSE
    assert judge(program, machine, number["clone"], SIGCHLD | NEWNET) == REFUSE
    assert judge(program, machine, number["socket"], inet, stream) == REFUSE
    assert judge(program, machine, number["socket"], unix, stream) == ALLOW
    assert judge(program, machine, number["socket"], unix, dgram) == (ALLOW if connect else REFUSE)
    assert judge(program, machine, number["socketpair"], unix, dgram) == ALLOW
    assert judge(program, machine, number["socketpair"], inet, stream) == REFUSE
    assert judge(program, machine, number["connect"], 3) == (ALLOW if connect else REFUSE)
    assert judge(program, machine, number["prlimit"], 0, 7) == ALLOW
    assert judge(program, machine, number["prlimit"], 1234, 7) == REFUSE
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert judge(program, other, number["read"]) == KILL


def test_every_refused_call_is_refused() -> None:
    for machine, column in (("x86_64", 0), ("aarch64", 1)):
        program = seccomp.assemble(machine, connect=True, ipc=True)
        for name, numbers in seccomp._REFUSED.items():
            if numbers[column] is not None:
                assert judge(program, machine, numbers[column]) == REFUSE, name


def test_without_leaves_out_the_hidden(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "link").symlink_to("b/c")
    parts = landlock.without(str(tmp_path), [str(tmp_path / "a" / "b")])
    assert parts == [str(tmp_path / name) for name in ("a/d", "a/file", "e")]
    assert landlock.without(str(tmp_path), [str(tmp_path)]) == []
    assert landlock.without(str(tmp_path), []) == [str(tmp_path)]
