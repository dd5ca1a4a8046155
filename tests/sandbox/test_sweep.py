"""What a killed harness leaves is found and removed; what a living one uses is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fk_core.sandbox import sweep, trees, triton_stubs
from fk_core.settings import Settings
from tests.sandbox.kit import gone_within

CODE = """
import os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from fk_core.sandbox import sweep
from fk_core.settings import Settings
run = sweep.Run(Settings(home=Path({home!r}), lock_dir=Path({home!r})))
scratch = run.scratch('candidate')
(scratch / 'deep' / 'er').mkdir(parents=True)
(scratch / 'deep' / 'er' / 'file').write_text('x')
os.symlink({outside!r}, scratch / 'way-out')
os.chmod(scratch / 'deep' / 'er', 0)
os.chmod(scratch / 'deep', 0o500)
print(run.path, sweep.marker(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks")


def _harness(own: Settings, outside: Path) -> tuple[subprocess.Popen[str], Path, str]:
    code = CODE.format(path=sys.path, home=str(own.home), outside=str(outside))
    harness = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    path, marker = harness.stdout.readline().split()
    return harness, Path(path), marker


def test_scratch_of_the_dead_is_removed_and_of_the_living_kept(own: Settings, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    harness, path, _ = _harness(own, outside)
    mine = sweep.Run(own)
    try:
        assert sweep.sweep(own)["scratch"] == []
        assert path.is_dir()
        harness.kill()
        harness.wait(10.0)
        assert sweep.sweep(own)["scratch"] == [path.name]
        assert not path.exists()
        assert mine.path.is_dir()
        assert (outside / "precious").exists()
    finally:
        harness.kill()
        harness.wait(10.0)
        assert harness.stdout is not None
        harness.stdout.close()
        mine.close()
    assert not mine.path.exists()


def test_what_cannot_be_removed_stops_no_sweep(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [own.scratch_dir / name for name in ("run-1-a", "run-1-b")]
    for path in old:
        path.mkdir(parents=True)
    remove = trees.remove
    with monkeypatch.context() as patched:
        patched.setattr(trees, "remove", lambda path: path != old[0] and remove(path))
        assert sweep.sweep(own)["scratch"] == [old[1].name]
    assert sweep.sweep(own)["scratch"] == [old[0].name]


def test_scratch_that_never_got_its_name_is_removed_when_it_is_old(own: Settings) -> None:
    own.scratch_dir.mkdir(parents=True, exist_ok=True)
    for name in (".run-1-", "probe-"):
        new, old = own.scratch_dir / f"{name}new", own.scratch_dir / f"{name}old"
        for path in (new, old):
            path.mkdir()
        os.utime(old, (0, 0))
        assert sweep.sweep(own)["scratch"] == [old.name]
        assert new.is_dir()
        assert not old.exists()


def test_orphans_of_the_dead_are_ended(own: Settings, tmp_path: Path) -> None:
    harness, _, marker = _harness(own, tmp_path)
    strays = [
        subprocess.Popen(["sleep", "600"], env=os.environ | {"FK_RUN": mark}, start_new_session=True)
        for mark in (marker, sweep.marker(), "0.1.1.x", "nonsense")
    ]
    try:
        assert strays[0].pid not in sweep.kill_orphans()
        harness.kill()
        harness.wait(10.0)
        assert strays[0].pid in sweep.kill_orphans()
        assert strays[0].wait(5.0) == -signal.SIGKILL
        assert [stray.poll() for stray in strays[1:]] == [None, None, None]
    finally:
        for stray in strays:
            stray.kill()
            stray.wait(5.0)
        harness.kill()
        harness.wait(10.0)
        assert harness.stdout is not None
        harness.stdout.close()


def test_kill_marked_takes_only_that_mark() -> None:
    marks = [sweep.marker(), sweep.marker()]
    strays = [subprocess.Popen(["sleep", "600"], env=os.environ | {"FK_RUN": mark}) for mark in marks]
    try:
        assert sweep.kill_marked(marks[0]) == [strays[0].pid]
        strays[0].wait(5.0)
        assert gone_within(lambda: strays[1].poll() is not None)
    finally:
        for stray in strays:
            stray.kill()
            stray.wait(5.0)


def test_stubs_are_kept_and_seeded(own: Settings, tmp_path: Path) -> None:
    built = own.cache_dir / "triton"
    for name, files in {
        "STUB": ["cuda_utils.so"],
        "KERNEL": ["k.cubin", "k.json"],
        "LAUNCHER": ["launcher.so"],
    }.items():
        (built / name).mkdir(parents=True)
        for file in files:
            (built / name / file).write_text(name)
    assert triton_stubs.harvest(own) == 2
    assert triton_stubs.harvest(own) == 0
    assert triton_stubs.seed(own, tmp_path / "cache") == 2
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["LAUNCHER", "STUB"]
