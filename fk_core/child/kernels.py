"""The harness's own device code: the gate between timed calls, new inputs before a replay, and the cache flush.

Compiled ahead of time by Triton in the trusted parent of all children (no GPU context needed) and launched through the
driver, so nothing that a candidate does to Triton or torch in its process changes them, and a child loads them in under
a millisecond.
"""

from __future__ import annotations

import ctypes as c
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fk_core.child.cudadrv import check, driver

if TYPE_CHECKING:
    import torch

SAMPLES = 32
"""Words that a gate reads of each of two outputs."""
GATE_WORDS = 2048
REFRESH_WORDS = 2048
FLUSH_WORDS = 4096

_SOURCE = '''
import triton
import triton.language as tl


@triton.jit
def fk_gate(pristine, x, words, y0, y1, words0, words1, seed, out, BLOCK: tl.constexpr, SAMPLES: tl.constexpr):
    """Sample both outputs of the call before (first program), write the inputs of the call after (the others).

    Positions come from the seed by arithmetic, not from memory, so that a gate costs the same whether or not the
    outputs were just written.
    """
    block = tl.program_id(0)
    if block == 0:
        lane = tl.arange(0, SAMPLES).to(tl.int64)
        mixed = (seed + lane * 0x9E3779B1) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0xFFFFFFFF
        tl.store(out + lane, tl.load(y0 + ((mixed * words0) >> 32)))
        tl.store(out + SAMPLES + lane, tl.load(y1 + ((mixed * words1) >> 32)))
    else:
        at = (block - 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < words
        tl.store(x + at, tl.load(pristine + at, mask=inside), mask=inside)


@triton.jit
def fk_refresh(source, target, count, block, signs, seed, start, rows, shift, BLOCK: tl.constexpr):
    """Copy the first ``count`` words of each of ``rows`` blocks to the one ``shift`` before it, around the end, with
    some of their ``signs`` flipped by a hash of place and seed.

    ``count`` and ``block`` are multiples of 16.
    """
    within = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    at = row * block + within
    mixed = (start + at).to(tl.uint32) * tl.full((), 0x9E3779B1, tl.uint32) + seed.to(tl.uint32)
    mixed = (mixed ^ (mixed >> 15)) * tl.full((), 0x2C1B3C6D, tl.uint32)
    mixed = (mixed ^ (mixed >> 12)) * tl.full((), 0x297A2D39, tl.uint32)
    mixed = (mixed ^ (mixed >> 15)) & signs.to(tl.uint32)
    wanted = within < count
    value = tl.load(source + (row + shift) % rows * block + within, mask=wanted, other=0)
    tl.store(target + at, value ^ mixed.to(tl.int32, bitcast=True), mask=wanted)


@triton.jit
def fk_flush(buffer, sink, words, BLOCK: tl.constexpr):
    """Read the buffer once, so that the cache holds clean lines of nothing that is timed."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(buffer + at, mask=at < words, other=0), 0)
    if total == 0x7FFFFFFF:
        tl.store(sink, total)
'''


@dataclass(frozen=True)
class Binary:
    """One compiled kernel: the image, the entry name, threads a block and dynamic shared memory in bytes."""

    image: bytes
    name: str
    threads: int
    shared: int


_binaries: dict[int, dict[str, Binary]] = {}


