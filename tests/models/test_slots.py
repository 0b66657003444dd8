"""What a slot holds decides the local logit, however that logit is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.models.bilinear import over_slots


def local(slot):
    return jnp.tanh(slot @ jnp.asarray([1.0, -2.0, 0.5]) + 0.3) + slot.prod()


@pytest.mark.parametrize("count", [5, 40], ids=["fewer slots than contents", "more"])
def test_each_slot_has_the_value_of_what_it_holds(count):
    slots = jnp.asarray(np.random.default_rng(0).integers(0, 2, (count, 3)), jnp.float32)
    np.testing.assert_allclose(over_slots(local, slots), jax.vmap(local)(slots), atol=1e-6)


def test_a_slot_that_may_hold_something_has_the_mean():
    slots = jnp.zeros((40, 3)).at[7].set(jnp.asarray([0.25, 1.0, 0.0]))
    nothing, something = local(jnp.asarray([0.0, 1.0, 0.0])), local(jnp.asarray([1.0, 1.0, 0.0]))
    assert float(over_slots(local, slots)[7]) == pytest.approx(float(0.75 * nothing + 0.25 * something), abs=1e-6)


def test_few_contents_are_evaluated_once_each():
    evaluated = jax.make_jaxpr(lambda slots: over_slots(local, slots))(jnp.zeros((1000, 3)))
    shapes = [v.aval.shape for e in evaluated.eqns if e.primitive.name == "tanh" for v in e.outvars]
    assert shapes == [(8,)]
