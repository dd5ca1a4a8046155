"""The few CUDA driver calls that torch does not offer: memory shared by descriptor, and reading a captured graph.

ctypes over ``libcuda.so.1``. Structures follow ``cuda.h`` of CUDA 12 and 13. Every call raises ``CudaError`` with the
driver's own name for the error. All but :func:`start` need the device's context, which torch makes current in a thread.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from functools import lru_cache

_HANDLE_POSIX_FD = 1
_ALLOCATION_PINNED = 1
_LOCATION_DEVICE = 1
_ACCESS_READ_WRITE = 3
_LIMIT_PERSISTING_L2 = 0x06
_UNSUPPORTED_LIMIT = 215
_EDGE_PROGRAMMATIC = 1

NODE_KINDS = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host",
    4: "graph",
    5: "empty",
    6: "wait_event",
    7: "event_record",
    8: "semaphore_signal",
    9: "semaphore_wait",
    10: "mem_alloc",
    11: "mem_free",
    12: "batch_mem_op",
    13: "conditional",
}


class CudaError(RuntimeError):
    """A driver call failed."""


class _Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class _AllocFlags(c.Structure):
    _fields_ = (
        ("compression", c.c_ubyte),
        ("rdma", c.c_ubyte),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 4),
    )


class _AllocProp(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", _Location),
        ("win32", c.c_void_p),
        ("flags", _AllocFlags),
    )


class _AccessDesc(c.Structure):
    _fields_ = (("location", _Location), ("flags", c.c_int))


class _EdgeData(c.Structure):
    _fields_ = (("from_port", c.c_ubyte), ("to_port", c.c_ubyte), ("type", c.c_ubyte), ("reserved", c.c_ubyte * 5))


@lru_cache(maxsize=1)
def driver() -> c.CDLL:
    """The driver library of this process."""
    return c.CDLL("libcuda.so.1")


def check(status: int, what: str) -> None:
    """Raise ``CudaError`` for a driver call that failed; ``what`` it was to do."""
    if status:
        name = c.c_char_p()
        driver().cuGetErrorName(c.c_int(status), c.byref(name))
        raise CudaError(f"{what}: {(name.value or b'?').decode()} ({status})")


def _prop(device: int) -> _AllocProp:
    prop = _AllocProp()
    prop.type = _ALLOCATION_PINNED
    prop.handle_types = _HANDLE_POSIX_FD
    prop.location = _Location(_LOCATION_DEVICE, device)
    return prop


def start(device: int) -> None:
    """Start the driver, and the context of a device that torch will use: it finds both there. The interpreter is free
    to do something else in the fifth of a second that this takes, as it is not while torch does it.
    """
    lib, number, context = driver(), c.c_int(), c.c_void_p()
    check(lib.cuInit(c.c_uint(0)), "start the driver")
    check(lib.cuDeviceGet(c.byref(number), c.c_int(device)), f"find device {device}")
    check(lib.cuDevicePrimaryCtxRetain(c.byref(context), number), "make a context")


def granularity(device: int) -> int:
    """Bytes that shared allocations are rounded up to."""
    size = c.c_size_t()
    prop = _prop(device)
    check(driver().cuMemGetAllocationGranularity(c.byref(size), c.byref(prop), c.c_int(1)), "allocation granularity")
    return size.value


class SharedMemory:
    """Device memory that another process maps through a file descriptor, whatever its user or namespaces.

    The creator calls :meth:`create` and sends ``export()``; the other side calls :meth:`open` with what it received.
    The memory goes back to the driver when the last process that maps it has ended.
    """

    def __init__(self, handle: int, size: int, device: int) -> None:
        self.size, self.device = size, device
        self._handle = c.c_ulonglong(handle)
        address = c.c_ulonglong()
        lib = driver()
        check(
            lib.cuMemAddressReserve(
                c.byref(address), c.c_size_t(size), c.c_size_t(0), c.c_ulonglong(0), c.c_ulonglong(0)
            ),
            "reserve addresses",
        )
        self.address = address.value
        check(lib.cuMemMap(address, c.c_size_t(size), c.c_size_t(0), self._handle, c.c_ulonglong(0)), "map memory")
        access = _AccessDesc(_Location(_LOCATION_DEVICE, device), _ACCESS_READ_WRITE)
        check(lib.cuMemSetAccess(address, c.c_size_t(size), c.byref(access), c.c_size_t(1)), "allow access")

    @classmethod
    def create(cls, size: int, device: int) -> SharedMemory:
        step = granularity(device)
        size = -(-size // step) * step
        handle = c.c_ulonglong()
        prop = _prop(device)
        check(
            driver().cuMemCreate(c.byref(handle), c.c_size_t(size), c.byref(prop), c.c_ulonglong(0)),
            f"allocate {size} bytes of shared device memory",
        )
        return cls(handle.value, size, device)

    def export(self) -> int:
        """A new descriptor for this memory; the caller closes it."""
        fd = c.c_int(-1)
        check(
            driver().cuMemExportToShareableHandle(
                c.byref(fd), self._handle, c.c_int(_HANDLE_POSIX_FD), c.c_ulonglong(0)
            ),
            "export memory",
        )
        return fd.value

    @classmethod
    def open(cls, fd: int, size: int, device: int) -> SharedMemory:
        handle = c.c_ulonglong()
        check(
            driver().cuMemImportFromShareableHandle(c.byref(handle), c.c_void_p(fd), c.c_int(_HANDLE_POSIX_FD)),
            "import memory",
        )
        return cls(handle.value, size, device)

    def close(self) -> None:
        if self.address:
            lib = driver()
            check(lib.cuMemUnmap(c.c_ulonglong(self.address), c.c_size_t(self.size)), "unmap memory")
            check(lib.cuMemAddressFree(c.c_ulonglong(self.address), c.c_size_t(self.size)), "free addresses")
            check(lib.cuMemRelease(self._handle), "release memory")
            self.address = 0


def copy(target: int, source: int, size: int, stream: int) -> None:
    """Enqueue a copy of bytes between two device addresses."""
    check(
        driver().cuMemcpyDtoDAsync_v2(
            c.c_ulonglong(target), c.c_ulonglong(source), c.c_size_t(size), c.c_void_p(stream)
        ),
        "copy",
    )


def upload(executable: int, stream: int) -> None:
    """Bring a ``cudaGraphExec_t`` to the device, so that its first launch is like any other."""
    check(driver().cuGraphUpload(c.c_void_p(executable), c.c_void_p(stream)), "upload a graph")


@dataclass(frozen=True)
class GraphContent:
    """What a captured graph holds, with all that is in its child graphs."""

    nodes: dict[str, int]
    """How many of each kind; a child graph is one of kind ``graph`` itself."""
    programmatic: int
    """Edges that let a kernel begin before the one ahead of it has ended, as PDL makes them."""


def graph_content(graph: int) -> GraphContent:
    """What a captured ``cudaGraph_t`` holds."""
    lib = driver()
    kinds: dict[str, int] = {}
    programmatic = _programmatic(graph)
    number = c.c_int()
    for node in _nodes(graph):
        check(lib.cuGraphNodeGetType(c.c_void_p(node), c.byref(number)), "node type")
        name = NODE_KINDS.get(number.value, f"kind {number.value}")
        kinds[name] = kinds.get(name, 0) + 1
        if name == "graph":
            inner = graph_content(_child(node))
            programmatic += inner.programmatic
            for kind, count in inner.nodes.items():
                kinds[kind] = kinds.get(kind, 0) + count
    return GraphContent(kinds, programmatic)


def _nodes(graph: int) -> list[int]:
    lib = driver()
    count = c.c_size_t()
    check(lib.cuGraphGetNodes(c.c_void_p(graph), None, c.byref(count)), "count graph nodes")
    nodes = (c.c_void_p * max(1, count.value))()
    if count.value:
        check(lib.cuGraphGetNodes(c.c_void_p(graph), nodes, c.byref(count)), "list graph nodes")
    return [node or 0 for node in nodes[: count.value]]


def _child(node: int) -> int:
    """The graph of a node of kind ``graph``."""
    child = c.c_void_p()
    check(driver().cuGraphChildGraphNodeGetGraph(c.c_void_p(node), c.byref(child)), "child graph")
    return child.value or 0


def _programmatic(graph: int) -> int:
    """How many edges of a graph, without its child graphs, are programmatic."""
    lib = driver()
    if not hasattr(lib, "cuGraphGetEdges_v2"):
        return 0  # before CUDA 12.3 edges have no data
    get, count = lib.cuGraphGetEdges_v2, c.c_size_t()
    check(get(c.c_void_p(graph), None, None, None, c.byref(count)), "count graph edges")
    if not count.value:
        return 0
    start, end = (c.c_void_p * count.value)(), (c.c_void_p * count.value)()
    data = (_EdgeData * count.value)()
    check(get(c.c_void_p(graph), start, end, data, c.byref(count)), "list graph edges")
    kinds = bytes(data)[_EdgeData.type.offset :: c.sizeof(_EdgeData)]
    return kinds.count(_EDGE_PROGRAMMATIC)


def reset_persisting_l2() -> None:
    """Turn lines that were marked persisting back to normal, and take the set-aside away."""
    lib = driver()
    status = lib.cuCtxSetLimit(c.c_int(_LIMIT_PERSISTING_L2), c.c_size_t(0))
    if status == _UNSUPPORTED_LIMIT:
        return  # before Ampere nothing persists
    check(status, "limit persisting L2")
    check(lib.cuCtxResetPersistingL2Cache(), "reset persisting L2")
