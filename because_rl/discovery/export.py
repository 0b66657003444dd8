"""A causal graph in the formats other tools read: networkx, GraphML, DOT and node-link JSON.

Nodes at t+1 carry a prime (``agent'``), so that the graph is bipartite and acyclic as in the paper.
"""

from __future__ import annotations

import io
import json
from typing import Any

import networkx as nx
import numpy as np

from because_rl.discovery.mask import CausalMask
from because_rl.graph import Graph


def to_networkx(graph: CausalMask | Graph) -> nx.DiGraph:
    """The edges that are kept: of a mask with attributes p, effect, weight and status, of a graph with `rare`.

    Edges of a mask also have `detectable`, the least effect that the data would have shown, if they can show one.
    Nodes have the attributes `time` ("t" or "t+1") and `group` ("state" or "action").
    """
    prime = "'"
    while any(name + prime in graph.inputs for name in graph.targets):  # a factor of this name would be taken for it
        prime += "'"
    result = nx.DiGraph()
    for name in graph.inputs:
        result.add_node(name, time="t", group="state" if name in graph.targets else "action")
    for name in graph.targets:
        result.add_node(name + prime, time="t+1", group="state")
    for i, source in enumerate(graph.inputs):
        for j, target in enumerate(graph.targets):
            if graph.matrix[i, j]:
                result.add_edge(source, target + prime, **_attributes(graph, i, j))
    return result


def _attributes(graph: CausalMask | Graph, i: int, j: int) -> dict[str, Any]:
    """Of the edge from input i to target j."""
    if isinstance(graph, Graph):
        return {"rare": (graph.inputs[i], graph.targets[j]) in graph.rare}
    numbers = {"p": graph.p, "effect": graph.effect, "detectable": graph.detectable, "weight": graph.weight}
    finite = {name: float(values[i, j]) for name, values in numbers.items() if np.isfinite(values[i, j])}
    return finite | {"status": str(graph.status[i, j])}


def to_graphml(graph: CausalMask | Graph) -> str:
    """The graph of `to_networkx` as GraphML; ``networkx.read_graphml`` reads it back."""
    buffer = io.BytesIO()
    nx.write_graphml(to_networkx(graph), buffer)
    return buffer.getvalue().decode()


def to_node_link(graph: CausalMask | Graph) -> str:
    """The same as node-link JSON; ``networkx.node_link_graph(json.load(file), edges="edges")`` reads it back."""
    made = to_networkx(graph)
    nodes = [{"id": name} | data for name, data in made.nodes(data=True)]
    edges = [{"source": source, "target": target} | data for source, target, data in made.edges(data=True)]
    content = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "edges": edges}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def to_dot(graph: CausalMask | Graph) -> str:
    """Graphviz source: causes on the left, effects on the right; undetermined and rare edges dashed, forced ones bold.

    The graph has no name and every node is declared by itself, as pydot, networkx and DoWhy expect.
    """
    made = to_networkx(graph)
    lines = ["digraph {", "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    for name, data in made.nodes(data=True):
        lines.append(f'  {_quoted(name)} [time="{data["time"]}"];')
    for time in ("t", "t+1"):
        names = "; ".join(_quoted(name) for name, data in made.nodes(data=True) if data["time"] == time)
        lines.append(f"  {{ rank=same; {names} }}")
    for source, target, data in made.edges(data=True):
        lines.append(f"  {_quoted(source)} -> {_quoted(target)} [{_dot_style(data)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_style(data: dict[str, Any]) -> str:
    if "rare" in data:
        return f"style={'dashed' if data['rare'] else 'solid'}"
    style = {"undetermined": "dashed", "forced": "bold"}.get(data["status"], "solid")
    tooltip = f"{data['status']}, p = {data['p']:.2g}, effect = {data['effect']:.2g}"
    return f'style={style}, penwidth={0.5 + 2 * data["weight"]:.2f}, tooltip="{tooltip}"'


def _quoted(name: str) -> str:
    """A name as DOT writes any text."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


FORMATS = {".dot": to_dot, ".graphml": to_graphml, ".json": to_node_link}
"""Suffix of a file -> the function that makes its text."""
