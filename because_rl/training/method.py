"""The contract: a method learns from transitions, for several seeds at once, and returns an agent that acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.training.play import Episodes, play, split_observation
from because_rl.training.run import Seeds
from because_rl.training.saved import write_agent
from because_rl.transitions import Transitions


class Prediction(NamedTuple):
    """What a world model expects to follow n steps."""

    next_state: np.ndarray
    """(n, state columns), discrete factors at their likeliest level"""
    uncertainty: np.ndarray
    """(n,) in [0, 1]"""


class Controller(ABC):
    """Acts through episodes in n worlds for each of K seeds; it may remember its last plan."""

    @abstractmethod
    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """One action for every seed and world.

        `state`: (K, n, state columns). `goal`: (K, n, goal columns). `steps_left`: steps until the episodes end.
        Returns (K, n) action numbers where actions are discrete, else (K, n, action columns).
        """


class Agent(ABC):
    """A fitted method with K seeds. It does not change: what acting remembers is in its controllers."""

    method: Method
    seeds: tuple[int, ...]
    factors: FactorSpec
    horizon: int
    trained_on: dict[str, Any]
    """name and sha256 of the data, and the recipe if they were collected in one of our worlds"""
    diagnostics: dict[str, np.ndarray]
    """numbers to report, (K,) each"""
    sees_pictures: bool = False
    """whether its controllers are shown pictures instead of the columns of `factors`"""

    def __init__(self, method: Method, seeds: tuple[int, ...], factors: FactorSpec, horizon: int):
        self.method, self.seeds, self.factors, self.horizon = method, seeds, factors, horizon
        self.trained_on, self.diagnostics = {}, {}
        self._selected: dict[int, Agent] = {}

    @abstractmethod
    def start(self, worlds: int, seed: int = 0) -> Controller:
        """Start episodes in n = `worlds` worlds for every seed; `seed` decides whatever acting draws at random."""

    def single_step_controller(self, worlds: int) -> Controller:
        """A controller for one step; agents whose plans do not depend on earlier steps may return the same one."""
        return self.start(worlds)

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays that acting needs, which `Method.restore` takes."""

    @abstractmethod
    def _one_seed(self, k: int) -> Agent:
        """An agent of the k-th seed alone."""

    def select(self, seed: int) -> Agent:
        """The agent of one of `seeds` alone, with its diagnostics and provenance."""
        if self.seeds == (seed,):
            return self
        if seed not in self._selected:
            k = seed_position(self.seeds, seed)
            agent = self._one_seed(k)
            agent.trained_on = self.trained_on
            agent.diagnostics = {name: values[k : k + 1] for name, values in self.diagnostics.items()}
            self._selected[seed] = agent
        return self._selected[seed]

    def act(
        self, state: ArrayLike, goal: ArrayLike | None = None, steps_left: int | None = None, *, seed: int | None = None
    ) -> np.ndarray:
        """The action in a state, or in each of n states.

        Nothing is remembered between calls: the same arguments give the same action. To act through an episode with
        a planner that starts from its last plan, use ``agent.start(worlds)``.

        Args:
            state: (state columns,) or (n, state columns).
            goal: (goal columns,) or (n, goal columns); one goal serves all states. None where the factors name no goal.
            steps_left: until the episode ends; None: the horizon.
            seed: one of `seeds`, which acts alone; None: all of them vote (see `vote`).

        Returns:
            A number where actions are discrete, else (action columns,); with a leading n for n states.
        """
        agent = self if seed is None else self.select(seed)
        states, single = self._states(state)
        goals = _goals_of_states(goal, self.factors, len(states))
        left = self.horizon if steps_left is None else steps_left
        if not 1 <= left <= self.horizon:
            raise BecauseError(
                f"Got steps_left={left}.", need=f"1 to {self.horizon}.", fix="leave it out for a whole episode."
            )
        chosen = vote(agent.act_per_seed(states, goals, left), discrete=self.factors.codes is not None)
        return chosen[0] if single else chosen

    def choose(
        self, controller: Controller, state: ArrayLike, goal: ArrayLike | None = None, steps_left: int | None = None
    ) -> np.ndarray:
        """The action of the next step of an episode, on which all seeds vote; arguments as those of `act`.

        `controller`: from ``start(1)``, at the beginning of the episode; it remembers the last plan.
        """
        states, _ = self._states(state)
        goals = _goals_of_states(goal if self.factors.goal else None, self.factors, len(states))
        states, goals = (np.broadcast_to(a, (len(self.seeds), *a.shape)) for a in (states, goals))
        actions = np.asarray(controller.act(states, goals, self.horizon if steps_left is None else steps_left))
        return vote(actions, discrete=self.factors.codes is not None)[0]

    def rollout(
        self,
        env: Any,
        episodes: int = 10,
        *,
        seed: int | None = None,
        first_seed: int = 0,
        most_steps: int = 10_000,
    ) -> Episodes:
        """Act in an environment of Gymnasium that shows what was logged.

        Args:
            env: with observations in the columns of the state, or with `observation` and `desired_goal`.
            episodes: how many.
            seed: one of `seeds`, which acts alone; None: all of them vote at every step.
            first_seed: episode k is reset with this + k.
            most_steps: after which an episode is cut off that the environment does not end.

        Returns:
            Returns, steps and whether the environment ended it, (episodes,) each.
        """
        agent = self if seed is None else self.select(seed)

        def begin(episode: int) -> Callable[[Any, int], np.ndarray]:
            controller = agent.start(1, episode)

            def act(observation: Any, steps: int) -> np.ndarray:
                # Rewards have no last step, unless the log says that episodes end.
                left = agent.horizon if agent.factors.maximises_reward else max(agent.horizon - steps, 1)
                return agent.choose(controller, *agent._split(observation), left)

            return act

        return play(begin, env, episodes, first_seed, most_steps)

    def _split(self, observation: Any) -> tuple[np.ndarray, np.ndarray]:
        """State and goal, (columns,) each, of an observation in an environment of Gymnasium."""
        return split_observation(self.factors, observation)

    def _states(self, state: ArrayLike) -> tuple[np.ndarray, bool]:
        """(n, state columns), and whether a single row was given. Outcomes of the last step need not be given."""
        columns, observed = np.shape(state)[-1:], self.factors.observed_size
        rows, single = _rows(
            "state", state, self.factors.state_size if columns == (self.factors.state_size,) else observed
        )
        return np.pad(rows, ((0, 0), (0, self.factors.state_size - rows.shape[1]))), single

    def act_per_seed(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """The actions of all K seeds in n states, (K, n, ...).

        Rows are repeated up to a power of two, so that few programs are compiled.
        """
        worlds = 1 << (len(state) - 1).bit_length()
        rows = np.arange(worlds) % len(state)
        states, goals = (np.broadcast_to(a[rows], (len(self.seeds), worlds, a.shape[1])) for a in (state, goal))
        actions = self.single_step_controller(worlds).act(states, goals, steps_left)
        return np.asarray(actions)[:, : len(state)]

    def predict(self, state: np.ndarray, action: np.ndarray, *, seed: int | None = None) -> Prediction:
        """What the world model expects to follow, and how uncertain it is.

        Args:
            state: (state columns,) or (n, state columns).
            action: as `act` returns it, or in the columns of the data.
            seed: one of `seeds`; None: the mean of all.

        Returns:
            The next state and the uncertainty in [0, 1], of one row or of n.
        """
        agent = self if seed is None else self.select(seed)
        rows, single = self._states(state)
        columns = encode_actions(self.factors, np.asarray(action), len(rows))
        prediction = agent._predict(rows, columns)
        return Prediction(*(part[0] for part in prediction)) if single else prediction

    def _predict(self, state: np.ndarray, action: np.ndarray) -> Prediction:
        raise BecauseError(
            f"{self.method.name} has no world model.",
            need="a method that learns one.",
            fix="fit 'because' or another model-based method.",
        )

    def save(self, folder: str | Path) -> None:
        """Write the agent as a folder that `load_agent` reads: weights, statistics, factors and settings, no data."""
        write_agent(Path(folder), self.description(), self.arrays() | _named_diagnostics(self.diagnostics))

    def export(self, path: str | Path) -> dict[str, Any]:
        """Write an ONNX file that acts, with the planner and the vote of all seeds, and beside it `policy_runner.py`.

        The runner needs onnxruntime and numpy alone. Returns what the file's metadata say: its columns and how they
        are encoded, and what has to be remembered between the steps of an episode.
        """
        raise BecauseError(
            f"An agent of {self.method.name} cannot be exported{' with its encoder' if self.sees_pictures else ''}.",
            need="one that plans in a learned model, and is shown columns.",
            fix="fit 'because' or another model-based method; `save` keeps any agent.",
        )

    def description(self) -> dict[str, Any]:
        """All that decides how the arrays are read, as JSON."""
        return {
            "method": self.method.name,
            "config": asdict(self.method.config),
            "factors": self.factors.to_dict(),
            "horizon": self.horizon,
            "seeds": list(self.seeds),
            "trained_on": dict(self.trained_on),
        }

    def __repr__(self) -> str:
        seeds, data = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}", self.trained_on.get("name") or "data"
        return f"<{type(self).__name__} of {self.method.name}, {seeds}, trained on {data}>"


