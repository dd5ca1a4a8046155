"""A second, independent reading of the tolerance rule, and simple draws, for the tests of tasks."""

from __future__ import annotations

import torch
from torch import Tensor

from fk_core.child.calls import Call

# Digits of the significand, smallest normal, and where the spacing stops shrinking.
DIGITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
FLOOR_EXPONENT = {torch.float32: -126, torch.bfloat16: -126, torch.float16: -14}


def half_ulp(ref: Tensor, dtype: torch.dtype) -> Tensor:
    _, exponent = torch.frexp(ref.abs())
    exponent = torch.clamp(exponent - 1, min=FLOOR_EXPONENT[dtype])
    return torch.ldexp(torch.ones_like(ref), exponent - DIGITS[dtype])


def error_ratio(got: Tensor, ref: Tensor, mag: Tensor, u: float) -> float:
    """Largest abs(got - ref) / (half an ulp + u * mag); infinite where one is finite and the other is not."""
    limit = torch.finfo(got.dtype).max
    wide = got.double()
    if not torch.equal(wide.isnan(), ref.isnan()):
        return float("inf")
    wide, ref, mag = (torch.where(ref.isnan(), 0.0, each) for each in (wide, ref, mag))
    fits = ref.abs() <= limit
    if not bool((torch.isfinite(wide) | ~fits).all()):
        return float("inf")
    allowed = (half_ulp(ref, got.dtype) + u * mag).clamp_min(2.0**-126)
    ratio = torch.where(fits, (wide - ref).abs() / allowed, torch.zeros_like(ref))
    return float(ratio.max())


def draw(call: Call, name: str, generator: torch.Generator) -> Tensor:
    shape, kind = call.shapes[name], call.distribution
    z = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "large":
        z = 20 * z
    elif kind == "tiny":
        z = 1e-4 * z
    elif kind == "heavy":
        z = z * torch.exp(1.5 * torch.randn(shape, generator=generator, dtype=torch.float64))
    elif kind == "shifted":
        z = z + 3
    elif kind == "integers":
        z = torch.randint(-8, 9, shape, generator=generator).double()
    elif kind == "zeros":
        z = torch.zeros(shape, dtype=torch.float64)
    elif kind == "constant":
        z = torch.full(shape, 0.7, dtype=torch.float64)
    elif kind == "huge":
        z = z * (8e3 if call.dtype == torch.float16 else 1e15)
    elif kind == "negative_zeros":
        z = torch.full(shape, -0.0, dtype=torch.float64)
    elif kind == "denormals":
        z = z * 1e-39
    elif kind == "negative":
        z = -z.abs() - 30
    elif kind == "outliers":
        z[..., :: max(1, shape[-1] // 5)] *= 300
    elif kind == "cancellation":
        z = (100 + z) * (1 if name == "x" else -1)
    elif kind == "nan":
        z[0, 0] = float("nan")
    elif kind == "faint":
        z = z * 1e-20 if call.dtype != torch.float16 else z * 1e-6
    elif kind == "uneven":
        z = z * torch.logspace(-6, 1, shape[0], dtype=torch.float64).unsqueeze(-1)
    elif kind == "vast":
        z = z * (3e3 if call.dtype == torch.float16 else 1e9)
    elif kind == "masked":
        z[torch.rand(shape, generator=generator) < 0.5] = -float("inf")
        z[0] = -float("inf")
    return z.to(call.dtype)


def draw_state(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    state = {}
    for name, shape in shapes.items():
        value = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
        value[torch.rand(shape, generator=generator) < 0.2] *= -1
        state[name] = value.to(dtype)
    return state
