"""What a forked process gives up before it becomes a role. Order matters; see :func:`confine`."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import Any

from fk_core.child import landlock, seccomp, syscalls

NAMESPACES, LANDLOCK, PROCESS = "namespaces", "landlock+seccomp", "process"

OWN_UIDS = 0x10000000
"""Uids from here on are given to one run only."""
_NOBODY = 65534


def confine(plan: dict[str, Any], *, keeper: int) -> None:
    """Confine this process for good, as the plan's ``level`` says; ``keeper`` is the process it must not outlive.

    Limits first, while raising one is still allowed; then the uid, which forgets the death signal; then landlock, which
    needs no_new_privs; the call filter last, because it refuses some of the calls used here.

    Level ``process`` has neither filter: what a candidate makes there besides processes may stay, such as files and
    System V segments, semaphores and queues.
    """
    level = plan["level"]
    _limit(plan["rlimits"])
    if plan["trusted"]:
        syscalls.set_dumpable(False)
    else:
        syscalls.set_no_new_privileges()
        with contextlib.suppress(OSError):  # an ordinary user has no capability to give up
            syscalls.drop_bounding_set()
        if plan["uid"] is not None:
            _become(plan["uid"], plan["groups"])
        syscalls.drop_capabilities()
        syscalls.set_dumpable(True)
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    view = plan["view"]
    if level == LANDLOCK:
        landlock.restrict(
            readable=view["keeps"] + view["system"],
            writable=view["writable"],
            devices=view["devices"],
            hidden=view["hidden"],
        )
    if level in (NAMESPACES, LANDLOCK):
        # Both reach no further than the namespaces of the process itself, where it has its own.
        seccomp.restrict(connect=level == NAMESPACES, ipc=level == NAMESPACES)


def own_uid(pid: int) -> int:
    """A uid that no other run of this machine has, where this user namespace maps one; else that of nobody.

    A uid of its own keeps candidates apart, lets the process limit count only this run, and lets one signal end it all.
    """
    ranges = []
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        for line in lines:
            first, _, count = (int(word) for word in line.split())
            ranges.append(range(first, first + count))
    for uid in (OWN_UIDS + pid, 30000 + pid % 30000):
        if any(uid in mapped for mapped in ranges):
            return uid
    return _NOBODY


def _become(uid: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        if name == "as":
            value += _address_space()  # what the zygote mapped before the fork is not the role's
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # The hard limit on time lies above the soft one: the first signal says why, the second can't be caught.
        top = value + 2 if name == "cpu" and (hard == resource.RLIM_INFINITY or value + 2 <= hard) else value
        resource.setrlimit(kind, (value, top))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
