"""Angles: a model that knows of full turns predicts across the wrap, stays in the logged range, and sees no seam."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.evaluation.one_step import Steps, factor_error
from because_rl.factors import FactorSpec, pack
from because_rl.models.bilinear import make_gates, views
from because_rl.models.layout import Layout
from because_rl.models.likelihood import correct, decode
from because_rl.models.prepared_data import statistics
from tests.models.test_models import train

NAMES = ("state", "action", "next_state")


def spec(kind, unit=""):
    state = pack(("turn", 1, kind, "", False, "", unit), ("speed", 1, "continuous"))
    return FactorSpec(state, pack(("push", 1, "continuous")))


def pendulum(n=3000, seed=0):
    """A pendulum that often goes over the top; its angle is logged in [-pi, pi)."""
    rng = np.random.default_rng(seed)
    turn, speed, push = rng.uniform(-np.pi, np.pi, n), rng.normal(0, 3, n), rng.normal(size=n)
    later = speed + 0.5 * np.sin(turn) + 0.3 * push
    after = (turn + 0.2 * later + np.pi) % (2 * np.pi) - np.pi
    arrays = np.stack([turn, speed], 1), push[:, None], np.stack([after, later], 1)
    return {name: jnp.asarray(a, jnp.float32) for name, a in zip(NAMES, arrays, strict=True)}


def predict(layout, trained, data):
    stats, gates, model = trained

    def row(state, action):
        return decode(layout, stats, model(stats, gates, jnp.concatenate([state, action])), state, hard=True).state

    return np.asarray(jax.jit(jax.vmap(row))(data["state"], data["action"]))


@pytest.mark.long
@pytest.mark.parametrize("unit", ["", "degrees"])
def test_a_model_of_an_angle_predicts_across_the_wrap(unit):
    """The one-step error, along the shorter way round, is far below that of a model that takes it for a number."""
    scale = np.array([[180 / np.pi if unit else 1.0, 1.0]], np.float32)
    log, new = ({k: v * scale if k != "action" else v for k, v in pendulum(seed=s).items()} for s in (0, 1))
    errors = {}
    for kind in ("angle", "continuous"):
        layout = Layout(spec(kind, unit if kind == "angle" else ""))
        guess = predict(layout, train(layout, log, np.ones((3, 2), np.float32), steps=600), new)
        if kind == "angle":
            half = 180.0 if unit else np.pi
            assert guess[:, 0].min() >= -half
            assert guess[:, 0].max() <= half
        steps = Steps(*(np.asarray(new[name]) for name in NAMES))
        errors[kind] = float(factor_error(spec("angle", unit), "turn", guess[None], steps)[0])
    assert errors["angle"] < 0.1
    assert errors["angle"] < errors["continuous"] / 5


def test_networks_see_the_same_on_both_sides_of_the_seam():
    layout = Layout(spec("angle"))
    data = pendulum(200)
    stats = statistics(layout, *(np.asarray(data[name]) for name in NAMES))
    assert stats.change[0] < 1.5  # not the spread of jumps by a full turn
    gates = make_gates(layout, np.array([[1, 1], [1, 1], [0, 1]], np.float32))
    at = partial(views, layout, stats, gates)
    one, other = (at(jnp.array([x, 0.5, 0.1])) for x in (np.pi - 1e-4, 1e-4 - np.pi))
    assert one.plain.shape == (2, 4)  # sine, speed, push, cosine
    np.testing.assert_allclose(one.plain, other.plain, atol=1e-3)
    assert np.abs(np.asarray(at(jnp.array([0.0, 0.5, 0.1])).plain - one.plain)).max() > 1
    assert one.plain[0, 2] == 0  # cut by the mask
    cut = make_gates(layout, np.array([[1, 0], [1, 1], [0, 1]], np.float32))
    blind = [views(layout, stats, cut, jnp.array([x, 0.5, 0.1])) for x in (0.3, 2.0)]
    np.testing.assert_array_equal(blind[0].plain[1], blind[1].plain[1])  # neither sine nor cosine passes
    np.testing.assert_array_equal(blind[0].gated[1], blind[1].gated[1])


@pytest.mark.parametrize(
    ("low", "high", "there", "expected"),
    [
        (-3.1, 3.1, 3.5, 3.5 - 2 * np.pi),
        (0.0, 6.2, -0.1, 2 * np.pi - 0.1),
        (0.0, 6.2, 3.5, 3.5),
        (-9.0, 20.0, 30.0, 30.0),
    ],
)
def test_predicted_angles_keep_to_the_logged_range(low, high, there, expected):
    layout = Layout(spec("angle"))
    data = pendulum(50)
    stats = statistics(layout, *(np.asarray(data[name]) for name in NAMES))
    stats = stats._replace(low=stats.low.at[0].set(low), high=stats.high.at[0].set(high), change=jnp.ones(2))
    outputs = [type("Out", (), {"value": jnp.full((1, 1), v)})() for v in (1.0, 0.0)]
    state = jnp.array([there - 1.0, 0.0])
    guess = decode(layout, stats, outputs, state, hard=True).state
    assert guess[0] == pytest.approx(expected, abs=1e-5)
    turned = guess.at[0].add(2 * np.pi)
    assert correct(layout, stats, turned, state, guess).max() < 1e-6


def test_changes_go_the_shorter_way_round_in_numpy_and_jax():
    factors = spec("angle")
    now, then = np.array([[3.0, 3.0]]), np.array([[-3.0, -3.0]])
    expected = [[2 * np.pi - 6, -6]]
    np.testing.assert_allclose(factors.change(now, then), expected)
    np.testing.assert_allclose(factors.change(jnp.asarray(now), jnp.asarray(then)), expected, rtol=1e-5)
    np.testing.assert_array_equal(spec("continuous").change(now, then), then - now)
