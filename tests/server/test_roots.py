from __future__ import annotations

from pathlib import Path

import pytest

from fk_core.errors import BadPath, RequestError
from fk_server.roots import Roots


def test_the_working_directory_and_the_named_roots(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    roots = Roots.from_environment({"FK_ALLOWED_ROOTS": f"{other}:"}, cwd=tmp_path / "here")
    assert roots.allowed == (tmp_path.resolve() / "here", other.resolve())
    assert roots.resolve("a.py") == tmp_path.resolve() / "here" / "a.py"
    assert roots.resolve(str(other / "b.py")) == other.resolve() / "b.py"


def test_the_root_directory_counts_only_where_it_is_named() -> None:
    assert Roots.from_environment({}, cwd=Path("/")).allowed == ()
    with pytest.raises(BadPath, match="none"):
        Roots.from_environment({}, cwd=Path("/")).resolve("etc/passwd")
    assert Roots.from_environment({"FK_ALLOWED_ROOTS": "/"}, cwd=Path("/")).allowed == (Path("/"),)


def test_siblings_with_the_same_beginning_are_outside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    with pytest.raises(BadPath):
        Roots(((tmp_path / "a").resolve(),)).resolve("../ab/x.py")


def test_links_are_followed_before_they_are_judged(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path)
    with pytest.raises(BadPath):
        Roots((inside.resolve(),)).new_file("out/x.py")
    assert not (tmp_path / "x.py").exists()


def test_a_working_directory_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", gone)
    assert Roots.from_environment({}).allowed == ()
    assert Roots.from_environment({"FK_ALLOWED_ROOTS": str(tmp_path)}).allowed == (tmp_path.resolve(),)
    with pytest.raises(RequestError, match="'here', relative to a working directory that is gone"):
        Roots.from_environment({"FK_ALLOWED_ROOTS": f"{tmp_path}:here"})


def test_the_home_of_nobody(tmp_path: Path) -> None:
    roots = Roots((tmp_path.resolve(),))
    for use in (roots.resolve, roots.new_file, lambda path: roots.read(path, 100)):
        with pytest.raises(BadPath, match=r"'~nouser-fk/x.py' begins with the home directory of a user .* Give an abs"):
            use("~nouser-fk/x.py")
    with pytest.raises(RequestError, match=r"FK_ALLOWED_ROOTS: '~nouser-fk/x' begins .* Give an absolute path"):
        Roots.from_environment({"FK_ALLOWED_ROOTS": f"{tmp_path}:~nouser-fk/x"}, cwd=tmp_path)


def test_a_root_that_is_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RequestError, match="leads back to itself"):
        Roots.from_environment({"FK_ALLOWED_ROOTS": str(tmp_path / "loop")}, cwd=tmp_path)
