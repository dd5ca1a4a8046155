"""Everything ends: with the role, with the keeper, with the zygote, with the harness; and nothing leaks."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fk_core.child import wire
from fk_core.errors import ZygoteDied
from fk_core.sandbox.launch import Child, ChildGone
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from tests.sandbox.kit import PRELOAD, ROLES, Start, gone_within, processes_with, run

# A process in its own session, orphaned by a double fork, in another process group, that ignores what it can.
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.execvp('sh', ['sh', '-c', 'trap "" TERM HUP INT; while :; do sleep 1; done', '{word}'])
    os._exit(0)
os.wait()
"""


def _daemon(child: object) -> str:
    word = f"stray-{secrets.token_hex(6)}"
    run(child, DAEMON.format(word=word))  # type: ignore[arg-type]
    assert gone_within(lambda: not processes_with(word)), "the stray never started"
    return word


@pytest.fixture
def own_zygote(settings: Settings):
    zygote = Zygote(settings, interpret=False, preload=PRELOAD, roles=ROLES)
    zygote.start(60.0)
    yield zygote
    zygote.close()


def test_kill_takes_the_whole_tree(start: Start, level: str) -> None:
    child = start(level)
    word = _daemon(child)
    child.kill()
    assert not processes_with(word)
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.exit_status == "killed by the harness"
    assert child.usage["all_gone"]


def test_kill_takes_the_tree_of_a_trusted_role(start: Start) -> None:
    child = start(None)
    word = _daemon(child)
    child.kill()
    assert not processes_with(word)


def test_the_end_of_the_role_ends_its_tree(start: Start, level: str) -> None:
    child = start(level)
    word = _daemon(child)
    child.ask({"do": "stop"}, 10.0)
    assert child.wait(10.0)
    assert not processes_with(word)
    assert child.exit_status == "exit 0"


def test_a_stopped_role_can_be_killed(start: Start, level: str) -> None:
    child = start(level)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(wire.TimedOut):
        child.ask({"code": "out = 1"}, 0.2)
    child.kill()
    assert not child.alive()


def test_a_stopped_keeper_can_be_killed(start: Start, level: str) -> None:
    child = start(level)
    word = _daemon(child)
    os.kill(child.keeper, signal.SIGSTOP)
    child.kill()
    assert not child.alive()
    assert gone_within(lambda: processes_with(word))


def test_death_of_the_keeper(start: Start, level: str) -> None:
    child = start(level)
    word = _daemon(child)
    os.kill(child.keeper, signal.SIGKILL)
    assert child.wait(2.0)
    assert gone_within(lambda: processes_with(word))
    with pytest.raises(ChildGone):
        child.ask({"code": "out = 1"}, 5.0)


def test_death_of_the_zygote(start: Start, level: str, own_zygote: Zygote) -> None:
    child = start(level, zygote=own_zygote)
    word = _daemon(child)
    os.kill(own_zygote.pid, signal.SIGKILL)
    assert child.wait(2.0)
    assert gone_within(lambda: processes_with(word))
    assert gone_within(own_zygote.alive)
    with pytest.raises(ZygoteDied):
        start(level, zygote=own_zygote)


def test_death_of_zygote_and_keeper_together(start: Start, level: str, own_zygote: Zygote) -> None:
    child = start(level, zygote=own_zygote)
    word = _daemon(child)
    os.kill(own_zygote.pid, signal.SIGSTOP)
    os.kill(child.keeper, signal.SIGKILL)
    os.kill(own_zygote.pid, signal.SIGKILL)
    assert gone_within(lambda: processes_with(word))


