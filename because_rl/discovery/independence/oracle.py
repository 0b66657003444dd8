"""A test that reads the answer from a given graph: p = 0 for an edge, 1 otherwise.

Assumptions: the graph is right. Valid for: testing the code around the independence tests. Least n: 0.
"""

from __future__ import annotations

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.graph import Graph


class Oracle(IndependenceTest):
    """Reads the edges of `graph`."""

    name = "oracle"
    least_n = 0

    def __init__(self, graph: Graph):
        self.graph = graph

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        edge = np.array(
            [[(i.name, j.name) in self.graph.edges for j in variables.targets] for i in variables.inputs], bool
        )
        strength = edge.astype(float)
        return Evidence(1.0 - strength, strength, strength, np.zeros(edge.shape), {})
