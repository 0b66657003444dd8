"""A causal mask in the formats other tools read: networkx, GraphML, DOT.

Nodes at t+1 carry a prime (``agent'``), so that the graph is bipartite and acyclic as in the paper.
"""

from __future__ import annotations

import io

import networkx as nx

from because_rl.discovery.mask import CausalMask


def to_networkx(mask: CausalMask) -> nx.DiGraph:
    """The kept edges, each with attributes p, effect, weight and status."""
    graph = nx.DiGraph()
    for name in mask.inputs:
        graph.add_node(name, time="t", group="state" if name in mask.targets else "action")
    for name in mask.targets:
        graph.add_node(f"{name}'", time="t+1", group="state")
    kept = mask.matrix
    for i, source in enumerate(mask.inputs):
        for j, target in enumerate(mask.targets):
            if kept[i, j]:
                graph.add_edge(
                    source,
                    f"{target}'",
                    p=float(mask.p[i, j]),
                    effect=float(mask.effect[i, j]),
                    weight=float(mask.weight[i, j]),
                    status=str(mask.status[i, j]),
                )
    return graph


def to_graphml(mask: CausalMask) -> str:
    """The graph of `to_networkx` as GraphML text."""
    buffer = io.BytesIO()
    nx.write_graphml(to_networkx(mask), buffer)
    return buffer.getvalue().decode()


def to_dot(mask: CausalMask) -> str:
    """Graphviz source: causes on the left, effects on the right; untestable edges dashed, forced edges bold."""
    style = {"untestable": "dashed", "forced": "bold"}
    lines = ["digraph because {", "  rankdir=LR; node [shape=box, style=rounded];"]
    graph = to_networkx(mask)
    for time in ("t", "t+1"):
        names = "; ".join(f'"{n}"' for n, data in graph.nodes(data=True) if data["time"] == time)
        lines.append(f"  {{ rank=same; {names} }}")
    for source, target, data in graph.edges(data=True):
        lines.append(
            f'  "{source}" -> "{target}" [style={style.get(data["status"], "solid")}, '
            f'penwidth={0.5 + 2 * data["weight"]:.2f}, tooltip="p = {data["p"]:.2g}"];'
        )
    return "\n".join([*lines, "}"]) + "\n"
