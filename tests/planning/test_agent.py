"""From a fitted model to an agent: models of any Equinox kind."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.bilinear import Outputs
from because_rl.models.prepared_data import prepare
from because_rl.planning.agent import make_planner_agent
from because_rl.planning.proposals import PlanningConfig, Proposals
from because_rl.training.run import Run
from tests.support import small


def test_a_model_may_hold_functions_as_leaves():
    """`eqx.nn.MLP` has its activation as a leaf, which is neither indexed by seed nor an argument of a program."""
    data, run = small("unlock"), Run([0, 1])
    prepared = prepare(data)
    layout = prepared.layout
    sizes = [len(f.members) * (f.width + (f.optional and f.type == "categorical")) for f in layout.families]

    def predict(layout, stats, p, state, action):
        parts = jnp.split(p["net"](jnp.concatenate([state, action])), np.cumsum(sizes)[:-1])
        outputs = []
        for family, part in zip(layout.families, parts, strict=True):
            members = len(family.members)
            outputs.append(Outputs(jnp.zeros((members, 0)), part.reshape(members, -1), jnp.zeros((members, 0))))
        return outputs, jnp.zeros(())

    make = eqx.filter_vmap(lambda key: eqx.nn.MLP(layout.size, sum(sizes), 8, 1, key=key))
    parameters = {"net": make(jax.random.split(jax.random.key(0), 2))}
    agent = make_planner_agent(PlanningConfig(pessimism=0.0), prepared, run, predict, parameters, Proposals({}))
    agent.begin(3, 0)
    state, goal = (np.stack([part[:3]] * 2) for part in (data.state, data.goal))
    assert agent.act(state, goal, 2).shape == (2, 3)
