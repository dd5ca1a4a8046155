"""Frames between the harness and its children: a fixed binary header, then one JSON object, then file descriptors.

Header (little endian, 32 bytes): magic ``FKW1``, kind u16, flags u16 (0), length u32 of the body, descriptor count u32,
nonce u64, sequence u64. The reply to a request carries the request's nonce and sequence; anything else is a
``ProtocolError``. Nothing is ever unpickled. The standard library only: both sides of the wall import this file.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from typing import Any

HEADER = struct.Struct("<4sHHIIQQ")
MAGIC = b"FKW1"
MAX_BODY = 4 << 20
MAX_FDS = 16
_MOST_HELD = 2 * MAX_FDS
"""Descriptors that may wait for their frame: more means that the other side floods this process with them."""

REQUEST, REPLY, ERROR = 1, 2, 3


class ProtocolError(Exception):
    """A frame was malformed, too large, unexpected or not an answer to what was asked."""


class Closed(ProtocolError):
    """The other side closed the channel, as it does when it dies."""


class TimedOut(ProtocolError):
    """No complete frame arrived in time."""


class Frame:
    """One received frame. Descriptors in ``fds`` belong to whoever holds the frame."""

    __slots__ = ("body", "fds", "kind", "nonce", "seq")

    def __init__(self, kind: int, nonce: int, seq: int, body: dict[str, Any], fds: list[int]) -> None:
        self.kind, self.nonce, self.seq, self.body, self.fds = kind, nonce, seq, body, fds

    def close_fds(self) -> None:
        """Close the descriptors that came along, where nobody wants them."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)


class Channel:
    """A connected Unix stream socket that carries frames. One thread at a time may use it; any may close it.

    A thread that sends or waits meanwhile is woken with ``Closed``, and it is the one that then closes the descriptor:
    closed under it, its number could be another file's by the time that thread reads.
    """

    # No instance dictionary: nobody gives this object methods of his own.
    __slots__ = ("_buffer", "_closed", "_fds", "_guard", "_seq", "_used", "sock", "spin_s")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(True)
        self._seq = 0
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._guard = threading.Lock()
        self._used = 0
        self._closed = False
        self.spin_s = 0.0
        """How long to look for a frame again and again before falling asleep: waking up takes a while on a virtual
        machine, and a validation waits a thousand times."""

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            if self._used:
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)
            else:
                self._release()

    def _enter(self) -> None:
        with self._guard:
            if self._closed:
                raise Closed("the channel was closed")
            self._used += 1

    def _leave(self) -> None:
        with self._guard:
            self._used -= 1
            if self._closed and not self._used:
                self._release()

    def _release(self) -> None:
        self._drop_fds()
        self.sock.close()

    def _drop_fds(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    # -- the asking side -------------------------------------------------------------------------------------------

    def ask(self, body: dict[str, Any], *, timeout_s: float, fds: tuple[int, ...] = ()) -> Frame:
        """Send a request and wait for the one frame that answers it.

        Raises ``TimedOut``, ``Closed`` or ``ProtocolError``. An ``ERROR`` frame is returned like a reply: its body
        says what went wrong on the other side.
        """
        nonce, seq = self.post(body, fds=fds)
        return self.answer(nonce, seq, timeout_s=timeout_s)

    def post(self, body: dict[str, Any], *, fds: tuple[int, ...] = ()) -> tuple[int, int]:
        """Send a request without waiting; give the (nonce, sequence) to pass to :meth:`answer`."""
        nonce = int.from_bytes(os.urandom(8), "little")
        self._seq += 1
        self._send(REQUEST, nonce, self._seq, body, fds)
        return nonce, self._seq

    def answer(self, nonce: int, seq: int, *, timeout_s: float) -> Frame:
        frame = self.receive(timeout_s=timeout_s)
        if frame.kind not in (REPLY, ERROR) or frame.nonce != nonce or frame.seq != seq:
            frame.close_fds()
            raise ProtocolError("the child sent a frame that answers no request")
        return frame

    # -- the answering side ----------------------------------------------------------------------------------------

    def reply(self, to: Frame, body: dict[str, Any], *, error: bool = False, fds: tuple[int, ...] = ()) -> None:
        self._send(ERROR if error else REPLY, to.nonce, to.seq, body, fds)

    # -- both ------------------------------------------------------------------------------------------------------

    def receive(self, *, timeout_s: float | None = None) -> Frame:
        """Wait for one whole frame. After a ``ProtocolError`` other than ``TimedOut`` the channel is of no more use."""
        self._enter()
        try:
            return self._receive(None if timeout_s is None else time.monotonic() + timeout_s)
        except TimedOut:
            raise
        except ProtocolError:
            self._drop_fds()
            raise
        finally:
            self._leave()

    def _receive(self, deadline: float | None) -> Frame:
        if self.spin_s and not self._buffer:
            self._spin()
        self._fill(HEADER.size, deadline)
        magic, kind, flags, length, n_fds, nonce, seq = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or flags or kind not in (REQUEST, REPLY, ERROR) or length > MAX_BODY or n_fds > MAX_FDS:
            raise ProtocolError("malformed frame header")
        self._fill(HEADER.size + length, deadline)
        raw = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        if len(self._fds) < n_fds:
            raise ProtocolError("a frame announced more descriptors than came")
        try:
            body = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("frame body is not JSON") from error
        if not isinstance(body, dict):
            raise ProtocolError("frame body is not an object")
        fds, self._fds = self._fds[:n_fds], self._fds[n_fds:]
        return Frame(kind, nonce, seq, body, fds)

    def pending(self) -> bool:
        """Whether bytes wait that nobody asked for. Raises ``Closed``."""
        self._enter()
        try:
            return bool(self._buffer) or self._readable(0.0)
        finally:
            self._leave()

    def _readable(self, wait_s: float) -> bool:
        # poll, since select refuses descriptors above 1023, which a server with many clients has.
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def _spin(self) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        until = time.perf_counter() + self.spin_s
        while not poll.poll(0) and time.perf_counter() < until:
            pass

    def _send(self, kind: int, nonce: int, seq: int, body: dict[str, Any], fds: tuple[int, ...]) -> None:
        raw = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
        if len(raw) > MAX_BODY:
            raise ProtocolError(f"frame body of {len(raw)} bytes; at most {MAX_BODY} fit")
        data = HEADER.pack(MAGIC, kind, 0, len(raw), len(fds), nonce, seq) + raw
        self._enter()
        try:
            if fds:
                sent = self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
                data = data[sent:]
            self.sock.sendall(data)
        except OSError as error:
            raise Closed("the other side is gone") from error
        finally:
            self._leave()

    def _fill(self, size: int, deadline: float | None) -> None:
        while len(self._buffer) < size:
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and (wait <= 0 or not self._readable(wait)):
                raise TimedOut("no answer in time")
            try:
                data, ancillary, flags, _ = self.sock.recvmsg(
                    1 << 16, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                raise Closed("the other side is gone") from error
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    got = array.array("i")
                    got.frombytes(raw[: len(raw) - len(raw) % got.itemsize])
                    self._fds.extend(got)
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError("descriptors were cut off")
            if len(self._fds) > _MOST_HELD:
                raise ProtocolError(f"more than {_MOST_HELD} descriptors came that belong to no frame")
            if not data:
                raise Closed("the other side closed the channel")
            self._buffer += data


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected stream sockets, close-on-exec, for the two ends of a channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
