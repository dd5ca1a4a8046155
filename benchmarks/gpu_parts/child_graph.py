"""Whether ``cudadrv.graph_nodes`` counts what is inside a child graph. Exits with 2 where there is no GPU.

Capturing a launch of another graph makes a child graph node. The driver launches it here, because torch refuses to
replay a graph that knows a random generator while it captures.
"""

from __future__ import annotations

import ctypes
import sys

import torch

from fk_core.child import cudadrv

INNER, OUTER = 3, 2


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    x = torch.zeros(1024, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    inner, stream = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        inner.capture_begin()
        for _ in range(INNER):
            x.add_(1)
        inner.capture_end()
    executable = ctypes.c_void_p()
    made = cudadrv.driver().cuGraphInstantiateWithFlags(
        ctypes.byref(executable), ctypes.c_void_p(inner.raw_cuda_graph()), ctypes.c_ulonglong(0)
    )
    cudadrv.check(made, "instantiate")
    outer = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        outer.capture_begin()
        for _ in range(OUTER):
            x.add_(1)
        launched = cudadrv.driver().cuGraphLaunch(executable, ctypes.c_void_p(stream.cuda_stream))
        outer.capture_end()
    cudadrv.check(launched, "launch a graph while capturing")
    nodes = cudadrv.graph_nodes(outer.raw_cuda_graph())
    print(
        f"{INNER} kernels in a child graph beside {OUTER}: {nodes}, edges {cudadrv.graph_edges(outer.raw_cuda_graph())}"
    )
    return 0 if nodes.get("graph") == 1 and nodes.get("kernel") == INNER + OUTER else 1


if __name__ == "__main__":
    sys.exit(main())
