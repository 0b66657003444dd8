"""Held-out accuracy of models that are not BECAUSE's own: what their planner sees counts."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from because_rl.evaluation.held_out import held_out_accuracy
from tests.support import small


def test_a_model_that_predicts_no_change_is_as_good_as_none():
    data = small("unlock", episodes=200)
    learned = SimpleNamespace(successor=lambda p, state, action: (state + p["shift"], None, None))
    agent = SimpleNamespace(learned=learned, parameters={"shift": jnp.zeros((2, data.factors.state_size))})
    rows = held_out_accuracy(agent, data)
    assert [row["factor"] for row in rows] == ["agent", "key", "door", "cue_2"]
    for row in rows:
        assert 0 < row["value"] < 1
        assert row["value"] == pytest.approx(row["unchanged"])
        assert len(row["per_seed"]) == 2
