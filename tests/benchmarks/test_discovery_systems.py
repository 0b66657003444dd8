"""Systems with known graphs: a perturbed input must move exactly the factors that it is a cause of."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from because_rl.discovery.discover import discover
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.regression.engine import Budget
from because_rl.rng import stream
from benchmarks.discovery.synthetic import sparse, step_sparse, step_thermostat, thermostat
from benchmarks.discovery.systems import (
    ACROBOT,
    BEHAVIOURS,
    CAR,
    CARTPOLE,
    CLASSIC,
    PENDULUM,
    step_control,
    with_drift,
    wrapped,
)

LEAST = 1e-9  # a change beyond rounding


def moved(step, state, action, size=0.05):
    """(inputs, targets) bool: which columns of `step(state, action)` move in any row when an input column does.

    Many rows, since a clipped speed or an action out of range hides a cause.
    """
    whole, columns = np.hstack([state, action]), state.shape[1]
    before, out = step(state, action), []
    for k in range(whole.shape[1]):
        other = whole.copy()
        other[:, k] += size
        out.append((np.abs(step(other[:, :columns], other[:, columns:]) - before) > LEAST).any(0))
    return np.array(out)


def stepper(control, angles=0):
    """Step the real environment, row by row; angles as wrapped numbers."""
    env = gymnasium.make(control.id).unwrapped
    env.reset(seed=0)

    def step(state, action):
        rows = []
        for s, a in zip(state, action, strict=True):
            env.reset(seed=0)
            rows.append(step_control(env, s, control.encode(a[0]))[0])
        after = np.array(rows)
        after[:, :angles] = wrapped(after[:, :angles])
        return after

    return step


def pendulum_circles(state, action):
    """The equations with cosine and sine as variables of their own."""
    (cos, sin, speed), torque = state.T, np.clip(action[:, 0], -2, 2)
    faster = np.clip(speed + (15 * sin + 3 * torque) * 0.05, -8, 8)
    c, s = np.cos(0.05 * faster), np.sin(0.05 * faster)
    return np.column_stack([cos * c - sin * s, sin * c + cos * s, faster])


def acrobot_circles(state, action):
    """The same for both links: a Runge-Kutta step of the angles' changes d1 and d2."""
    c1, s1, c2, s2, *speeds = state.T
    torque = action[:, 0]

    def slope(value):
        d1, d2, w1, w2 = value
        cos2, sin2 = c2 * np.cos(d2) - s2 * np.sin(d2), s2 * np.cos(d2) + c2 * np.sin(d2)
        cos1, sin1 = c1 * np.cos(d1) - s1 * np.sin(d1), s1 * np.cos(d1) + c1 * np.sin(d1)
        inertia1, inertia2 = 0.25 + 1 + 0.25 + cos2 + 2, 0.25 + 0.5 * cos2 + 1
        phi2 = 0.5 * 9.8 * (sin1 * cos2 + cos1 * sin2)
        phi1 = -0.5 * w2**2 * sin2 - w2 * w1 * sin2 + 1.5 * 9.8 * sin1 + phi2
        a2 = (torque + inertia2 / inertia1 * phi1 - 0.5 * w1**2 * sin2 - phi2) / (1.25 - inertia2**2 / inertia1)
        return np.array([w1, w2, -(inertia2 * a2 + phi1) / inertia1, a2])

    start = np.array([np.zeros_like(c1), np.zeros_like(c1), *speeds])
    k1 = slope(start)
    k2 = slope(start + 0.1 * k1)
    k3 = slope(start + 0.1 * k2)
    d1, d2, w1, w2 = start + 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(start + 0.2 * k3))
    turned = [
        f(c, s, d)
        for c, s, d in ((c1, s1, d1), (c2, s2, d2))
        for f in (
            lambda c, s, d: c * np.cos(d) - s * np.sin(d),
            lambda c, s, d: s * np.cos(d) + c * np.sin(d),
        )
    ]
    return np.column_stack([*turned, np.clip(w1, -4 * np.pi, 4 * np.pi), np.clip(w2, -9 * np.pi, 9 * np.pi)])


