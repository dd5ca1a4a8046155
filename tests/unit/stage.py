"""A candidate's end of the channel that says what it is told to, and the real parent's side in front of it."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from fk_core.child import wire
from fk_core.sandbox.launch import Child
from fk_core.trial import Trial

Play = Callable[["Stage"], None]
Make = Callable[..., Trial]


class Stage:
    """The candidate's end of the channel, in a thread: raw bytes, no channel object."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.nonce = self.seq = 0
        self.body: dict[str, Any] = {}

    def hear(self) -> dict[str, Any]:
        """Read one request."""
        head = self._exactly(wire.HEADER.size)
        _, _, _, length, _, self.nonce, self.seq = wire.HEADER.unpack(head)
        self.body = json.loads(self._exactly(length))
        return self.body

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def frame(self, raw: bytes, **other: Any) -> bytes:
        """A right frame around ``raw``, but for what ``other`` says of its header."""
        head: dict[str, Any] = {
            "magic": wire.MAGIC,
            "kind": wire.REPLY,
            "flags": 0,
            "length": len(raw),
            "fds": 0,
            "nonce": self.nonce,
            "seq": self.seq,
        }
        return wire.HEADER.pack(*(head | other).values()) + raw

    def say(self, body: Any, **other: Any) -> None:
        self.sock.sendall(self.frame(json.dumps(body).encode(), **other))

    def send_fds(self, data: bytes, fds: list[int]) -> None:
        self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


class FakeChild(Child):
    """The real parent's side of a child whose process is a thread of this one."""

    def __init__(self, play: Play) -> None:
        super().__init__(None, "candidate", "process", 4096)  # type: ignore[arg-type]
        self.killed = False
        self._started.set()
        self._resting = threading.Event()
        self._play = play
        self._thread = threading.Thread(target=self._perform, daemon=True)
        self._thread.start()

    def _perform(self) -> None:
        stage = Stage(self._theirs)
        try:
            while True:
                stage.hear()
                self._resting.clear()
                try:
                    self._play(stage)
                finally:
                    self._resting.set()
        except (EOFError, OSError):
            pass

    def rest(self) -> None:
        """Return when what was played for the last answer is over: until then the stage may hold descriptors."""
        assert self._resting.wait(10.0)

    def die(self, status: int = 0, limit: str | None = None, output: str = "") -> None:
        """The process ends by itself."""
        self._tail += output.encode()
        self.output_bytes += len(output)
        self._exit = {"by_itself": True, "status": status, "limit": limit}
        self._gone.set()
        self._theirs.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.killed = True
        if self._exit is None:
            self._exit = {"by_itself": False, "status": 9, "limit": None}
        self._gone.set()
        self.channel.close()

    def end(self) -> None:
        self.kill()
        self._thread.join(5.0)
        assert not self._thread.is_alive()
        self._close_theirs()
        self._line.close()
        os.close(self._log)


def exception(kind: str = "ValueError", message: str = "no", **more: Any) -> dict[str, Any]:
    return {"exception": {"type": kind, "message": message, "where": "line 3: x", "trace": "Traceback ..."} | more}
