"""An exported agent chooses what the agent chooses, in a process that cannot import JAX or this package.

The networks have random weights: to compare two computations of a plan takes no training.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import make_method
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.models.prepared_data import summarise
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.proposals import untrained_proposals
from because_rl.rng import stream
from because_rl.training.run import untrained_of_seeds
from because_rl.transitions import Transitions
from benchmarks.methods.exported import TOLERANCE, act, compare, difference
from tests.support import small

SEEDS = (0, 1)
SETTINGS = {"hidden": 8, "energy_hidden": 8, "behaviour_hidden": 8, "planner.population": 16, "planner.horizon": 5}
TIE = 1e-5
"""Values that differ by less are equal up to rounding, and either action may be chosen."""
LEAST_SAME = 0.75
"""Share of equal choices: the others must be ties."""


def rewarded(numbered):
    """Random rows of a cart that is pushed left or right, or by an amount, with rewards and ends."""
    rng, n = stream(0, "cart"), 240
    state = rng.normal(size=(n, 3))
    action = rng.integers(0, 2, n) if numbered else rng.normal(size=(n, 1))
    factors = FactorSpec(
        pack(("place", 1, "continuous"), ("speed", 1, "continuous"), ("angle", 1, "continuous")),
        pack(("push", 2, "categorical") if numbered else ("push", 1, "continuous")),
        codes=((1.0, 0.0), (0.0, 1.0)) if numbered else None,
    )
    spec = factors.with_outcomes("reward", has_ends=True)
    ends, state = (rng.random((n, 1)) < 0.1).astype(float), np.hstack([state, np.zeros((n, 2))])
    after = np.hstack([state[:, :3] + 0.1, rng.normal(size=(n, 1)), ends])
    return Transitions.from_arrays(state, action, after, np.repeat(np.arange(24), 10), factors=spec)


CASES = {
    "numbered actions for a reward": lambda: rewarded(numbered=True),
    "continuous actions for a reward": lambda: rewarded(numbered=False),
    "categorical states and a goal": lambda: small("unlock"),
    "continuous actions for a goal": lambda: small("lift"),
}


def with_random_weights(data, settings=SETTINGS):
    """An agent of BECAUSE for these data that has not been trained."""
    method, summary, rng = make_method("because", settings), summarise(data), stream(0, "weights")

    def untrained(key):
        shifts = {"event_shift": jnp.zeros(data.factors.state_size)}
        return method.untrained(summary, key) | untrained_proposals(method.config, data.factors, key) | shifts

    def fill(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32)
        return jnp.broadcast_to(jnp.arange(leaf.shape[-1], dtype=leaf.dtype), leaf.shape)

    parameters = jax.tree.map(fill, untrained_of_seeds(untrained, len(SEEDS)))
    if "returns" in parameters:
        least, most = -jnp.ones(len(SEEDS)), jnp.ones(len(SEEDS))
        parameters["returns"] = parameters["returns"]._replace(unit=most, least=least, most=most)
    if "persistence" in parameters:
        parameters["persistence"] = type(parameters["persistence"])(jnp.full(2, 0.5), jnp.full(2, 0.7))
    return PlannerAgent(method, summary, SEEDS, parameters, np.full(len(SEEDS), 0.1))


@pytest.mark.parametrize("count", [8, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_exported_agents_choose_the_same_without_jax(case, count, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    data = CASES[case]()
    agent, rows = with_random_weights(data), np.arange(count) % len(data)
    states, goals = data.state[rows, : data.factors.observed_size], data.goal[rows]
    if data.factors.state[0].is_continuous:
        states = states + 2 * stream(0, "more").normal(size=states.shape)
    states = np.float32(states)
    row, made = compare(agent, states, goals, tmp_path)
    assert np.ptp(made["alone_a"], axis=0).max() > 0  # otherwise any constant would do
    assert row["same"] >= LEAST_SAME * count
    # Plans are the best by their scores: where these agree and the actions do not, two plans are equally good.
    assert row["largest_score_difference"] <= TIE
    assert row["most_lost"] <= TIE

    controller = agent.start(1, 3)
    for k, (action, score) in enumerate(zip(made["through_a"], made["through_s"], strict=True)):
        ours, our_score = act(agent, controller, states[k], goals[0], agent.horizon - k)
        np.testing.assert_allclose(score, our_score, rtol=TIE, atol=TIE)
        if difference([ours], [action])[0] > TOLERANCE:  # a tie; what is remembered differs from here on
            assert k > 0
            break


def test_metadata_describe_columns_and_memory(tmp_path):
    pytest.importorskip("onnx")
    about = with_random_weights(rewarded(numbered=True)).export(tmp_path / "policy.onnx")
    assert [part["name"] for part in about["observation"]] == ["place", "speed", "angle"]
    assert about["action"]["numbers"] == 2
    assert [part["start"] for part in about["memory"]] == ["seed", 0.0, 0.0, "-inf"]
    json.dumps(about, allow_nan=False)
    with pytest.raises(BecauseError, match=r"ending in \.onnx"):
        with_random_weights(small("lift")).export(tmp_path / "policy")


def test_an_agent_without_a_planner_says_that_it_cannot_be_exported(tmp_path):
    method, summary = make_method("td3bc", {"hidden": 8}), summarise(small("lift"))
    agent = method.restore(summary.factors, summary.horizon, (0,), _blank(method, summary))
    with pytest.raises(BecauseError, match="td3bc cannot be exported"):
        agent.export(tmp_path / "policy.onnx")


def _blank(method, summary):
    from because_rl.training.run import flatten

    leaves = untrained_of_seeds(lambda key: method.untrained(summary, key), 1)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), leaves)
    return flatten(zeros) | summary.arrays()
