"""Repairs to Triton's interpreter, so that a kernel computes on a CPU what it computes on a GPU.

Stock Triton 3.6 to 3.8 under ``TRITON_INTERPRET=1``:

- keeps bfloat16 as raw ``uint16`` and does arithmetic on the bits: wrong by orders of magnitude, without an error;
- truncates fp32 to bfloat16 stores, where the hardware rounds to nearest even;
- hands Python floats to a kernel as they are, so that ``eps.to(tl.float32)`` raises;
- lets the stubs of ``libdevice`` return None;
- cannot autotune without a driver; and Triton 3.6 cannot loop up to ``tl.cdiv(...)`` with NumPy 2.4 or newer.

:func:`install` mends all of these. Call it after ``import triton`` and before any kernel is decorated; one process is
either interpreted or compiled, never both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.runtime import autotuner
from triton.runtime import interpreter as stock

_BF16 = np.dtype(ml_dtypes.bfloat16)
_RAW = np.dtype(np.uint16)
_installed = False


def install() -> None:
    """Repair the interpreter of this process; doing it twice does nothing.

    Raises RuntimeError where Triton was not told to interpret before it was imported.
    """
    global _installed
    if _installed:
        return
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET=1 must be set before triton is imported")
    _repair_bfloat16()
    _repair_arguments()
    _repair_ranges()
    _repair_libdevice()
    _repair_autotuning()
    _silence_numpy()
    _installed = True


def _is_bf16(triton_type: Any) -> bool:
    element = triton_type.element_ty if isinstance(triton_type, tl.block_type) else triton_type
    return not isinstance(element, tl.pointer_type) and element == tl.bfloat16


def _bits(handle: Any) -> np.ndarray:
    """Data of a bfloat16 handle as ``uint16``, for the interpreter's native loads and stores."""
    return np.ascontiguousarray(handle.data).view(_RAW)


def _widened(handle: Any) -> Any:
    if handle.data.dtype != _BF16:
        return handle
    return stock.TensorHandle(handle.data.astype(np.float32), tl.float32)


def _repair_bfloat16() -> None:
    """Let ml_dtypes' bfloat16 stand for Triton's: NumPy then computes in fp32 and rounds to nearest even."""
    builder = stock.InterpreterBuilder
    numpy_type, masked_load, masked_store = stock._get_np_dtype, builder.create_masked_load, builder.create_masked_store
    dot, atomic_rmw, atomic_cas = builder.create_dot, builder.create_atomic_rmw, builder.create_atomic_cas
    fp_to_fp = builder.create_fp_to_fp
    native = stock._interpreter

    def get_np_dtype(triton_type: Any) -> np.dtype:
        return _BF16 if _is_bf16(triton_type) else numpy_type(triton_type)

    def cast(self: Any, source: Any, target: Any) -> Any:
        return stock.TensorHandle(source.data.astype(get_np_dtype(target)), target.scalar)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        wide = (tl.float16, tl.bfloat16, tl.float32, tl.float64)
        nearest = rounding in (None, stock._ir.ROUNDING_MODE.RTNE)
        if nearest and source.dtype.scalar in wide and target.scalar in wide:
            return cast(self, source, target)
        return fp_to_fp(self, source, target, rounding)

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        element = pointers.get_element_ty()
        if not _is_bf16(element):
            return masked_load(self, pointers, mask, other, *rest, **named)
        fill = np.zeros(pointers.data.shape, _RAW) if other is None else _bits(other)
        raw = native.load(pointers.data, np.asarray(mask.data), fill, _RAW)
        return stock.TensorHandle(raw.view(_BF16), element)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if value.data.dtype != _BF16:
            return masked_store(self, pointers, value, mask, *rest, **named)
        return native.store(pointers.data, _bits(value), np.asarray(mask.data))

    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), accumulator, *rest)

    def create_atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if value.data.dtype != _BF16:
            return atomic_rmw(self, operation, pointers, value, mask, sem, scope)
        step = _BF16_ATOMICS.get(str(operation).rpartition(".")[2])
        if step is None:
            raise ValueError(f"no atomic {operation} for bfloat16")
        shape = np.broadcast_shapes(pointers.data.shape, value.data.shape)
        where, what = (np.broadcast_to(array, shape).reshape(-1) for array in (pointers.data, value.data))
        take = np.broadcast_to(np.asarray(mask.data), shape).reshape(-1)
        before = np.zeros(where.shape, _BF16)
        one = np.ones(1, bool)
        # One element after the other: lanes of one block may meet at the same address.
        for i in np.flatnonzero(take):
            address = where[i : i + 1].copy()
            old = native.load(address, one, np.zeros(1, _RAW), _RAW).view(_BF16)
            before[i] = old[0]
            native.store(address, np.array(step(old, what[i : i + 1]), _BF16).view(_RAW), one)
        return stock.TensorHandle(before.reshape(shape), value.dtype.scalar)

    def create_atomic_cas(self: Any, pointers: Any, compare: Any, value: Any, sem: Any, scope: Any) -> Any:
        if value.data.dtype != _BF16:
            return atomic_cas(self, pointers, compare, value, sem, scope)
        raw_compare = stock.TensorHandle(_bits(compare), tl.uint16)
        raw_value = stock.TensorHandle(_bits(value), tl.uint16)
        found = atomic_cas(self, pointers, raw_compare, raw_value, sem, scope)
        return stock.TensorHandle(found.data.view(_BF16), value.dtype.scalar)

    stock._get_np_dtype = get_np_dtype
    builder.cast_impl = cast
    builder.create_fp_to_fp = create_fp_to_fp
    builder.create_masked_load, builder.create_masked_store = load, store
    builder.create_dot = create_dot
    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas
    builder.get_bf16 = lambda self, value: stock.TensorHandle(np.array([value], dtype=_BF16), tl.bfloat16)


