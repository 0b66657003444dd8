"""How close a discovered graph is to a known one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from because_rl.graph import Graph


@dataclass(frozen=True)
class Score:
    f1: float
    precision: float
    recall: float
    shd: int
    """structural Hamming distance: edges to add plus edges to remove"""
    missed: tuple[tuple[str, str], ...]
    false: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict:
        return asdict(self) | {"missed": [list(e) for e in self.missed], "false": [list(e) for e in self.false]}


def score(found: Graph, truth: Graph, *, count_rare: bool = True) -> Score:
    """Compare edges; with `count_rare=False` rare true edges count neither way.

    >>> truth = Graph.from_parents(("a", "b"), {"a": ("a", "b"), "b": ("b",)})
    >>> s = score(Graph.from_parents(("a", "b"), {"a": ("a",), "b": ("a", "b")}), truth)
    >>> s.shd, s.missed, s.false, round(s.f1, 3)
    (2, (('b', 'a'),), (('a', 'b'),), 0.667)
    """
    ignored = frozenset() if count_rare else truth.rare
    have, want = found.edges - ignored, truth.edges - ignored
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
