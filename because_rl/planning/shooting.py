"""Plan by imagining many futures and taking the first action of the best (model-predictive control).

A candidate is a sequence of actions, scored in the model by the pessimistic return

    J = sum_t gamma^t (P_t - P_{t-1}) - lambda sum_t gamma^t (1 - P_t) penalty_t + gamma^H (1 - P_H) V(s_H)

where P_t is the probability that the goal has been reached by step t, so that the reward is paid once. Where rewards
are to be maximised, P_t is the probability that the episode has ended, and the first sum is over
gamma^t (1 - P_{t-1}) r_t, in units of the logged returns. Beside rewards a goal pays its 1 too, and ends the episode;
one that is to be held pays 1 - gamma in each step, and does not. Where candidates come from decides almost everything:

- `behaviour`: actions drawn from the behaviour policy cloned from the data, step by step in the imagined states,
  with noise that is correlated in time. This is what energy-weighted sampling amounts to. In a share of the candidates
  it lasts for most of the plan, and so does the component of the policy: each of their actions is as likely as the
  data's, and together they lead to where noise that comes and goes does not.
- `uniform`: actions drawn evenly from the action box, or from the codes of numbered actions, each held for `hold`
  steps.

In both, the plan of the last step, shifted by one, is one candidate, and a share of the others start from it: they
vary its noise, and so stay within the behaviour policy, or its actions where these were drawn evenly. `method` says
what is done with the scores: `best` takes the best candidate, `mppi` averages them by exp(J / temperature), `cem`
refits the noise to the elite and samples again. Numbered actions have no average: by `mppi` they are voted on, with the
same weights, and `cem` draws each step of a new candidate from the elite's, as of discrete factors beside others. Where
there are constraints, candidates that are expected to break them more than others come behind these, whatever their
scores (`planning.limits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import nearest_code
from because_rl.planning.goal import attained, ended, goal_reward
from because_rl.planning.limits import preference

LASTING = 0.98
"""AR(1) coefficient of noise that lasts, and the probability that it keeps its component."""
GOLDEN = 0.6180339887
"""Its multiples, less their whole parts, spread evenly: any run of candidates has its share of lasting noise."""


@dataclass(frozen=True)
class ShootingConfig:
    population: int = 256
    horizon: int = 15
    discount: float = 0.99
    pessimism: float = 0.1
    proposals: Literal["behaviour", "uniform"] = "behaviour"
    method: Literal["best", "mppi", "cem"] = "best"
    memory: float = 0.6
    """AR(1) coefficient of the proposals' noise"""
    habit: float = 0.9
    """probability that a candidate keeps its component of the behaviour policy for another step"""
    spread: float = 1.0
    """factor on the behaviour policy's own standard deviation"""
    lasting: float = 0.5
    """share of candidates that keep noise and component for most of the plan (`LASTING`)"""
    hold: int = 3
    """steps that a uniform action is held"""
    warm_start_share: float = 0.3
    """share of candidates that vary the plan of the last step"""
    rounds: int = 3
    """iterations of `cem`"""
    elite: float = 0.1
    temperature: float = 0.05


class PlanningModel(NamedTuple):
    """What a planner needs of a model: pure functions of one row."""

    begin: Callable[[Any, Array], Any]
    """(parameters, state) -> whatever the model carries"""
    advance: Callable[[Any, Any, Array], tuple[Any, Array, Array]]
    """(parameters, carried, action) -> carried, state, penalty in [0, 1]"""
    behaviour_policy: Callable[[Any, Array, Array, Array], Array]
    """(parameters, state, goal, noise) -> action; the first column of the standard normal noise chooses the mixture
    component, the others belong to the action's columns"""
    terminal_value: Callable[[Any, Array, Array], Array]
    """(parameters, state, goal) -> probability that the goal is still reached, discounted; or the return"""
    outcome: Callable[[Any, Array], tuple[Array, Array]] | None = None
    """(parameters, imagined state) -> the reward of the step before, the probability that it ended the episode; None:
    the goal is what counts"""
    violation: Callable[[Any, Array, Array], Array] | None = None
    """(parameters, state, action) -> how much the step counts as a violation of constraints; None: there are none"""


class Plan(NamedTuple):
    actions: Float[Array, "horizon action"]
    noise: Float[Array, "horizon one_and_action"]
    """from which the behaviour policy made the actions"""
    score: Float[Array, ""]


def first_plan(config: ShootingConfig, factors: FactorSpec) -> Plan:
    """No plan yet. Its types are those of a plan, or the second step would compile anew."""
    h, noise = config.horizon, jnp.zeros((config.horizon, 1 + _column_noise(factors)))
    return Plan(definite(factors, jnp.zeros((h, factors.action_size))), noise, jnp.full((), -jnp.inf, jnp.float32))


def _column_noise(factors: FactorSpec) -> int:
    """Columns of noise beside the one that chooses the component: a code is all that its component can be."""
    return factors.action_size if factors.codes is None else 0


