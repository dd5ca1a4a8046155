"""Reading a captured graph, with a driver that knows a few graphs by number."""

from __future__ import annotations

from typing import Any

import pytest

from fk_core.child import cudadrv
from fk_core.child.cudadrv import graph_content

KERNEL, MEMCPY, HOST, GRAPH, UNKNOWN = 0, 1, 3, 4, 99
PROGRAMMATIC = 1


class Driver:
    """``nodes`` and ``edges`` by graph; a node is (handle, kind, child graph), an edge (from, to, type)."""

    def __init__(self, nodes: dict[int, list[tuple[int, int, int]]], edges: dict[int, list[tuple[int, int, int]]]):
        self.nodes, self.edges = nodes, edges
        self.kinds = {handle: (kind, child) for some in nodes.values() for handle, kind, child in some}
        self.calls: list[str] = []

    def cuGraphGetNodes(self, graph: Any, into: Any, count: Any) -> int:
        self.calls.append("nodes")
        found = self.nodes[graph.value]
        count._obj.value = len(found)
        for n, (handle, _, _) in enumerate(found if into is not None else []):
            into[n] = handle
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        self.calls.append("type")
        kind._obj.value = self.kinds[node.value][0]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: Any, child: Any) -> int:
        child._obj.value = self.kinds[node.value][1]
        return 0

    def _edges(self, graph: Any, start: Any, end: Any, data: Any, count: Any) -> int:
        found = self.edges.get(graph.value, [])
        count._obj.value = len(found)
        for n, (a, b, kind) in enumerate(found if start is not None else []):
            start[n], end[n], data[n].from_port, data[n].to_port, data[n].type = a, b, 1, 1, kind
        return 0


class Newer(Driver):
    def cuGraphGetEdges_v2(self, *arguments: Any) -> int:
        return self._edges(*arguments)


NODES = {
    1: [(11, KERNEL, 0), (12, GRAPH, 2), (13, KERNEL, 0), (14, UNKNOWN, 0)],
    2: [(21, KERNEL, 0), (22, GRAPH, 3), (23, MEMCPY, 0)],
    3: [(31, HOST, 0)],
    4: [],
}
EDGES = {1: [(11, 12, 0), (12, 13, PROGRAMMATIC), (13, 14, 0)], 2: [(21, 22, PROGRAMMATIC), (22, 23, PROGRAMMATIC)]}


def given(monkeypatch: pytest.MonkeyPatch, lib: Driver) -> Driver:
    monkeypatch.setattr(cudadrv, "driver", lambda: lib)
    return lib


def test_child_graphs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = given(monkeypatch, Newer(NODES, EDGES))
    content = graph_content(1)
    assert content.nodes == {"kernel": 3, "graph": 2, "kind 99": 1, "memcpy": 1, "host": 1}
    assert content.programmatic == 3
    assert lib.calls.count("type") == 8, "each node is asked once"


def test_an_empty_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Newer(NODES, EDGES))
    assert (graph_content(4).nodes, graph_content(4).programmatic) == ({}, 0)


def test_an_older_driver_has_no_programmatic_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Driver(NODES, EDGES))
    content = graph_content(1)
    assert (content.nodes["kernel"], content.programmatic) == (3, 0)
