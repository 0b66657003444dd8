"""A causal graph between factors: edges run from (state, action) at t to state at t+1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from because_rl.errors import BecauseError

Edge = tuple[str, str]


@dataclass(frozen=True)
class Graph:
    """Edges (source, target) from `inputs` (state and action factors at t) to `targets` (state factors at t+1).

    `rare` marks true edges that act in only about 1 of 1,000 transitions.

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
        """From target -> its causes; the keys of `parents` are the targets, in this order."""
        edges = frozenset((source, target) for target, sources in parents.items() for source in sources)
        return cls(tuple(inputs), tuple(parents), edges, frozenset(rare))

    @property
    def matrix(self) -> np.ndarray:
        """Boolean, inputs x targets."""
        return np.array([[(i, j) in self.edges for j in self.targets] for i in self.inputs], bool)

    def parents(self, target: str) -> tuple[str, ...]:
        """The causes of a target, in the order of `inputs`."""
        return tuple(i for i in self.inputs if (i, target) in self.edges)

    def children(self, source: str) -> tuple[str, ...]:
        """The effects of an input, in the order of `targets`."""
        return tuple(j for j in self.targets if (source, j) in self.edges)

    def to_dict(self) -> dict:
        """As JSON, which `from_dict` reads back; edges are sorted."""
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


@dataclass(frozen=True)
class Score:
    """How the edges of an estimated graph compare with those of the true one."""

    f1: float
    precision: float
    recall: float
    shd: int
    """structural Hamming distance: edges to add plus edges to remove"""
    missed: tuple[Edge, ...]
    """true edges that the estimate lacks"""
    false: tuple[Edge, ...]
    """edges of the estimate that are not true"""

    def to_dict(self) -> dict:
        return asdict(self) | {"missed": [list(e) for e in self.missed], "false": [list(e) for e in self.false]}


def score(estimate: Graph, truth: Graph, *, count_rare: bool = True) -> Score:
    """Compare the edges of `estimate` with the true ones; with `count_rare=False` rare true edges are ignored in both.

    >>> truth = Graph.from_parents(("a", "b"), {"a": ("a", "b"), "b": ("b",)})
    >>> s = score(Graph.from_parents(("a", "b"), {"a": ("a",), "b": ("a", "b")}), truth)
    >>> s.shd, s.missed, s.false, round(s.f1, 3)
    (2, (('b', 'a'),), (('a', 'b'),), 0.667)
    """
    ignored = frozenset() if count_rare else truth.rare
    have, want = estimate.edges - ignored, truth.edges - ignored
    hit = len(have & want)
    precision, recall = hit / len(have) if have else 1.0, hit / len(want) if want else 1.0
    return Score(
        f1=2 * hit / (len(have) + len(want)) if have or want else 1.0,
        precision=precision,
        recall=recall,
        shd=len(have ^ want),
        missed=tuple(sorted(want - have)),
        false=tuple(sorted(have - want)),
    )
