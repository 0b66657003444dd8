"""Settings of BECAUSE that take one of its departures from the paper back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.because import (
    Because,
    BecauseConfig,
    Edges,
    energy_stage,
    estimate_mask,
    mask_of_proposals,
    world_model_stage,
)
from because_rl.algorithms.because_paper import BecausePaperConfig, average_mask, estimate_masks
from because_rl.algorithms.registry import load_agent, make_method
from because_rl.discovery.discover import discover
from because_rl.factors import FactorSpec, pack
from because_rl.models.bilinear import make_gates
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import prepare
from because_rl.models.score_world import ScoreWorld
from because_rl.planning.proposals import full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import layout_and_statistics, untrained
from tests.support import lamps, small


def slopes(episodes=60, length=6):
    """Positions that grow by the episode's slope, which is logged."""
    rng, n = stream(0, "slopes"), episodes * length
    slope = np.repeat(rng.normal(size=(episodes, 1)), length, axis=0)
    x, push = rng.normal(size=(2, n, 1))
    after = np.hstack([x + slope + 0.1 * rng.normal(size=(n, 1)), slope])
    factors = FactorSpec(pack(("x", 1, "continuous"), ("slope", 1, "continuous")), pack(("push", 1, "continuous")))
    return Transitions.from_arrays(
        np.hstack([x, slope]), push, after, np.repeat(np.arange(episodes), length), factors=factors
    )


def test_without_the_echo_rule_a_constant_of_episodes_is_a_cause():
    data = slopes()
    place = data.factors.inputs.index("slope"), data.factors.targets.index("x")
    for echo_rule in (True, False):
        edges = estimate_mask(BecauseConfig(echo_rule=echo_rule, batches=0), data, Run([0]))
        assert (edges.mask[place], edges.may_cause[place]) == (not echo_rule, not echo_rule)


# Proposals ---------------------------------------------------------------------------------------------


def test_proposals_of_a_full_model_can_have_the_discovered_mask(tmp_path):
    data = lamps(60)
    full = estimate_mask(BecauseConfig(mask="full"), data, run := Run([0], tmp_path))

    def mask(setting):
        return mask_of_proposals(BecauseConfig(mask="full", proposal_mask=setting, batches=0), data, run, full)

    np.testing.assert_array_equal(mask("model"), full_mask(data.factors))
    discovered = discover(data, batches=0).weight
    assert discovered[data.factors.inputs.index("cue_2"), 0] == 0
    for _ in range(2):  # estimated, and from the folder
        np.testing.assert_array_equal(mask("discovered"), discovered)
    gated = Edges(discovered, discovered, discovered < 0, discovered < 0)
    config = BecauseConfig(proposal_mask="full")
    np.testing.assert_array_equal(mask_of_proposals(config, data, run, gated), full_mask(data.factors))


# Prediction --------------------------------------------------------------------------------------------


def effects(gated, weights):
    """(inputs, targets) how much an input changes what is predicted of a target, before training."""
    data = small("crash")
    layout, stats = layout_and_statistics(data)
    world = untrained(lambda key: ScoreWorld(layout, key, gated=gated, hidden=4, places=4, events=2))
    gates = make_gates(layout, weights)

    def predicted(x):
        rows = {}
        for family, out in zip(layout.families, world(stats, gates, x), strict=True):
            flat = jnp.concatenate([part.reshape(len(family.members), -1) for part in (out.value, out.spread)], axis=1)
            rows |= dict(zip(family.members, flat, strict=True))
        return [rows[j] for j in range(len(rows))]

    moved = np.stack([layout.factor_of_column == i for i in range(len(layout.inputs))])
    row = np.concatenate([data.state[0], data.action[0]])
    rows = jnp.asarray(np.vstack([row, row + 0.5 * moved]))
    each = jax.jit(jax.vmap(predicted), compiler_options={"xla_backend_optimization_level": 0})(rows)
    return np.stack([np.abs(part[1:] - part[0]).max(1) for part in map(np.asarray, each)], axis=1)


def test_gated_scores_see_parents_only_and_masked_cores_do_not():
    factors = small("crash").factors
    weights = stream(0, "weights").integers(0, 2, (len(factors.inputs), len(factors.targets))).astype(np.float32)
    weights[:, 2] = 0
    gated, masked_core = effects(True, weights), effects(False, weights)
    np.testing.assert_array_equal(gated > 0, weights > 0)
    assert (masked_core[:, 2] == 0).all()  # the core is 0: what is predicted of this target does not depend on the row
    assert (masked_core[:, :2][weights[:, :2] == 0] > 0).any()  # columns that L mixes into the elements of parents


def test_mean_vote_takes_the_place_of_the_most_sceptical_one():
    data = small("crash")
    prepared = prepare(data)
    layout, stats = prepared.layout, prepared.stats
    methods = [Because(BecauseConfig(vote=vote, hidden=8, energy_hidden=8)) for vote in ("sceptical", "mean")]
    p = untrained(lambda key: methods[0].untrained(prepared.summary, key))
    gates = make_gates(layout, full_mask(data.factors))

    @jax.jit
    def votes(state, action):
        parameters = p | {"gates": gates, "possible": gates}
        return [method.predict(layout, stats, parameters, state, action)[0] for method in methods]

    sceptical, mean = votes(jnp.asarray(data.state[0]), jnp.asarray(data.action[0]))
    (event,) = layout.events
    assert sceptical[event].value.shape[1] == 4
    np.testing.assert_allclose(mean[event].value[:, 0], sceptical[event].value.mean(1), rtol=1e-5)
    for n, family in enumerate(layout.families):
        if family.type != "binary":
            np.testing.assert_array_equal(mean[n].value, sceptical[n].value)


def test_stages_of_different_predictions_are_not_shared():
    prepared = prepare(small("crash"))
    for make_stage in (world_model_stage, energy_stage):
        settings = [
            make_stage(BecauseConfig(prediction=prediction), prepared).settings
            for prediction in ("readout", "gated-score", "score")
        ]
        assert all(a != b for n, a in enumerate(settings) for b in settings[:n])


@pytest.mark.long
@pytest.mark.parametrize("prediction", ["gated-score", "score"])
@pytest.mark.parametrize("kind", ["unlock", "crash"])
def test_an_agent_that_predicts_by_scores_is_saved_and_loaded(prediction, kind, tmp_path):
    data = small(kind, 60)
    steps = {f"{stage}_steps": 20 for stage in ("world", "energy", "check", "behaviour", "value")}
    sizes = {"hidden": 8, "energy_hidden": 8, "behaviour_hidden": 8, "batch": 16, "batches": 0}
    agent = make_method("because", steps | sizes | {"prediction": prediction}).fit(data, 2)
    agent.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    for before, after in zip(*(one.predict(data.state[:5], data.action[:5]) for one in (agent, loaded)), strict=True):
        np.testing.assert_array_equal(before, after)


# The paper's algorithm without alternation ---------------------------------------------------------------


def test_a_mask_estimated_first_is_that_of_the_logged_factors():
    data = lamps(60)
    config, prepared = BecausePaperConfig(alternate=False, threshold=2e-3), prepare(data)
    masks = estimate_masks(config, data, Run([0, 1]), prepared.stats, None, 0)
    expected = average_mask(config, data, Layout(data.factors))
    np.testing.assert_allclose(masks, np.stack([expected] * 2))
    assert 0 < expected.sum() < expected.size
