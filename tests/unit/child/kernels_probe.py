"""Run in a process of its own: ``compile FIRST,SECOND``, or ``interpret FILE`` under TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

from fk_core.child import kernels


def compile_for(capability: int) -> dict[str, Any]:
    folder = os.environ.get("TRITON_CACHE_DIR")
    built = kernels.prepare(capability)
    return {
        "again": kernels.prepare(capability) is built,
        "folder_kept": os.environ.get("TRITON_CACHE_DIR") == folder,
        "cuda": torch.cuda.is_initialized(),
        "built": {
            name: {
                "name": b.name,
                "threads": b.threads,
                "shared": b.shared,
                "elf": b.image[:4] == b"\x7fELF",
                "holds_name": b.name.encode() in b.image,
            }
            for name, b in built.items()
        },
    }


def interpret(path: str) -> dict[str, Any]:
    """Run the gate on the CPU over random sizes, and compare with what the judge expects of it."""
    from fk_core.child import interpreter

    interpreter.install()
    Path(path).write_text(kernels._SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("fk_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = random.Random(4)
    wrong = []
    for words0, words1, words in ((7, 1, 5), (4096, 33, 2048), (100_000, 4096, 5000), (1, 1, 0)):
        seed = rng.getrandbits(24)
        y0 = torch.randint(-(2**31), 2**31 - 1, (words0,), dtype=torch.int32)
        y1 = torch.randint(-(2**31), 2**31 - 1, (words1,), dtype=torch.int32)
        pristine = torch.randint(-(2**31), 2**31 - 1, (max(1, words),), dtype=torch.int32)
        x = torch.zeros(max(1, words) + 100, dtype=torch.int32)
        out = torch.zeros(2 * kernels.SAMPLES, dtype=torch.int32)
        grid = (1 + -(-words // kernels.GATE_WORDS),)
        module.fk_gate[grid](
            pristine, x, words, y0, y1, words0, words1, seed, out, BLOCK=kernels.GATE_WORDS, SAMPLES=kernels.SAMPLES
        )
        expected = [y0[p] for p in kernels.positions(seed, words0)] + [y1[p] for p in kernels.positions(seed, words1)]
        if out.tolist() != [int(v) for v in expected]:
            wrong.append(["samples", words0, words1])
        if not torch.equal(x[:words], pristine[:words]) or x[words:].any():
            wrong.append(["copy", words])
    return {"wrong": wrong}


if __name__ == "__main__":
    action, argument = sys.argv[1:3]
    sys.stdout.write(
        json.dumps([compile_for(int(n)) for n in argument.split(",")] if action == "compile" else interpret(argument))
    )
