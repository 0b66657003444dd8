"""What the rows can show of every input of one target: the evidence of the G-test, in numbers and in words.

The equations are in `gtest`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from because_rl.discovery.independence.contingency import PairResult, entropy_given, off_mode, upper_quantile, varies
from because_rl.discovery.independence.search import Feature, Search

POWER = 0.8
ABSENCE = 0.95
"""Probability with which an effect would have shown where the blanket leaves the target almost no variation."""
MOSTLY = 0.5
"""Share of the target's changes at which two inputs are equal, from which their relation counts as a possible cause."""

ALWAYS = " in all rows"


@dataclass(frozen=True)
class Verdict:
    """The evidence of one pair; the fields are those of `Evidence`."""

    p: float
    z: float
    effect: float
    detectable: float
    why: str = ""
    needs: str = ""


class _Detectable(NamedTuple):
    share: float
    """the least effect that would show with probability .8"""
    rows: int
    """in which the input differs from its usual value"""
    why: str = ""


def binary_entropy(share: float) -> float:
    """h(share) in nats."""
    return -sum(s * math.log(s) for s in (share, 1 - share) if s > 0)


def explained_nats(share: float) -> float:
    """Nats per row that x explains if it differs in half of the rows, and makes y differ in this share of those."""
    return binary_entropy(share / 2) - binary_entropy(share) / 2


def excess_needed(mean: float, variance: float, threshold: float) -> float:
    """Nats beyond chance that give p < threshold with probability .8, for G / 2 with this null mean and variance.

    >>> round(excess_needed(0.5, 0.5, 0.05), 2), round(float(norm.isf(0.025) + norm.ppf(0.8)) ** 2 / 2, 2)
    (3.82, 3.92)
    """
    if variance <= 0:
        return math.inf
    critical = upper_quantile(threshold, mean, variance) - mean
    z = float(norm.ppf(POWER))
    return critical + z * z + z * math.sqrt(z * z + 2 * critical + variance)


