"""Run candidate snippets under the guards, each in a fork of one warm process; prints a JSON object of their findings.

Reads ``{name: source}`` as JSON from standard input. A source may define ``run()``, which is called once after the
import, with a checkpoint after each of the two.
"""

import ast
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time

import torch

from fk_core.child.guards import checkpoint, stand_guard

torch.set_num_threads(1)


def observe(source, scratch):
    file = os.path.join(scratch, "candidate.py")
    with open(file, "w", encoding="utf-8") as handle:
        handle.write(source)
    start = time.perf_counter()
    stand_guard(file, scratch, forbidden=[os.environ["FORBIDDEN"]], allow=["allowed_kernels"])
    times = {"arm_ms": 1e3 * (time.perf_counter() - start)}
    spec = importlib.util.spec_from_file_location("candidate", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    raised = []
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001 - the probe reports what the candidate raised
        raised.append(repr(error)[:200])
    start = time.perf_counter()
    found = checkpoint("import")
    times["checkpoint_ms"] = 1e3 * (time.perf_counter() - start)
    try:
        getattr(module, "run", int)()
    except BaseException as error:  # noqa: BLE001
        raised.append(repr(error)[:200])
    told = {(f["kind"], f["what"]) for f in found}
    found += [f for f in checkpoint("calls") if (f["kind"], f["what"]) not in told]
    return {"findings": found, "raised": raised, **times}


def in_a_fork(source):
    """Findings of one snippet, from a child with its own session, folder and ten seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(scratch)
            os.environ.update(HOME=scratch, TMPDIR=scratch)
            tempfile.tempdir = scratch
            signal.alarm(20)
            answer = repr(observe(source, scratch)).encode()  # a snippet may have broken json
            os.write(writing, len(answer).to_bytes(4, "little") + answer)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            size = int.from_bytes(pipe.read(4), "little")
            answer = pipe.read(size)
        os.killpg(child, 9)
        os.waitpid(child, 0)
        return ast.literal_eval(answer.decode())


if __name__ == "__main__":
    print(json.dumps({name: in_a_fork(source) for name, source in json.load(sys.stdin).items()}))  # noqa: T201
