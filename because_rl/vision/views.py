"""What a page shows of the factors that were read from pictures: where each one is, and how often it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from because_rl.datasets.pictures import Pictures
from because_rl.io import pack_json, read_arrays, unpack_json, write_arrays
from because_rl.vision.encoder import PictureEncoder
from because_rl.vision.factors import PictureFactor
from because_rl.vision.network import CELL

COLOUR = np.array([0, 158, 115])
"""Of the cells where a factor is."""
DIM = 0.35
"""Brightness of the others."""
FRAMES = 4
"""Of an episode, in a view."""
ROWS = "rows"


@dataclass(frozen=True)
class FactorView:
    """One factor in pictures."""

    name: str
    kind: str
    """as in `because_rl.vision.factors`: mover, set, still or switch"""
    type: str
    """in the factor spec: binary or categorical"""
    width: int
    """number of cells; of a switch, of levels"""
    changes: float
    """share of the logged steps in which it changes"""
    goal: str
    """what the goal is, in words, where it is about this factor; else empty"""
    frames: np.ndarray
    """(1 + FRAMES or fewer, height, width, 3) uint8: all its cells marked, then where it is in frames of an episode"""


def view_factors(encoder: PictureEncoder, pictures: Pictures) -> list[FactorView]:
    """A view of each factor of an encoder, with frames of the longest logged episode that ended by itself, if any did.

    Args:
        encoder: that was trained on the log.
        pictures: the log.
    """
    codes = encoder.codes(pictures.frames)
    shown = _spread(pictures)
    views = []
    for part in encoder.parts:
        columns = part.columns(codes)
        changed = (columns[pictures.before] != columns[pictures.before + 1]).any(1)
        everywhere = np.isin(np.arange(codes.shape[1]), part.cells)[None]
        frames = [
            mark(pictures.frames[shown[:1]], everywhere),
            mark(pictures.frames[shown], _cells(part, codes[shown])),
        ]
        views.append(
            FactorView(
                part.name,
                part.kind,
                encoder.factors[part.name].type,
                part.width,
                float(changed.mean()),
                _goal_words(encoder, part),
                np.concatenate(frames),
            )
        )
    return views


def _goal_words(encoder: PictureEncoder, part: PictureFactor) -> str:
    if encoder.goal is None or encoder.goal.factor != part.name:
        return ""
    if part.kind == "switch":
        level = int(np.argmax(encoder.goal.value))
        return f"look {level + 1} of {part.width}" + ", in which it rests" * (level == 0)
    return "none of it is left"


def _spread(pictures: Pictures) -> np.ndarray:
    """The numbers of up to `FRAMES` frames of an episode, from the first to the last."""
    ended = np.unique(pictures.episode[pictures.terminated])
    length = np.bincount(pictures.episode)
    length[np.setdiff1d(np.arange(len(length)), ended)] *= not len(ended)
    steps = pictures.before[pictures.episode == length.argmax()]
    return np.unique(np.linspace(steps[0], steps[-1] + 1, FRAMES).round().astype(int))


def _cells(part: PictureFactor, codes: np.ndarray) -> np.ndarray:
    """(n, cells) bool: where a factor is in frames with codes (n, cells); a switch, where it has left its rest."""
    columns, marked = part.columns(codes), np.zeros(codes.shape, bool)
    marked[:, part.cells] = columns[:, :1] == 0 if part.kind == "switch" else columns > 0
    return marked


def mark_factor(encoder: PictureEncoder, frames: np.ndarray, name: str) -> np.ndarray:
    """The frames (n, height, width, 3) with the cells coloured in which a factor is."""
    part = next(part for part in encoder.parts if part.name == name)
    return mark(frames, _cells(part, encoder.codes(frames)))


def mark(frames: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """The frames (n, height, width, 3) with some cells (n, cells) coloured and the others darker, uint8."""
    rows = frames.shape[1] // CELL
    on = cells.reshape(len(frames), rows, -1).repeat(CELL, 1).repeat(CELL, 2)[..., None]
    return np.where(on, 0.4 * frames + 0.6 * COLOUR, DIM * frames).round().astype(np.uint8)


# Files -------------------------------------------------------------------------------------------------


def write_factor_views(path: Path, views: Sequence[FactorView]) -> None:
    """Write views as one file with a checksum."""
    rows = [{key: value for key, value in vars(view).items() if key != "frames"} for view in views]
    write_arrays(path, {view.name: view.frames for view in views} | {ROWS: pack_json(rows)})


def read_factor_views(path: Path) -> list[FactorView]:
    """What `write_factor_views` wrote."""
    arrays = read_arrays(path)
    return [FactorView(**row, frames=arrays[row["name"]]) for row in unpack_json(arrays[ROWS])]
