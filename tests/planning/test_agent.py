"""From a fitted model to an agent: models of any Equinox kind."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.models.bilinear import Outputs
from because_rl.models.prepared_data import prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, fit_proposals
from because_rl.training.run import Run
from tests.support import small


def test_a_model_may_hold_functions_as_leaves():
    """`eqx.nn.MLP` has its activation as a leaf, which is neither indexed by seed nor an argument of a program."""
    data, run = small("unlock"), Run([0, 1])
    prepared = prepare(data)
    layout = prepared.layout
    sizes = [len(f.members) * (f.width + (f.optional and f.type == "categorical")) for f in layout.families]

    class Plain(PlanningMethod):
        name, config = "plain", PlanningConfig(pessimism=0.0)

        def fit(self, data, seeds=1):
            make = eqx.filter_vmap(lambda key: self.untrained(prepared.summary, key))
            return self.make_agent(prepared, run, make(jax.random.split(jax.random.key(0), 2)), {})

        def untrained(self, summary, key):
            return {"net": eqx.nn.MLP(layout.size, sum(sizes), 8, 1, key=key)}

        def predict(self, layout, stats, p, state, action):
            parts = jnp.split(p["net"](jnp.concatenate([state, action])), np.cumsum(sizes)[:-1])
            outputs = []
            for family, part in zip(layout.families, parts, strict=True):
                members = len(family.members)
                outputs.append(Outputs(jnp.zeros((members, 0)), part.reshape(members, -1), jnp.zeros((members, 0))))
            return outputs, jnp.zeros(())

    agent = Plain().fit(data)
    state, goal = (np.stack([part[:3]] * 2) for part in (data.state, data.goal))
    actions = agent.start(3).act(state, goal, 2)
    assert actions.shape == (2, 3)
    restored = Plain().restore(data.factors, data.horizon, (0, 1), agent.arrays())
    np.testing.assert_array_equal(restored.start(3).act(state, goal, 2), actions)


class Gated(Exception):
    """The gates that the first stage of proposals was given."""


class Recorder(Run):
    def fit(self, stage, data, fixed):
        raise Gated(np.asarray(fixed))


def test_proposals_of_a_seed_see_what_its_own_mask_keeps():
    data = small("crash")  # ego and car of two columns, a marker, and a flag that the goal is about
    masks = np.zeros((2, len(data.factors.inputs), 4), np.float32)
    masks[0, 0, 3] = masks[1, 1, 3] = masks[1, 2, 1] = 1  # ego -> flag; marker -> car -> flag
    for given, gates in (
        (masks, [[1, 1, 0, 0, 0, 1], [0, 0, 1, 1, 1, 1]]),
        (masks[0], [[1, 1, 0, 0, 0, 1]] * 2),
    ):
        with pytest.raises(Gated) as gated:
            fit_proposals(PlanningConfig(), prepare(data), Recorder([0, 1]), given)
        np.testing.assert_array_equal(gated.value.args[0], gates)
