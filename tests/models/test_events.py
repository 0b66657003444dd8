"""Binary factors that switch rarely: how much such rows count, and whether a sharp law is learned from few of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.because import BecauseConfig, world_model_stage
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models import prepared_data
from because_rl.models.bilinear import BilinearModel, Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode, negative_log_likelihood
from because_rl.models.mixing import mix
from because_rl.models.objective import Weights, background, unlogged_rows
from because_rl.models.prepared_data import event_weights, prepare, summarise
from because_rl.planning.calibration import event_shifts
from because_rl.planning.proposals import broadcast_over_seeds, full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import untrained
from tests.support import logged

RADIUS = 0.062
GOAL = (GoalFactor("near", 0, 1, "binary", factor="flag", relation="at_least"),)
FACTORS = FactorSpec(
    pack(("car", 2, "continuous", "body"), ("walker", 2, "continuous", "body"), ("flag", 1, "binary")),
    pack(("push", 2, "continuous")),
    GOAL,
)


def near(state, action):
    """Whether car and walker come closer than RADIUS: in 3 of 1,000 rows."""
    return np.hypot(*(state[:, :2] + 0.02 * action - state[:, 2:4]).T) < RADIUS


def near_misses(n, seed=0):
    """Two bodies anywhere in a square; a flag shows that they came near."""
    rng = stream(seed, "near misses")
    bodies, push = rng.uniform(-1, 1, (n, 4)), rng.uniform(-1, 1, (n, 2))
    moved = np.hstack([bodies[:, :2] + 0.02 * push, bodies[:, 2:]])
    state, after = np.hstack([bodies, np.zeros((n, 1))]), np.hstack([moved, near(bodies, push)[:, None]])
    return logged(FACTORS, state, push, after, np.ones((n, 1)))


def test_rows_with_a_switch_make_up_a_tenth_of_the_loss():
    layout, rows = Layout(FACTORS), 10_000
    state, after = np.zeros((2, rows, 5))
    for switches, expected in ((40, 0.1 * 0.996 / (0.9 * 0.004)), (2000, 1.0), (1, 50.0), (0, 1.0)):
        after[:, 4] = np.arange(rows) < switches
        weights = event_weights(layout, state, after)
        np.testing.assert_allclose(weights, [1, 1, 1, 1, expected], err_msg=f"{switches} switches")


def test_weighted_rows_leave_probabilities_calibrated():
    """A model that can say one number only says the share of rows that switch, whichever way and with any weight."""
    data = near_misses(4000)
    layout, stats = Layout(FACTORS), summarise(data).stats
    assert float(stats.rarity[4]) > 2
    share = data.next_state[:, 4].mean()
    for before, rate in ((0.0, share), (1.0, 1 - share)):
        state = data.state.copy()
        state[:, 4] = before
        after = np.where(data.next_state[:, 4:] > 0, 1 - before, before)

        def loss(logit, state=state, after=after):
            flag = Outputs(jnp.zeros((1, 1)), jnp.full((1, 1, 1), logit), jnp.zeros((1, 0)))
            bodies = Outputs(jnp.zeros((2, 1)), jnp.zeros((2, 2)), jnp.zeros((2, 2)))
            rows = jnp.asarray(np.hstack([state[:, :4], after]))
            each = jax.vmap(lambda s, t: negative_log_likelihood(layout, stats, [bodies, flag], s, t)[2])
            return each(jnp.asarray(state), rows).mean()

        slope = jax.grad(loss)
        assert abs(slope(np.log(rate / (1 - rate)))) < 1e-4 < abs(slope(np.log(rate / (1 - rate)) + 0.2))


def test_box_counts_only_where_the_data_are_silent():
    """The background moves the networks of events in rows that the model holds for unlike the data, not in others."""
    data = near_misses(600)
    layout, stats = Layout(FACTORS), summarise(data).stats
    model, gates = untrained(lambda key: BilinearModel(layout, key, hidden=16)), make_gates(layout, full_mask(FACTORS))
    batch = data.batch(np.arange(len(data)) < 64)

    (net,) = model.support
    last = (net.common.weights[-1], net.own.weights[-1], net.own.biases[-1])
    certain = eqx.tree_at(
        lambda net: (net.common.weights[-1], net.own.weights[-1], net.own.biases[-1]), net, [0 * a for a in last]
    )

    def loss(heads, log_odds):
        support = eqx.tree_at(lambda net: net.common.biases[-1], certain, log_odds[None])
        changed = eqx.tree_at(lambda model: (model.heads, model.support), model, (heads, [support]))
        return background(Weights(), stats, changed, gates, batch, jax.random.key(0))

    slopes = jax.jit(jax.grad(loss))

    def pull(log_odds):
        return max(float(jnp.abs(slope).max()) for slope in jax.tree.leaves(slopes(model.heads, jnp.array(log_odds))))

    assert pull(4.0) == 0 < pull(-4.0)


CELLS = FactorSpec(
    pack(("walker", 6, "categorical"), ("lamp", 1, "binary")),
    pack(("press", 2, "categorical")),
    (GoalFactor("lit", 0, 1, "binary", factor="lamp", relation="at_least"),),
    codes=((1.0, 0.0), (0.0, 1.0)),
)


def presses(n=2000, at=3):
    """A walker presses a switch where it is, and nowhere else: no step says that both are needed."""
    walker = stream(0, "presses").integers(0, 6, n)
    press = (walker == at).astype(int)
    state = np.hstack([np.eye(6)[walker], np.zeros((n, 1))])
    after = np.hstack([np.eye(6)[walker], press[:, None]])
    return logged(CELLS, state, np.eye(2)[press], after, np.ones((n, 1)))


def test_unlogged_rows_of_discrete_factors_are_put_together_from_logged_ones():
    data = presses()
    real = jnp.asarray(np.hstack([data.state, data.action])[:256], jnp.float32)
    rows = np.asarray(unlogged_rows(0.25, summarise(data).stats, Layout(CELLS), real, jax.random.key(0)))
    assert (rows[:, :6].sum(1) == 1).all()
    assert (rows[:, 7:].sum(1) == 1).all()
    assert ((rows[:, 3] == 1) & (rows[:, 8] == 0)).any()  # at the switch, and no press


@pytest.mark.long
def test_event_needs_all_that_was_logged_with_it():
    """Without background rows the model believes that standing at the switch is enough, or pressing anywhere."""
    prepared = prepare(presses())
    layout, stats = prepared.layout, prepared.stats
    gates = broadcast_over_seeds(make_gates(layout, full_mask(CELLS)), 1)

    def chances(background):
        config = BecauseConfig(hidden=16, batch=64, world_steps=600, rate=3e-3, weights=Weights(background=background))
        worlds = Run([0]).fit(world_model_stage(config, prepared), prepared.train, gates)
        world, gate = jax.tree.map(lambda a: a[0], (worlds, gates))
        cases = [np.concatenate([np.eye(6)[cell], [0], np.eye(2)[press]]) for cell, press in ((3, 1), (3, 0), (1, 1))]
        x = jnp.asarray(np.stack(cases), jnp.float32)
        return jax.vmap(lambda x: decode(layout, stats, world(stats, gate, x), x[:7], hard=False).state[6])(x)

    both, *one = chances(1.0)
    assert both > 0.9
    assert max(one) < 0.1 < max(chances(0.0)[1:])


def calibrated(prepared, world, gates):
    """A function (rows) -> chances that the flag is up afterwards, of one seed, and the shifts of all seeds."""
    layout, stats = prepared.layout, prepared.stats

    def expect(p, state, action):
        outputs = p["world"](stats, p["gates"], jnp.concatenate([state, action]))
        guess = decode(layout, stats, outputs, state, p.get("event_shift"), hard=False, cautious=False)
        return guess.state, jnp.zeros(())

    parameters = {"world": world, "gates": gates}
    shifts = event_shifts(prepared.transitions, stats, expect, parameters)
    parameters["event_shift"] = jnp.asarray(shifts)
    one = jax.tree.map(lambda a: a[0], parameters)
    return jax.jit(lambda x: jax.vmap(lambda x: expect(one, x[:5], x[5:])[0][4])(x)), shifts


def test_a_shy_law_of_events_is_shifted_by_the_logged_ones():
    """Untrained networks that hardly believe in it: they foresee as many events as were logged, within log w."""
    prepared = prepare(near_misses(4000))
    layout, logged_share = prepared.layout, prepared.train["next_state"][:, 4].mean()
    model = untrained(lambda key: BilinearModel(layout, key, hidden=8))
    (head,) = (n for n, f in enumerate(layout.families) if f.type == "binary")

    def last_layer(model):
        return model.heads[head].read.common.weights[-1], model.heads[head].read.common.biases[-1]

    def foreseen(logit):
        weight, bias = last_layer(model)
        shy = eqx.tree_at(last_layer, model, (0 * weight, jnp.full_like(bias, logit)))
        world, gates = broadcast_over_seeds((shy, make_gates(layout, full_mask(FACTORS))), 1)
        chance, shifts = calibrated(prepared, world, gates)
        rows = jnp.concatenate([prepared.train["state"], prepared.train["action"]], axis=1)
        assert (shifts[:, :4] == 0).all()
        return float(chance(rows).mean()), float(shifts[0, 4])

    share = float(logged_share)
    assert foreseen(-7.0)[0] == pytest.approx(share, rel=1e-2)
    most = float(prepared.stats.rarity[4])
    assert foreseen(-30.0)[1] == pytest.approx(most, rel=1e-5)


@pytest.mark.long
def test_sharp_law_of_an_event_in_3_of_1000_rows(monkeypatch):
    """On held-out rows and on rows mixed from several; without weights, and with background everywhere, it fails."""
    data = near_misses(100_000)

    def figures(share):
        monkeypatch.setattr(prepared_data, "EVENT_SHARE", share)
        prepared = prepare(data)
        config = BecauseConfig(hidden=64, world_steps=6000, rate=4e-3)
        gates = broadcast_over_seeds(make_gates(prepared.layout, full_mask(FACTORS)), 1)
        world = Run([0], chunk=500).fit(world_model_stage(config, prepared), prepared.train, gates)
        chance, _ = calibrated(prepared, world, gates)
        held = np.hstack([data.state, data.action])[data.held_out]
        keys = jax.random.split(jax.random.key(1), 10)
        mixed = [np.asarray(mix(prepared.layout, jnp.asarray(held), k, k)) for k in keys]
        out = []
        for rows in (held, np.concatenate(mixed)):
            truth, p = near(rows[:, :4], rows[:, 5:]), np.asarray(chance(jnp.asarray(rows)))
            hits = (truth & (p > 0.5)).sum()
            out.append((hits / truth.sum(), hits / max((p > 0.5).sum(), 1), p.sum() / truth.sum()))
        return np.array(out)

    law = figures(0.1)
    assert (law[:, :2] >= 0.8).all(), law
    assert (np.abs(law[:, 2] - 1) < 0.25).all(), law
    monkeypatch.delattr(BilinearModel, "log_odds_of_data")
    assert figures(0.0)[:, 0].max() < 0.8
