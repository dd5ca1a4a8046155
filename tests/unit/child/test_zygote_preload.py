"""What the zygote imports must not ask whether there is a GPU: the answer would cost all its forks their NVML."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fk_core.child.zygote_main import _answered


@pytest.mark.parametrize("gpu", [True, False])
def test_the_answer_is_there(gpu: bool) -> None:
    asked: list[str] = []

    def is_available() -> bool:
        asked.append("the driver")
        return True

    cuda = SimpleNamespace(is_available=is_available)
    with _answered(cuda, gpu=gpu):
        assert cuda.is_available() is gpu
    assert cuda.is_available is is_available
    assert asked == []


def test_it_is_put_back_when_an_import_fails() -> None:
    cuda = SimpleNamespace(is_available=print)
    with pytest.raises(ImportError), _answered(cuda, gpu=True):
        raise ImportError("no such module")
    assert cuda.is_available is print
