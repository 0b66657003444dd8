"""Logs whose observations are pictures: read, checked, and given to an encoder (`because_rl.vision`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.datasets.columns import Columns
from because_rl.datasets.load import find_folder
from because_rl.datasets.minari_files import read_episodes, read_metadata, read_spaces
from because_rl.datasets.picture_folder import find_table, read_picture_folder
from because_rl.datasets.validate import COLLECT_AGAIN, CORRECT, Checker
from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec, pack
from because_rl.io import arrays_sha256

VIDEOS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
NEED = "(frames, height, width, 3) uint8, the frames of all episodes of one size."


@dataclass(frozen=True)
class Pictures:
    """Episodes of pictures and actions. Frames are more than steps: the last of an episode is followed by none."""

    frames: np.ndarray
    """(frames, height, width, 3) uint8, episode after episode"""
    before: np.ndarray
    """(n,) the frame at which each step was taken; the next frame is what followed"""
    action: np.ndarray
    """(n, action columns) float32"""
    reward: np.ndarray
    """(n,) float32"""
    terminated: np.ndarray
    """(n,) bool"""
    episode: np.ndarray
    """(n,) from 0 on"""
    factors: FactorSpec
    """of the actions; the state is one factor of all pixels"""
    name: str
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def join(
        cls, episodes: Sequence[Mapping[str, np.ndarray]], factors: FactorSpec, name: str, metadata: dict[str, Any]
    ) -> Pictures:
        """From episodes with frames (T + 1, height, width, 3), action (T, columns), reward and terminated (T,)."""
        episode = np.repeat(np.arange(len(episodes)), [len(e["action"]) for e in episodes])

        def joined(key: str) -> np.ndarray:
            return np.concatenate([e[key] for e in episodes])

        parts = joined("action"), joined("reward"), joined("terminated")
        return cls(joined("frames"), np.arange(len(episode)) + episode, *parts, episode, factors, name, metadata)

    @property
    def first(self) -> np.ndarray:
        """(episodes,) the frames that episodes begin with."""
        return self.before[np.diff(self.episode, prepend=-1) > 0]

    @property
    def held_out(self) -> np.ndarray:
        """(n,) bool: rows of every tenth episode, as in `Transitions`."""
        return self.episode % 10 == 9

    def sha256(self) -> str:
        """A hash of all that an encoder learns from."""
        names = ("frames", "before", "action", "reward", "terminated")
        return arrays_sha256({name: getattr(self, name) for name in names})


def check_frames(frames: Any, what: str) -> np.ndarray:
    """The frames as an array (frames, height, width, 3) uint8; `what` names them in errors."""
    if isinstance(frames, np.ndarray):
        array = frames
    else:
        shapes = {np.shape(frame) for frame in frames}
        if len(shapes) > 1:
            raise _error(f"{what} has frames of the sizes {_sizes(shapes)}", "crop or scale them to one size.")
        array = np.asarray(frames)
    if array.ndim == 3 or (array.ndim == 4 and array.shape[-1] == 1):
        raise _error(
            f"{what} has one channel: shape {array.shape}",
            "repeat a grey picture: np.repeat(frames[..., None], 3, axis=-1).",
        )
    if array.ndim == 4 and array.shape[-1] == 4:
        raise _error(f"{what} has four channels: shape {array.shape}", "leave out the transparency: frames[..., :3].")
    if array.ndim == 4 and array.shape[1] == 3 and array.shape[-1] != 3:
        raise _error(f"{what} has its channels first: shape {array.shape}", "move them: np.moveaxis(frames, 1, -1).")
    if array.ndim != 4 or array.shape[-1] != 3:
        raise _error(f"{what} has shape {array.shape}", "stack the pictures of an episode along a first axis.")
    if array.dtype != np.uint8:
        fix = "give bytes: np.round(255 * frames).astype(np.uint8) where 1 is white."
        raise _error(f"{what} has pixels of type {array.dtype}", fix)
    return array


def _sizes(shapes: set[tuple[int, ...]]) -> str:
    return " and ".join(" x ".join(map(str, shape[:2])) for shape in sorted(shapes)[:3])


def _error(got: str, fix: str) -> BecauseError:
    return BecauseError(f"{got}.", need=NEED, fix=fix)


def check_file_name(path: str | Path) -> None:
    """Refuse a video: what frames a compressed film has depends on the program that opens it."""
    if Path(path).suffix.lower() in VIDEOS:
        raise BecauseError(
            f"{path} is a video.",
            need="the frames of each episode: PNG files and a table, or a Minari dataset.",
            fix="write the frames out, for example with ffmpeg; docs/visual.md says how they are laid out.",
        )


def holds_pictures(dataset: Any, root: str | Path | None = None) -> bool:
    """Whether `dataset` is a folder of pictures, or the id or path of a Minari dataset whose observations are some."""
    if not isinstance(dataset, str | Path):
        return False
    check_file_name(dataset)
    if find_table(dataset) is not None:
        return True
    try:
        folder, name = find_folder(str(dataset), root)
        space, _ = read_spaces(read_metadata(folder, name), name)
    except BecauseError:
        return False  # `load` says what is wrong
    return _picture_space(space) is not None


def _picture_space(space: spaces.Space) -> spaces.Space | None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    part = parts.get("observation")
    shape = () if part is None else part.shape or ()
    grey = len(shape) == 2 and part is not None and part.dtype == np.uint8
    return part if grey or len(shape) in (3, 4) else None


def load_pictures(dataset: str | Path, root: str | Path | None = None, columns: Columns | None = None) -> Pictures:
    """Read and check a folder of pictures, or a Minari dataset whose observations are pictures.

    The factors of the actions are those in the metadata of the dataset; without, each action column is one, or the
    number of a discrete action. Those of a table are proposed as for any table.

    Args:
        dataset: a folder with a table (`because_rl.datasets.picture_folder`), or an id or path of a Minari dataset.
        root: where ids are looked up.
        columns: the roles of the columns of a table.
    """
    check_file_name(dataset)
    if (table := find_table(dataset)) is not None:
        content = read_picture_folder(table, columns or Columns(), check_frames)
        notes = {"notes": list(content.notes)}
        factors = replace(content.factors, state=_all_pixels(content.episodes[0]["frames"].shape[1:]))
        return Pictures.join(content.episodes, factors, table.resolve().parent.name, notes)
    if columns is not None and columns != Columns():
        raise BecauseError(
            f"{dataset} is a Minari dataset of pictures: it has no columns with roles.",
            need="no options for columns, such as --action and --episode.",
            fix="leave them out.",
        )
    folder, name = find_folder(str(dataset), root)
    metadata = read_metadata(folder, name)
    space, action_space = read_spaces(metadata, name)
    own = metadata.get("because", {})
    checker = Checker(name, space, action_space, folder, COLLECT_AGAIN if "recipe" in own else CORRECT)
    part = _picture_space(space)
    if part is None:
        raise checker.error(f"the observation space is {space}", "pictures: " + NEED.rstrip("."))
    raw = read_episodes(folder, metadata, name)
    factors = _action_factors(own.get("action_factors"), action_space, part.shape or ())
    episodes = [checker.check_picture_episode(number, one, factors) for number, one in enumerate(raw)]
    for number, episode in enumerate(episodes):
        episode["frames"] = check_frames(episode["frames"], f"{name}, episode {number}")
    sizes = {episode["frames"].shape[1:] for episode in episodes}
    if len(sizes) > 1:
        raise _error(f"{name} has pictures of the sizes {_sizes(sizes)}", "crop or scale them to one size.")
    return Pictures.join(episodes, factors, name, metadata)


def _all_pixels(shape: tuple[int, ...]) -> tuple[Factor, ...]:
    return pack(("picture", int(np.prod(shape or (1,))), "continuous"))


def _action_factors(described: Any, space: spaces.Space, shape: tuple[int, ...]) -> FactorSpec:
    picture = _all_pixels(shape)
    if described is not None:
        content = {"state": [f.to_dict() for f in picture], **described}
        return FactorSpec.from_dict(content)
    if isinstance(space, spaces.Discrete):
        width = max(int(space.n), 2)
        codes = tuple(map(tuple, np.eye(width)[: int(space.n)].tolist()))  # so that agents answer with its numbers
        return FactorSpec(picture, pack(("action", width, "categorical")), codes=codes)
    columns = int(np.prod(space.shape or (1,)))
    return FactorSpec(picture, pack(*((f"action {n}", 1, "continuous") for n in range(columns))))
