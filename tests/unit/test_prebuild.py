"""What is copied from a cache that a candidate may have filled, and when building ahead is worth it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fk_core import prebuild
from fk_core.sandbox import triton_cache


def test_plain_files_are_copied_once_and_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "abc").mkdir(parents=True)
    (source / "abc" / "kernel.cubin").write_bytes(b"one")
    assert triton_cache.copy_cache(source, target) == 1
    (source / "abc" / "kernel.cubin").write_bytes(b"two")
    (source / "abc" / "kernel.json").write_bytes(b"{}")
    assert triton_cache.copy_cache(source, target) == 1
    assert (target / "abc" / "kernel.cubin").read_bytes() == b"one"
    assert sorted(p.name for p in (target / "abc").iterdir()) == ["kernel.cubin", "kernel.json"]


def test_links_and_special_files_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("do not copy", encoding="utf-8")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "abc").mkdir(parents=True)
    (source / "abc" / "linked").symlink_to(secret / "token")
    (source / "folder").symlink_to(secret)
    os.mkfifo(source / "abc" / "pipe")
    assert triton_cache.copy_cache(source, target) == 0
    assert not list(target.rglob("*token*"))
    assert not (target / "abc" / "linked").exists()
    (tmp_path / "all").symlink_to(source)
    assert triton_cache.copy_cache(tmp_path / "all", target) == 0


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    """A candidate may put a link where the harness is about to write."""
    outside = tmp_path / "outside"
    outside.mkdir()
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("abc", "def"):
        (source / name).mkdir(parents=True)
        (source / name / "kernel.cubin").write_bytes(b"one")
    (target / "def").mkdir(parents=True)
    (target / "abc").symlink_to(outside)
    (target / "def" / "kernel.cubin").symlink_to(outside / "made")
    assert triton_cache.copy_cache(source, target) == 0
    assert not list(outside.iterdir())
    (tmp_path / "all").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        triton_cache.copy_cache(source, tmp_path / "all")
    assert not list(outside.iterdir())


def test_other_names_of_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("do not copy", encoding="utf-8")
    (tmp_path / "source" / "abc").mkdir(parents=True)
    os.link(tmp_path / "token", tmp_path / "source" / "abc" / "kernel.cubin")
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 0


def test_huge_files_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_cache, "_FILE_BYTES", 10)
    (tmp_path / "source" / "abc").mkdir(parents=True)
    (tmp_path / "source" / "abc" / "big").write_bytes(b"x" * 11)
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 0


@pytest.mark.parametrize(
    ("source", "cpu", "cores", "worth"),
    [
        ("import triton", False, 8, True),
        ("import triton", True, 8, False),
        ("import triton", False, 2, False),
        ("import torch", False, 8, False),
        ("import triton\nfrom torch.utils.cpp_extension import load_inline", False, 8, False),
        ("import triton\nf = torch.compile(g)", False, 8, False),
    ],
)
def test_it_is_worth_it_for_triton_on_a_gpu_machine_with_cores(
    source: str, cpu: bool, cores: int, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert prebuild.worthwhile(source, SimpleNamespace(cpu=cpu)) is worth  # type: ignore[arg-type]
