"""kill -9 of server, zygote, judge and candidate at random instants on this device; what is left after each.

The CPU version, with more kinds of process, is ``tests/harness/test_kill.py``.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from benchmarks.gpu_parts import look
from benchmarks.gpu_parts.context import Context, begin
from fk_core import settings as fk_settings
from fk_core.harness import Harness
from fk_core.leases.flock import FlockLeases
from fk_core.records.device import Device
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from fk_core.settings import Settings
from fk_core.tracking.journal import Journal
from tests.harness import kit
from tests.server.wire_client import WireClient

ROLES = ("server", "zygote", "judge", "candidate")
WANTED = 20
"""Instants of each."""
NEEDED_S = {"server": 30.0, "zygote": 30.0, "judge": 20.0, "candidate": 15.0}
STARTED_S = 40.0
SERVERS_SHARE = 0.35
"""Of the time: the other roles share the rest."""
SLOW = kit.candidate("time.sleep(0.002)")
CASE = {"cuda": "*/64x4", "cpu": kit.CASE}


def main(argv: list[str] | None = None) -> None:
    ctx = begin("f", argv)
    settings = fk_settings.load()
    wanted = 1 if ctx.dry else WANTED
    done = {role: sum(step.startswith(f"{role} ") for step in ctx.done()) for role in ROLES}
    servers_until = SERVERS_SHARE * ctx.seconds
    while done["server"] < wanted and ctx.left() > max(ctx.seconds - servers_until, NEEDED_S["server"]):
        kill_server(ctx, settings, random.Random(), done["server"])
        done["server"] += 1
    kill_in_harness(ctx, settings, done, wanted)
    ctx.add("complete", True if min(done.values()) >= wanted else None, done=done, wanted=wanted)


def request(device: Device, source: str) -> ValidateRequest:
    return ValidateRequest(op=kit.OP, source=source, cases=CASE[device.kind], fresh=True)


def kill_in_harness(ctx: Context, settings: Settings, done: dict[str, int], wanted: int) -> None:
    """The other roles in turn, under one harness that has to survive it all."""
    if min(done[role] for role in ROLES[1:]) >= wanted or ctx.left() < STARTED_S:
        return
    with Harness(settings) as harness:
        device = harness.device()
        harness.warm()
        plain = harness.validate(request(device, kit.GOOD))
        if not kit.passed(plain):
            ctx.add("before the kills", False, outcome=plain.outcome.value, summary=plain.summary[:500])
            return
        base = look.look(device)
        while (role := min(ROLES[1:], key=lambda role: done[role])) and done[role] < wanted:
            if ctx.left() < NEEDED_S[role]:
                return
            kill_role(ctx, harness, device, base, random.Random(), f"{role} {done[role]}")
            done[role] += 1


def kill_role(ctx: Context, harness: Harness, device: Device, base: look.Seen, dice: random.Random, step: str) -> None:
    role, began = step.split()[0], time.monotonic()
    job = kit.Running(harness, request(device, SLOW))
    job.began()
    paused, found = kit.pause(dice, 2.5), 0
    while job.alive() and not (found := kit.pid_of(harness.settings, role)):
        time.sleep(0.001)
    doing = job.doing[-1] if job.doing else ""
    if found:
        kit.kill(found)
    wrong: list[str] = []
    try:
        report = job.result(120.0)
        wrong += _blames_nobody_else(report, role)
        ctx.keep(step, report)
        said = report.outcome.value
        following = harness.validate(request(device, kit.GOOD))
        ctx.keep(f"{step} next", following)
        wrong += [] if kit.passed(following) else [f"the next one: {following.outcome.value} {following.summary[:200]}"]
        _, recorded = harness.journal.read(report.attempt_id)
        wrong += [] if recorded == report else ["the journal holds another report"]
    except AssertionError as error:
        said = "none"
        wrong.append(str(error)[:300])
    settled, after = look.settled(device, base, 1)
    wrong += [] if settled else ["memory or processes did not come back"]
    wrong += [] if lease_is_free(harness.settings, device) else ["the lease is held"]
    wrong += [f"scratch: {path}" for path in kit.scratch_left(harness.settings)]
    ctx.add(
        step,
        not wrong,
        outcome=said,
        killed=bool(found),
        doing=doing,
        after_s=round(paused, 2),
        seconds=round(time.monotonic() - began, 1),
        memory=[base.as_dict(), after.as_dict()],
        why="; ".join(wrong),
    )


def _blames_nobody_else(report: ValidateReport, role: str) -> list[str]:
    """A second try may pass, and what was killed by us is never the candidate's fault."""
    if report.outcome is Outcome.PASSED:
        return []
    if report.outcome is Outcome.HARNESS_FAULT and role != "candidate":
        return []
    return [f"{report.outcome.value}, blame {report.blame}: {report.summary[:200]}"]


def kill_server(ctx: Context, settings: Settings, dice: random.Random, round_: int) -> None:
    device, began = _device(settings), time.monotonic()
    base = look.look(device)
    server = serve(settings)
    wrong: list[str] = []
    acknowledged, paused = "", 0.0
    try:
        server.initialize()
        arguments = {"op": kit.OP, "source": SLOW, "cases": CASE[device.kind], "fresh": True, "wait_s": 60}
        server.call(1, "validate_kernel", arguments)
        paused = kit.pause(dice, 3.0 if ctx.dry else 14.0)
        for line in list(server.seen):
            if b'"attempt_id"' in line and b"PASSED" in line:
                acknowledged = server.answer(1, 1.0)["result"]["structuredContent"]["attempt_id"]
    finally:
        server.kill()
    left = not kit.none_left(settings)
    wrong += [f"processes: {kit.processes_of(settings)}"] if left else []
    settled, after = look.settled(device, base, base.processes)
    wrong += [] if settled else ["memory or processes did not come back"]
    wrong += [] if lease_is_free(settings, device) else ["the lease is held"]
    if acknowledged:
        _, report = Journal(settings).read(acknowledged)
        wrong += [] if report is not None else [f"{acknowledged} was answered and is not in the journal"]
    ctx.add(
        f"server {round_}",
        not wrong,
        after_s=round(paused, 2),
        acknowledged=acknowledged,
        seconds=round(time.monotonic() - began, 1),
        memory=[base.as_dict(), after.as_dict()],
        why="; ".join(wrong),
    )


def serve(settings: Settings) -> WireClient:
    """A server in this environment: the client itself passes none on."""
    passed = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME", "FK_DEVICE", "VIRTUAL_ENV")
    variables = [f"{name}={os.environ[name]}" for name in passed if name in os.environ]
    variables += [f"FK_HOME={settings.home}", f"FK_LOCK_DIR={settings.lock_dir}"]
    settings.home.mkdir(parents=True, exist_ok=True)
    return WireClient(
        Path(settings.home).parent, command=["/usr/bin/env", *variables, sys.executable, "-P", "-m", "fk_server"]
    )


def _device(settings: Settings) -> Device:
    with Harness(settings) as harness:
        return harness.device()


def lease_is_free(settings: Settings, device: Device) -> bool:
    with FlockLeases(settings).acquire(device, "exclusive", timeout_s=3.0) as lease:
        return lease.held


if __name__ == "__main__":
    main()
