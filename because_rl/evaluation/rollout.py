"""Success of a fitted method in new scenes, the same for every method.

All seeds of a method act in all episodes at once, as one batch of K * n worlds. Episode k of a world, split and draw of
scenes is always the same scene, for every method; no dataset contains these scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.tasks import make_batch
from because_rl.errors import BecauseError
from because_rl.rng import child_seed
from because_rl.statistics import t_interval
from because_rl.training.method import Agent
from because_rl.training.side_by_side import Team

SUBCASES = {"unlock": ("O-law", "O-doors", "O-cells")}
"""Splits that differ from the training distribution in one way each, evaluated like any other split."""

Act = Callable[[Observation, int], np.ndarray]
"""(observation of N worlds, steps left) -> N actions"""


class Outcome(NamedTuple):
    """Outcome of K seeds in n episodes each, the same n scenes for every seed."""

    success: np.ndarray
    """(K, n) bool"""
    steps: np.ndarray
    """(K, n) int: steps to success, or the horizon"""
    hidden: dict[str, np.ndarray]
    """(n,) each: hidden quantities of the scenes with one number per scene"""
    actions: np.ndarray | None = None
    """(steps, K, n, ...): the actions taken, in worlds whose episode has ended without effect"""

    def of_worlds(self, worlds: slice, seeds: int) -> Outcome:
        """Of an outcome of one seed: the part of some of its episodes, read as the same scenes of each of `seeds`."""
        n = (worlds.stop - worlds.start) // seeds
        actions = self.actions
        if actions is not None:
            actions = actions[:, 0, worlds].reshape(len(actions), seeds, n, *actions.shape[3:])
        return Outcome(
            self.success[0, worlds].reshape(seeds, n),
            self.steps[0, worlds].reshape(seeds, n),
            {name: values[worlds][:n] for name, values in self.hidden.items()},
            actions,
        )


def layouts(world: str, split: str, episodes: int, draw: int = 0) -> list[int]:
    """The seeds of an evaluation's scenes; each `draw` has its own. Datasets draw theirs from another stream.

    >>> layouts("unlock", "O", 3) == layouts("unlock", "O", 9)[:3]
    True
    >>> set(layouts("unlock", "O", 100)) & set(layouts("unlock", "O", 100, draw=1))
    set()
    """
    if episodes < 1:
        raise BecauseError(f"Got {episodes} episodes.", need="at least 1.", fix="pass --episodes 100.")
    return [child_seed(draw, "evaluate", world, split, k) for k in range(episodes)]


def evaluate(
    agent: Agent,
    world: str,
    split: str,
    episodes: int,
    spurious: int = 1,
    seed: int = 0,
    batch: BatchEnv | None = None,
    processes: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Roll a fitted agent to the end of every episode.

    `seed` seeds the agent's randomness; the scenes do not depend on it. `processes` share the simulation of slow
    worlds without changing the outcome. A given `batch` is used and left open. `tick` is called after each step.
    """
    return evaluate_together([agent], world, split, episodes, spurious, seed, batch, processes, tick)[0]


def evaluate_together(
    agents: Sequence[Agent],
    world: str,
    split: str,
    episodes: int,
    spurious: int = 1,
    seed: int = 0,
    batch: BatchEnv | None = None,
    processes: int = 1,
    tick: Callable[[], None] = lambda: None,
    team: Team | None = None,
    draws: Sequence[int] | None = None,
) -> list[Outcome]:
    """`evaluate` for several agents, in one batch of worlds; where they act by the same program, it is run once.

    `draws` gives each agent its draw of scenes; None: all act in the same scenes, those of draw 0.
    """
    scenes = [layouts(world, split, episodes, draw) for draw in draws or [0] * len(agents)]
    seed = child_seed(seed, "act", world, split)
    return roll_together(agents, world, split, scenes, seed, spurious, batch, processes, tick, team)


