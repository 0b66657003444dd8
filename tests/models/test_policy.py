"""Action distributions: samples follow them, and their likelihood is that of the behaviour policy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from because_rl.models.behaviour_policy import Persistence, behaviour_loss
from because_rl.models.policy import Categorical, Mixture, persist, sample_bernoulli, sample_one_hot
from because_rl.models.prepared_data import action_statistics
from because_rl.rng import stream


def test_samples_follow_their_distribution():
    u = jnp.asarray(stream(0, "draws").random((4000, 3)), jnp.float32)
    logits = jnp.asarray([0.5, -1.0, 0.0])

    def sample(u):
        one_hot, bernoulli = jax.vmap(partial(sample_one_hot, logits))(u), sample_bernoulli(logits[None], u)
        return one_hot, bernoulli, jax.grad(lambda z: sample_bernoulli(z, u[0]).sum())(logits)

    one_hot, bernoulli, slope = jax.jit(sample)(u)
    np.testing.assert_allclose(one_hot.mean(0), jax.nn.softmax(logits), atol=0.03)
    np.testing.assert_allclose(bernoulli.mean(0), jax.nn.sigmoid(logits), atol=0.03)
    assert (slope > 0).all()


def test_the_mixture_is_that_of_the_behaviour_policy():
    rng = stream(0, "mixture")
    action = np.stack([rng.normal(size=64), rng.choice([-1.0, 1.0], 64)], 1).astype(np.float32)
    distribution, actions = Mixture(action_statistics(action)), jnp.asarray(action)
    out = jnp.asarray(rng.normal(size=distribution.output_size), jnp.float32)
    # One component, whose Gaussian is narrow and whose Bernoulli is not quite fair.
    sharp = np.asarray(out).reshape(4, 5).copy()
    sharp[2] = [30.0, 0.4, 0.7, -30.0, 0.0]
    sharp, u = jnp.asarray(sharp.ravel()), jnp.asarray(rng.random((2000, distribution.noise_size)), jnp.float32)
    u = u.at[0].set(0.0)  # whose quantile is infinite

    def compute(out, sharp, u):
        batch = {name: actions for name in ("state", "goal", "action")}
        nll, _ = behaviour_loss(None, distribution.actions, lambda *_: distribution.mixture(out), None, batch, None)
        same = jax.vmap(partial(distribution.nll, out))(actions).mean()
        return nll, same, jax.vmap(partial(distribution.sample, sharp))(u), distribution.act(sharp, None)

    nll, same, samples, likeliest = (np.asarray(part) for part in jax.jit(compute)(out, sharp, u))
    np.testing.assert_allclose(same, nll, rtol=1e-5)
    assert np.isfinite(samples).all()
    assert set(np.unique(samples[:, 1])) == {-1.0, 1.0}
    np.testing.assert_allclose((samples[:, 1] > 0).mean(), 1 / (1 + np.exp(-0.7)), atol=0.03)
    np.testing.assert_allclose(likeliest, [action[:, 0].mean() + 0.4 * action[:, 0].std(), 1.0], rtol=1e-4)
    np.testing.assert_allclose(samples[:, 0].mean(), likeliest[0], atol=0.01)


def test_the_categorical_acts_by_number_and_samples_codes():
    distribution = Categorical(jnp.asarray([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    out, u = jnp.asarray([0.0, 3.0, 1.0]), jnp.asarray([0.5, 0.01, 0.9])
    assert int(distribution.act(out, None)) == 1
    nll = distribution.nll(out, jnp.asarray([1.0, 1.0]))
    np.testing.assert_allclose(nll, -jax.nn.log_softmax(out)[2], rtol=1e-6)
    np.testing.assert_allclose(distribution.sample(out, u), distribution.codes[distribution.act(out, u)])
    assert (jax.jit(jax.grad(lambda out: distribution.sample(out, u).sum()))(out) != 0).all()


def test_noise_of_a_sample_persists_as_asked():
    """Components are kept with their probability, and columns are a series with the correlation, both uniform."""
    rng, worlds, persistence = stream(0, "persist"), 20_000, Persistence(np.float32([0.0, 0.8]), np.float32([0.6, 0.0]))
    last, uniform = rng.random((2, worlds, 5), np.float32), rng.random((2, worlds, 6), np.float32)
    noise = persist(persistence, 2, last, uniform)
    kept = (noise[..., :3] == last[..., :3]).all(-1).mean(1)
    np.testing.assert_allclose(kept, [0.6, 0.0], atol=0.02)
    quantiles = [norm.ppf(part[..., 3:]) for part in (last, noise)]
    correlation = [np.corrcoef(quantiles[0][k].ravel(), quantiles[1][k].ravel())[0, 1] for k in range(2)]
    np.testing.assert_allclose(correlation, [0.0, 0.8], atol=0.02)
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.5, 12**-0.5], atol=0.01)
