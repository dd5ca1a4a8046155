"""How input and state tensors are drawn, by name and from a seeded generator.

Everything is drawn in fp32 on the generator's device and then rounded to the dtype of the case: the oracle sees the
rounded values, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Shape = tuple[int, ...]

UNEQUAL = ("later_smaller", "later_larger")
"""Normal values, those of every argument behind the first so much smaller or larger that one drowns the other."""
UNEQUAL_BITS = (11.0, 13.0)
"""Least and most of the logarithm to base 2 of how much: fp16 holds what is so much larger."""
GENERIC = frozenset({"normal", "large", "heavy", "shifted", "repeated_row", *UNEQUAL})
"""Values without structure: rounding errors are independent, so that the rms and row-scale tests hold."""
MANDATORY = ("normal", "large", "tiny", "constant", "cancellation", "outliers")
"""A wrong kernel is known for each of these that passes all the others."""
OUTLIER_SCALE = 300.0
NORM_EXTREMES = (0.0, 1e-3, 0.05, -4.0, 16.0, 64.0, -200.0, 500.0)
"""Weights of norms that a kernel must not clamp or replace."""
SCALES: dict[str, tuple[float, float]] = {"faint": (1e-36, 1e-6), "uneven": (1e-6, 10.0), "vast": (10.0, 1e15)}
"""Smallest and largest scale of a row. Together they leave no gap between denormals and ``huge``."""
FLUSHABLE = frozenset({"denormals", "faint"})
"""Values among which are denormals, which fast math may flush to zero."""
_HALF_SCALES = {"faint": (1e-7, 1e-4), "uneven": (1e-4, 10.0), "vast": (10.0, 8e3)}


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    made = torch.Generator(device)
    made.manual_seed(seed & (2**63 - 1))
    return made


def draw(name: str, shape: Shape, dtype: torch.dtype, source: torch.Generator, level: float | None = None) -> Tensor:
    """A tensor of the distribution ``name`` on the generator's device. Raises ``KeyError`` with the known names.

    ``level``, from 0 to 1, says where in its range a distribution of ``SCALES`` lies; None leaves that to chance.
    """
    if name not in DISTRIBUTIONS:
        raise KeyError(f"no distribution {name!r}; known: {', '.join(sorted(DISTRIBUTIONS))}")
    if name in SCALES:
        return _scaled(name, shape, dtype, source, level).to(dtype)
    return DISTRIBUTIONS[name](shape, dtype, source).to(dtype)


def draw_state(name: str, shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """A parameter or buffer: ``normal``, ``norm_weight`` or ``linear_weight``. Never ones or zeros."""
    if name == "normal":
        values = _normal(shape, source)
    elif name == "norm_weight":
        values = (0.5 + _uniform(shape, source)) * torch.where(_uniform(shape, source) < 0.2, -1.0, 1.0)
        # Trained weights have columns far from 1: each of these in about one of a hundred, and at least once.
        extremes = torch.tensor(NORM_EXTREMES, device=source.device)
        count = max(len(extremes), shape[-1] * len(extremes) // 100)
        columns = torch.randperm(shape[-1], generator=source, device=source.device)[:count]
        values[..., columns] = extremes.repeat(count // len(extremes) + 1)[: len(columns)]
    elif name == "linear_weight":
        values = _normal(shape, source) / math.sqrt(max(1, shape[-1]))
    else:
        raise KeyError(f"no draw {name!r} for state; known: linear_weight, norm_weight, normal")
    return values.to(dtype)


class Drawer:
    """Draws the arguments of one call, in the order asked: what ``make_inputs`` of a task gets as ``draw``.

    It remembers what it drew, since some distributions relate arguments to each other: under ``cancellation`` a second
    argument of the same shape is nearly the negative of the first; under ``UNEQUAL`` it has another size.
    """

    def __init__(
        self,
        distribution: str,
        shapes: dict[str, Shape],
        dtype: torch.dtype,
        source: torch.Generator,
        level: float | None = None,
    ) -> None:
        self.distribution, self.shapes, self.dtype, self.source = distribution, shapes, dtype, source
        self.level = level
        self._drawn: list[Tensor] = []

    def __call__(self, name: str) -> Tensor:
        shape = self.shapes[name]
        partner = next((tensor for tensor in self._drawn if tuple(tensor.shape) == shape), None)
        if self.distribution == "cancellation" and partner is not None:
            made = _nearly_opposite(partner, self.source)
        elif self.distribution in UNEQUAL and self._drawn:
            bits = _scalar(self.source, *UNEQUAL_BITS)
            size = 2.0 ** (bits if self.distribution == "later_larger" else -bits)
            made = (_normal(shape, self.source) * size).to(self.dtype)
        else:
            made = draw(self.distribution, shape, self.dtype, self.source, self.level)
        self._drawn.append(made)
        return made


def _normal(shape: Shape, source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, device=source.device)


def _uniform(shape: Shape, source: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=source, device=source.device)


def _sign(shape: Shape, source: torch.Generator) -> Tensor:
    return torch.where(_uniform(shape, source) < 0.5, -1.0, 1.0)


def _scalar(source: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(_uniform((), source))


def _plain(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return _normal(shape, source)


def _large(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return _normal(shape, source) * 20


def _tiny(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return _normal(shape, source) * 1e-4


def _heavy(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    # The bound keeps the rarest values within fp16.
    return (_normal(shape, source) * torch.exp(1.5 * _normal(shape, source))).clamp(-3e4, 3e4)


def _shifted(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return _normal(shape, source) + 3


def _integers(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return torch.randint(-8, 9, shape, generator=source, device=source.device).float()


def _zeros(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return torch.zeros(shape, device=source.device)


def _negative_zeros(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return torch.full(shape, -0.0, device=source.device)


def _constant(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return torch.full(shape, _scalar(source, 0.5, 2.0), device=source.device) * _sign((), source)


def _huge(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    # The squares of 1e15 still fit fp32; those of 8e3 overflow fp16 and not fp32.
    size = 8e3 if dtype == torch.float16 else 1e15
    return _sign(shape, source) * (0.5 + _uniform(shape, source)) * size


def _denormals(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    # In fp64, where they are normal numbers: fp32 might flush them on the way.
    return (_uniform(shape, source).double() * 2 - 1) * torch.finfo(dtype).smallest_normal


def _negative(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    return _normal(shape, source) * 4 - 12


def _low_rows(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """Rows that lie wholly far below zero: every second one anywhere from -128 to -16512, the others, or the only one,
    below -4e4.

    Multiples of 128 that fp16 and bf16 hold: values are equal or so far apart that the exponential of the difference is
    zero, so that a kernel may round x * log2(e) before it subtracts. Up to five different ones stand in a row. One
    element alone is the largest, so that the logarithm of the sum is 0 and may be added to it; in 16 bits, which hide
    how that is rounded, several may be in a row that is not as deep.
    """
    width = shape[-1] if shape else 1
    values = torch.empty(shape, device=source.device)
    rows = values.reshape(-1, width)
    each = (rows.shape[0], 1)
    depth = torch.exp(_uniform(each, source) * math.log(127)).floor() * 128
    if dtype == torch.float16:
        step = torch.full(each, 256.0, device=source.device)
    else:
        step = 256.0 * 2.0 ** (_uniform(each, source) * 5).floor()
    deep = step * (160 + (_uniform(each, source) * 64).floor())
    below = (torch.arange(each[0], device=source.device) + int(_scalar(source, 0.0, 2.0))).unsqueeze(1) % 2 == 0
    if each[0] == 1:
        below = torch.ones_like(below)
    kinds = 1 + (_uniform(each, source) * 4).floor()
    places = (_uniform(tuple(rows.shape), source) * kinds).floor()
    alone = below | (dtype == torch.float32)
    largest = (_uniform(each, source) * width).long()
    places = torch.where(alone, places + 1, places)
    places.scatter_(1, largest, 0.0)
    rows.copy_(-torch.where(below, deep + step * places, depth + 128 * places))
    return values


def _repeated_row(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    values = _normal(shape, source)
    if values.dim() > 1 and values.shape[0] > 1:
        values[-1] = values[0]
    return values


def _outliers(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    values = _normal(shape, source)
    width = shape[-1] if shape else 1
    count = max(1, width // 128)
    channels = torch.randperm(width, generator=source, device=source.device)[:count]
    values.reshape(-1, width)[:, channels] *= OUTLIER_SCALE
    return values


def _cancellation(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """Neighbours of nearly opposite values: sums over a row are far smaller than what is summed."""
    values = _normal(shape, source) * 30
    width = shape[-1] if shape else 1
    half = width // 2
    rows = values.reshape(-1, width)
    rows[:, 1 : 2 * half : 2] = -rows[:, 0 : 2 * half : 2] + 0.1 * rows[:, 1 : 2 * half : 2]
    return values


def _nearly_opposite(partner: Tensor, source: torch.Generator) -> Tensor:
    shape = tuple(partner.shape)
    off = torch.where(_uniform(shape, source) < 0.125, 0.0, _normal(shape, source) * 2.0**-6)
    return (-partner.float() * (1 + off)).to(partner.dtype)


def _masked(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """-inf at three tenths of the places and, in every second row, behind or before a random column, which stays. Of
    each three rows, or two where there are no more, one keeps a twentieth or less. The first row begins with -inf.
    """
    values = _normal(shape, source) * 3
    width = shape[-1] if shape else 1
    rows = values.reshape(-1, width)
    count = rows.shape[0]
    share = torch.full((count, 1), 0.3, device=source.device)
    every = min(3, max(2, count))
    few = torch.arange(count, device=source.device) % every == int(_scalar(source, 0.0, float(every)))
    share[few] = 0.95 + 0.04 * _uniform((int(few.sum()), 1), source)
    gone = _uniform((count, width), source) < share
    kept = (_uniform((count, 1), source) * width).long()
    kept[:1] = kept[:1].clamp(min=min(1, width - 1))
    column = torch.arange(width, device=source.device)
    side = torch.where(_uniform((count, 1), source) < 0.5, column > kept, column < kept)
    side[1::2] = False
    gone |= side
    gone[:1, :1] = True
    gone &= column != kept
    rows[gone] = -math.inf
    return values


def _nan(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """One to three NaN in each of a third of the rows, at least in one; the other rows have none."""
    values = _normal(shape, source)
    width = shape[-1] if shape else 1
    rows = values.reshape(-1, width)
    count = max(1, rows.shape[0] // 3)
    hit = torch.randperm(rows.shape[0], generator=source, device=source.device)[:count]
    columns = torch.randint(0, width, (count, 3), generator=source, device=source.device)
    rows[hit.unsqueeze(1), columns] = math.nan
    return values


def _scaled(name: str, shape: Shape, dtype: torch.dtype, source: torch.Generator, level: float | None) -> Tensor:
    """Normal values times a scale for either half of a row: about half of them share the largest, the others are
    smaller by any factor. In every second row, about, both halves have the same.

    The largest is at ``level`` of the logarithmic range of the distribution.
    """
    low, high = (_HALF_SCALES if dtype == torch.float16 else SCALES)[name]
    span = math.log(high / low) * (_scalar(source, 0.0, 1.0) if level is None else level)
    width = shape[-1] if shape else 1
    halves = (*shape[:-1], 2)
    less = torch.where(_uniform(halves, source) < 0.5, 0.0, _uniform(halves, source).double())
    alike = _uniform(halves, source)[..., :1] < 0.5
    less[..., 1:] = torch.where(alike, less[..., :1], less[..., 1:])
    less.reshape(-1)[:1] = 0.0
    by_column = less[..., (torch.arange(width, device=source.device) >= (width + 1) // 2).long()]
    return _normal(shape, source).double() * (low * torch.exp(span * (1.0 - by_column)))


def _of_scale(name: str) -> Callable[[Shape, torch.dtype, torch.Generator], Tensor]:
    return lambda shape, dtype, source: _scaled(name, shape, dtype, source, None)


DISTRIBUTIONS: dict[str, Callable[[Shape, torch.dtype, torch.Generator], Tensor]] = {
    "normal": _plain,
    "large": _large,
    "tiny": _tiny,
    "heavy": _heavy,
    "shifted": _shifted,
    "integers": _integers,
    "zeros": _zeros,
    "constant": _constant,
    "huge": _huge,
    "negative_zeros": _negative_zeros,
    "denormals": _denormals,
    "negative": _negative,
    "low_rows": _low_rows,
    "repeated_row": _repeated_row,
    "outliers": _outliers,
    "cancellation": _cancellation,
    "masked": _masked,
    "nan": _nan,
    **dict.fromkeys(UNEQUAL, _plain),
    **{name: _of_scale(name) for name in SCALES},
}
