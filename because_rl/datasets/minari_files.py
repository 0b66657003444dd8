"""The files of a Minari dataset: ``data/metadata.json`` and ``data/main_data.hdf5``, read and written without Minari.

Minari itself would make the environment that a file names where the spaces are missing, which runs any function that
the file likes, and it opens HDF5 in this process, which a damaged file or a full disk can crash.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import deserialize_space, serialize_space

from because_rl.errors import BecauseError
from because_rl.hdf5 import add_episodes, new_hdf5, read_hdf5
from because_rl.io import read_json, write_json

METADATA, DATA = "data/metadata.json", "data/main_data.hdf5"
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")


def read_metadata(folder: Path, name: str) -> dict[str, Any]:
    """The metadata of a dataset, with the entries that reading it needs; `name` is for messages."""
    path = folder / METADATA
    if not path.is_file():
        raise BecauseError(f"Dataset {name} has no {METADATA}.", need="a complete Minari dataset.", fix="restore it.")
    metadata = read_json(path, finite=False)  # Minari writes a space without bounds with infinite numbers
    entries = metadata if isinstance(metadata, dict) else {}
    missing = sorted({"total_episodes", "total_steps", "data_format"} - set(entries))
    problem = ""
    if missing or not isinstance(entries.get("because", {}), dict):
        problem = f"lacks {missing}" if missing else "has an entry 'because' that is not a mapping"
    elif not all(isinstance(entries.get(space), str) for space in ("observation_space", "action_space")):
        problem = "does not describe the spaces of observations and actions"
    elif type(entries["total_episodes"]) is not int or entries["total_episodes"] < 1:
        problem = f"says that total_episodes is {entries['total_episodes']!r}, not at least one episode"
    if problem:
        raise BecauseError(
            f"Dataset {name}: {path} {problem}.", need="the metadata that Minari writes.", fix="restore it."
        )
    return metadata


def read_spaces(metadata: Mapping[str, Any], name: str) -> tuple[spaces.Space, spaces.Space]:
    """The spaces of observations and actions in the metadata of a dataset."""
    try:
        return deserialize_space(metadata["observation_space"]), deserialize_space(metadata["action_space"])
    except Exception as error:  # Minari reports damage by AssertionError, KeyError and the errors of Gymnasium
        raise _unreadable(name, "its spaces cannot be read", error) from error


def read_episodes(folder: Path, metadata: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The episodes in order: `ARRAYS` by name, where observations may be a dict of arrays."""
    return read_dataset(folder, metadata, name)[0]


def read_dataset(
    folder: Path, metadata: Mapping[str, Any], name: str
) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
    """The same, and the column names of the arrays of the first episode, where they have any."""
    total = metadata["total_episodes"]
    if metadata["data_format"] != "hdf5":
        try:
            return list(MinariStorage.read(folder / "data").get_episodes(range(total))), {}
        except Exception as error:
            raise _unreadable(name, "its data cannot be opened", error) from error
    try:
        content = read_hdf5(folder / DATA, ARRAYS)
    except BecauseError as error:
        raise _unreadable(name, "its data cannot be opened", error) from error
    episodes = []
    for number in range(total):
        group = f"episode_{number}"
        tree = content.tree(group) if group in content.members else {}
        if missing := [array for array in ARRAYS if tree.get(array) is None]:
            problem = f"it has no {missing[0]}" if tree else f"there is no {group}"
            raise _unreadable(name, f"episode {number} cannot be read", ValueError(problem))
        episodes.append({array: tree[array] for array in ARRAYS})
    first = "episode_0/"
    return episodes, {k.removeprefix(first): v for k, v in content.names.items() if k.startswith(first)}


def write_dataset_files(
    folder: Path,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    episodes: Sequence[Mapping[str, Any]],
    metadata: Mapping[str, Any],
    attributes: Iterable[Mapping[str, Any]] | None = None,
) -> None:
    """Write both files of a dataset; `attributes` are those of each episode, `metadata` all that is not derived."""
    with new_hdf5(folder / DATA) as file:
        steps = add_episodes(file, episodes, attributes or [{}] * len(episodes))
    write_json(
        folder / METADATA,
        {
            "total_episodes": len(episodes),
            "total_steps": steps,
            "data_format": "hdf5",
            "jpeg_encoding": True,
            "observation_space": serialize_space(observation_space),
            "action_space": serialize_space(action_space),
            "dataset_size": float(np.round((folder / DATA).stat().st_size / 1e6, 1)),
            "minari_version": importlib.metadata.version("minari"),
            **metadata,
        },
    )


def _unreadable(name: str, what: str, error: Exception) -> BecauseError:
    why = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, BecauseError):
        why = error.got.rstrip(".")
    return BecauseError(
        f"Dataset {name}: {what} ({why}).",
        need="an undamaged file.",
        fix="restore it from a copy, or make it again the way it was made.",
    )
