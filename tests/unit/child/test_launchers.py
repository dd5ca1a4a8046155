"""The trusted role that builds launchers, with a fake of Triton's driver: newer ones than 3.6 compile none."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fk_core.child import launchers, wire
from fk_core.child.triton_version import LAUNCHER


class Driver:
    """The part of ``triton.backends.nvidia.driver`` of 3.6 that builds launchers."""

    include_dirs, libraries = ["/include"], ["libcuda.so.1"]

    def __init__(self) -> None:
        self.compiled: list[dict[str, Any]] = []

    def library_dirs(self) -> list[str]:
        return ["/lib"]

    def make_launcher(self, constants: dict[Any, Any], signature: dict[int, str], tensordesc_meta: object) -> str:
        assert (constants, tensordesc_meta) == ({}, None)
        return ",".join(f"{i}={name}" for i, name in signature.items())

    def compile_module_from_src(self, **asked: Any) -> Any:
        if "fp64" in asked["src"]:
            raise RuntimeError("the compiler failed")
        self.compiled.append(asked)
        return SimpleNamespace(__file__=f"/cache/KEY{len(self.compiled)}/{asked['name']}.so")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia", SimpleNamespace(driver=made))  # type: ignore[arg-type]
    return made


@pytest.fixture
def role(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[wire.Channel]:
    ours, theirs = (wire.Channel(s) for s in wire.pair())
    ended = threading.Event()

    def leave(code: int) -> None:
        assert code == 0
        ended.set()
        raise SystemExit

    monkeypatch.setattr(launchers, "os", SimpleNamespace(_exit=leave))

    def serve() -> None:
        with contextlib.suppress(SystemExit):
            launchers.main(theirs, {})

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield ours
    ours.close()
    assert ended.wait(5.0)
    thread.join(5.0)
    theirs.close()


def test_each_is_compiled_as_triton_does_and_named(role: wire.Channel, driver: Driver) -> None:
    told = role.ask({"do": "build", "signature": ["*bf16", "i32", "constexpr"]}, timeout_s=5.0).body
    assert told == {"name": "KEY1", "failed": ""}
    assert driver.compiled == [
        {
            "src": "0=*bf16,1=i32,2=constexpr",
            "name": LAUNCHER,
            "library_dirs": ["/lib"],
            "include_dirs": ["/include"],
            "libraries": ["libcuda.so.1"],
        }
    ]


def test_a_failure_is_told_and_the_next_one_is_built(role: wire.Channel) -> None:
    told = role.ask({"do": "build", "signature": ["fp64"]}, timeout_s=5.0).body
    assert told == {"name": "", "failed": "RuntimeError: the compiler failed"}
    assert role.ask({"do": "build", "signature": ["i32"]}, timeout_s=5.0).body["name"] == "KEY1"