class Verdicts:
    """The verdict on every input of one target.

    Args:
        search: with the target's blanket.
        changed: (n,) whether the target's value changes.
        rest: action -> (n,) whether it is at rest: absent, or at its most frequent value.
        values: name -> columns of the inputs that have at most two, to say their values.
    """

    def __init__(self, search: Search, changed: np.ndarray, rest: dict[str, np.ndarray], values: dict[str, np.ndarray]):
        self.search, self.changed, self.rest, self.values = search, changed, rest, values
        self.threshold, self.least = search.test.threshold, search.test.least_effect
        blanket = search.strata(search.blanket)
        self.there = np.isin(blanket, blanket[changed]) if changed.any() else np.ones(len(changed), bool)
        self.scale = entropy_given(search.y, search.strata(search.past))
        """n U; 0 if the target never changes"""
        self.members = {name for feature in search.blanket for name in feature}

    def verdict(self, name: str) -> Verdict:
        """The evidence for one input."""
        search = self.search
        result = search.best(name)
        member = name in self.members
        scale = result.left if member else max(self.scale, result.left)
        effect = min(1.0, max(0.0, result.excess / scale)) if scale > 0 else 0.0
        if member and name != search.own:
            limit, why, needs = self._member(name, result)
        else:
            limit, why, needs = self._outside(name, result)
        if name == search.own and not member:
            limit = min(limit, 1.0)
        if not why and not (effect < self.least and limit <= self.least) and result.p >= self.threshold:
            why, needs = self._weak(name, result, effect, limit)
        return Verdict(result.p, result.z, effect, limit, why, needs)

    def _member(self, name: str, result: PairResult) -> tuple[float, str, str]:
        search = self.search
        if result.p < self.threshold:
            nats = excess_needed(result.null_mean, result.null_variance, self.threshold)
            return min(nats / max(result.left, self.scale, 1e-9), 1.0), "", ""
        relation = next((f for f in sorted(search.blanket) if len(f) == 2 and name in f), None)
        if relation is not None:
            other = search.partner(relation, name)[0]
            whole = search.result(relation, search.blanket)
            why = (
                f"the rows cannot separate {name} from {other}: "
                f"only '{relation[0]} = {relation[1]}' can be tested (p {whole.p:.1g})"
            )
            equal = search.codes[relation] == 1
            there = self.there | (~equal & np.isin(self._without(relation), self._without(relation)[self.changed]))
            size = np.bincount(search.strata(search.given(name))[there])
            return math.inf, why, f"{self._few(size)} rows with {self._context(there)}{relation[0]} != {relation[1]}"
        why = f"too few cases for a small p-value (p {result.p:.1g}), but all of them support the edge"
        size = np.bincount(search.strata(search.given(name))[self.there])
        return math.inf, why, f"{self._few(size)} more rows with {self._context(self.there, name)}{name} varied"

    def _outside(self, name: str, result: PairResult) -> tuple[float, str, str]:
        search = self.search
        feature: Feature = (name,)
        limit = self._detectable(feature, result)
        for relation in search.relations:
            if name in relation and relation not in search.blanket and self._suspect(relation):
                of_relation = self._detectable(relation, search.result(relation, search.blanket))
                if of_relation.share > max(limit.share, self.least):
                    limit, feature = of_relation, relation
        if limit.share <= self.least or not limit.why:
            return limit.share, limit.why, ""
        context = self._context(self.there, *feature)
        if limit.why.endswith(ALWAYS):
            opposite = limit.why.removesuffix(ALWAYS).replace(" follows", " does not follow")
            return limit.share, limit.why, f"rows in which {opposite}"
        if len(feature) == 2:
            size = np.bincount(search.strata(search.blanket | {search.partner(feature, name)})[self.there])
            return limit.share, limit.why, f"{self._few(size)} rows with {context}{feature[0]} != {feature[1]}"
        more = max(1, self._rows_needed() - limit.rows)
        return limit.share, limit.why, f"about {more} rows with {context}{name} varied"

    def _weak(self, name: str, result: PairResult, effect: float, limit: float) -> tuple[str, str]:
        """Reason and need of a pair that could have been tested but neither is significant nor small."""
        n = len(self.changed)
        if effect >= self.least:
            why = f"the effect may be {effect:.2f}, but p = {result.p:.2g} is not below the threshold"
            nats = excess_needed(result.null_mean, result.null_variance, self.threshold)
            factor = min(100.0, max(1.5, nats / max(result.excess, 1e-9)))
        else:
            why = f"too few rows: an effect below {limit:.2f} would not have been seen"
            factor = min(100.0, max(1.5, limit / self.least))
        context = self._context(self.there, name)
        where = f" with {context.removesuffix(' and ')}" if context else ""
        rows = int(self.there.sum()) if where else n
        return why, f"about {math.ceil(rows * (factor - 1))} more rows{where}, with {name} varied"

    def _suspect(self, relation: Feature) -> bool:
        """Whether the target mostly changes where the two inputs are equal, more than elsewhere."""
        equal = self.search.codes[relation] == 1
        return bool(self.changed.any()) and equal[self.changed].mean() >= MOSTLY > equal[~self.changed].mean()

    def _detectable(self, feature: Feature, result: PairResult) -> _Detectable:
        search = self.search
        code, given = search.codes[feature], search.blanket - {feature}
        label, target = " = ".join(feature), search.target
        if code.min() == code.max():
            return _Detectable(math.inf, 0, "it never varies")
        strata = search.strata(given)
        vary = varies(code, strata)
        there = np.isin(strata, strata[self.there])
        rows, size, why = vary & there, int(there.sum()), ""
        if not rows.any():
            if not vary.any():
                return _Detectable(math.inf, 0, f"{label} follows from {self._source(feature)}{ALWAYS}")
            determining = self._determining(feature)
            if determining is None:
                quoted = f"'{label}'" if len(feature) == 2 else label
                reason = f"{quoted} never varies in the situations in which {target} changes"
                return _Detectable(math.inf, 0, reason)
            cause = " = ".join(determining)
            why = f"where {target} changes, {label} follows from {cause}, which is taken to be the cause"
            rows, size = vary, 0
        contrast = off_mode(code[rows], strata[rows])
        size = size or contrast
        differ = off_mode(search.y[rows], strata[rows])
        share = float(chi2.ppf(ABSENCE, 2 * (differ + 1))) / 2 / contrast
        nats = excess_needed(result.null_mean, result.null_variance, self.threshold) * size / rows.sum()
        if share < 1:
            nats = min(nats, size * explained_nats(share))
        if not self.scale:  # the target never changes: the share of rows in which it would
            nats = share if share < 1 else math.inf
        limit = nats / (self.scale or 1.0)
        if limit > self.least and not why:
            why = self._few_reason(label, contrast)
        return _Detectable(limit, contrast, why)

    def _few_reason(self, label: str, contrast: int) -> str:
        where = f" where {self.search.target} changes" if self.scale else ""
        return f"{label} differs from its usual value in only {contrast} rows{where}"

    def _determining(self, feature: Feature) -> Feature | None:
        """The member of the blanket that determines a feature where the target changes and counts as the cause."""
        search = self.search
        code = search.codes[feature]
        for member in sorted(search.blanket - {feature}, key=lambda f: (len(f), f)):
            key = search.codes[member]
            near = np.isin(key, key[self.there])
            if set(member) & set(feature) or varies(code[near], key[near]).any():
                continue
            coarser = not varies(key, code).any()  # the member is a function of the feature
            if member[0] in self.rest and len(feature) == 1 and feature[0] in self.rest:
                coarser |= bool(self.rest[feature[0]][self.there].all())
            if coarser:
                return member
        return None

    def _source(self, feature: Feature) -> str:
        """The member of the blanket that determines a feature in all rows, or all of them."""
        search = self.search
        members = sorted(search.blanket - {feature}, key=lambda f: (len(f), f))
        single = [f for f in members if not varies(search.codes[feature], search.codes[f]).any()]
        return " and ".join(" = ".join(f) for f in single[:1] or members)

    def _without(self, feature: Feature) -> np.ndarray:
        return self.search.strata(self.search.blanket - {feature})

    def _rows_needed(self) -> int:
        """Rows in which an input must differ for an effect that counts to show."""
        share = self.least
        if self.scale:
            most = self.least * self.scale / int(self.there.sum())
            share = 1.0 if most >= math.log(2) else brentq(lambda s: explained_nats(s) - most, 1e-9, 1.0)
        return math.ceil(float(chi2.ppf(ABSENCE, 2)) / 2 / share)

    def _few(self, size: np.ndarray) -> str:
        """Rows that make p small when each is the exception among the rows of its stratum."""
        size = size[size > 0]
        typical = max(2.0, float((size**2).sum() / size.sum())) if len(size) else 2.0
        return f"about {math.ceil(excess_needed(0.5, 0.5, self.threshold) / math.log(typical))}"

    def _context(self, rows: np.ndarray, *without: str) -> str:
        """'pick = 1 and ': what the small inputs in the blanket have in common where the target changes."""
        words = []
        for feature in sorted(self.search.blanket):
            name = feature[0]
            if len(feature) == 1 and name in self.values and name not in without:
                columns = self.values[name][rows & self.changed if self.changed.any() else rows]
                if len(columns) and (columns == columns[0]).all():
                    value = columns[0].argmax() if columns.shape[1] == 2 else columns[0, 0]
                    words.append(f"{name} = {value:g}")
        return " and ".join(words) + " and " if words else ""
