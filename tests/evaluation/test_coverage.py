"""Contexts in which an action was hardly tried, in logs that were made so."""

import numpy as np
import pytest

from because_rl.evaluation.coverage import thin_contexts
from because_rl.factors import FactorSpec, pack
from because_rl.transitions import Transitions


def log(take, n=900, seed=0, action=("open", 1, "binary")):
    rng = np.random.default_rng(seed)
    key, x = rng.integers(0, 2, n), rng.uniform(-1, 1, n)
    factors = FactorSpec(pack(("key", 1, "binary"), ("x", 1, "continuous"), ("reward", 1, "continuous")), pack(action))
    state = np.column_stack([key, x, x]).astype(np.float32)
    return Transitions.from_arrays(
        state,
        np.asarray(take(rng, key, x), np.float32)[:, None],
        state,
        np.repeat(np.arange(n // 9), 9),
        factors=factors,
    )


def test_an_action_that_needs_a_key_is_thin_without_it():
    (row,) = [
        row
        for row in thin_contexts(log(lambda rng, key, x: (rng.random(len(key)) < 0.4) * key))
        if row["level"] == "yes"
    ]
    assert (row["action"], row["factor"], row["context"], row["tried"]) == ("open", "key", "no", 0)
    assert row["at_most"] == pytest.approx(1 - 0.05 ** (1 / row["rows"]), rel=1e-6)
    assert row["elsewhere"] == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("chance", [0.0, 0.005, 0.02, 0.4])
def test_random_actions_are_thin_nowhere(chance):
    thin = [thin_contexts(log(lambda rng, key, x: rng.random(len(key)) < chance, seed=seed)) for seed in range(20)]
    assert sum(map(bool, thin)) <= 1


def test_thirds_of_a_valve_that_follows_the_temperature():
    valve = ("valve", 1, "continuous")
    rows = thin_contexts(log(lambda rng, key, x: x + 0.1 * rng.normal(size=len(x)), action=valve))
    assert {("lower third", "upper third"), ("upper third", "lower third")} <= {
        (row["level"], row["context"]) for row in rows
    }
    assert not [row for row in rows if row["factor"] == "key"]