_BF16_ATOMICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "FADD": np.add,
    "XCHG": lambda old, new: new,
}


def _repair_arguments() -> None:
    """Give a kernel its Python floats as fp32 scalars and its booleans as one bit, as a compiled kernel gets them."""
    convert = stock._implicit_cvt

    def implicit_cvt(argument: Any) -> Any:
        if isinstance(argument, bool):
            return tl.tensor(stock.TensorHandle(np.array([argument], dtype=bool), tl.int1), tl.int1)
        if type(argument) is float:
            return tl.tensor(stock.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)
        return convert(argument)

    stock._implicit_cvt = implicit_cvt


def _repair_ranges() -> None:
    """Let a scalar of one element and one dimension bound a loop, also with NumPy 2.4 and newer."""
    patch = stock._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        scope[0].set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(-1)[0]))

    if hasattr(stock, "_LangPatchScope"):
        stock._patch_lang_tensor = patch_lang_tensor


def _round_away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(x.dtype.type(0.5), x))


def _elementwise(function: Callable[..., float]) -> Callable[..., np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _log_gamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


_LIBDEVICE: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("tanh", "sinh", "cosh", "exp", "exp2", "expm1", "log", "log2", "log10")},
    **{name: getattr(np, name) for name in ("log1p", "sqrt", "sin", "cos", "tan", "floor", "ceil", "trunc", "rint")},
    **{name: getattr(np, name) for name in ("isnan", "isinf", "signbit", "hypot", "cbrt", "copysign", "fmod", "ldexp")},
    **{"acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atan2": np.arctan2, "pow": np.power},
    **{"acosh": np.arccosh, "asinh": np.arcsinh, "atanh": np.arctanh, "nextafter": np.nextafter},
    **{"abs": np.abs, "fabs": np.abs, "max": np.fmax, "min": np.fmin, "fmax": np.fmax, "fmin": np.fmin},
    **{"finitef": np.isfinite, "isfinited": np.isfinite, "nearbyint": np.rint, "round": _round_away},
    **{"erf": _elementwise(math.erf), "erfc": _elementwise(math.erfc)},
    **{"lgamma": _elementwise(_log_gamma), "tgamma": _elementwise(math.gamma)},
    **{"fast_expf": np.exp, "fast_logf": np.log, "fast_log2f": np.log2, "fast_log10f": np.log10},
    **{"fast_sinf": np.sin, "fast_cosf": np.cos, "fast_tanf": np.tan, "fast_tanhf": np.tanh, "fast_powf": np.power},
    **{"fast_dividef": np.divide, "div_rn": np.divide, "mul_rn": np.multiply, "add_rn": np.add, "sub_rn": np.subtract},
    **{"sqrt_rn": np.sqrt, "rcp_rn": np.reciprocal, "fdim": lambda a, b: np.maximum(a - b, 0)},
    **{"exp10": lambda x: np.power(x.dtype.type(10), x), "fast_exp10f": lambda x: np.power(x.dtype.type(10), x)},
    **{"rsqrt": lambda x: 1 / np.sqrt(x), "rsqrt_rn": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x)},
    **{"fma": lambda a, b, c: a * b + c, "fma_rn": lambda a, b, c: a * b + c, "saturatef": lambda x: np.clip(x, 0, 1)},
}


def _libdevice(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **_named: Any) -> Any:
        handles = [a.handle if isinstance(a, tl.tensor) else _scalar(a) for a in arguments]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*[handle.data for handle in handles]))
        element = handles[0].dtype.scalar
        if result.dtype == np.bool_:
            element = tl.int1
        elif result.dtype != handles[0].data.dtype:
            result = result.astype(handles[0].data.dtype)
        block = any(isinstance(a, tl.tensor) and a.type.is_block() for a in arguments)
        kind = tl.block_type(element, list(result.shape)) if block else element
        return tl.tensor(stock.TensorHandle(result, element), kind)

    return call


def _scalar(value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, int):
        return stock.TensorHandle(np.array([value], dtype=np.int32), tl.int32)
    return stock.TensorHandle(np.array([value], dtype=np.float32), tl.float32)


def _repair_libdevice() -> None:
    import triton.language.extra.cuda.libdevice as cuda_libdevice
    import triton.language.extra.libdevice as libdevice

    for name, function in _LIBDEVICE.items():
        for module in (libdevice, cuda_libdevice):
            if hasattr(module, name):
                setattr(module, name, _libdevice(function))


def _repair_autotuning() -> None:
    """Run every configuration once and take the first that works: a CPU has no time to tell about a GPU kernel."""

    def do_bench(self: Any) -> Callable[..., list[float]]:
        def bench(kernel_call: Callable[[], Any], quantiles: Any = None, **_named: Any) -> list[float]:
            kernel_call()
            return [1.0, 1.0, 1.0]

        return bench

    autotuner.Autotuner.do_bench = property(do_bench)


def _silence_numpy() -> None:
    """Overflow and NaN are silent on a GPU; NumPy's warnings about them would fill the candidate's log."""
    run = stock.GridExecutor.__call__

    def quiet(self: Any, *arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(self, *arguments, **named)

    stock.GridExecutor.__call__ = quiet