def plan(
    config: ShootingConfig,
    factors: FactorSpec,
    model: PlanningModel,
    parameters: Any,
    state: Float[Array, " state"],
    goal: Float[Array, " goal"],
    before: Plan,
    steps_left: Array,
    low: Float[Array, " action"],
    high: Float[Array, " action"],
    key: PRNGKeyArray,
) -> Plan:
    """The best plan for one world with `steps_left` steps to go; `vmap` it over worlds and `jit` the whole.

    `before` is the plan of the last step (`first_plan` at first), `low` and `high` are the box of actions, and
    `parameters` is what the functions of `model` read.
    """
    n, h, size = config.population, config.horizon, factors.action_size
    codes = None if factors.codes is None else jnp.asarray(factors.codes, jnp.float32)
    if codes is not None:
        low, high = codes.min(0), codes.max(0)
    warm_starts = int(config.warm_start_share * n)
    keys = jax.random.split(key, 6)
    # Candidates [0, warm_starts) vary the kept plan, the first of them not at all; the others are drawn afresh.
    follow = (jnp.arange(n) < warm_starts) & jnp.isfinite(before.score)
    amount = jnp.exp(jax.random.uniform(keys[2], (n,), minval=-4.0, maxval=-0.5)).at[0].set(0.0)

    lasts = np.arange(n) * GOLDEN % 1 < config.lasting
    memory, habit = (jnp.where(lasts, jnp.maximum(LASTING, own), own) for own in (config.memory, config.habit))
    noise = correlated(keys[0], (n, h, _column_noise(factors)), memory[:, None]) * config.spread
    noise = jnp.concatenate([sticky(keys[5], (n, h), habit[None])[:, :, None], noise], axis=2)
    uniform = config.proposals == "uniform"
    fixed = jnp.zeros((n, h, size))
    if uniform and codes is not None:
        drawn = jax.random.randint(keys[3], (n * -(-h // config.hold),), 0, len(codes)).reshape(n, -1)
        held = jnp.repeat(codes[drawn], config.hold, axis=1)[:, :h]
        redrawn = jax.random.uniform(keys[1], (n * h,)).reshape(n, h) < amount[:, None]
        kept = jnp.concatenate([before.actions[1:], before.actions[-1:]])
        fixed = jnp.where((follow[:, None] & ~redrawn)[:, :, None], kept[None], held)
    elif uniform:
        knots = (n, -(-h // config.hold), size)
        held = low[None, None] + jax.random.uniform(keys[3], (prod(knots),)).reshape(knots) * (high - low)[None, None]
        kept = jnp.concatenate([before.actions[1:], before.actions[-1:]])
        wobble = correlated(keys[1], (n, h, size), config.memory) * amount[:, None, None] * 0.5
        varied = jnp.clip(kept[None] + wobble * (high - low)[None, None], low[None, None], high[None, None])
        fixed = jnp.where(follow[:, None, None], varied, jnp.repeat(held, config.hold, axis=1)[:, :h])
        fixed = definite(factors, fixed)
    else:
        share = amount[:, None, None]
        varied = (1 - share**2) ** 0.5 * before.noise[None, 1:] + share * noise[:, :-1]
        noise = noise.at[:, :-1].set(jnp.where(follow[:, None, None], varied, noise[:, :-1]))

    # Beyond the end of the episode nothing counts.
    weight = jnp.where(jnp.arange(h) < steps_left, jnp.asarray(config.discount ** np.arange(h), jnp.float32), 0.0)
    after_all = jnp.where(steps_left > h, config.discount**h, 0.0)

    def imagine(fixed: Array, noise: Array, follow: Array) -> tuple[Array, Array, Array]:
        """The score and the violations of one candidate, and its actions, by the behaviour policy if they are not
        fixed."""

        def step(carry: tuple, now: tuple) -> tuple:
            carried, at, over, total, broken = carry
            counts, given, z = now
            drawn = model.behaviour_policy(parameters, at, goal, z)
            action = jnp.clip(jnp.where(follow, given, drawn), low, high)
            if model.violation is not None:
                broken = broken + jnp.where(counts > 0, (1 - over) * model.violation(parameters, at, action), 0.0)
            carried, after, penalty = model.advance(parameters, carried, action)
            if model.outcome is None and not factors.holds_goal:
                now_over = jnp.maximum(over, attained(factors, after, goal))
                gain = now_over - over
            else:
                nothing = jnp.zeros(()), jnp.zeros(())
                reward, end = nothing if model.outcome is None else model.outcome(parameters, after)
                now_over = 1 - (1 - over) * (1 - end) * (1 - ended(factors, after, goal))
                gain = (1 - over) * (reward + goal_reward(factors, config.discount, after, goal))
            total = total + counts * (gain - config.pessimism * penalty * (1 - now_over))
            over = jnp.where(counts > 0, now_over, over)
            return (carried, after, over, total, broken), action

        over = ended(factors, state, goal)
        start = (model.begin(parameters, state), state, over, jnp.zeros(()), jnp.zeros(()))
        actions: Array
        (_, end, over, total, broken), actions = jax.lax.scan(step, start, (weight, fixed, noise))
        return total + after_all * (1 - over) * model.terminal_value(parameters, end, goal), broken, actions

    def rank(scores: Array, broken: Array) -> Array:
        return scores if model.violation is None else preference(scores, broken)

    scores, broken, actions = jax.vmap(imagine)(fixed, noise, jnp.full(n, uniform))
    noise = noise[rank(scores, broken).argmax()]
    if config.method == "cem":
        scores, broken, actions = _cem(config, factors, imagine, rank, (scores, broken, actions), low, high, keys[4])
    if config.method == "mppi":
        scores = jnp.where(broken <= broken.min(), scores, -jnp.inf)
        share = jax.nn.softmax(scores / config.temperature)
        if codes is not None:
            votes = jax.nn.one_hot(nearest_code(codes, actions), len(codes))
            return Plan(codes[jnp.einsum("n,nhc->hc", share, votes).argmax(1)], noise, scores.max())
        return Plan(definite(factors, jnp.einsum("n,nha->ha", share, actions)), noise, scores.max())
    best = rank(scores, broken).argmax()
    return Plan(actions[best], noise, scores[best])


def _cem(
    config: ShootingConfig,
    factors: FactorSpec,
    imagine: Callable,
    rank: Callable[[Array, Array], Array],
    candidates: tuple[Array, Array, Array],
    low: Array,
    high: Array,
    key: PRNGKeyArray,
) -> tuple[Array, Array, Array]:
    (scores, broken, actions), n = candidates, config.population
    elite = max(2, int(config.elite * n))
    numbered = factors.codes is not None
    discrete = np.concatenate([[not f.is_continuous] * f.width for f in sorted(factors.action, key=lambda f: f.start)])
    for k in jax.random.split(key, config.rounds - 1):
        order = rank(scores, broken)
        chosen = actions[jax.lax.top_k(order, elite)[1]]
        if numbered or discrete.any():
            drawn = jax.random.randint(k, (n * actions.shape[1],), 0, elite).reshape(n, -1)
            fresh = drawn_steps = chosen[drawn, jnp.arange(actions.shape[1])[None]]
        if not numbered:
            mean, std = chosen.mean(0), chosen.std(0)
            fresh = mean[None] + std[None] * correlated(k, (n, *actions.shape[1:]), config.memory)
            fresh = jnp.where(discrete, drawn_steps, fresh) if discrete.any() else fresh
        fresh = jnp.clip(fresh, low[None, None], high[None, None]).at[0].set(actions[order.argmax()])
        unused = jnp.zeros((*fresh.shape[:2], 1 + _column_noise(factors)))
        scores, broken, actions = jax.vmap(imagine)(fresh, unused, jnp.ones(n, bool))
    return scores, broken, actions


def definite(factors: FactorSpec, action: Float[Array, "*rows action"]) -> Float[Array, "*rows action"]:
    """Actions whose discrete columns are 0 or 1, and of a categorical factor 1 where they are greatest."""
    if factors.codes is not None:
        return action
    for factor in factors.action:
        columns = action[..., factor.slice]
        if factor.type == "categorical":
            columns = jax.nn.one_hot(columns.argmax(-1), factor.width, dtype=action.dtype)
        elif factor.type == "binary":
            columns = (columns > 0.5).astype(action.dtype)
        action = action.at[..., factor.slice].set(columns)
    return action


def correlated(key: PRNGKeyArray, shape: tuple[int, ...], memory: float | Array) -> Float[Array, "n h a"]:
    """Standard normal noise of three axes, AR(1) along the second: z_t = m z_{t-1} + sqrt(1 - m^2) e_t.

    `memory`: m, a number or (n, 1).
    """
    # Drawn flat: XLA takes 15 s on a CPU to compile threefry in three dimensions, and half a second in one.
    fresh = jax.random.normal(key, (prod(shape),)).reshape(shape[1], shape[0], shape[2])

    def step(last: Array, e: Array) -> tuple[Array, Array]:
        z = memory * last + (1 - memory**2) ** 0.5 * e
        return z, z

    first = fresh[0]
    _, rest = jax.lax.scan(step, first, fresh[1:])
    return jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 1)


def sticky(key: PRNGKeyArray, shape: tuple[int, int], keep: float | Array) -> Float[Array, "n h"]:
    """Standard normal noise, of which each value stays along the second axis with chance `keep`, a number or (1, n)."""
    n, h = shape
    k1, k2 = jax.random.split(key)
    fresh = jax.random.normal(k1, (n * h,)).reshape(h, n)
    new = jax.random.uniform(k2, (n * h,)).reshape(h, n) >= keep

    def step(last: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        z = jnp.where(now[1], now[0], last)
        return z, z

    return jax.lax.scan(step, fresh[0], (fresh, new))[1].T
