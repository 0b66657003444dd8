"""The ladder's rungs: the truth in JAX, and a method that knows part of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.because import Because, BecauseConfig
from because_rl.envs.tasks import make_batch
from because_rl.envs.unlock.batch import unlock_step
from because_rl.envs.unlock.env import CELLS
from because_rl.errors import BecauseError
from because_rl.models.bilinear import make_gates
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import summarise
from because_rl.planning.proposals import full_mask
from because_rl.rng import stream
from benchmarks.ladder.run import ladder, rungs
from benchmarks.ladder.truth import TRUTH, WithTruth
from tests.algorithms.builders import untrained
from tests.support import logged


def steps(world, count=200, seed=0):
    """States, action columns and next states of random actions in a world, and its factors."""
    rng, batch = stream(seed, "ladder", world), make_batch(world, "I")
    state = batch.reset(list(range(20))).state
    rows = []
    while len(rows) * 20 < count:
        if world == "unlock":
            number = rng.integers(0, batch.action_space.n, 20)
            action, columns = number, batch.factors.encode_action(number)
        else:
            action = columns = rng.uniform(-1, 1, (20, batch.action_space.shape[0])).astype(np.float32)
        after = batch.step(action).observation.state
        rows.append((state, columns, after))
        state = after
    return *(np.concatenate(part).astype(np.float32) for part in zip(*rows, strict=True)), batch.factors


def test_unlock_row_is_unlock_step():
    state, action, _, _ = steps("unlock", 2000)
    third = np.arange(len(state)) % 3
    for place, columns in ((1, slice(CELLS, 2 * CELLS)), (2, slice(2 * CELLS, 3 * CELLS))):  # on the key, at the door
        there = np.eye(CELLS, dtype=np.float32)[state[:, columns].argmax(1)]
        state[:, :CELLS] = np.where((third == place)[:, None], there, state[:, :CELLS])
    rows = jax.vmap(TRUTH["unlock"].step)(jnp.asarray(state), jnp.asarray(action))
    np.testing.assert_array_equal(rows, unlock_step(state, action))


@pytest.mark.parametrize("world", ["unlock", "crash"])
def test_method_that_is_told_a_part_predicts_that_part_exactly(world):
    state, action, after, factors = steps(world)
    summary = summarise(logged(factors, state, action, after, np.zeros((len(state), factors.goal_size))))
    method, truth = Because(BecauseConfig(hidden=16, energy_hidden=16)), TRUTH[world]
    gates = make_gates(summary.layout, full_mask(factors))
    p = untrained(lambda key: method.untrained(summary, key)) | {"gates": gates, "possible": gates}
    part, known = next(iter(truth.parts.items()))
    partly_true = WithTruth(method, truth, known)

    def predict(one, s, a):
        return decode(
            summary.layout, summary.stats, one.predict(summary.layout, summary.stats, p, s, a)[0], s, hard=True
        )

    learned, informed = (
        np.asarray(jax.jit(jax.vmap(lambda s, a, one=one: predict(one, s, a).state))(state, action))
        for one in (method, partly_true)
    )
    exact = np.asarray(jax.vmap(truth.step)(jnp.asarray(state), jnp.asarray(action)))
    assert part
    for factor in factors.state:
        if factor.name in known:
            np.testing.assert_allclose(informed[:, factor.slice], exact[:, factor.slice], atol=2e-3)
            assert not np.allclose(learned[:, factor.slice], exact[:, factor.slice], atol=2e-3)
        else:
            np.testing.assert_array_equal(informed[:, factor.slice], learned[:, factor.slice])


def test_rungs_go_from_the_learned_model_to_the_oracle():
    assert rungs("crash", masked=True) == [
        "learned",
        "true mask",
        "true motion",
        "true flags",
        "all true",
        "oracle planner",
    ]
    assert rungs("lift", masked=False) == ["learned", "oracle planner"]


def test_ladder_refuses_datasets_that_are_not_for_development(tmp_path):
    with pytest.raises(BecauseError, match="500 to 599"):
        ladder("crash-O-expert", 3, tmp_path)
    with pytest.raises(BecauseError, match="no world model"):
        ladder("crash-O-expert", 500, tmp_path, method="td3bc")
