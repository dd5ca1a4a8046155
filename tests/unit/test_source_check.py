from __future__ import annotations

import ast
import time

import pytest

from fk_core.catalog import Catalog
from fk_core.records.report import Outcome
from fk_core.records.task import TaskSpec
from fk_core.source_check import check_source
from fk_core.stubs import render_source

HEAD = "import torch\nimport torch.nn as nn\n"


@pytest.fixture(scope="module")
def spec() -> TaskSpec:
    return Catalog().get("rms_norm")


def norm(
    init: str = "self, hidden_size, eps=1e-6", forward: str = "self, x, residual=None", base: str = "nn.Module"
) -> str:
    return f"{HEAD}class RMSNorm({base}):\n    def __init__({init}): ...\n    def forward({forward}): ...\n"


def test_stubs_have_no_problem() -> None:
    catalog = Catalog()
    for name in catalog.names():
        assert check_source(catalog.get(name), render_source(catalog.get(name))) == []


@pytest.mark.parametrize(
    "text",
    [
        norm(),
        norm("self, hidden_size, eps=1e-6, elementwise_affine=True"),
        norm("self, *args, **kwargs", "self, *args"),
        norm("self, *, hidden_size, eps=1e-6"),
        norm(forward="self, hidden_states, skip=None, /"),
        "from elsewhere import RMSNorm\n",
        "from elsewhere import *\n",
        HEAD + "def make(): ...\nRMSNorm = make()\n",
        HEAD + "class _Norm(nn.Module): ...\nRMSNorm = _Norm\n",
        HEAD + "if torch.cuda.is_available():\n    class RMSNorm(nn.Module):\n"
        "        def __init__(self): ...\n        def forward(self, x, residual=None): ...\n"
        "else:\n    class RMSNorm(nn.Module):\n        def __init__(self, hidden_size, eps=1e-6): ...\n",
        HEAD + "@decorated\nclass RMSNorm(nn.Module):\n    def forward(self): ...\n",
        HEAD + "class RMSNorm(Base): ...\n",
        HEAD
        + "class RMSNorm(nn.Module):\n    def __init__(self, hidden_size, eps=1e-6): ...\n    forward = _forward\n",
        # Wrapped, redefined, or with a generator inside.
        norm().replace("def forward", "@awaited\n    async def forward"),
        norm().replace("def forward", "async def forward") + "    forward = awaited(forward)\n",
        norm().replace("def forward", "async def forward") + "    def forward(self, x, residual=None): ...\n",
        norm() + "    async def close(self): ...\n    def rows(self):\n        yield 1\n",
        norm().replace(
            "residual=None): ...", "residual=None):\n        def rows():\n            yield x\n        return x"
        ),
        *(
            f"{line}\n{norm()}"
            for line in ("# coding: utf-8", "#!x\n# -*- coding: UTF8 -*-", "# vim: fileencoding=utf_8")
        ),
        norm() + "# coding: latin-1\n",
        "x = 1\n# coding: latin-1\n" + norm(),
        HEAD + "globals()['RMSNorm'] = type('RMSNorm', (nn.Module,), {})\n",
        # No word is banned.
        norm() + "import os, ctypes, subprocess\nos.system('true')\neval('1')\n__import__('vllm')\n",
    ],
)
def test_what_may_be_right_is_let_through(spec: TaskSpec, text: str) -> None:
    ast.parse(text)
    assert check_source(spec, text) == []


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        ("", Outcome.BUILD_FAILED, "empty"),
        (" \n", Outcome.BUILD_FAILED, "empty"),
        (norm() + "x = '\0'", Outcome.BUILD_FAILED, "line 6 holds a NUL"),
        (norm() + "x = '\ud800'", Outcome.BUILD_FAILED, r"line 6 holds a lone surrogate \(\\ud800\)"),
        ("\ufeff\ufeff" + norm(), Outcome.BUILD_FAILED, "syntax error: line 1.*FEFF"),
        ("# coding: latin-1\n" + norm(), Outcome.BUILD_FAILED, "line 1 declares the encoding iso-8859-1.*remove the"),
        ("#!x\n# -*- coding: utf-7 -*-\n" + norm(), Outcome.BUILD_FAILED, "line 2 declares the encoding utf-7; .*UTF"),
        ("\r# coding: unicode_escape\r" + norm(), Outcome.BUILD_FAILED, "line 2 declares the encoding unicode_escape"),
        ("# coding: klingon\n" + norm(), Outcome.BUILD_FAILED, "line 1: unknown encoding: klingon; candidates are"),
        (
            norm().replace("def forward", "async def forward"),
            Outcome.CONTRACT_BROKEN,
            "RMSNorm.forward is `async def`.* Write `def forward`",
        ),
        (
            norm(base="Base").replace("def __init__", "async def __init__"),
            Outcome.CONTRACT_BROKEN,
            "RMSNorm.__init__ is `async def`",
        ),
        (
            norm().replace("residual=None): ...", "residual=None):\n        for row in x:\n            yield row"),
            Outcome.CONTRACT_BROKEN,
            r"RMSNorm.forward is a generator \(`yield` in line 7\)",
        ),
        ("#" * (1 << 20) + "\n", Outcome.BUILD_FAILED, "1048577 bytes; at most 1048576"),
        (norm() + "def f(:\n", Outcome.BUILD_FAILED, "syntax error: line 6"),
        (norm().replace("def forward(self, x", "def forward(self, x, x"), Outcome.BUILD_FAILED, "duplicate argument"),
        ("class RMSNorm(" + "a." * 3000 + "b):\n    pass\n", Outcome.BUILD_FAILED, "can't be"),
        (
            "class RMSNorm:\n    def __init__(self, n=0x" + "f" * 20_000 + "):\n        pass\n",
            Outcome.BUILD_FAILED,
            "can't be read",
        ),
        ("\tif", Outcome.BUILD_FAILED, "syntax error: line 1"),
        ("(" * 5000 + ")" * 5000, Outcome.BUILD_FAILED, "syntax error|can't be parsed"),
        ("-" * 200_000 + "1", Outcome.BUILD_FAILED, "syntax error|can't be parsed"),
        (HEAD, Outcome.CONTRACT_BROKEN, "no class 'RMSNorm' in the file; it defines no class"),
        (norm().replace("RMSNorm", "RmsNorm"), Outcome.CONTRACT_BROKEN, "no class 'RMSNorm'.*its classes: RmsNorm"),
        (HEAD + "def f():\n    class RMSNorm: ...\n", Outcome.CONTRACT_BROKEN, "no class 'RMSNorm'"),
        (norm("self, hidden"), Outcome.CONTRACT_BROKEN, r"\(self, hidden\) can't take RMSNorm\(hidden_size=4096"),
        (norm("self, hidden_size, eps"), Outcome.CONTRACT_BROKEN, r"RMSNorm\(hidden_size=128\).*missing.*'eps'"),
        (norm("self, hidden_size"), Outcome.CONTRACT_BROKEN, "unexpected keyword argument 'eps'"),
        (norm("self, hidden_size, /, eps=1e-6"), Outcome.CONTRACT_BROKEN, "hidden_size"),
        (norm(forward="self, x"), Outcome.CONTRACT_BROKEN, r"can't take forward\(x, residual\)"),
        (norm(forward="self, x, residual"), Outcome.CONTRACT_BROKEN, r"can't take forward\(x\).*missing.*'residual'"),
        (norm(forward="self, x, *, residual=None"), Outcome.CONTRACT_BROKEN, "too many positional"),
        (HEAD + "class RMSNorm(nn.Module):\n    def forward(self, x, residual=None): ...\n",
         Outcome.CONTRACT_BROKEN, "defines no __init__"),
        (HEAD + "class RMSNorm(nn.Module):\n    def __init__(self, hidden_size, eps=1e-6): ...\n",
         Outcome.CONTRACT_BROKEN, "defines no forward"),
    ],
)  # fmt: skip
def test_problems(spec: TaskSpec, text: str, outcome: Outcome, message: str) -> None:
    problems = check_source(spec, text)
    assert problems
    assert problems[0].outcome is outcome
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(problems[0].message)
    assert all(len(problem.message) < 600 for problem in problems)


