"""MOPO: members on bootstraps of whole episodes, elites, and plans that do not cross what was never logged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.mopo import (
    MOPO,
    Fixed,
    FlatModel,
    MOPOConfig,
    choose_elites,
    ensemble_stage,
    mean_uncertainty,
    uncertainty,
)
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import Outputs, make_gates
from because_rl.models.ensemble import MOST, as_penalty, combine_members, draw_bootstrap, make_bootstraps
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import prepare
from because_rl.planning.proposals import broadcast_over_seeds, full_mask, untrained_proposals
from because_rl.planning.shooting import ShootingConfig
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import layout_and_statistics, untrained
from tests.support import LENGTH, logged, small

STEP, WIDTH, GOAL = 0.3, (0.6, 2.4), 2.5
FACTORS = FactorSpec(
    pack(("x", 1, "continuous"), ("y", 1, "continuous")),
    pack(("right", 1, "continuous"), ("up", 1, "continuous")),
    (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),),
)


def in_gap(x, y):
    return (x > WIDTH[0]) & (x < WIDTH[1]) & (y < 1.0)


def move(place, action):
    """Two currents along the banks, up on the left and down on the right, that end where y is 1."""
    x, y = place.T
    current = 0.1 * np.tanh(4 * (1.5 - x)) / (1 + np.exp(8 * (y - 1)))
    return place + STEP * action + np.stack([0 * x, current], 1)


def two_ways(episodes=300):
    """Steps all over a field of 3 by 2, but for a gap across the straight way from left to right."""
    rng, n = stream(0, "two ways"), 4 * episodes * LENGTH
    place, action = rng.uniform(0, 1, (n, 2)) * [3, 2], rng.uniform(-1, 1, (n, 2))
    logged_rows = ~in_gap(*place.T)
    place, action = (part[logged_rows][: episodes * LENGTH] for part in (place, action))
    return logged(FACTORS, place, action, move(place, action), np.full((len(place), 1), GOAL))


def fit(plain, steps):
    """MOPO's agent, whose proposals are drawn evenly and were not trained."""
    planner = ShootingConfig(population=1024, horizon=LENGTH, proposals="uniform", hold=5)
    c = MOPOConfig(hidden=32, batch=64, world_steps=steps, rate=5e-3, members=4, elites=3, plain=plain, planner=planner)
    prepared = prepare(two_ways())
    gates = broadcast_over_seeds(make_gates(prepared.layout, full_mask(FACTORS)), 1)
    bootstraps = make_bootstraps(prepared.transitions, c.members, [0])
    batch = {**prepared.train, "bootstrap": bootstraps.episode}
    members = Run([0], chunk=200).fit(ensemble_stage(c, prepared), batch, Fixed(gates, bootstraps.counts))
    parameters = {"ensemble": choose_elites(c, prepared, members, gates), "gates": gates}
    parameters["mean_uncertainty"] = mean_uncertainty(c, prepared, parameters)
    proposals = broadcast_over_seeds(untrained_proposals(c, FACTORS, jax.random.key(0)), 1)
    return MOPO(c).make_agent(prepared, Run([0]), parameters, proposals)


def planned_path(agent):
    """Where the agent's plan from the left leads, until it reaches the goal on the right."""
    controller, path = agent.start(1), [np.array([[0.3, 0.3]])]
    controller.act(path[0][None], np.full((1, 1, 1), GOAL), LENGTH)
    for action in np.asarray(controller._last_plan.actions)[0, 0]:
        path.append(move(path[-1], action[None]))
        if path[-1][0, 0] > GOAL:
            break
    return np.concatenate(path)


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "steps"), [(True, 1000), pytest.param(False, 3000, marks=pytest.mark.long)])
def test_plans_do_not_cross_what_was_never_logged(plain, steps):
    agent = fit(plain, steps)
    places = np.array([[1.2, 0.1], [12.0, -6.0], [-9.0, 6.0]])
    inside, *far = agent.predict(places, np.zeros((3, 2))).uncertainty * MOST
    assert inside > 2.5  # in units of the ordinary uncertainty
    assert min(far) > 10
    around = planned_path(agent)
    assert around[-1, 0] > GOAL
    assert not in_gap(*around.T).any()
    agent.pessimism = np.zeros(1)  # without the penalty the straight way is taken
    assert in_gap(*planned_path(agent).T).any()


