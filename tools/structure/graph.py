"""Cycles of a directed graph: where they are, an example of each, and the fewest edges to cut.

A graph maps a node to the nodes that it has edges to. Nothing here knows a file or a language. All results are the
same for the same graph, whatever the order of its nodes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

Graph: TypeAlias = Mapping[str, Collection[str]]
Edge: TypeAlias = tuple[str, str]

# Orders that `cuts` begins with, beside those it computes; more of them hardly ever find a smaller set.
_STARTS: Final = 40


def layers(graph: Graph) -> list[list[str]]:
    """All strongly connected components (Tarjan 1972), each after those that it has edges to, its nodes sorted."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        path.append(node)
        on_path.add(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in on_path:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            start = path.index(node)
            found.append(sorted(path[start:]))
            on_path.difference_update(path[start:])
            del path[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def knots(graph: Graph) -> list[list[str]]:
    """The strongly connected components of two nodes or more, the biggest first."""
    return sorted((nodes for nodes in layers(graph) if len(nodes) > 1), key=lambda nodes: (-len(nodes), nodes))


def shortest_cycle(graph: Graph, knot: Collection[str]) -> list[str]:
    """A cycle of as few nodes as possible; its first node is its last one, too."""
    inside = set(knot)
    best: list[str] = []
    for start in sorted(inside):
        came_from = {start: start}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            if start in graph.get(node, ()):
                cycle = [start, node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                if node == start:
                    cycle = [start, start]
                if not best or len(cycle) < len(best):
                    best = cycle[::-1]
                break
            for other in sorted(graph.get(node, ())):
                if other in inside and other not in came_from:
                    came_from[other] = node
                    queue.append(other)
    return best


def cuts(graph: Graph, knot: Collection[str], cost: Mapping[Edge, int]) -> list[Edge]:
    """Edges without which the knot has no cycle: as few as were found, and of equally many those of the least cost.

    The smallest set is hard to compute. This orders the nodes, moves one at a time to where the fewest edges go against
    the order, and does so from many orders at the start.
    """
    inside = sorted(knot)
    total = sum(cost.values()) + 1
    weight = {
        (source, target): total + cost.get((source, target), 0)
        for source in inside
        for target in graph.get(source, ())
        if target in knot and target != source
    }
    degree = {node: sum((node == source) - (node == target) for source, target in weight) for node in inside}
    dice = random.Random(0)
    starts = [inside, sorted(inside, key=lambda node: (degree[node], node))]
    starts += [dice.sample(inside, len(inside)) for _ in range(_STARTS)]
    orders = [_improved(start, weight) for start in starts]
    best = min(orders, key=lambda order: (sum(weight[edge] for edge in _against(order, weight)), order))
    return sorted(_against(best, weight))


def _against(order: list[str], weight: Mapping[Edge, int]) -> list[Edge]:
    """The edges from a node to a later one."""
    rank = {node: place for place, node in enumerate(order)}
    return [(source, target) for source, target in weight if rank[target] > rank[source]]


def _improved(order: list[str], weight: Mapping[Edge, int]) -> list[str]:
    """The order after each node has been moved to its best place, until no move helps."""
    order = list(order)
    moved = True
    while moved:
        moved = False
        for node in sorted(order):
            here = order.index(node)
            others = order[:here] + order[here + 1 :]
            # The change in weight when the node stands at each place, compared with the first one.
            change, best, best_at, at_home = 0, 0, 0, 0
            for place, other in enumerate(others, 1):
                change += weight.get((other, node), 0) - weight.get((node, other), 0)
                if place == here:
                    at_home = change
                if change < best:
                    best, best_at = change, place
            if best < at_home:
                order = [*others[:best_at], node, *others[best_at:]]
                moved = True
    return order
