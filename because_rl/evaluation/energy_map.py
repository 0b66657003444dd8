"""Maps of a learned model's uncertainty (E + 1) / 2 over a grid of points, with the number of logged steps at each.

Uncertainty should be low where there are data and high elsewhere. In Unlock a map is one logged room, with the agent
placed in every cell. In worlds with continuous columns it spans two columns; all others are taken from the logged steps
nearest to the point, and the uncertainty is averaged over those. With the other columns from one single step, nearly
every point would be unlike anything logged, since columns depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

from because_rl.planning.agent import PlannerAgent
from because_rl.transitions import Transitions

POINTS = 40
"""grid points along each side of a plane of continuous columns"""
MARGIN = 0.15
"""margin around the data on each side, as a share of their range: nothing was logged there"""
NEIGHBOURS = 8
"""nearest logged steps that the other columns of a point are taken from"""
MOST_ROWS = 20_000
"""rows of the data to use, evenly spaced; more rows hardly change a map"""


class Axis(NamedTuple):
    factor: str
    column: int
    """within the factor"""
    label: str


PLANES = {
    "crash": (
        ("The car", Axis("ego", 0, "along the road (m)"), Axis("ego", 1, "across it (m)")),
        ("A pedestrian", Axis("ped1", 0, "along the road (m)"), Axis("ped1", 1, "across it (m)")),
    ),
    "lift": (
        ("Cube and hand", Axis("cube_z", 0, "height of the cube (m)"), Axis("rel_z", 0, "cube above the hand (m)")),
        ("The command", Axis("dz", 0, "hand upwards"), Axis("gripper", 0, "gripper closes")),
    ),
}
"""World -> (title, horizontal axis, vertical axis) of its maps"""


class EnergyMap(NamedTuple):
    """Uncertainty and logged steps on a grid of points."""

    title: str
    across: str
    """label of the horizontal axis"""
    up: str
    """label of the vertical axis"""
    x: np.ndarray
    y: np.ndarray
    uncertainty: np.ndarray
    """(y, x): (E + 1) / 2, mean over seeds"""
    steps: np.ndarray
    """(y, x): number of logged steps nearest to each point"""
    marks: dict[str, list[tuple[float, float]]]
    """name of an object -> its positions (x, y)"""

    @property
    def where_logged(self) -> float | None:
        """Mean uncertainty over the points with logged steps."""
        return _mean(self.uncertainty[self.steps > 0])

    @property
    def elsewhere(self) -> float | None:
        """Mean uncertainty over the points without logged steps."""
        return _mean(self.uncertainty[self.steps == 0])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with three digits of the uncertainty."""
        arrays = {"x": self.x.round(5), "y": self.y.round(5), "uncertainty": self.uncertainty.round(3)}
        lists = {name: array.tolist() for name, array in arrays.items()} | {"steps": self.steps.tolist()}
        return self._asdict() | lists

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> EnergyMap:
        """The inverse of `to_dict`."""
        arrays = {name: np.asarray(fields[name]) for name in ("x", "y", "uncertainty", "steps")}
        return cls(**fields | arrays)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def energy_maps(agent: PlannerAgent, data: Transitions, world: str) -> list[EnergyMap]:
    """The maps of a world, from a fitted agent's model and its training data."""
    size = data.factors.state_size
    judge = jax.jit(jax.vmap(lambda p, row: agent.learned.imagine(p, row[:size], row[size:])[1], (None, 0)))
    maps = []
    for empty, rows in _rooms(data) if world == "unlock" else _planes(data, world):
        flat = jnp.asarray(rows.reshape(-1, rows.shape[-1]), jnp.float32)
        seeds = range(len(agent.seeds))
        per_seed = [np.asarray(judge(jax.tree.map(lambda leaf, k=k: leaf[k], agent.parameters), flat)) for k in seeds]
        mean = np.mean(per_seed, axis=0).reshape(rows.shape[:-1]).mean(-1)
        maps.append(empty._replace(uncertainty=mean))
    return maps


