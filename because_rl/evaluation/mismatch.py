"""Objective mismatch: is a world model's loss lower in episodes that succeed than in those that fail?

An agent acts in new scenes, and at every step its own model predicts the next state. The loss of a step is

    -log p(s')                          for the discrete factors: exact where the likeliest successor (of probability
                                        p) occurred, else its lower bound -log min(p, 1 - p);
    + mean_c ((s'_c - guess_c) / d_c)^2 over the continuous columns, d_c the root mean square of their change.

The loss of an episode is the mean over its steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.envs.batch import Observation
from because_rl.envs.tasks import make_batch
from because_rl.evaluation.rollout import acting, layouts, legal, roll
from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed

LEAST = 1e-6
"""Lower limit of 1 - p, the probability of anything but the likeliest successor."""


class Losses(NamedTuple):
    """Losses of K seeds in n episodes each."""

    success: np.ndarray
    """(K, n) bool"""
    loss: np.ndarray
    """(K, n)"""
    wrong: np.ndarray
    """(K, n): share of the steps at which a discrete factor differs from the likeliest successor"""


def episodic_loss(
    agent: PlannerAgent, world: str, split: str, episodes: int, spurious: int = 1, processes: int = 1, seed: int = 0
) -> Losses:
    """Roll the agent in the evaluation scenes of a split and compare its model's predictions with what happened.

    `seed` decides the agent's randomness, not the scenes; `processes` share the simulation of slow worlds.
    """
    k = len(agent.seeds)
    batch = make_batch(world, split, spurious, processes=processes)
    choose = acting(agent, episodes, child_seed(seed, "mismatch", world, split))
    states, actions = [], []

    def act(observation: Observation, steps_left: int) -> np.ndarray:
        chosen = legal(choose(observation, steps_left), batch.action_space)
        states.append(observation.state)
        actions.append(np.asarray(batch.factors.encode_action(chosen), np.float32))
        return chosen

    try:
        outcome = roll(world, split, layouts(world, split, episodes), act, repeats=k, spurious=spurious, batch=batch)
        states.append(batch.exact_state().astype(np.float32))  # the final state of each world
    finally:
        batch.close()
    shape = (len(actions), k, episodes, -1)
    now, then = (np.stack(part).reshape(shape) for part in (states[:-1], states[1:]))
    going = np.arange(len(actions))[:, None, None] < outcome.steps[None]
    guess, log_p = _guesses(agent, now, np.stack(actions).reshape(shape))
    loss, wrong = step_losses(agent.factors, now, then, guess, log_p, going)
    return Losses(outcome.success, *(np.where(going, part, 0).sum(0) / outcome.steps for part in (loss, wrong)))


def _guesses(agent: PlannerAgent, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest successor (steps, K, n, columns) of each row and its log-probability (steps, K, n)."""
    one_seed = jax.vmap(lambda p, s, a: agent.learned.successor(p, s, a)[:2], (None, 0, 0))
    predict = jax.jit(jax.vmap(one_seed, (0, 0, 0)))
    steps = [predict(agent.parameters, jnp.asarray(s), jnp.asarray(a)) for s, a in zip(state, action, strict=True)]
    guess, log_p = zip(*steps, strict=True)
    return np.stack([np.asarray(g) for g in guess]), np.stack([np.asarray(p, np.float64) for p in log_p])


def step_losses(
    factors: FactorSpec, now: np.ndarray, then: np.ndarray, guess: np.ndarray, log_p: np.ndarray, going: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Loss (...,) of every row, and 1 where a discrete factor is predicted wrongly (...,), else 0.

    `now`, `then` and `guess` are states (..., columns); `log_p` and `going` are (...,). Only rows that are `going`
    count towards the size of changes.

    >>> from because_rl.factors import pack
    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("a", 1, "continuous")))
    >>> now, then = np.zeros((2, 2)), np.array([[2.0, 1.0], [2.0, 0.0]])
    >>> parts = step_losses(spec, now, then, np.array([[1.0, 1.0], [2.0, 1.0]]), np.log([0.9, 0.8]), np.ones(2, bool))
    >>> [part.round(3).tolist() for part in parts]  # .25 - log .9, and -log .2
    [[0.355, 1.609], [0.0, 1.0]]
    >>> vague = step_losses(spec, now, then, np.array([[2.0, 0.0], [2.0, 1.0]]), np.log([0.01, 0.01]), np.ones(2, bool))
    >>> vague[0].round(3).tolist()  # a wrong guess of low probability costs as much as a right one
    [4.605, 4.605]
    """
    discrete = np.zeros(factors.state_size, bool)
    for factor in factors.state:
        discrete[factor.slice] = not factor.is_continuous
    loss, wrong = np.zeros(going.shape), np.zeros(going.shape)
    if discrete.any():
        wrong = ((guess > 0.5) != (then > 0.5))[..., discrete].any(-1).astype(float)
        log_rest = np.log(np.maximum(-np.expm1(log_p), LEAST))  # log(1 - p), accurate also where p is nearly 1
        loss = -np.where(wrong > 0, np.minimum(log_rest, log_p), log_p)
    if not discrete.all():
        change = factors.change(now, then)[..., ~discrete].astype(float)
        size = np.sqrt((change[going] ** 2).mean(0))
        error = factors.change(guess, then)[..., ~discrete] / np.where(size > 0, size, 1.0)
        loss = loss + (error**2).mean(-1)
    return loss, wrong