HARNESS = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from tests.sandbox.kit import PRELOAD, ROLES, run
from fk_core.sandbox.launch import launch
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
home = Path({home!r})
settings = Settings(home=home, lock_dir=home / 'locks')
zygote = Zygote(settings, interpret=False, preload=PRELOAD, roles=ROLES)
zygote.start(60.0)
scratch = home / 'scratch'
scratch.mkdir()
child = launch(zygote, 'candidate', {{}}, settings, level={level!r}, scratch=scratch, cpu=True)
run(child, {daemon!r})
print(zygote.pid, child.keeper, child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_harness(level: str, tmp_path: Path, how: signal.Signals) -> None:
    word = f"stray-{secrets.token_hex(6)}"
    code = HARNESS.format(path=sys.path, home=str(tmp_path), level=level, daemon=DAEMON.format(word=word))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pids = [int(pid) for pid in harness.stdout.readline().split()]
        assert gone_within(lambda: not processes_with(word))
        harness.send_signal(how)
        harness.wait(10.0)
    assert gone_within(lambda: processes_with(word))
    assert gone_within(lambda: [pid for pid in pids if os.path.exists(f"/proc/{pid}")])


def test_the_end_of_the_starting_thread_does_not_end_the_zygote(settings: Settings) -> None:
    zygote = Zygote(settings, interpret=False, preload=PRELOAD, roles=ROLES)
    thread = threading.Thread(target=zygote.start)
    thread.start()
    thread.join(60.0)
    try:
        assert not zygote._ended.wait(0.3)
        assert zygote.alive()
    finally:
        zygote.close()
    assert not zygote.alive()


def test_a_zygote_that_cannot_start_says_why(settings: Settings) -> None:
    zygote = Zygote(settings, interpret=False, preload=("no_such_module_here",))
    with pytest.raises(ZygoteDied, match="no_such_module_here"):
        zygote.start(60.0)
    zygote.close()


def test_a_role_that_cannot_be_imported(start: Start, own_zygote: Zygote, settings: Settings) -> None:
    own_zygote.roles["candidate"] = "no_such_role"
    child = start("process", zygote=own_zygote)
    assert child.wait(10.0)
    assert child.exit_status == "exit 1"
    assert "no_such_role" in child.log_tail()


def test_many_starts_leave_nothing(start: Start, level: str, zygote: Zygote) -> None:
    def counts() -> tuple[int, int, list[int]]:
        keepers = zygote._ask({"do": "runs"}, timeout_s=5.0).body["keepers"]
        return len(os.listdir("/proc/self/fd")), threading.active_count(), keepers

    start(level).kill()
    assert gone_within(lambda: counts()[2])
    before = counts()
    inside = os.listdir(f"/proc/{zygote.pid}/fd") if os.geteuid() == 0 else []
    for _ in range(50):
        start(level).kill()
    # What earlier tests left may be collected meanwhile: fewer is fine.
    assert gone_within(lambda: any(now > then for now, then in zip(counts(), before, strict=True)), 5.0), (
        before,
        counts(),
    )
    if os.geteuid() == 0:
        assert len(os.listdir(f"/proc/{zygote.pid}/fd")) == len(inside)


def _ask_until_it_fails(child: Child, ended: list[BaseException]) -> None:
    try:
        while True:
            child.ask({"code": "out = 1"}, timeout_s=30.0)
    except BaseException as error:  # noqa: BLE001 - it is the result
        ended.append(error)


def test_many_threads_kill_a_child_that_is_being_asked(start: Start, zygote: Zygote) -> None:
    """The asking thread learns of it at once and in words, and no descriptor is closed twice or lost."""

    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    start("process").kill()
    assert gone_within(lambda: zygote._ask({"do": "runs"}, timeout_s=5.0).body["keepers"])
    before = counts()
    for turn in range(25):
        child = start("process")
        ended: list[BaseException] = []

        asking = threading.Thread(target=_ask_until_it_fails, args=(child, ended))
        asking.start()
        time.sleep(0.001 * turn)
        killers = [threading.Thread(target=child.kill) for _ in range(4)]
        for killer in killers:
            killer.start()
        bystander, other = socket.socketpair()
        bystander.send(b"kept")
        for thread in (*killers, asking):
            thread.join(15.0)
            assert not thread.is_alive()
        assert [type(error) for error in ended] == [ChildGone], ended
        assert other.recv(100) == b"kept"
        other.setblocking(False)
        bystander.setblocking(False)
        with pytest.raises(BlockingIOError):
            bystander.recv(1)
        bystander.close()
        other.close()
        assert child.channel.fileno() == -1
    # What earlier tests left may be collected meanwhile: fewer is fine.
    assert gone_within(lambda: any(now > then for now, then in zip(counts(), before, strict=True)), 5.0), (
        before,
        counts(),
    )


def test_threads_start_at_once(start: Start, level: str) -> None:
    got: list[int] = []

    def one() -> None:
        got.append(run(start(level), "out = 6 * 7"))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert got == [42] * 6
