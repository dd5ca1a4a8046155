"""Run in a fresh process: kernels under Triton's interpreter, with or without the repairs; prints one JSON object.

``python interpreter_probe.py stock|repaired``. Each probe reports a number or the name of the exception it raised.
"""

import json
import sys

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def scale_kernel(x, z, eps, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(z + i, v * (1.0 + eps.to(tl.float32)), mask=i < n)


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def tanh_kernel(x, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(z + i, libdevice.tanh(tl.load(x + i)))


@triton.jit
def loop_kernel(x, z, n, BLOCK: tl.constexpr):
    total = 0.0
    for k in range(0, tl.cdiv(n, BLOCK)):
        i = k * BLOCK + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + i, mask=i < n, other=0.0).to(tl.float32))
    tl.store(z, total)


@triton.jit
def atomic_kernel(x, z, BLOCK: tl.constexpr):
    tl.atomic_add(z + tl.arange(0, BLOCK) * 0, tl.load(x + tl.arange(0, BLOCK)))


@triton.jit
def constant_kernel(x, z, flag, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i) * 3.0 + tl.full((BLOCK,), 2.0, x.dtype.element_ty)
    if flag:
        v = v + 1.0
    tl.store(z + i, tl.abs(v))


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_kernel(x, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def _worst(got, want):
    return float((got.double() - want.double()).abs().nan_to_num(1e30, 1e30, 1e30).max())


def add_bf16():
    x, y = torch.randn(5000).bfloat16(), torch.randn(5000).bfloat16()
    z = torch.zeros_like(x)
    add_kernel[(5,)](x, y, z, 5000, BLOCK=1024)
    return _worst(z, x + y)


def store_rounding():
    x = torch.randn(1000)
    z = torch.zeros(1000, dtype=torch.bfloat16)
    scale_kernel_constant[(1,)](x, z, 1000, BLOCK=1024)
    return _worst(z, x.bfloat16())


@triton.jit
def scale_kernel_constant(x, z, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n), mask=i < n)


def float_argument():
    x, z = torch.randn(100), torch.zeros(100)
    scale_kernel[(1,)](x, z, 0.5, 100, BLOCK=128)
    return _worst(z, x * 1.5)


def dot_bf16():
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    c = torch.zeros(64, 64)
    dot_kernel[(1,)](a, b, c, N=64)
    return _worst(c, a.double() @ b.double())


def libdevice_tanh():
    x, z = torch.randn(64), torch.zeros(64)
    tanh_kernel[(1,)](x, z, BLOCK=64)
    return _worst(z, x.tanh())


def loop_to_cdiv():
    x, z = torch.ones(1000), torch.zeros(1)
    loop_kernel[(1,)](x, z, 1000, BLOCK=64)
    return _worst(z, torch.tensor([1000.0]))


def atomic_bf16():
    x, z = torch.ones(64).bfloat16(), torch.zeros(1).bfloat16()
    atomic_kernel[(1,)](x, z, BLOCK=64)
    return _worst(z, torch.tensor([64.0]))


def constants_bf16():
    x = torch.randn(64).bfloat16()
    z = torch.zeros_like(x)
    constant_kernel[(1,)](x, z, True, BLOCK=64)
    return _worst(z, ((x * 3 + 2) + 1).abs())


def autotune():
    x, z = torch.randn(300), torch.zeros(300)
    tuned_kernel[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, z, 300)
    return _worst(z, x * 2)


PROBES = (add_bf16, store_rounding, float_argument, dot_bf16, libdevice_tanh, loop_to_cdiv, atomic_bf16)
PROBES += (constants_bf16, autotune)

if __name__ == "__main__":
    torch.manual_seed(0)
    if sys.argv[1] == "repaired":
        from fk_core.child import interpreter

        interpreter.install()
        interpreter.install()
    answers = {}
    for probe in PROBES:
        try:
            answers[probe.__name__] = probe()
        except Exception as error:  # noqa: BLE001 - the probe reports whatever the stock interpreter raises
            answers[probe.__name__] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(answers))  # noqa: T201 - the answer to the test
