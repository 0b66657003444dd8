"""Objective mismatch: is a world model's loss lower in episodes that succeed than in those that fail?

An agent acts in new scenes; along what it does there, its own model is asked at every step what comes next.
The loss of a step is

    -log p(s')                          of the discrete factors: exactly, where the likeliest successor (of probability
                                        p) came; else the least that it can be, -log min(p, 1 - p);
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
from because_rl.evaluation.rollout import layouts, legal, roll
from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed

LEAST = 1e-6
"""The least probability that a model is taken to leave to what it did not expect."""


class Losses(NamedTuple):
    """Of K seeds in n episodes each."""

    success: np.ndarray
    """(K, n) bool"""
    loss: np.ndarray
    """(K, n)"""
    wrong: np.ndarray
    """(K, n) share of the steps at which something discrete came otherwise than was thought likeliest"""


def episodic_loss(
    agent: PlannerAgent, world: str, split: str, episodes: int, spurious: int = 1, processes: int = 1, seed: int = 0
) -> Losses:
    k = len(agent.seeds)
    batch = make_batch(world, split, spurious, processes=processes)
    states, actions = [], []

    def act(observation: Observation, steps_left: int) -> np.ndarray:
        state, goal = (part.reshape(k, episodes, part.shape[1]) for part in observation)
        chosen = np.asarray(agent.act(state, goal, steps_left))
        chosen = legal(chosen.reshape(k * episodes, *chosen.shape[2:]), batch.action_space)
        states.append(observation.state)
        actions.append(np.asarray(batch.factors.encode_action(chosen), np.float32))
        return chosen

    agent.begin(episodes, child_seed(seed, "mismatch", world, split))
    try:
        outcome = roll(world, split, layouts(world, split, episodes), act, repeats=k, spurious=spurious, batch=batch)
        states.append(batch.exact_state().astype(np.float32))  # where each world ended, and stayed
    finally:
        batch.close()
    shape = (len(actions), k, episodes, -1)
    now, then = (np.stack(part).reshape(shape) for part in (states[:-1], states[1:]))
    going = np.arange(len(actions))[:, None, None] < outcome.steps[None]
    guess, log_p = _guesses(agent, now, np.stack(actions).reshape(shape))
    loss, wrong = step_losses(agent.factors, now, then, guess, log_p, going)
    return Losses(outcome.success, *(np.where(going, part, 0).sum(0) / outcome.steps for part in (loss, wrong)))


def _guesses(agent: PlannerAgent, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest successor of each (steps, K, n) row and its log-probability."""
    one = jax.vmap(lambda p, s, a: agent.learned.successor(p, s, a)[:2], (None, 0, 0))
    ask = jax.jit(jax.vmap(one, (0, 0, 0)))
    told = [ask(agent.parameters, jnp.asarray(s), jnp.asarray(a)) for s, a in zip(state, action, strict=True)]
    guess, log_p = zip(*told, strict=True)
    return np.stack([np.asarray(g) for g in guess]), np.stack([np.asarray(p, np.float64) for p in log_p])


def step_losses(
    factors: FactorSpec, now: np.ndarray, then: np.ndarray, guess: np.ndarray, log_p: np.ndarray, going: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and wrongness of every row (...,) of states (..., columns); rows that are not `going` do not count.

    >>> from because_rl.factors import pack
    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("a", 1, "continuous")))
    >>> now, then = np.zeros((2, 2)), np.array([[2.0, 1.0], [2.0, 0.0]])
    >>> told = step_losses(spec, now, then, np.array([[1.0, 1.0], [2.0, 1.0]]), np.log([0.9, 0.8]), np.ones(2, bool))
    >>> [part.round(3).tolist() for part in told]  # .25 - log .9, and -log .2
    [[0.355, 1.609], [0.0, 1.0]]
    >>> vague = step_losses(spec, now, then, np.array([[2.0, 0.0], [2.0, 1.0]]), np.log([0.01, 0.01]), np.ones(2, bool))
    >>> vague[0].round(3).tolist()  # a model that thinks little of everything is no better for being wrong
    [4.605, 4.605]
    """
    discrete = np.zeros(factors.state_size, bool)
    for factor in factors.state:
        discrete[factor.slice] = factor.type != "continuous"
    loss, wrong = np.zeros(going.shape), np.zeros(going.shape)
    if discrete.any():
        wrong = ((guess > 0.5) != (then > 0.5))[..., discrete].any(-1).astype(float)
        others = np.log(np.maximum(-np.expm1(log_p), LEAST))  # of 1 - p, also where p is nearly 1
        loss = -np.where(wrong > 0, np.minimum(others, log_p), log_p)
    if not discrete.all():
        change = (then - now)[..., ~discrete].astype(float)
        size = np.sqrt((change[going] ** 2).mean(0))
        error = (then - guess)[..., ~discrete] / np.where(size > 0, size, 1.0)
        loss = loss + (error**2).mean(-1)
    return loss, wrong