def test_only_the_cases_at_hand_must_bind(spec: TaskSpec) -> None:
    plain_only = norm(forward="self, x")
    assert check_source(spec, plain_only, [case for case in spec.cases if case.form == "plain"]) == []
    assert check_source(spec, plain_only, spec.cases)


def test_a_call_that_does_not_bind_is_told_once(spec: TaskSpec) -> None:
    problems = check_source(spec, norm(forward="self, x"))
    assert len(problems) == 1
    assert problems[0].line == 5


SLOW = {
    "many classes": "class A: pass\n" * 40_000,
    "one comparison": "1" + "<1" * 400_000,
}


@pytest.mark.parametrize("name", SLOW)
def test_what_takes_the_compiler_too_long_is_refused(spec: TaskSpec, name: str) -> None:
    """Elsewhere, so that nobody else has to wait for it."""
    began = time.process_time()
    (found,) = check_source(spec, SLOW[name])
    assert found.outcome is Outcome.BUILD_FAILED
    assert "can't be parsed" in found.message
    assert time.process_time() - began < 1.0


def test_a_long_file_is_read_like_a_short_one(spec: TaskSpec) -> None:
    long = "x = 1\n" * 10_000
    assert check_source(spec, norm() + long) == []
    (found,) = check_source(spec, norm() + long + "return 1\n")
    assert (found.outcome, found.line) == (Outcome.BUILD_FAILED, 10_006)
    assert "outside function" in found.message
    (found,) = check_source(spec, norm() + long + "def f(:\n")
    assert (found.outcome, found.line) == (Outcome.BUILD_FAILED, 10_006)
