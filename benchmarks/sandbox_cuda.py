"""Which confinement lets CUDA start: every combination in a fresh fork of a process that has imported torch."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from pathlib import Path

import torch

LIBC = ctypes.CDLL(None, use_errno=True)


def attempt(pid_ns: bool, proc: bool, uid: int, dumpable: bool, user_ns: bool) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            flags = os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS
            if pid_ns:
                flags |= os.CLONE_NEWPID
            if user_ns:
                os.unshare(os.CLONE_NEWUSER)
                Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
                Path("/proc/self/uid_map").write_text("0 0 1", encoding="ascii")
                Path("/proc/self/gid_map").write_text("0 0 1", encoding="ascii")
            os.unshare(flags)
            if pid_ns:
                inner = os.fork()
                if inner:
                    os.waitpid(inner, 0)
                    os._exit(0)
            LIBC.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
            if proc:
                if LIBC.mount(b"proc", b"/proc", b"proc", 0, None):
                    os.write(write, f"mount proc: errno {ctypes.get_errno()}; ".encode())
                if os.path.isdir("/proc/driver/nvidia"):
                    os.write(write, b"[driver dir seen] ")
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            if dumpable:
                LIBC.prctl(4, 1, 0, 0, 0)
            t = time.time()
            x = torch.ones(4, device="cuda")
            os.write(write, f"ok {float(x.sum())} {time.time() - t:.2f}s".encode())
        except BaseException as error:  # noqa: BLE001 - whatever stopped CUDA is the answer
            os.write(write, str(error)[:160].replace("\n", " ").encode())
        os._exit(0)
    os.close(write)
    out = b""
    while chunk := os.read(read, 4096):
        out += chunk
    os.close(read)
    os.waitpid(pid, 0)
    return out.decode()


def main() -> None:
    for pid_ns, proc, uid, dumpable, user_ns in itertools.product(
        (False, True), (False, True), (0, 65534), (False, True), (False, True)
    ):
        if (proc and not pid_ns) or (uid and user_ns):
            continue
        print(
            f"pid_ns={pid_ns:d} proc={proc:d} uid={uid} dumpable={dumpable:d} user_ns={user_ns:d}:",
            attempt(pid_ns, proc, uid, dumpable, user_ns),
            flush=True,
        )


if __name__ == "__main__":
    main()