DIAGNOSTICS = "diagnostics/"


def _named_diagnostics(diagnostics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {DIAGNOSTICS + name: np.asarray(values) for name, values in diagnostics.items()}


class Method(ABC):
    """One file per method, its frozen Config on top; `fit` reads like the paper's algorithm."""

    name: ClassVar[str]
    config: Any

    @abstractmethod
    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        """Learn from `data`.

        `seeds`: how many, or which; all of them are trained as one program. A `Run` also keeps checkpoints.
        """

    @abstractmethod
    def restore(
        self, factors: FactorSpec, horizon: int, seeds: tuple[int, ...], arrays: Mapping[str, np.ndarray]
    ) -> Agent:
        """The agent with these `Agent.arrays`."""


def seed_position(seeds: tuple[int, ...], seed: int) -> int:
    """Where a seed is in `seeds`."""
    if seed not in seeds:
        raise BecauseError(f"The agent has no seed {seed}.", need=f"one of {list(seeds)}.", fix="leave seed= out.")
    return seeds.index(seed)


def describe_data(data: Transitions) -> dict[str, Any]:
    """What an agent remembers of its data: name, sha256, and the recipe if they have one."""
    return {"name": data.name, "sha256": data.sha256(), "recipe": dict(data.recipe)}


def vote(actions: np.ndarray, discrete: bool) -> np.ndarray:
    """One action of K for each of n worlds: the most frequent number, or the action with the least distance to all.

    `actions`: (K, n) numbers or (K, n, columns). Ties go to the earliest seed. An average would be an action that
    nobody proposed.

    >>> vote(np.array([[2, 0], [1, 0], [1, 3]]), discrete=True).tolist()
    [1, 0]
    >>> vote(np.array([[[0.0]], [[0.9]], [[1.0]]]), discrete=False).tolist()
    [[0.9]]
    """
    if not np.isfinite(actions).all():
        raise BecauseError(
            "The agent's action is not a finite number.", need="sound weights.", fix="restore its files, or fit again."
        )
    if discrete:
        agreement = (actions[:, None] == actions[None]).sum(1)  # (K, n): how many vote the same
        winner = agreement.argmax(0)
    else:
        spread = actions.std((0, 1), keepdims=True) + 1e-12
        distance = np.linalg.norm((actions[:, None] - actions[None]) / spread, axis=-1).sum(1)
        winner = distance.argmin(0)
    return actions[winner, np.arange(actions.shape[1])]


def _rows(name: str, values: ArrayLike, columns: int) -> tuple[np.ndarray, bool]:
    """(n, columns) float32, and whether a single row was given."""
    need, fix = f"({columns},) or (n, {columns}), finite.", "pass the columns of the factor spec."
    try:
        with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
            array = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise BecauseError(f"Got a {name} that is no array of numbers.", need=need, fix=fix) from error
    if array.ndim not in (1, 2) or array.shape[-1] != columns or (array.ndim == 2 and not len(array)):
        raise BecauseError(f"Got a {name} of shape {array.shape}.", need=need, fix=fix)
    if len(bad := np.argwhere(~np.isfinite(array))):
        where = f"column {bad[0][-1]}" + (f" of row {bad[0][0]}" if array.ndim == 2 else "")
        raise BecauseError(
            f"Got a {name} that is not finite: {where} is {array[tuple(bad[0])]}.",
            need=need,
            fix="leave out, or fill in, what was not measured.",
        )
    return np.atleast_2d(array), array.ndim == 1


def _goals_of_states(goal: ArrayLike | None, factors: FactorSpec, count: int) -> np.ndarray:
    """(count, goal columns): one goal for each state, or the same for all."""
    columns = factors.goal_size
    if goal is None:
        if columns:
            names = ", ".join(repr(wanted.name) for wanted in factors.goal)
            raise BecauseError(
                "Got no goal.", need=f"one of {columns} columns ({names}).", fix="pass it as the second argument."
            )
        return np.zeros((count, 0), np.float32)
    rows, _ = _rows("goal", goal, columns)
    if len(rows) not in (1, count):
        raise BecauseError(
            f"Got {len(rows)} goals for {count} states.",
            need="one goal for all states, or one for each.",
            fix="pass as many goals as states.",
        )
    return np.broadcast_to(rows, (count, columns))


def encode_actions(factors: FactorSpec, action: np.ndarray, count: int) -> np.ndarray:
    """(count, action columns): numbers of discrete actions as their codes, columns as they are."""
    if factors.codes is not None and np.issubdtype(action.dtype, np.integer) and action.ndim < 2:
        numbers = np.atleast_1d(action)
        if ((numbers < 0) | (numbers >= len(factors.codes))).any():
            raise BecauseError(
                f"Got action {int(numbers.max())}.", need=f"0 to {len(factors.codes) - 1}.", fix="correct the number."
            )
        action = factors.encode_action(numbers)
    rows, _ = _rows("action", action, factors.action_size)
    if len(rows) != count:
        raise BecauseError(
            f"Got {len(rows)} actions for {count} states.",
            need="one action for each state.",
            fix="pass as many actions as states.",
        )
    return rows
