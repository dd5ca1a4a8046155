"""Whatever a candidate makes of its scratch directory, it is measured and removed, and nothing else is."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fk_core.sandbox import trees

USER = 61234
DEEP = 2200
"""Twice as deep as Python's stack, and longer than a path may be even with names of one letter."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that an ordinary user, too, can reach and fill."""
    path = Path(tempfile.mkdtemp(prefix="fk-trees-", dir="/var/tmp"))
    if os.geteuid() == 0:
        os.chown(path, USER, USER)
    try:
        yield path
    finally:
        trees.remove(path)
        assert not path.exists()


def ordinary(do: Callable[[], bool]) -> None:
    """Do it in a process without privileges, to which mode 000 is a barrier."""
    if os.geteuid() != 0:
        assert do()
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            code = 0 if do() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def dig(root: Path, depth: int, name: str = "d", mode: int = 0o700) -> None:
    """Directories in each other, each with a file of 4 KiB, all of this mode in the end."""
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        os.write(file, b"x" * 4096)
        os.close(file)
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.fchmod(fd, mode)
        os.close(fd)
        fd = below
    os.fchmod(fd, mode)
    os.close(fd)


@pytest.mark.parametrize("name", ["d", "n" * 255, "\udcff\n"])
def test_a_tree_deeper_than_the_stack_and_longer_than_a_path(place: Path, name: str) -> None:
    root = place / "deep"
    dig(root, DEEP, name)
    assert trees.size(root) >= DEEP * 4096
    assert trees.remove(root)
    assert not root.exists()


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o500, 0o300])
def test_its_owner_removes_what_is_locked_up(place: Path, mode: int) -> None:
    def locked_up() -> bool:
        dig(place / "deep", 1500, mode=mode)
        return trees.remove(place / "deep") and not (place / "deep").exists()

    ordinary(locked_up)


def test_links_are_removed_and_not_followed(place: Path) -> None:
    outside = place / "outside"
    (outside / "in").mkdir(parents=True)
    (outside / "in" / "precious").write_text("x" * (1 << 20))
    outside.chmod(0o500)
    root = place / "tree"
    (root / "sub").mkdir(parents=True)
    for folder in (root, root / "sub"):
        (folder / "whole").symlink_to(outside)
        (folder / "inner").symlink_to(outside / "in")
        (folder / "file").symlink_to(outside / "in" / "precious")
        (folder / "loop").symlink_to(".")
        (folder / "up").symlink_to("..")
    os.link(outside / "in" / "precious", root / "hard")
    os.unlink(root / "hard")
    assert trees.size(root) < 1 << 20
    assert trees.remove(root)
    assert (outside / "in" / "precious").stat().st_size == 1 << 20
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_link_in_place_of_the_tree_is_removed_alone(place: Path) -> None:
    (place / "outside" / "in").mkdir(parents=True)
    (place / "link").symlink_to(place / "outside")
    assert trees.size(place / "link") == 0
    assert trees.remove(place / "link")
    assert not (place / "link").is_symlink()
    assert (place / "outside" / "in").is_dir()


def test_other_kinds_of_files_and_many_of_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_BATCH", 300)
    root = place / "wide"
    root.mkdir()
    os.mkfifo(root / "pipe")
    for number in range(10_000):
        (root / f"file{number}").touch()
    for number in range(1_000):
        (root / f"dir{number}").mkdir()
        (root / f"dir{number}" / "file").touch()
    assert trees.remove(root)
    assert not root.exists()


def test_what_is_not_there_is_gone(place: Path) -> None:
    assert trees.remove(place / "nothing")
    assert trees.remove(place / "nothing" / "at" / "all")
    assert trees.size(place / "nothing") == 0


def test_two_may_remove_one_tree(place: Path) -> None:
    root = place / "tree"
    dig(root, 500)
    for number in range(200):
        dig(root / f"dir{number}", 20)
    done: list[bool] = []
    others = [threading.Thread(target=lambda: done.append(trees.remove(root))) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(60.0)
    assert done == [True] * 4
    assert not root.exists()


def test_entries_that_come_and_move_meanwhile(place: Path) -> None:
    """By a process that was not ended yet; it is, a moment later."""
    root, stop = place / "tree", threading.Event()
    dig(root, 300)

    def stir() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                (root / f"new{number}" / "in").mkdir(parents=True, exist_ok=True)
                (root / f"new{number}" / "in" / "file").touch()
                (root / f"new{number}" / "in").rename(root / f"moved{number}")
            except OSError:
                continue

    stirrer = threading.Thread(target=stir)
    stirrer.start()
    threading.Timer(0.5, stop.set).start()
    try:
        trees.remove(root)
    finally:
        stop.set()
        stirrer.join(10.0)
    assert trees.remove(root)
    assert not root.exists()


def test_one_who_writes_for_ever_is_left(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trees, "_REMOVE_S", 0.0)
    dig(place / "tree", 3)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert not trees.remove(place / "tree")
    assert time.monotonic() - started < 5.0
    assert "is left: others write there. Remove it by hand" in caplog.text


def test_what_belongs_to_another_is_left_with_a_word_in_the_log(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    foreign = place / "tree" / "foreign"
    foreign.mkdir(parents=True)
    (foreign / "file").touch()
    (place / "tree" / "own").mkdir()
    os.chown(place / "tree", USER, USER)
    os.chown(place / "tree" / "own", USER, USER)
    said: list[str] = []

    def left() -> bool:
        trees.log.addFilter(lambda record: bool(said.append(record.getMessage())))
        gone = trees.remove(place / "tree")
        return not gone and len(said) == 1 and "Permission denied ('file')" in said[0]

    ordinary(left)
    assert [path.name for path in (place / "tree").iterdir()] == ["foreign"]
    shutil.rmtree(place / "tree")