def test_bootstraps_are_of_whole_episodes_and_of_a_seed_alone():
    data = two_ways(20)
    both, alone = (make_bootstraps(data, 3, seeds) for seeds in ([0, 1], [1]))
    np.testing.assert_array_equal(both.counts[1:], alone.counts)
    train = ~data.held_out
    episodes = len(np.unique(data.episode[train]))
    assert both.counts.shape == (2, episodes, 3)
    np.testing.assert_array_equal(both.counts.sum(1), episodes)
    assert len(np.unique(np.asarray(alone.counts)[0], axis=1).T) == 3  # members differ
    rows = data.batch(train) | {"bootstrap": both.episode}
    count = alone.counts[0, both.episode.astype(jnp.int32), 0]
    drawn = draw_bootstrap(rows, count, jax.random.key(0))
    kept = np.bincount(np.asarray(drawn["bootstrap"]).astype(int), minlength=episodes)
    np.testing.assert_allclose(kept, alone.counts[0, :, 0] * LENGTH, atol=1)


def test_elites_are_the_members_that_predict_held_out_rows_best():
    prepared, c = prepare(two_ways(20)), MOPOConfig(hidden=4, members=4, elites=2, plain=True)
    gates = broadcast_over_seeds(make_gates(prepared.layout, full_mask(FACTORS)), 1)
    member = untrained(lambda key: FlatModel(prepared.layout, key, 4))
    wrong = jnp.asarray([3.0, 0.0, 9.0, 1.0])
    members = jax.tree.map(lambda a: jnp.stack([0 * a] * 4)[None], member)
    biases = members.net.biases[-1].at[0, :, 0].add(wrong)  # of the predicted x, 0 without it
    members = eqx.tree_at(lambda m: m.net.biases[-1], members, biases)
    elites = choose_elites(c, prepared, members, gates)
    np.testing.assert_array_equal(elites.net.biases[-1][0, :, 0], [0.0, 1.0])


def test_members_disagree_and_vote():
    layout, stats = layout_and_statistics(small("crash"))
    rng = stream(0, "members")
    body, marker, flag = (rng.normal(size=(5, *shape)) for shape in ((2, 2), (1, 1), (1, 1, 1)))
    spreads = rng.normal(size=(5, 2, 2)), rng.normal(size=(5, 1, 1)), np.zeros((5, 1, 0))
    each = [
        Outputs(jnp.zeros((*value.shape[:2], 0)), jnp.asarray(value, jnp.float32), jnp.asarray(spread, jnp.float32))
        for value, spread in zip((body, marker, flag), spreads, strict=True)
    ]
    chance = 1 / (1 + np.exp(-flag.reshape(5, 1)))
    sigma = np.hstack([np.exp(spreads[0]).reshape(5, 4), np.exp(spreads[1])[:, 0], np.sqrt(chance * (1 - chance))])
    np.testing.assert_allclose(uncertainty(layout, "max_sigma", each), np.linalg.norm(sigma, axis=1).max(), rtol=1e-5)
    parts = [*body.std(0).mean(1), marker.std(0).item(), np.abs(chance - chance.mean()).mean() / 2]
    np.testing.assert_allclose(uncertainty(layout, "disagreement", each), np.mean(parts), rtol=1e-5)
    for vote, logit in ((True, flag.min()), (False, flag.mean())):  # the goal is about the flag
        combined = combine_members(layout, each, vote)
        state = decode(layout, stats, combined, jnp.zeros(6), hard=False).state
        np.testing.assert_allclose(state[5], 1 / (1 + np.exp(-logit)), rtol=1e-5)
        np.testing.assert_allclose(combined[0].value, body.mean(0), rtol=1e-4, atol=1e-6)


def test_penalty_is_linear_up_to_50_ordinary_ones():
    u = jnp.asarray([0.0, 0.2, 2.0, 10.0, 20.0])
    np.testing.assert_allclose(as_penalty(u, jnp.asarray(0.2)) * MOST, [0, 1, 10, 50, 50])
