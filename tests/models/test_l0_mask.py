"""The mask by sparse maximum likelihood, on a world that is not linear."""

import numpy as np
import pytest

from because_rl.factors import FactorSpec, pack
from because_rl.models.l0_mask import l0_mask, l0_stage
from because_rl.models.prepared_data import prepare
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions

EDGES = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 0]]) > 0
"""(inputs, targets) of `curved`; the last input is an action"""


def curved(n=3000):
    """a' grows with |b|, b' with the sine of the push, c' has no cause but itself; none of it is linear."""
    rng = stream(0, "curved")
    x, push, noise = rng.normal(size=(n, 3)), rng.normal(size=(n, 1)), 0.2 * rng.normal(size=(n, 3))
    driven = np.column_stack([np.abs(x[:, 1]), np.sin(3 * push[:, 0]), np.zeros(n)])
    factors = FactorSpec(pack(*((name, 1, "continuous") for name in "abc")), pack(("push", 1, "continuous")))
    return Transitions.from_arrays(x, push, x + driven + noise, np.arange(n) // 10, factors=factors)


@pytest.mark.slow
def test_l0_finds_the_edges_of_a_nonlinear_world():
    prepared = prepare(curved())
    learner = Run([0]).fit(l0_stage(prepared, 0.05, 16, 600, 128, 5e-3), prepared.train, ())
    np.testing.assert_array_equal(l0_mask(learner.alpha) > 0.5, EDGES)
