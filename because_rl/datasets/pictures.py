"""Logs whose observations are pictures: read, checked, and given to an encoder (`because_rl.vision`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.datasets.load import find_folder
from because_rl.datasets.minari_files import read_episodes, read_metadata, read_spaces
from because_rl.datasets.validate import COLLECT_AGAIN, CORRECT, Checker
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
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
            need="the frames of each episode as arrays of bytes, in a Minari dataset.",
            fix="write the frames out and make a dataset of them; see docs/visual.md.",
        )


def holds_pictures(dataset: Any, root: str | Path | None = None) -> bool:
    """Whether `dataset` is the id or path of a Minari dataset whose observations are pictures."""
    if not isinstance(dataset, str | Path):
        return False
    check_file_name(dataset)
    try:
        folder, name = find_folder(str(dataset), root)
        space, _ = read_spaces(read_metadata(folder, name), name)
    except BecauseError:
        return False  # `load` says what is wrong
    return _picture_space(space) is not None


def _picture_space(space: spaces.Space) -> spaces.Space | None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    part = parts.get("observation")
    return part if part is not None and len(part.shape or ()) in (3, 4) else None


def load_pictures(dataset: str | Path, root: str | Path | None = None) -> Pictures:
    """Read and check a Minari dataset whose observations are pictures.

    The factors of its actions are those in its metadata; without, each action column is one, or the number of a
    discrete action.
    """
    check_file_name(dataset)
    folder, name = find_folder(str(dataset), root)
    metadata = read_metadata(folder, name)
    space, action_space = read_spaces(metadata, name)
    own = metadata.get("because", {})
    checker = Checker(name, space, action_space, folder, COLLECT_AGAIN if "recipe" in own else CORRECT)
    part = _picture_space(space)
    if part is None:
        raise checker.error(f"the observation space is {space}", "pictures: " + NEED.rstrip("."))
    raw = read_episodes(folder, metadata, name)
    factors = _action_factors(own.get("action_factors"), action_space, int(np.prod(part.shape or (1,))))
    episodes = [checker.check_picture_episode(number, one, factors) for number, one in enumerate(raw)]
    for number, episode in enumerate(episodes):
        episode["frames"] = check_frames(episode["frames"], f"{name}, episode {number}")
    sizes = {episode["frames"].shape[1:] for episode in episodes}
    if len(sizes) > 1:
        raise _error(f"{name} has pictures of the sizes {_sizes(sizes)}", "crop or scale them to one size.")
    return Pictures.join(episodes, factors, name, metadata)


def _action_factors(described: Any, space: spaces.Space, pixels: int) -> FactorSpec:
    picture = pack(("picture", pixels, "continuous"))
    if described is not None:
        content = {"state": [f.to_dict() for f in picture], **described}
        return FactorSpec.from_dict(content)
    if isinstance(space, spaces.Discrete):
        return FactorSpec(picture, pack(("action", max(int(space.n), 2), "categorical")))
    columns = int(np.prod(space.shape or (1,)))
    return FactorSpec(picture, pack(*((f"action {n}", 1, "continuous") for n in range(columns))))