# Unlock ------------------------------------------------------------------------------------------------


def _rooms(data: Transitions) -> Iterator[tuple[EnergyMap, np.ndarray]]:
    """Maps of the most frequently logged room, with and without the key, for moving and for opening.

    Besides the agent's cell, these are all the causes of the doors. Yields maps without uncertainty, each with rows
    (y, x, 1, columns) to evaluate the model on.
    """
    state, action = data.state, data.action
    columns = {f.name: f.slice for f in data.factors.state}
    opens, codes = next(f.slice for f in data.factors.action if f.name == "open"), np.asarray(data.factors.codes)
    cells, doors, has = (state[:, columns[name]] for name in ("agent", "door", "has_key"))
    opening, with_key = action[:, opens][:, 1] > 0.5, has[:, 1] > 0.5
    rooms, counts = np.unique(doors[with_key] if with_key.any() else doors, axis=0, return_counts=True)
    room = rooms[counts.argmax()]
    in_room = (doors == room).all(1)
    side = isqrt(cells.shape[1])
    places = np.arange(side, dtype=float)
    for holds in (False, True):
        if not (in_room & (with_key == holds)).any():
            continue
        logged = state[np.argmax(in_room & (with_key == holds))]
        marks = {"door": _cells(room, side), "key": _cells(logged[columns["key"]], side)}
        for opened in (False, True):
            rows = np.tile(np.append(logged, codes[np.argmax((codes[:, opens][:, 1] > 0.5) == opened)]), (side**2, 1))
            rows[:, columns["agent"]] = np.eye(side**2)
            here = in_room & (with_key == holds) & (opening == opened)
            steps = np.bincount(cells[here].argmax(1), minlength=side**2).reshape(side, side)
            title = f"{'Opening' if opened else 'Moving'} {'with' if holds else 'without'} the key"
            yield EnergyMap(title, "", "", places, places, steps, steps, marks), rows.reshape(side, side, 1, -1)


def _cells(present: np.ndarray, side: int) -> list[tuple[float, float]]:
    """(x, y) of the cells in which an object is present."""
    return [(float(cell % side), float(cell // side)) for cell in np.flatnonzero(present > 0.5)]


# Continuous columns ------------------------------------------------------------------------------------


def _planes(data: Transitions, world: str) -> Iterator[tuple[EnergyMap, np.ndarray]]:
    """Maps without uncertainty, each with rows (y, x, neighbours, columns) to evaluate the model on."""
    data_rows = np.concatenate([data.state, data.action], axis=1)[:: -(-len(data) // MOST_ROWS)]
    start = {f.name: f.start for f in data.factors.state}
    start |= {f.name: f.start + data.factors.state_size for f in data.factors.action}
    for title, *axes in PLANES[world]:
        columns = [start[axis.factor] + axis.column for axis in axes]
        logged = data_rows[:, columns]
        low, high = logged.min(0), logged.max(0)
        extent = np.where(high > low, high - low, 1.0)
        spacing, low = extent * (1 + 2 * MARGIN) / POINTS, low - MARGIN * extent
        x, y = (low[k] + spacing[k] * (np.arange(POINTS) + 0.5) for k in (0, 1))
        points = np.stack(np.meshgrid(x, y), axis=-1)  # (y, x, 2)
        _, near = cKDTree(logged / extent).query(points / extent, k=min(NEIGHBOURS, len(logged)))
        rows = data_rows[near.reshape(POINTS, POINTS, -1)]
        rows[..., columns] = points[:, :, None]
        i, j = ((logged - low) / spacing).astype(int).clip(0, POINTS - 1).T
        steps = np.zeros((POINTS, POINTS), int)
        np.add.at(steps, (j, i), 1)
        yield EnergyMap(title, axes[0].label, axes[1].label, x, y, steps, steps, {}), rows
