"""Logged transitions: the one form in which data enter discovery, learning and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.io import arrays_sha256

if TYPE_CHECKING:
    import jax

LEARNED = ("state", "action", "next_state", "goal", "reward", "terminated", "episode", "step")
"""The arrays that decide what is learned."""

MIN_EPISODES = 20
"""Every tenth episode is held out, and tests of independence take whole episodes as their units."""


class Chunks(Protocol):
    """Transitions that do not fit in memory, one chunk of whole episodes after the other, each time anew."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Transitions]: ...


class RowSource(Protocol):
    """More rows than fit in memory, of which some are drawn at a time."""

    def draw(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Transitions:
    """n transitions in the order they were logged; rows of one episode are adjacent. No simulator, no true graph.

    >>> from because_rl.factors import Factor
    >>> position, push = Factor("x", 0, 1, "continuous", "position"), Factor("push", 0, 1, "continuous", "push")
    >>> ones = np.ones((4, 1), np.float32)
    >>> data = Transitions(FactorSpec((position,), (push,)), ones, ones, ones, np.zeros((4, 0)), np.zeros(4),
    ...                    np.array([False, True, False, False]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 2)
    >>> len(data), data.episodes, data.success_rate, data.truncated.tolist()
    (4, 2, 0.5, [False, False, False, True])
    """

    factors: FactorSpec
    state: np.ndarray
    """(n, state columns) float32"""
    action: np.ndarray
    """(n, action columns) float32: as models see it"""
    next_state: np.ndarray
    """(n, state columns) float32"""
    goal: np.ndarray
    """(n, goal columns) float32; no columns where the data have no goal"""
    reward: np.ndarray
    """(n,)"""
    terminated: np.ndarray
    """(n,) bool: this step reached the goal and ended its episode"""
    episode: np.ndarray
    """(n,) int: the episode of each row"""
    step: np.ndarray
    """(n,) int: its step within the episode"""
    horizon: int
    """steps that an episode may last"""
    name: str = ""
    """of the dataset, for messages"""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """what the dataset says of itself, such as the recipe that it was collected by"""
    rest: Chunks | None = field(default=None, repr=False, compare=False)
    """of a sample of a large log: the other episodes"""
    stored: RowSource | None = field(default=None, repr=False, compare=False)
    """of such a sample: all rows to train on"""

    @classmethod
    def from_arrays(
        cls,
        state: ArrayLike,
        action: ArrayLike,
        next_state: ArrayLike,
        episode: ArrayLike,
        *,
        factors: FactorSpec | str | Path,
        goal: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        name: str = "arrays",
    ) -> Transitions:
        """Transitions from arrays, in the order in which they were logged.

        An episode has ended at its goal if its last next state satisfies the goal.

        Args:
            state: (n, state columns) at t.
            action: (n, action columns) at t, or (n,) action numbers where the factors have codes.
            next_state: (n, state columns) at t+1.
            episode: (n,) the episode of each row, numbers or text; rows of one episode are made adjacent.
            factors: the named columns, or the file of a factor spec.
            goal: (goal columns,) or (n, goal columns); None: not known, which is enough to discover and to model.
            reward: (n,); None: 1 where the goal is reached, else 0.
            name: of the dataset, for messages.
        """
        spec = factors if isinstance(factors, FactorSpec) else FactorSpec.from_file(factors)
        _, first, numbers = np.unique(np.asarray(episode), return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first))[numbers.reshape(-1)]  # in the order of their first rows
        order = np.argsort(number, kind="stable")
        number, n = number[order], len(number)
        taken = np.asarray(action)
        if spec.codes is not None and taken.ndim == 1:
            taken = spec.encode_action(_check_numbers(taken, len(spec.codes), name))
        after = _columns("next state", next_state, n, spec.state_size, name)[order]
        wanted, ended = np.zeros((n, 0), np.float32), np.zeros(n, bool)
        if goal is not None:
            goals = np.broadcast_to(np.asarray(goal), (n, np.shape(goal)[-1]))
            wanted = _columns("goal", goals, n, spec.goal_size, name)[order]
            ended = np.asarray(spec.reached(after, wanted)) & (bool(spec.goal) and not spec.holds_goal)
        start = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        lengths = np.diff(np.append(start, n))
        last = np.isin(np.arange(n), start + lengths - 1)
        reached = last & ended
        rewards = reached.astype(np.float32) if reward is None else _columns("reward", reward, n, None, name)[order]
        return cls(
            spec,
            _columns("state", state, n, spec.state_size, name)[order],
            _columns("action", taken, n, spec.action_size, name)[order],
            after,
            wanted,
            rewards,
            reached,
            number,
            np.arange(n) - np.repeat(start, lengths),
            int(lengths.max()),
            name,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        state: Sequence[str],
        action: Sequence[str],
        episode: str,
        factors: FactorSpec | str | Path | None = None,
        goal: Sequence[str] | None = None,
        reward: str | None = None,
        name: str = "frame",
    ) -> Transitions:
        """Transitions from a table with a row per time step, such as a pandas or Polars DataFrame.

        The next state of a row is the state of the next row of its episode, so the last row of an episode gives a
        next state and no transition.

        Args:
            frame: anything with ``frame[column]``.
            state: the columns of the state.
            action: those of the action, taken in the state of the same row.
            episode: the column that names the episode.
            factors: named groups of these columns, or their file; None: each column is a factor, binary if it holds
                only 0 and 1, else continuous.
            goal: the columns of the goal; None where there is none.
            reward: its column; None: 1 where the goal is reached, else 0.
            name: of the dataset, for messages.
        """

        def table(columns: Sequence[str]) -> np.ndarray:
            return np.column_stack([np.asarray(frame[column]) for column in columns])

        label = np.asarray(frame[episode])
        _, numbers = np.unique(label, return_inverse=True)
        order = np.argsort(numbers, kind="stable")
        follows = np.flatnonzero(numbers[order][1:] == numbers[order][:-1])
        now, then = np.sort(order[follows]), order[follows + 1][np.argsort(order[follows], kind="stable")]
        states, actions = table(state), table(action)
        spec = factors
        if spec is None:
            spec = FactorSpec(
                pack(*((column, 1, _column_type(states[:, k])) for k, column in enumerate(state))),
                pack(*((column, 1, _column_type(actions[:, k])) for k, column in enumerate(action))),
            )
        return cls.from_arrays(
            states[now],
            actions[now],
            states[then],
            label[now],
            factors=spec,
            goal=None if goal is None else table(goal)[now],
            reward=None if reward is None else np.asarray(frame[reward])[now],
            name=name,
        )

    def __len__(self) -> int:
        return len(self.state)

    def rows(self, keep: np.ndarray) -> Transitions:
        """The rows that `keep` selects (a boolean mask or row numbers)."""
        return replace(self, rest=None, stored=None, **{name: getattr(self, name)[keep] for name in LEARNED})

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return int(self.episode[-1]) + 1

    @property
    def success_rate(self) -> float:
        """Share of episodes that ended at their goal."""
        return float(self.terminated.sum() / self.episodes)

    @property
    def truncated(self) -> np.ndarray:
        """(n,) bool: the last rows of episodes that did not end at their goal."""
        last = np.append(self.episode[1:] != self.episode[:-1], True)
        return last & ~np.asarray(self.terminated, bool)

    @property
    def held_out(self) -> np.ndarray:
        """(n,) bool: rows of every tenth episode, which are never trained on but used to choose and to report."""
        return self.episode % 10 == 9

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe that `because collect` followed; empty for data from elsewhere."""
        return self.metadata.get("because", {}).get("recipe", {})

    def batch(self, keep: np.ndarray) -> dict[str, jax.Array]:
        """The rows that `keep` selects (a boolean mask or row numbers), as float32 JAX arrays by name."""
        import jax.numpy as jnp

        return {name: jnp.asarray(getattr(self, name)[keep], jnp.float32) for name in (*LEARNED, "truncated")}

    def sha256(self) -> str:
        """A hash of all that decides what is learned."""
        return arrays_sha256({name: getattr(self, name) for name in LEARNED})


def _columns(what: str, values: ArrayLike, n: int, columns: int | None, name: str) -> np.ndarray:
    """(n, columns) or, with None, (n,) finite float32."""
    shape = (n,) if columns is None else (n, columns)
    try:
        array = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise BecauseError(
            f"{name}: {what} cannot be read as numbers ({error}).", need="numbers.", fix="encode text as numbers."
        ) from error
    if array.shape != shape and array.size == np.prod(shape) and array.ndim <= 2:
        array = array.reshape(shape)  # one column may come without its axis
    if array.shape != shape:
        raise BecauseError(
            f"{name}: {what} has shape {array.shape}.", need=f"{shape}.", fix="match rows, and columns to the factors."
        )
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise BecauseError(
            f"{name}: {what} is not finite in row {row}.", need="finite numbers.", fix="drop or fill these rows."
        )
    return array


def _check_numbers(action: np.ndarray, count: int, name: str) -> np.ndarray:
    """Whole numbers below `count`."""
    whole = np.issubdtype(action.dtype, np.number) and (action == np.round(action)).all()
    if not whole or (action < 0).any() or (action >= count).any():
        raise BecauseError(
            f"{name}: an action is not one of the {count} of the factors.",
            need=f"whole numbers from 0 to {count - 1}.",
            fix="number the actions from 0.",
        )
    return action.astype(np.int64)


def _column_type(values: np.ndarray) -> str:
    return "binary" if set(np.unique(values).tolist()) <= {0, 1} else "continuous"