def roll_together(
    agents: Sequence[Agent],
    world: str,
    split: str,
    scenes: Sequence[Sequence[int]],
    seed: int,
    spurious: int = 1,
    batch: BatchEnv | None = None,
    processes: int = 1,
    tick: Callable[[], None] = lambda: None,
    team: Team | None = None,
) -> list[Outcome]:
    """As `evaluate_together`, in any scenes, given for each agent; `seed` is the one that agents start acting with."""
    acts = [acting(agent, len(own), seed) for agent, own in zip(agents, scenes, strict=True)]
    pictures = agents[0].sees_pictures
    batch = make_batch(world, split, pictures=True) if batch is None and pictures else batch
    worlds = [[*own] * len(agent.seeds) for agent, own in zip(agents, scenes, strict=True)]
    ends = np.cumsum([len(own) for own in worlds])
    team = team or Team()

    def act(observation: Observation, steps_left: int) -> np.ndarray:
        parts = zip(*(np.split(part, ends[:-1]) for part in observation), strict=True)
        works = [partial(one, Observation(*part), steps_left) for one, part in zip(acts, parts, strict=True)]
        actions = []
        for action in team.run(works):
            if isinstance(action, Exception):
                raise action
            actions.append(action)
        tick()
        return np.concatenate(actions)

    everywhere = [*chain.from_iterable(worlds)]
    all_worlds = roll(world, split, everywhere, act, spurious=spurious, batch=batch, processes=processes)
    return [
        all_worlds.of_worlds(slice(end - len(own), end), len(agent.seeds))
        for agent, own, end in zip(agents, worlds, ends, strict=True)
    ]


def acting(agent: Agent, episodes: int, seed: int) -> Act:
    """How all seeds of an agent act in `episodes` scenes each, side by side."""
    controller, k = agent.start(episodes, seed), len(agent.seeds)

    def act(observation: Observation, steps_left: int) -> np.ndarray:
        state, goal = (part.reshape(k, episodes, part.shape[1]) for part in observation)
        action = np.asarray(controller.act(state, goal, steps_left))
        return action.reshape(k * episodes, *action.shape[2:])

    return act


def roll(
    world: str,
    split: str,
    scenes: Sequence[int],
    act: Act,
    *,
    begin: Callable[[BatchEnv], None] = lambda batch: None,
    repeats: int = 1,
    spurious: int = 1,
    batch: BatchEnv | None = None,
    processes: int = 1,
) -> Outcome:
    """Roll every scene `repeats` times, all side by side, acting by `act`.

    `begin` is called with the batch after its reset. A given `batch` is used and left open; otherwise one is made.
    """
    close = batch is None
    batch = make_batch(world, split, spurious, processes=processes) if batch is None else batch
    try:
        observation = batch.reset(list(scenes) * repeats)
        hidden = {name: np.asarray(value)[: len(scenes)] for name, value in batch.hidden().items()}
        begin(batch)
        steps, actions = np.full(batch.size, batch.horizon), []
        while not batch.done:
            actions.append(legal(act(observation, batch.horizon - batch.steps), batch.action_space))
            step = batch.step(actions[-1])
            observation = step.observation
            steps[step.reward > 0] = batch.steps
        return Outcome(
            success=batch.terminated.reshape(repeats, -1),
            steps=steps.reshape(repeats, -1),
            hidden={name: value for name, value in hidden.items() if value.ndim == 1},
            actions=np.stack([taken.reshape(repeats, -1, *taken.shape[1:]) for taken in actions]),
        )
    finally:
        if close:
            batch.close()


def legal(actions: np.ndarray, space: spaces.Space) -> np.ndarray:
    """The actions in the dtype of `space`, continuous ones clipped to it; raises an error for any that is invalid."""
    if isinstance(space, spaces.Discrete):
        valid = np.issubdtype(actions.dtype, np.integer) and ((actions >= 0) & (actions < space.n)).all()
    else:
        valid = np.isfinite(actions).all()
    if not valid:
        raise BecauseError(
            "The agent returned an action that is not finite or not in the action space.",
            need=f"members of {space}.",
            fix="check the agent's model: was the training loss finite?",
        )
    if isinstance(space, spaces.Box):
        return np.clip(actions, space.low, space.high).astype(space.dtype)
    return actions


def outcome_strings(success: np.ndarray) -> list[str]:
    """(K, n) success as a string for each seed, one character per scene.

    >>> outcome_strings(np.array([[True, False, True]]))
    ['101']
    """
    return ["".join("01"[int(solved)] for solved in row) for row in success]


def summarise(outcome: Outcome) -> dict[str, Any]:
    """Success per seed, and its mean with a 95% t-interval over seeds (clipped to [0, 1]).

    >>> both = Outcome(np.array([[True, True], [True, False]]), np.array([[3, 5], [4, 15]]), {})
    >>> {name: value for name, value in summarise(both).items() if name in ("per_seed", "success", "steps")}
    {'per_seed': [1.0, 0.5], 'success': 0.75, 'steps': 4.0}
    """
    rates = outcome.success.mean(1)
    low, high = t_interval(rates)
    return {
        "seeds": len(rates),
        "episodes": outcome.success.shape[1],
        "per_seed": [float(x) for x in rates],
        "success": float(rates.mean()),
        "low95": max(low, 0.0),
        "high95": min(high, 1.0),
        "steps": float(outcome.steps[outcome.success].mean()) if outcome.success.any() else None,
    }
