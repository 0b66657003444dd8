"""Maps of what a learned model is unsure of: (E + 1) / 2 over a plane through the data, beside the logged steps in it.

Uncertainty should be low where data are and high elsewhere. A map shows both on one grid of points. In Unlock it is a
room as it was logged, with the agent put into every cell. Where columns are continuous it is two of them, each point
seen from the logged steps that are nearest to it there: with all else from one single step the other columns, which
follow each other, would be unlike anything logged nearly everywhere.
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
"""along each side of a plane of continuous columns"""
MARGIN = 0.15
"""of the data's range, on each side of it: where nothing was logged"""
NEIGHBOURS = 8
MOST_ROWS = 20_000
"""of the data, spread over them; more tell no more"""


class Axis(NamedTuple):
    factor: str
    column: int
    words: str


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
"""World -> (title, across, up)"""


class EnergyMap(NamedTuple):
    title: str
    across: str
    up: str
    x: np.ndarray
    y: np.ndarray
    uncertainty: np.ndarray
    """(y, x): mean (E + 1) / 2 over seeds"""
    steps: np.ndarray
    """(y, x): logged steps nearest to each point"""
    marks: dict[str, list[tuple[float, float]]]
    """what stands where"""

    @property
    def where_logged(self) -> float | None:
        return _mean(self.uncertainty[self.steps > 0])

    @property
    def elsewhere(self) -> float | None:
        return _mean(self.uncertainty[self.steps == 0])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: three digits of an uncertainty are plenty."""
        arrays = {"x": self.x.round(5), "y": self.y.round(5), "uncertainty": self.uncertainty.round(3)}
        told = {name: array.tolist() for name, array in arrays.items()} | {"steps": self.steps.tolist()}
        return self._asdict() | told

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> EnergyMap:
        arrays = {name: np.asarray(told[name]) for name in ("x", "y", "uncertainty", "steps")}
        return cls(**told | arrays)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def energy_maps(agent: PlannerAgent, data: Transitions, world: str) -> list[EnergyMap]:
    """The maps of a world, by the model of an agent and the data that it was learned from."""
    size = data.factors.state_size
    judge = jax.jit(jax.vmap(lambda p, row: agent.learned.imagine(p, row[:size], row[size:])[1], (None, 0)))
    maps = []
    for empty, rows in _rooms(data) if world == "unlock" else _planes(data, world):
        flat = jnp.asarray(rows.reshape(-1, rows.shape[-1]), jnp.float32)
        seeds = range(len(agent.seeds))
        told = [np.asarray(judge(jax.tree.map(lambda leaf, k=k: leaf[k], agent.parameters), flat)) for k in seeds]
        energy = np.mean(told, axis=0).reshape(rows.shape[:-1]).mean(-1)
        maps.append(empty._replace(uncertainty=energy))
    return maps


# Unlock ------------------------------------------------------------------------------------------------


def _rooms(data: Transitions) -> Iterator[tuple[EnergyMap, np.ndarray]]:
    """The room that was logged most: before and after the key, for a move and for opening.

    That is all that the doors follow from, beside the cell. Rows are (y, x, 1, columns).
    """
    state, action = data.state, data.action
    at = {f.name: f.slice for f in data.factors.state}
    opens, codes = next(f.slice for f in data.factors.action if f.name == "open"), np.asarray(data.factors.codes)
    cells, doors, has = (state[:, at[name]] for name in ("agent", "door", "has_key"))
    opening, with_key = action[:, opens][:, 1] > 0.5, has[:, 1] > 0.5
    rooms, counts = np.unique(doors[with_key] if with_key.any() else doors, axis=0, return_counts=True)
    room = rooms[counts.argmax()]
    same = (doors == room).all(1)
    side = isqrt(cells.shape[1])
    places = np.arange(side, dtype=float)
    for holds in (False, True):
        if not (same & (with_key == holds)).any():
            continue
        logged = state[np.argmax(same & (with_key == holds))]
        marks = {"door": _cells(room, side), "key": _cells(logged[at["key"]], side)}
        for opened in (False, True):
            rows = np.tile(np.append(logged, codes[np.argmax((codes[:, opens][:, 1] > 0.5) == opened)]), (side**2, 1))
            rows[:, at["agent"]] = np.eye(side**2)
            here = same & (with_key == holds) & (opening == opened)
            steps = np.bincount(cells[here].argmax(1), minlength=side**2).reshape(side, side)
            title = f"{'Opening' if opened else 'Moving'} {'with' if holds else 'without'} the key"
            yield EnergyMap(title, "", "", places, places, steps, steps, marks), rows.reshape(side, side, 1, -1)


def _cells(present: np.ndarray, side: int) -> list[tuple[float, float]]:
    return [(float(cell % side), float(cell // side)) for cell in np.flatnonzero(present > 0.5)]


# Continuous columns ------------------------------------------------------------------------------------


def _planes(data: Transitions, world: str) -> Iterator[tuple[EnergyMap, np.ndarray]]:
    """Rows are (y, x, neighbours, columns)."""
    seen = np.concatenate([data.state, data.action], axis=1)[:: -(-len(data) // MOST_ROWS)]
    place = {f.name: f.start for f in data.factors.state}
    place |= {f.name: f.start + data.factors.state_size for f in data.factors.action}
    for title, *axes in PLANES[world]:
        columns = [place[axis.factor] + axis.column for axis in axes]
        logged = seen[:, columns]
        low, high = logged.min(0), logged.max(0)
        reach = np.where(high > low, high - low, 1.0)
        apart, low = reach * (1 + 2 * MARGIN) / POINTS, low - MARGIN * reach
        x, y = (low[k] + apart[k] * (np.arange(POINTS) + 0.5) for k in (0, 1))
        points = np.stack(np.meshgrid(x, y), axis=-1)  # (y, x, 2)
        _, near = cKDTree(logged / reach).query(points / reach, k=min(NEIGHBOURS, len(logged)))
        rows = seen[near.reshape(POINTS, POINTS, -1)]
        rows[..., columns] = points[:, :, None]
        i, j = ((logged - low) / apart).astype(int).clip(0, POINTS - 1).T
        steps = np.zeros((POINTS, POINTS), int)
        np.add.at(steps, (j, i), 1)
        yield EnergyMap(title, axes[0].words, axes[1].words, x, y, steps, steps, {}), rows
