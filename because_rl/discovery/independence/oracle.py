"""The test that knows the answer: reads a given graph. It tests everything around the tests."""

from __future__ import annotations

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.graph import Graph


class Oracle(IndependenceTest):
    """p = 0 for an edge of the graph, 1 otherwise. Assumptions: none. Least n: 0."""

    name = "oracle"
    least_n = 0

    def __init__(self, graph: Graph):
        self.graph = graph

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        edge = np.array(
            [[(i.name, j.name) in self.graph.edges for j in variables.targets] for i in variables.inputs], bool
        )
        strength = edge.astype(float)
        return Evidence(1.0 - strength, strength, strength, np.zeros_like(edge), {})
