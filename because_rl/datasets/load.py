"""A Minari dataset and a factor spec in, arrays of transitions out. The only way data enter learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from minari.dataset.minari_storage import MinariStorage

from because_rl.datasets.home import dataset_path, list_datasets
from because_rl.datasets.validate import Checker
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import read_json
from because_rl.transitions import Transitions


def load(
    dataset: str | Path, root: str | Path | None = None, factors: FactorSpec | str | Path | None = None
) -> Transitions:
    """Load and validate a dataset. Its horizon is the length of its longest episode.

    `dataset`: an id under `root` (``because/unlock-medium-v0``, or short ``unlock-medium``) or the path
    of any Minari dataset folder. `factors`: a spec, or the path of one in JSON or YAML; a dataset that
    we collected brings its own.
    """
    folder, name = _find(dataset, root)
    metadata = _metadata(folder, name)
    spec = _spec(factors, metadata, name)
    try:
        storage = MinariStorage.read(folder / "data")
        space_o, space_a = storage.observation_space, storage.action_space
    except Exception as error:  # Minari signals damage with asserts, KeyErrors and whatever its readers raise
        raise _unreadable(name, "its data cannot be opened", error) from error
    checker = Checker(name, folder, space_o, space_a)
    checker.spec(spec)
    total = metadata["total_episodes"]
    if not isinstance(total, int) or total < 1:
        raise checker.error(f"total_episodes is {total!r}", "at least one episode")
    episodes = []
    for number in range(total):
        try:
            raw = next(iter(storage.get_episodes([number])))
        except Exception as error:
            raise _unreadable(name, f"episode {number} cannot be read", error) from error
        episodes.append(checker.episode(number, raw, spec))
    lengths = [len(e["action"]) for e in episodes]
    if sum(lengths) != metadata["total_steps"]:
        raise checker.error(
            f"the episodes have {sum(lengths)} steps but the metadata says {metadata['total_steps']}", "the same number"
        )

    def joined(key: str) -> np.ndarray:
        return np.concatenate([e[key] for e in episodes])

    no_goal = np.zeros((1, 0), np.float32)
    return Transitions(
        state=np.concatenate([e["state"][:-1] for e in episodes]),
        action=joined("action"),
        next_state=np.concatenate([e["state"][1:] for e in episodes]),
        goal=np.concatenate([e["goal"][:-1] if "goal" in e else no_goal.repeat(len(e["action"]), 0) for e in episodes]),
        reward=joined("reward"),
        terminated=joined("terminated"),
        episode=np.repeat(np.arange(total), lengths),
        step=np.concatenate([np.arange(length) for length in lengths]),
        factors=spec,
        horizon=max(lengths),
        name=name,
        metadata=metadata,
    )


def _find(dataset: str | Path, root: str | Path | None) -> tuple[Path, str]:
    """The dataset's folder (the one that holds ``data/``) and the name to call it by."""
    path = Path(dataset)
    if (path / "metadata.json").is_file():
        path = path.resolve().parent
        return path, path.name
    if (path / "data").is_dir():
        return path, path.name
    for dataset_id in (str(dataset), f"because/{dataset}-v0"):
        try:
            folder = dataset_path(dataset_id, root)
        except BecauseError:
            continue
        if (folder / "data").is_dir():
            return folder, dataset_id
    known = list_datasets(root)
    raise BecauseError(
        f"There is no dataset {str(dataset)!r}.",
        need="an id or the path of a Minari dataset; here there "
        + (f"are {', '.join(known)}." if known else "is none."),
        fix="run 'because datasets' to see them, or 'because collect NAME' to make one.",
    )


def _metadata(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "data" / "metadata.json"
    if not path.is_file():
        raise BecauseError(
            f"Dataset {name} has no data/metadata.json.", need="a whole Minari dataset.", fix="collect it again."
        )
    metadata = read_json(path)
    needed = {"total_episodes", "total_steps", "data_format"}
    have = metadata if isinstance(metadata, dict) else {}
    if missing := sorted(needed - set(have)) or ["a sound 'because'"] * (not isinstance(have.get("because", {}), dict)):
        raise BecauseError(
            f"Dataset {name}: {path} lacks {missing}.", need="the metadata that Minari writes.", fix="collect it again."
        )
    return metadata


def _spec(factors: FactorSpec | str | Path | None, metadata: dict[str, Any], name: str) -> FactorSpec:
    if isinstance(factors, FactorSpec):
        return factors
    if factors is not None:
        return FactorSpec.from_file(factors)
    if "factors" in metadata.get("because", {}):
        return FactorSpec.from_dict(metadata["because"]["factors"])
    raise BecauseError(
        f"Dataset {name} has no factor spec.",
        need="a file that names the columns of state and action.",
        fix="write one (docs/factors.md) and pass it with --factors FILE.",
    )


def _unreadable(name: str, what: str, error: Exception) -> BecauseError:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return BecauseError(
        f"Dataset {name}: {what} ({why}).",
        need="an undamaged file.",
        fix="restore it, or collect it again with --force.",
    )