STEPS = {
    "pendulum": pendulum_circles,
    "pendulum-raw": stepper(PENDULUM, 1),
    "acrobot": acrobot_circles,
    "mountaincar": stepper(CAR),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_perturbed_input_moves_the_factors_that_it_causes(name):
    system = CLASSIC[name]
    data = system.transitions(stream(0, name), "random", 100, 10)
    result = moved(STEPS[name], data.state.astype(float), data.action.astype(float), 0.01)
    np.testing.assert_array_equal(result, system.graph.matrix)


@pytest.mark.parametrize(("name", "control", "sizes"), [("cartpole", CARTPOLE, (1,)), ("acrobot-raw", ACROBOT, (1, 2))])
def test_a_changed_discrete_action_moves_the_factors_that_it_causes(name, control, sizes):
    """States are perturbed by a little, actions by a level."""
    system = CLASSIC[name]
    data = system.transitions(stream(0, name), "random", 100, 10)
    state, low, step = data.state.astype(float), np.full((100, 1), control.random(Lowest())), stepper(control)
    states = moved(step, state, low, 0.01)[:-1]
    actions = np.any([moved(step, state, low, size)[-1] for size in sizes], axis=0)
    np.testing.assert_array_equal(np.vstack([states, actions]), system.graph.matrix)


class Lowest:
    """A generator that draws the lowest value."""

    def integers(self, low, high):
        return low


@pytest.mark.parametrize(("name", "step"), [("pendulum", pendulum_circles), ("acrobot", acrobot_circles)])
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_equations_with_cosines_are_those_of_the_environment(name, step, behaviour):
    data = CLASSIC[name].transitions(stream(1, name), behaviour, 300, 60)
    np.testing.assert_allclose(step(data.state.astype(float), data.action.astype(float)), data.next_state, atol=2e-5)


def test_the_graph_of_a_sparse_system_is_that_of_its_equations():
    for linear in (True, False):
        system = sparse(6, 3, linear)
        weights = system.log.args[0]
        rng = stream(0, "perturb")
        state, action = rng.standard_normal((50, 6)), rng.uniform(-1, 1, (50, 3))
        result = moved(lambda s, a, w=weights, is_linear=linear: step_sparse(w, is_linear, s, a), state, action)
        np.testing.assert_array_equal(result, system.graph.matrix)
        assert not system.graph.matrix.all()


def test_the_graph_of_the_thermostat_is_that_of_its_equations():
    system, rng = thermostat(), stream(0, "perturb")
    data = system.transitions(rng, "random", 2000, 96)
    draws, noise = rng.random((2000, 2)), rng.standard_normal((2000, 2))
    result = moved(lambda s, a: step_thermostat(s, a[:, 0], draws, noise), data.state, data.action, 1.0)
    np.testing.assert_array_equal(result, system.graph.matrix)
    assert system.graph.parents("occupied") == ("day_type", "hour", "occupied")


def test_the_type_of_day_is_not_excluded_as_a_cause():
    """It is constant in an episode: a cause only if its factor says so, and left open otherwise."""
    quick = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60))
    data = thermostat().transitions(stream(0, "thermostat"), "random", 30 * 96, 96)
    day, *rest = data.factors.state
    for role, verdict in (("", "undetermined"), ("context", "established")):
        factors = replace(data.factors, state=(replace(day, role=role), *rest))
        mask = discover(replace(data, factors=factors), test=quick, batches=0)
        assert mask.status[mask.inputs.index("day_type"), mask.targets.index("occupied")] == verdict


@pytest.mark.parametrize("name", [*CLASSIC, "sparse", "thermostat"])
def test_episodes_are_unbroken_and_confounded_actions_share_a_constant(name):
    system = {"sparse": sparse(4, 2, True), "thermostat": thermostat()}.get(name) or CLASSIC[name]
    spread = {}
    for behaviour in BEHAVIOURS:
        data = system.transitions(stream(2, name), behaviour, 3000, 50)
        assert len(data) == 3000
        assert data.step.max() < 50
        inside = data.episode[1:] == data.episode[:-1]
        np.testing.assert_allclose(data.next_state[:-1][inside], data.state[1:][inside], rtol=1e-6)
        means = [
            data.action[data.episode == e, 0].mean() for e in range(data.episodes) if (data.episode == e).sum() > 30
        ]
        spread[behaviour] = np.std(means) if means else 0
    assert name == "cartpole" or spread["confounded"] > 1.5 * spread["random"]


def test_raw_angles_wrap_and_cosines_do_not():
    for name, wraps in (("pendulum-raw", True), ("acrobot-raw", True), ("pendulum", False)):
        data = CLASSIC[name].transitions(stream(0, name), "random", 1000, 100)
        assert (np.abs(data.next_state[:, 0] - data.state[:, 0]) > np.pi).any() == wraps
        assert np.abs(data.state[:, 0]).max() <= np.pi + 1e-6


def test_drift_is_one_more_factor_without_effects():
    system = with_drift(CLASSIC["mountaincar"])
    data = system.transitions(stream(0, "drift"), "random", 1000, 50)
    drift, then = data.state[:, -1], data.next_state[:, -1]
    assert system.graph.children("drift") == ("drift",)
    assert np.corrcoef(drift, then)[0, 1] == pytest.approx(0.95, abs=0.03)
    inside = data.episode[1:] == data.episode[:-1]
    np.testing.assert_array_equal(then[:-1][inside], drift[1:][inside])
    assert (then[:-1][~inside] != drift[1:][~inside]).all()
