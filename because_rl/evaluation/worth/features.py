"""Fitted Q evaluation where states do not repeat: linear in features that a network has learned from the log.

A network of the state learns what the behaviour does there and what it earns: reward, end and the rewards to go at
several discounts. Its last hidden layer and the columns of the state that are no slots are h(s), which gives the
features x(s, a): the products of (1, h(s)) and (1, a, a^2), or of numbered actions one copy of (1, h(s)) for each. They
do not depend on the policy that is evaluated, and Q is linear in them, so that a fit is a chain of least squares,

    w_h = (X^T W X + lambda I)^-1 X^T W (r + gamma V_{h-1}(s')),     V_h(s) = sum_a pi(a|s) x(s, a) w_h,

with W the weights of episodes, and refits cost little (Duan, Jia and Wang 2020; Hao et al. 2021). Of a state and an
action the share lambda x^T (X^T W X + lambda I)^-1 x / |x|^2 of x is unsupported: no logged row speaks for it. With one
feature for each state and action this is `table`, whose bounds are the same. What is not linear in the features is in
no interval of FQE.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.evaluation.worth.log import FOLDS, ROW_STEP, FittedQ, LoggedEpisodes, Policy
from because_rl.evaluation.worth.table import EXTREMES, weighted_quantiles
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP, silu
from because_rl.models.prepared_data import statistics
from because_rl.models.state_features import FeatureNetwork, StateFeatures
from because_rl.training.stage import Stage, fit, skeleton

HIDDEN, STEPS, BATCH = 32, 600, 256
RIDGE = 0.1
"""lambda, in rows"""
HORIZONS = (0.5, 0.8, 0.95)
"""Discounts of the rewards to go that features must predict."""
FITS = 5
"""at a time"""


class StateNet(eqx.Module):
    """h(s), and as linear functions of it the behaviour and what it earns."""

    body: FeatureNetwork
    head: MLP
    actions: int = eqx.field(static=True)

    def __init__(self, features: StateFeatures, actions: int, outputs: int, key: PRNGKeyArray):
        one, two = jax.random.split(key)
        self.body = FeatureNetwork(features, (HIDDEN, HIDDEN), one)
        self.head = MLP((HIDDEN, actions + outputs), two, last=0.1)
        self.actions = actions

    def hidden(self, state: Array) -> Float[Array, " hidden"]:
        """h(s)"""
        slots = sum(part.group.rows * part.group.slots for part in self.body.slots)
        return jnp.concatenate([silu(self.body(state)), state[: len(state) - slots]])

    def __call__(self, state: Array) -> tuple[Array, Array]:
        out = self.head(silu(self.body(state)))
        return out[: self.actions], out[self.actions :]


class Rows(NamedTuple):
    """The log as arrays of a compiled program."""

    reward: Array
    goes_on: Array
    episode: Array
    step: Array
    fold: Array
    real: Array
    """0 for rows that only fill up"""


class FeatureModel:
    """Q and the behaviour of a log by networks, each cross-fitted over folds of episodes."""

    name = "features"

    def __init__(self, log: LoggedEpisodes, seed: int = 0):
        self.log, self.seed = log, seed
        n = len(log.reward)
        assert log.factors is not None
        spec, size = log.factors, log.factors.state_size
        stats = statistics(Layout(spec), log.inputs[:, :size], log.action, log.next_inputs[:, :size])
        self._features = StateFeatures(spec, stats)
        self._action_mean, self._action_scale = log.action.mean(0), _scales(log.action)
        real = np.append(np.ones(n, np.float32), np.zeros(-n % ROW_STEP, np.float32))
        columns = [self._filled(getattr(log, name)) for name in Rows._fields[:-1]]
        self._rows = Rows(*[*columns, jnp.asarray(real)])
        self._now, self._after = (self._filled(self._states(part)) for part in (log.inputs, log.next_inputs))
        self._taken = self._filled(self._choice(log.action if log.number is None else log.number))
        self._nets = self._train()

    # What the networks see ---------------------------------------------------------------------------------

    def _filled(self, values: np.ndarray) -> Array:
        return jnp.asarray(self.log.filled(values))

    def _states(self, inputs: np.ndarray) -> np.ndarray:
        size = self._features.layout.factors.state_size
        return np.asarray(jax.jit(jax.vmap(lambda s, g: self._features(s, g)))(inputs[:, :size], inputs[:, size:]))

    def _choice(self, action: np.ndarray) -> np.ndarray:
        """Actions as networks see them: numbers one-hot, columns scaled."""
        if self.log.number is not None:
            return np.eye(self.log.actions, dtype=np.float32)[action]
        scaled = (action - self._action_mean) / self._action_scale
        return np.concatenate([np.ones_like(scaled[..., :1]), scaled, scaled**2 - 1], -1).astype(np.float32)

    def _followers(self) -> np.ndarray:
        """(n, outputs) what follows each row, scaled: reward, end, rewards to go."""
        log, n = self.log, len(self.log.reward)
        reward_to_go = np.zeros((n, len(HORIZONS) + 1))
        discounts, later = np.array([*HORIZONS, log.discount]), np.zeros(len(HORIZONS) + 1)
        ends = np.append(log.episode[1:] != log.episode[:-1], True)
        for t in range(n - 1, -1, -1):
            later = reward_to_go[t] = log.reward[t] + discounts * np.where(ends[t], 0.0, later)
        follows = np.column_stack([log.reward, log.goes_on, reward_to_go])
        return ((follows - follows.mean(0)) / _scales(follows)).astype(np.float32)

    def _train(self) -> Any:
        """Networks with a leading axis of folds, each of which has not learned from its own."""
        numbered, follows = self.log.number is not None, self._followers()

        def loss(net: StateNet, fold: Array, batch: Any, key: Array) -> tuple[Array, dict[str, Array]]:
            action, guess = jax.vmap(net)(batch["x"])
            if numbered:
                missed = -(jax.nn.log_softmax(action) * batch["taken"]).sum(1)
            else:
                missed = ((action - batch["taken"]) ** 2).mean(1)
            missed += ((guess - batch["follows"]) ** 2).mean(1)
            learned = (batch["fold"] != fold).astype(jnp.float32)
            return (learned * missed).sum() / jnp.maximum(learned.sum(), 1.0), {}

        n, sizes = len(follows), (self._taken.shape[1], follows.shape[1])
        data = {"x": self._now[:n], "taken": self._taken[:n], "fold": self._rows.fold[:n], "follows": follows}
        stage = Stage("features", lambda key, _: StateNet(self._features, *sizes, key), loss, STEPS, BATCH)
        folds = jnp.arange(FOLDS)
        progress = fit(stage, {name: jnp.asarray(part) for name, part in data.items()}, folds, [self.seed] * FOLDS)
        return eqx.combine(progress.params, skeleton(stage, folds))

    # The contract ------------------------------------------------------------------------------------------

    def behaviour(self) -> Policy:
        """Cross-fitted probabilities of numbered actions; of others the logged ones, the last of an episode twice."""
        log, n = self.log, len(self.log.reward)
        if log.number is None:
            following = np.minimum(np.arange(n) + 1, n - 1)
            following = np.where(log.episode[following] == log.episode, following, np.arange(n))
            return Policy("behaviour", log.action[:, None], log.action[following][:, None])
        chance = [np.asarray(_chances(self._nets, x, self._rows.fold))[:n] for x in (self._now, self._after)]
        return Policy("behaviour", *chance)

    def fit(self, policy: Policy, weights: np.ndarray, side: int = 0) -> FittedQ:
        """Fits with these weights of episodes (fits, E); `side`: 0 the estimate, -1 the least, 1 the most."""
        log, n = self.log, len(self.log.reward)
        reward = np.append(log.reward, 0.0)
        first, surprise, rest = _fit_features(
            jnp.asarray(weights, jnp.float32),
            (self._choices(policy.now), self._choices(policy.after)),
            (self._now, self._after, self._taken),
            self._nets,
            self._rows,
            (jnp.asarray(log.first), jnp.asarray(log.last)),
            jnp.asarray([reward.min(), reward.max()], jnp.float32),
            horizon=log.horizon,
            discount=log.discount,
            one_reward=bool(set(np.unique(reward)) <= {0.0, 1.0} and (log.goes_on[log.reward > 0] == 0).all()),
            side=side,
        )
        return FittedQ(np.asarray(first, float), np.asarray(surprise, float)[:, :n], np.asarray(rest, float))

    def _choices(self, policy: np.ndarray) -> tuple[Array, Array]:
        """(rows, choices, columns) actions as networks see them, and (rows, choices) their probabilities."""
        if self.log.number is None:
            draws = self._filled(self._choice(policy))
            return draws, jnp.full(draws.shape[:2], 1 / draws.shape[1], jnp.float32)
        every = np.eye(self.log.actions, dtype=np.float32)[None]
        return jnp.asarray(every), self._filled(policy.astype(np.float32))


def _scales(values: np.ndarray) -> np.ndarray:
    """Standard deviations; 1 of what does not change."""
    spread = values.std(0)
    return np.where(spread > 1e-6, spread, 1.0)


@eqx.filter_jit
def _chances(nets: Any, states: Array, fold: Array) -> Array:
    arrays, rest = eqx.partition(nets, eqx.is_array)
    by_fold = jax.vmap(lambda a: jax.nn.softmax(jax.vmap(eqx.combine(a, rest))(states)[0]))(arrays)
    return by_fold[fold, jnp.arange(len(states))]


def _features(hidden: Array, action: Array) -> Float[Array, "rows features"]:
    """x(s, a): the products of (1, h(s)) and (1, a); of numbered actions, which are one-hot, without the 1."""
    state = jnp.hstack([jnp.ones((len(hidden), 1)), hidden / hidden.shape[1] ** 0.5])
    action = jnp.broadcast_to(action, (len(state), action.shape[-1]))
    return (state[:, :, None] * action[:, None, :]).reshape(len(state), -1) / 2.0**0.5


def _expected(hidden: Array, choices: tuple[Array, Array], unsupported_share: Any) -> tuple[Array, Array]:
    """(rows, features) of what a policy chooses, less the unsupported share; and (rows,) these."""

    def add(total: tuple[Array, Array], choice: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        action, chance = choice
        x = _features(hidden, action)
        unsupported = unsupported_share(x)
        return (total[0] + (chance * (1.0 - unsupported))[:, None] * x, total[1] + chance * unsupported), None

    actions, chances = choices
    size = _features(hidden[:1], actions[:1, 0]).shape[1]
    zero = jnp.zeros((len(hidden), size)), jnp.zeros(len(hidden))
    return jax.lax.scan(add, zero, (jnp.moveaxis(actions, 1, 0), chances.T))[0]


@eqx.filter_jit
def _fit_features(
    weights: Float[Array, "fits episodes"],
    policy: tuple[tuple[Array, Array], tuple[Array, Array]],
    logged: tuple[Array, Array, Array],
    nets: Any,
    rows: Rows,
    ends: tuple[Array, Array],
    reward_range: Array,
    *,
    horizon: int,
    discount: float,
    one_reward: bool,
    side: int,
) -> tuple[Array, ...]:
    now, after, taken = logged
    first, last = ends
    arrays, rest = eqx.partition(nets, eqx.is_array)
    cumulative = jnp.cumsum(discount ** jnp.arange(horizon, dtype=jnp.float32))

    def one_fold(k: Array, arrays: Any) -> tuple[Array, ...]:
        net = eqx.combine(arrays, rest)
        hidden_now, hidden_after = (jax.vmap(net.hidden)(part) for part in (now, after))
        x = _features(hidden_now, taken)

        def moments(weight: Array) -> Array:
            gram = (x * weight[:, None]).T @ x + RIDGE * jnp.eye(x.shape[1])
            return jnp.linalg.cholesky(gram)

        def unsupported_share(x: Array) -> Array:
            if side == 0:
                return jnp.zeros(len(x))
            learned = rows.real * (rows.fold != k).astype(jnp.float32)
            part = jax.scipy.linalg.solve_triangular(moments(learned), x.T, lower=True)
            return jnp.clip(RIDGE * (part**2).sum(0) / (x**2).sum(1), 0.0, 1.0)

        (x_now, unsupported_now), (x_after, unsupported_after) = (
            _expected(part, choices, unsupported_share)
            for part, choices in zip((hidden_now, hidden_after), policy, strict=True)
        )

        def one_fit(weight: Float[Array, " episodes"]) -> tuple[Array, ...]:
            weight = weight[rows.episode] * rows.real * (rows.fold != k).astype(jnp.float32)
            root = moments(weight)

            def one_step_more(carry: tuple[Array, ...], h: Array) -> tuple[tuple[Array, ...], None]:
                later, surprise, rest, _ = carry
                expected = discount * rows.goes_on * later
                target = rows.reward + expected
                w = jax.scipy.linalg.cho_solve((root, True), x.T @ (weight * target))
                low, high = jnp.array([0.0, 1.0]) if one_reward else reward_range * cumulative[h - 1]
                q = jnp.clip(x @ w, low, high)
                elsewhere = jnp.zeros(())
                if side != 0:
                    elsewhere = weighted_quantiles(q[:, None], weight[:, None], EXTREMES[(side + 1) // 2])[0]
                value, later = (
                    jnp.clip(part @ w + unsupported * elsewhere, low, high)
                    for part, unsupported in ((x_now[first], unsupported_now[first]), (x_after, unsupported_after))
                )
                due = rows.step == horizon - h
                surprise, rest = jnp.where(due, target - q, surprise), jnp.where(due[last], expected[last], rest)
                return (later, surprise, rest, value), None

            zero, nothing = jnp.zeros(len(now)), jnp.zeros(len(first))
            start: tuple[Array, ...] = zero, zero, nothing, nothing
            (_, surprise, rest, value), _ = jax.lax.scan(one_step_more, start, jnp.arange(1, horizon + 1))
            return value, surprise, rest

        return jax.lax.map(one_fit, weights, batch_size=FITS)

    by_fold = jax.lax.map(lambda part: one_fold(*part), (jnp.arange(FOLDS), arrays))
    folds = rows.fold[first], rows.fold, rows.fold[first]
    return tuple(jnp.take_along_axis(part, fold[None, None], 0)[0] for part, fold in zip(by_fold, folds, strict=True))