def prepare(capability: int) -> dict[str, Binary]:
    """Compile the kernels for a compute capability such as 90; kept for this process and all that it forks."""
    if capability in _binaries:
        return _binaries[capability]
    import importlib.util

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory(prefix="fk-kernels-") as folder:
        path = Path(folder) / "fk_kernels.py"
        path.write_text(_SOURCE, encoding="utf-8")
        old = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            spec = importlib.util.spec_from_file_location("fk_kernels", path)
            if spec is None or spec.loader is None:
                raise ImportError(str(path))
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            namespace = vars(module)
            target = GPUTarget("cuda", capability, 32)
            aligned = [["tt.divisibility", 16]]
            built = {}
            for name, signature, constants, attributes in (
                (
                    "fk_gate",
                    {
                        "pristine": "*i32",
                        "x": "*i32",
                        "words": "i64",
                        "y0": "*i32",
                        "y1": "*i32",
                        "words0": "i64",
                        "words1": "i64",
                        "seed": "i64",
                        "out": "*i32",
                        "BLOCK": "constexpr",
                        "SAMPLES": "constexpr",
                    },
                    {"BLOCK": GATE_WORDS, "SAMPLES": SAMPLES},
                    {(0,): aligned, (1,): aligned, (2,): aligned},
                ),
                (
                    "fk_refresh",
                    {"source": "*i32", "target": "*i32"}
                    | dict.fromkeys(("count", "block", "signs", "seed", "start", "rows", "shift"), "i64")
                    | {"BLOCK": "constexpr"},
                    {"BLOCK": REFRESH_WORDS},
                    {(0,): aligned, (1,): aligned, (2,): aligned, (3,): aligned},
                ),
                (
                    "fk_flush",
                    {"buffer": "*i32", "sink": "*i32", "words": "i64", "BLOCK": "constexpr"},
                    {"BLOCK": FLUSH_WORDS},
                    {(0,): aligned, (2,): aligned},
                ),
            ):
                source = ASTSource(fn=namespace[name], signature=signature, constexprs=constants, attrs=attributes)
                kernel = triton.compile(source, target=target, options={"num_warps": 4})
                built[name] = Binary(kernel.asm["cubin"], kernel.metadata.name, 128, kernel.metadata.shared)
        finally:
            if old is None:
                os.environ.pop("TRITON_CACHE_DIR", None)
            else:
                os.environ["TRITON_CACHE_DIR"] = old
    _binaries[capability] = built
    return built


def positions(seed: int, words: int) -> list[int]:
    """Which words of an output a gate with this seed reads: the kernel's arithmetic, for the judge."""
    found = []
    for lane in range(SAMPLES):
        mixed = (seed + lane * 0x9E3779B1) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0xFFFFFFFF
        found.append((mixed * words) >> 32)
    return found


def flip_masks(seed: int, start: int, count: int, signs: int, device: torch.device) -> torch.Tensor:
    """What a refresh with this seed flips of so many words from ``start`` on, as int32: the kernel's arithmetic."""
    import torch

    at = torch.arange(start, start + count, dtype=torch.int64, device=device)
    mixed = (at * 0x9E3779B1 + seed) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 15)) & signs
    return torch.where(mixed > 0x7FFFFFFF, mixed - (1 << 32), mixed).to(torch.int32)


class Kernel:
    """A loaded kernel that is launched on a raw stream with addresses and integers, 8 bytes each."""

    def __init__(self, binary: Binary, arguments: int) -> None:
        lib = driver()
        module, function = c.c_void_p(), c.c_void_p()
        self._image = binary.image
        check(lib.cuModuleLoadData(c.byref(module), binary.image), f"load {binary.name}")
        check(lib.cuModuleGetFunction(c.byref(function), module, binary.name.encode()), f"find {binary.name}")
        self._function, self._threads, self._shared = function, binary.threads, binary.shared
        # Two null scratch pointers follow the arguments, as Triton's kernels take them.
        self._values = (c.c_ulonglong * (arguments + 2))()
        base = c.addressof(self._values)
        self._pointers = (c.c_void_p * (arguments + 2))(*[base + 8 * i for i in range(arguments + 2)])
        self._count = arguments
        self._launch = lib.cuLaunchKernel

    def launch(self, grid: int, stream: int, *arguments: int, rows: int = 1) -> None:
        """``grid`` times ``rows`` blocks of threads."""
        self._values[: self._count] = list(arguments)
        status = self._launch(
            self._function,
            grid,
            rows,
            1,
            self._threads,
            1,
            1,
            self._shared,
            c.c_void_p(stream),
            self._pointers,
            None,
        )
        check(status, "launch")
