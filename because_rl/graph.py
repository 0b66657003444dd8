"""A causal graph between factors: edges run from (state, action) at t to state at t+1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from because_rl.errors import BecauseError

Edge = tuple[str, str]


@dataclass(frozen=True)
class Graph:
    """Who drives whom. `rare` marks true edges that act in only about 1 of 1,000 transitions.

    >>> g = Graph.from_parents(("a", "b", "act"), {"a": ("a", "act"), "b": ("b",)})
    >>> g.matrix.astype(int).tolist()
    [[1, 0], [0, 1], [1, 0]]
    >>> g.parents("a")
    ('a', 'act')
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    edges: frozenset[Edge]
    rare: frozenset[Edge] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for source, target in self.edges:
            if source not in self.inputs or target not in self.targets:
                raise BecauseError(
                    f"Edge {source!r} -> {target!r} names a factor that is not in the graph.",
                    need=f"a source among {list(self.inputs)} and a target among {list(self.targets)}.",
                    fix="correct the name.",
                )
        if not self.rare <= self.edges:
            raise ValueError(f"rare edges {sorted(self.rare - self.edges)} are not edges")

    @classmethod
    def from_parents(
        cls,
        inputs: Iterable[str],
        parents: Mapping[str, Iterable[str]],
        rare: Iterable[Edge] = (),
    ) -> Graph:
        edges = frozenset((source, target) for target, sources in parents.items() for source in sources)
        return cls(tuple(inputs), tuple(parents), edges, frozenset(rare))

    @property
    def matrix(self) -> np.ndarray:
        """Boolean, inputs x targets."""
        return np.array([[(i, j) in self.edges for j in self.targets] for i in self.inputs], bool)

    def parents(self, target: str) -> tuple[str, ...]:
        return tuple(i for i in self.inputs if (i, target) in self.edges)

    def children(self, source: str) -> tuple[str, ...]:
        return tuple(j for j in self.targets if (source, j) in self.edges)

    def to_dict(self) -> dict:
        return {
            "inputs": list(self.inputs),
            "targets": list(self.targets),
            "edges": sorted(map(list, self.edges)),
            "rare": sorted(map(list, self.rare)),
        }

    @classmethod
    def from_dict(cls, value: Mapping) -> Graph:
        return cls(
            tuple(value["inputs"]),
            tuple(value["targets"]),
            frozenset((str(i), str(j)) for i, j in value["edges"]),
            frozenset((str(i), str(j)) for i, j in value.get("rare", ())),
        )
