"""From the evidence of an independence test to a causal mask: which inputs each next-state factor depends on.

Every pair gets one of four verdicts:

- *established*: p < threshold (the paper's appendix states the opposite by a slip), and the effect is one that counts.
- *excluded*: the effect is below what counts, and one hardly larger would have been seen with probability .8.
- *undetermined*: everything else. The data cannot decide; `why` says the reason, and `needs` what would decide.
- *forced* or *forbidden*: set by the user, or by the assumption that a factor depends on its own past.

Undetermined edges are kept where the data give a reason: an input that could stand in for others, one whose deciding
situation was never logged, or a mask that predicts worse without it. Others are left out: those of which too few rows
show no sign (the G-test keeps these too), or a significant but tiny one. So are inputs that never change in an episode,
unless their role is 'context', since no data distinguish them from a hidden cause.

The paper's thresholds are 1e-8 for Lift, 1e-4 for Unlock and 1e-6 for Crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.graph import Edge, Graph
from because_rl.io import pack_json

STATUSES = ("established", "excluded", "undetermined", "forced", "forbidden")
_FORMER_STATUSES = {"edge": "established", "no edge": "excluded", "untestable": "undetermined"}


@dataclass(frozen=True)
class CausalMask:
    """The verdict on every possible edge; all arrays have the shape (inputs, targets)."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    p: np.ndarray
    """p-values, adjusted if the false discovery rate was controlled"""
    statistic: np.ndarray
    effect: np.ndarray
    """size of the dependence, in [0, 1]"""
    detectable: np.ndarray
    """the least effect that these rows would have shown with probability .8; inf where they can show none"""
    status: np.ndarray
    """strings, each one of `STATUSES`"""
    kept: np.ndarray
    """bool: the edges that are in the mask"""
    weight: np.ndarray
    """in [0, 1]: 1 for kept edges and 0 for others after one test on all data; M-bar after `reweight`"""
    why: dict[Edge, str] = field(default_factory=dict)
    """the reason for edges that are undetermined or were left out in spite of their p-value"""
    needs: dict[Edge, str] = field(default_factory=dict)
    """what would decide an undetermined edge"""
    settings: dict[str, Any] = field(default_factory=dict)
    """of the test and of the decision, for provenance"""
    sufficiency: dict[str, dict[str, Any]] = field(default_factory=dict)
    """target -> how much worse its kept inputs predict it than all inputs (see `Evidence.sufficiency`)"""
    weight_low: np.ndarray | None = None
    """lower end of the 95% interval of each weight over batches; None where there were none"""
    weight_high: np.ndarray | None = None
    """its upper end"""

    @property
    def matrix(self) -> np.ndarray:
        """(inputs, targets) bool: the edges that are kept."""
        return self.kept

    @property
    def graph(self) -> Graph:
        """The kept edges as a graph."""
        kept = self.matrix
        edges = ((i, j) for a, i in enumerate(self.inputs) for b, j in enumerate(self.targets) if kept[a, b])
        return Graph(self.inputs, self.targets, frozenset(edges))

    @property
    def edges(self) -> list[dict[str, Any]]:
        """The rows of the edges that are kept."""
        return [row for row in self.rows() if row["kept"]]

    def parents(self, target: str) -> tuple[str, ...]:
        """The causes of a target, in the order of `inputs`."""
        return self.graph.parents(target)

    def children(self, source: str) -> tuple[str, ...]:
        """The effects of an input, in the order of `targets`."""
        return self.graph.children(source)

    def rows(self) -> list[dict[str, Any]]:
        """One JSON-ready row per possible edge, target by target."""
        return [
            {
                "from": source,
                "to": target,
                "status": str(self.status[i, j]),
                "kept": bool(self.kept[i, j]),
                "p": float(self.p[i, j]),
                "effect": float(self.effect[i, j]),
                "detectable": float(self.detectable[i, j]) if np.isfinite(self.detectable[i, j]) else None,
                "weight": float(self.weight[i, j]),
                "statistic": float(self.statistic[i, j]),
                **self._interval(i, j),
                **{
                    name: texts[source, target]
                    for name, texts in (("why", self.why), ("needs", self.needs))
                    if (source, target) in texts
                },
            }
            for j, target in enumerate(self.targets)
            for i, source in enumerate(self.inputs)
        ]

    def _interval(self, i: int, j: int) -> dict[str, list[float]]:
        if self.weight_low is None or self.weight_high is None:
            return {}
        return {"weight_ci95": [float(self.weight_low[i, j]), float(self.weight_high[i, j])]}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        return {
            "inputs": list(self.inputs),
            "targets": list(self.targets),
            "edges": self.rows(),
            "settings": self.settings,
            "sufficiency": self.sufficiency,
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """What a run keeps: the weights, and all the rest as `evidence` (see `pack_json`)."""
        return {"weights": self.weight.astype(np.float32), "evidence": pack_json(self.to_dict())}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CausalMask:
        """The inverse of `to_dict`; reads what older versions wrote too, whose `detectable` is nan."""
        inputs, targets = tuple(value["inputs"]), tuple(value["targets"])
        position = {(i, j): (a, b) for a, i in enumerate(inputs) for b, j in enumerate(targets)}
        shape = len(inputs), len(targets)
        names = ("p", "statistic", "effect", "weight", "detectable")
        numbers: dict[str, Any] = {name: np.zeros(shape) for name in names}
        status, kept = np.full(shape, "excluded", "U12"), np.zeros(shape, bool)
        texts: dict[str, Any] = {"why": {}, "needs": {}}
        low, high = np.full((2, len(inputs), len(targets)), np.nan)
        for row in map(current_row, value["edges"]):
            cell = position[row["from"], row["to"]]
            for name, array in numbers.items():
                number = row.get(name, np.nan) if name == "detectable" else row[name]
                array[cell] = np.inf if number is None else number
            status[cell], kept[cell] = row["status"], row["kept"]
            for name in texts.keys() & row.keys():
                texts[name][row["from"], row["to"]] = row[name]
            if "weight_ci95" in row:
                low[cell], high[cell] = row["weight_ci95"]
        numbers |= {} if np.isnan(low).any() else {"weight_low": low, "weight_high": high}
        notes: dict[str, Any] = {name: dict(value.get(name, {})) for name in ("settings", "sufficiency")}
        return cls(inputs, targets, status=status, kept=kept, **notes, **numbers, **texts)

    def __str__(self) -> str:
        return json.dumps({target: list(self.graph.parents(target)) for target in self.targets}, indent=1)


def current_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a mask in today's words; rows of older versions lack `kept` and `detectable`, and have other statuses.

    An edge that they left out with a reason is one whose input never changes in an episode.

    >>> current_row({"status": "untestable"})
    {'status': 'undetermined', 'kept': True}
    >>> current_row({"status": "no edge", "why": "u never changes"})
    {'status': 'undetermined', 'why': 'u never changes', 'kept': False}
    """
    if "kept" in row:
        return dict(row)
    status = _FORMER_STATUSES.get(row["status"], row["status"])
    kept = status not in ("excluded", "forbidden")
    return dict(row) | {"status": "undetermined" if status == "excluded" and "why" in row else status, "kept": kept}


def sufficiency_text(sufficiency: Mapping[str, Mapping[str, Any]]) -> str:
    """In a sentence: does the mask predict as well as all inputs, and what came back for it; '' if nobody asked.

    >>> sufficiency_text({"x": {"loss": 0.0, "p": 0.4, "reopened": ["push"]}})
    'Held-out, it predicts every factor as well as all inputs do; for this push -> x came back.'
    """
    if not sufficiency:
        return ""
    worse = [f"{name} ({check['loss']:.2f})" for name, check in sufficiency.items() if not check.get("suffices", True)]
    back = [f"{source} -> {name}" for name, check in sufficiency.items() for source in check["reopened"]]
    text = "Held-out, it predicts "
    text += f"worse than all inputs: {', '.join(worse)}" if worse else "every factor as well as all inputs do"
    return text + (f"; for this {', '.join(back)} came back." if back else ".")


def benjamini_yekutieli(p: np.ndarray) -> np.ndarray:
    """Adjusted p-values that control the false discovery rate under any dependence.

    p_(k) m c(m) / k made monotone from the largest down, with c(m) = sum 1/i.

    >>> benjamini_yekutieli(np.array([0.01, 0.04])).round(4).tolist()
    [0.03, 0.06]
    """
    flat = p.reshape(-1)
    order = np.argsort(flat)
    m = len(flat)
    scaled = flat[order] * m * (1.0 / np.arange(1, m + 1)).sum() / np.arange(1, m + 1)
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted.reshape(p.shape)


def decide(
    variables: Variables,
    evidence: Evidence,
    test: IndependenceTest,
    threshold: float,
    *,
    fdr: bool = False,
    force: Iterable[Edge] = (),
    forbid: Iterable[Edge] = (),
    self_edges: bool = True,
) -> CausalMask:
    """The mask that this evidence supports.

    Args:
        variables: the rows that were tested.
        evidence: what `test` returned for them, arrays of shape (inputs, targets).
        test: gives the least effect of an edge, and its settings for provenance.
        threshold: p-value in (0, 1) below which an edge is kept.
        fdr: whether p-values are first adjusted by `benjamini_yekutieli`.
        force: edges that are kept whatever the evidence.
        forbid: edges that are left out whatever the evidence.
        self_edges: whether each target's own last value is forced too, unless forbidden.
    """
    inputs = tuple(f.name for f in variables.inputs)
    targets = tuple(f.name for f in variables.targets)
    forced, forbidden = check_edges(force, forbid, inputs, targets)
    if not 0 < threshold < 1:
        raise BecauseError(f"Got threshold {threshold}.", need="a p-value between 0 and 1.", fix="try 0.0001.")
    p = benjamini_yekutieli(evidence.p) if fdr else evidence.p
    counts = evidence.effect >= test.least_effect if test.least_effect else p < threshold
    established = (p < threshold) & counts & np.isfinite(evidence.detectable)
    excluded = ~counts & (evidence.detectable <= test.excluding_effect)
    status = np.where(established, "established", np.where(excluded, "excluded", "undetermined")).astype("U12")
    reason = np.isinf(evidence.detectable) | test.keeps_undetermined
    kept = established | ((status == "undetermined") & reason)
    if evidence.echo is not None:
        status[evidence.echo & established] = "undetermined"
        kept &= ~evidence.echo
    if self_edges:
        forced += [(name, name) for name in targets if (name, name) not in forbidden]
    for edges, verdict in ((forced, "forced"), (forbidden, "forbidden")):
        for source, target in edges:
            place = inputs.index(source), targets.index(target)
            status[place], kept[place] = verdict, verdict == "forced"
    settings = test.settings() | {"threshold": threshold, "fdr": fdr, "n": len(variables)}
    settings["rows_used"] = len(variables) if evidence.rows_used is None else evidence.rows_used
    return CausalMask(
        inputs,
        targets,
        p,
        evidence.statistic,
        evidence.effect,
        weight=kept.astype(float),
        detectable=evidence.detectable,
        status=status,
        kept=kept,
        why=dict(evidence.why),
        needs=dict(evidence.needs),
        settings=settings,
        sufficiency=dict(evidence.sufficiency),
    )


def check_edges(
    force: Iterable[Edge], forbid: Iterable[Edge], inputs: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[list[Edge], list[Edge]]:
    """Both as lists; an error if an edge names an unknown input or target, or is both forced and forbidden."""
    forced, forbidden = list(force), list(forbid)
    for source, target in (*forced, *forbidden):
        if source not in inputs or target not in targets:
            raise BecauseError(
                f"Edge {source!r} -> {target!r} is unknown.",
                need=f"a cause among {', '.join(inputs)} and an effect among {', '.join(targets)}.",
                fix="correct the name.",
            )
    if both := sorted(set(forced) & set(forbidden)):
        raise BecauseError(
            f"Edge {both[0][0]} -> {both[0][1]} is both forced and forbidden.", need="one of the two.", fix="drop one."
        )
    return forced, forbidden
