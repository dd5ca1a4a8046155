"""Whether ``cudadrv.graph_content`` counts what is inside a child graph. Exits with 2 where there is no GPU.

The launch of a graph can't be captured (seen on an H200, driver 580: it voids the capture), so the node is added to
what was captured.
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
    outer = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        outer.capture_begin()
        for _ in range(OUTER):
            x.add_(1)
        outer.capture_end()
    node, whole = ctypes.c_void_p(), ctypes.c_void_p(outer.raw_cuda_graph())
    added = cudadrv.driver().cuGraphAddChildGraphNode(
        ctypes.byref(node), whole, None, ctypes.c_size_t(0), ctypes.c_void_p(inner.raw_cuda_graph())
    )
    cudadrv.check(added, "add a child graph")
    content = cudadrv.graph_content(outer.raw_cuda_graph())
    nodes = content.nodes
    print(f"{INNER} kernels in a child graph beside {OUTER}: {nodes}, programmatic edges {content.programmatic}")
    return 0 if nodes.get("graph") == 1 and nodes.get("kernel") == INNER + OUTER else 1


if __name__ == "__main__":
    sys.exit(main())
