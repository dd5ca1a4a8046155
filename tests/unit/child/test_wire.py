"""A channel that is closed by another thread than the one that uses it."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest

from fk_core.child import wire
from fk_core.child.runner import QUICK
from tests.descriptors import descriptors

ROUNDS = 300


class Peer:
    """The other side, which answers whatever it is asked."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = wire.Channel(sock)
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def _answer(self) -> None:
        try:
            while True:
                frame = self.channel.receive()
                self.channel.reply(frame, {"n": frame.body["n"]})
        except wire.Closed:
            self.channel.close()

    def end(self) -> None:
        self.thread.join(10.0)
        assert not self.thread.is_alive()


def user(channel: wire.Channel, act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that uses the channel until that fails, and what it failed with."""
    ended: list[BaseException] = []

    def use() -> None:
        try:
            while True:
                act()
        except BaseException as error:  # noqa: BLE001 - it is the result
            ended.append(error)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    return thread, ended


def test_a_thread_that_waits_is_woken() -> None:
    ours, theirs = wire.pair()
    channel = wire.Channel(ours)
    thread, ended = user(channel, lambda: channel.receive(timeout_s=60.0))
    time.sleep(0.1)
    number = channel.fileno()
    channel.close()
    thread.join(5.0)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [wire.Closed]
    assert channel.fileno() == -1, "the last user closes it"
    assert theirs.recv(1) == b""
    theirs.close()
    assert number >= 0


def test_a_thread_that_sends_to_nobody_who_reads_is_woken() -> None:
    ours, theirs = wire.pair()
    channel = wire.Channel(ours)
    thread, ended = user(channel, lambda: channel.post({"text": "x" * 100_000}))
    time.sleep(0.2)
    channel.close()
    thread.join(5.0)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [wire.Closed]
    theirs.close()


def test_the_number_stays_taken_while_a_thread_uses_it() -> None:
    """However often it is closed meanwhile: the next file that is opened gets another number."""
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(wire.Channel):
        def _readable(self, wait_s: float) -> bool:
            inside.set()
            go_on.wait(10.0)
            return False

    ours, theirs = wire.pair()
    channel = Waiting(ours)
    thread, ended = user(channel, lambda: channel.receive(timeout_s=1.0))
    assert inside.wait(10.0)
    number = channel.fileno()
    for _ in range(3):
        channel.close()
    other = os.open(os.devnull, os.O_RDONLY)
    assert number == channel.fileno() != other
    go_on.set()
    thread.join(5.0)
    assert [type(error) for error in ended] == [wire.TimedOut]
    assert channel.fileno() == -1
    os.close(other)
    theirs.close()


@pytest.mark.parametrize("verb", ["ask", "post", "receive", "pending"])
def test_a_closed_channel_says_so(verb: str) -> None:
    ours, theirs = wire.pair()
    channel = wire.Channel(ours)
    channel.close()
    channel.close()
    verbs: dict[str, Callable[[], object]] = {
        "ask": lambda: channel.ask({}, timeout_s=1.0),
        "post": lambda: channel.post({}),
        "receive": lambda: channel.receive(timeout_s=1.0),
        "pending": channel.pending,
    }
    with pytest.raises(wire.Closed, match="was closed"):
        verbs[verb]()
    theirs.close()


def test_closing_under_a_busy_thread_touches_no_other_file() -> None:
    """Files that take the number of the closed channel lose no byte and get none."""
    dice = random.Random(7)
    before = descriptors()
    for _ in range(ROUNDS):
        ours, theirs = wire.pair()
        channel, peer = wire.Channel(ours), Peer(theirs)
        thread, ended = user(channel, lambda channel=channel: channel.ask({"n": 1}, timeout_s=30.0))  # type: ignore[misc]
        time.sleep(dice.random() * 0.002)
        closers = [threading.Thread(target=channel.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        bystanders = [wire.pair() for _ in range(4)]
        for left, right in bystanders:
            left.send(b"mine")
            right.send(b"yours")
        for each in (*closers, thread):
            each.join(10.0)
            assert not each.is_alive()
        peer.end()
        assert [type(error) for error in ended] == [wire.Closed], ended
        for left, right in bystanders:
            assert (left.recv(100), right.recv(100)) == (b"yours", b"mine")
            left.close()
            right.close()
    assert not descriptors() - before


@pytest.mark.parametrize("spin_s", [0.0, 0.02, 10.0])
def test_a_frame_is_heard_whether_it_comes_while_looking_or_asleep(spin_s: float) -> None:
    ours, theirs = (wire.Channel(s) for s in wire.pair())
    ours.spin_s = spin_s
    timer = threading.Timer(0.1, lambda: theirs.post({"do": "x"}))
    timer.start()
    assert ours.receive(timeout_s=5.0).body == {"do": "x"}
    timer.join()
    ours.spin_s = min(spin_s, 0.05)
    with pytest.raises(wire.TimedOut):
        ours.receive(timeout_s=0.01)
    theirs.close()
    with pytest.raises(wire.Closed):
        ours.receive(timeout_s=5.0)
    ours.close()


def test_eager_timing_is_charged_no_waiting() -> None:
    """Its clock counts the CPU time of the candidate's process from before the values are released."""
    assert not QUICK & {"loop", "held", "eager", "drop"}
