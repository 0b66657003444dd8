"""Policies that the user hands over: what they do in each logged row, in a file or an array, or a Python function.

A file has a row for each row of the log, in its order: a transition, or a state where episodes also have the state
behind their last transition. Where actions are numbered a row is an action number or a probability for each of them;
otherwise it holds the columns of the action. An ``.npz`` has one array, ``actions`` or ``probabilities``; a CSV or
Parquet file has one column for each number in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from because_rl.datasets.tables import read_csv, read_parquet
from because_rl.errors import BecauseError
from because_rl.evaluation.worth.log import LoggedEpisodes, Policy
from because_rl.io import read_npz
from because_rl.transitions import Transitions

Function = Callable[..., ArrayLike]
"""(observed states) or, where the log has goals, (observed states, goals), n rows each -> n actions or probabilities"""
SLACK = 1e-3
"""By which probabilities may miss a sum of 1."""


def read_policy(path: Path) -> np.ndarray:
    """The rows of a policy's file, (m,) or (m, columns)."""
    path = Path(path)
    if path.suffix == ".npz":
        arrays = read_npz(path)
        if len(arrays) != 1 or set(arrays) - {"actions", "probabilities"}:
            raise BecauseError(
                f"{path.name} holds {', '.join(sorted(arrays)) or 'nothing'}.",
                need="one array, 'actions' or 'probabilities', with a row for each row of the log.",
                fix="numpy.savez(file, actions=actions)",
            )
        return next(iter(arrays.values()))
    table = read_csv(path) if path.suffix in (".csv", ".tsv", ".txt") else read_parquet(path)
    columns = list(table.values())
    if any(not np.issubdtype(column.dtype, np.number) for column in columns):
        name = next(n for n, c in table.items() if not np.issubdtype(c.dtype, np.number))
        raise BecauseError(f"{path.name}: column {name!r} is text.", need="numbers.", fix="number the actions from 0.")
    return np.column_stack(columns)


def policy_of_rows(log: LoggedEpisodes, rows: ArrayLike, name: str) -> Policy:
    """A policy by what it does in each logged row; with no row for the last states of episodes it does there as in the
    rows before them."""
    values = _check_rows(log, np.asarray(rows), name)
    n, last = len(log.reward), log.last
    if len(values) == n:
        following = np.minimum(np.arange(n) + 1, n - 1)
        following[last] = last
        return Policy(name, values, values[following])
    now = np.arange(n) + log.episode  # each episode before has one more row
    return Policy(name, values[now], values[now + 1])


def policy_of_function(log: LoggedEpisodes, data: Transitions, function: Function, name: str) -> Policy:
    """A policy by what a function does in the states and the next states of the log."""
    size, parts = data.factors.observed_size, []
    for state in (data.state, data.next_state):
        given = (state[:, :size], data.goal) if data.factors.goal_size else (state[:, :size],)
        values = np.asarray(function(*given))
        if len(np.atleast_1d(values)) != len(state):
            raise BecauseError(
                f"{name} returned an array of shape {values.shape} for {len(state)} states.",
                need="a row for each state.",
                fix="let it take a batch of states.",
            )
        parts.append(_check_rows(log, values, name))
    return Policy(name, *parts)


def _check_rows(log: LoggedEpisodes, values: np.ndarray, name: str) -> np.ndarray:
    """(m, actions) probabilities, or (m, 1, columns) one draw of an action."""
    n, states = len(log.reward), len(log.reward) + log.episodes
    if values.ndim not in (1, 2) or len(values) not in (n, states):
        raise BecauseError(
            f"{name} has an array of shape {values.shape}.",
            need=f"{n:,} rows, one for each transition, or {states:,}, one for each state of the log.",
            fix="give what the policy does in each row of the log, in its order.",
        )
    if not np.issubdtype(values.dtype, np.number) or not np.isfinite(values.astype(float)).all():
        raise BecauseError(f"{name} has a value that is no finite number.", need="numbers.", fix="correct it.")
    values = values.reshape(len(values), -1).astype(float)
    if log.number is None:
        if values.shape[1] != log.action.shape[1]:
            raise BecauseError(
                f"{name} has {values.shape[1]} columns.",
                need=f"the {log.action.shape[1]} columns of the action.",
                fix="give the actions as they are logged.",
            )
        return values[:, None].astype(np.float32)
    if values.shape[1] == 1:
        numbers = values[:, 0]
        if (numbers != np.round(numbers)).any() or (numbers < 0).any() or (numbers >= log.actions).any():
            raise BecauseError(
                f"{name} has an action that is not one of the {log.actions}.",
                need=f"whole numbers from 0 to {log.actions - 1}.",
                fix="number the actions from 0, in the order of the factors' codes.",
            )
        return np.eye(log.actions)[numbers.astype(int)]
    if values.shape[1] != log.actions or (values < 0).any() or (abs(values.sum(1) - 1) > SLACK).any():
        raise BecauseError(
            f"{name} has {values.shape[1]} columns that are not the probabilities of {log.actions} actions.",
            need="one column for each action, from 0 to 1, that sum to 1 in every row.",
            fix="give probabilities, or one column of action numbers.",
        )
    return values
