"""The stage before all others where data are pictures: learn to read factors from them, and make transitions of these.

    train three convolutions on the logged pictures and actions (`network`)
    give cells that look the same one code (`codes`)
    read the codes as factors, and the logged ends as the goal (`factors`)

What follows (discovery, world model, planning) is the same for factors that were read as for factors that were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np

from because_rl.datasets.episodes import Episode
from because_rl.datasets.pictures import Pictures, check_frames
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.training.run import Run, flatten, unflatten
from because_rl.transitions import Transitions
from because_rl.vision.codes import choose_codes, distances, embed_frames, nearest
from because_rl.vision.factors import Goal, PictureFactor, find_factors, find_goal, from_records, make_spec, to_records
from because_rl.vision.network import CELL, Encoder, embed_cells, picture_stage

STEPS = 600
"""Of gradient descent."""
FORMAT = 1


@dataclass(frozen=True)
class PictureEncoder:
    """Reads the columns of factors from pictures."""

    network: Encoder
    centres: np.ndarray
    """(codes, hidden)"""
    parts: tuple[PictureFactor, ...]
    goal: Goal | None
    shape: tuple[int, int]
    """height and width of a picture"""
    factors: FactorSpec

    def codes(self, frames: np.ndarray) -> np.ndarray:
        """The code of each cell of each frame: (n, cells) of (n, height, width, 3) uint8."""
        frames = check_frames(frames, "The log")
        if frames.shape[1:3] != self.shape:
            raise BecauseError(
                f"Got pictures of {frames.shape[1]} x {frames.shape[2]} pixels.",
                need=f"{self.shape[0]} x {self.shape[1]}, as in training.",
                fix="crop or scale them.",
            )
        embeddings, which = embed_frames(frames, partial(embed_cells, self.network))
        return nearest(embeddings, self.centres)[which].reshape(len(frames), -1)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """The state columns of frames: (n, state columns) float32."""
        return self._columns(self.codes(frames))

    def _columns(self, codes: np.ndarray) -> np.ndarray:
        between = distances(self.centres, self.centres)
        columns = []
        for part in self.parts:
            known = np.array(part.known)
            columns.append(part.columns(known[between[:, known].argmin(1)][codes]))
        return np.concatenate(columns, axis=1)

    @property
    def wanted(self) -> np.ndarray:
        """(goal columns,) float32: the goal, the same in all episodes."""
        return np.asarray(self.goal.value if self.goal is not None else (), np.float32)

    def transitions(self, pictures: Pictures) -> Transitions:
        """The log in the columns of the factors."""
        state, steps = self.read(pictures.frames), len(pictures.before)
        starts = np.diff(pictures.episode, prepend=-1) > 0
        step = np.arange(steps) - np.flatnonzero(starts)[np.cumsum(starts) - 1]
        return Transitions(
            self.factors,
            state[pictures.before],
            pictures.action,
            state[pictures.before + 1],
            np.broadcast_to(self.wanted, (steps, len(self.wanted))),
            pictures.reward,
            pictures.terminated,
            pictures.episode,
            step,
            int(np.bincount(pictures.episode).max()),
            pictures.name,
            pictures.metadata,
        )

    def episodes(self, pictures: Pictures) -> list[Episode]:
        """The log as episodes of the columns of the factors; each has the goal that the ends show, if they show one."""
        state, steps, out = self.read(pictures.frames), np.arange(len(pictures.before)), []
        for rows in np.split(steps, np.flatnonzero(np.diff(pictures.episode)) + 1):
            observations = state[pictures.before[rows[0]] : pictures.before[rows[-1]] + 2]
            ended = pictures.terminated[rows]
            episode = {"observations": observations, "actions": pictures.action[rows], "rewards": pictures.reward[rows]}
            episode |= {"terminations": ended, "truncations": (rows == rows[-1]) & ~ended}
            if len(self.wanted):
                episode["goals"] = np.tile(self.wanted, (len(observations), 1))
            out.append(episode)
        return out

    def without_goal(self) -> PictureEncoder:
        """The same, of a log whose policy is for rewards alone."""
        return replace(self, goal=None, factors=make_spec(list(self.parts), None, self.factors))

    # Files -------------------------------------------------------------------------------------------------
    def description(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        goal = None if self.goal is None else asdict(self.goal)
        return {"format": FORMAT, "shape": list(self.shape), "parts": to_records(self.parts), "goal": goal}

    def arrays(self) -> dict[str, np.ndarray]:
        return flatten(self.network) | {"centres": self.centres}

    @classmethod
    def restore(
        cls, record: Mapping[str, Any], factors: FactorSpec, arrays: Mapping[str, np.ndarray]
    ) -> PictureEncoder:
        """The inverse of `description` and `arrays`; `factors` name the actions."""
        network = unflatten(eqx.filter_eval_shape(Encoder, jax.random.key(0)), arrays, "encoder")
        parts, goal = from_records(record["parts"]), None
        if record["goal"] is not None:
            goal = Goal(**record["goal"] | {"value": tuple(record["goal"]["value"])})
        height, width = record["shape"]
        spec = make_spec(parts, goal, factors)
        return cls(network, np.asarray(arrays["centres"]), tuple(parts), goal, (height, width), spec)


def check_size(pictures: Pictures) -> None:
    """Refuse pictures that cannot be cut into cells."""
    height, width = pictures.frames.shape[1:3]
    if height % CELL or width % CELL:
        raise BecauseError(
            f"The pictures of {pictures.name} have {height} x {width} pixels.",
            need=f"multiples of {CELL}: a cell has {CELL} x {CELL} pixels.",
            fix="crop or scale them.",
        )


def fit_encoder(pictures: Pictures, run: Run, steps: int = STEPS) -> PictureEncoder:
    """Learn to read factors from a log of pictures; of `run`, the first seed counts."""
    check_size(pictures)
    height, width = pictures.frames.shape[1:3]
    keep = ~pictures.held_out if (~pictures.held_out).any() else np.ones(len(pictures.before), bool)
    before = pictures.before[keep]
    rows = {
        "before": pictures.frames[before],
        "after": pictures.frames[before + 1],
        "action": pictures.action[keep],
    }
    model = run.fit(picture_stage(pictures.action.shape[1], steps), rows, ())
    network = jax.tree.map(lambda a: a[0], model.encoder)
    embeddings, which = embed_frames(pictures.frames, partial(embed_cells, network))
    centres = choose_codes(embeddings, np.bincount(which.reshape(-1), minlength=len(embeddings)).astype(float))
    codes = nearest(embeddings, centres)[which]
    parts = find_factors(codes, pictures.before, pictures.first)
    goal = find_goal(parts, codes.reshape(len(codes), -1), pictures.before + 1, pictures.terminated)
    spec = make_spec(parts, goal, pictures.factors)
    return PictureEncoder(network, centres, tuple(parts), goal, (height, width), spec)
