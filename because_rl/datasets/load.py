"""Read a Minari dataset, check it, and return its transitions. Learning gets its data nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.minari_files import read_episodes, read_metadata, read_spaces
from because_rl.datasets.paths import VERSION, current_id, dataset_path, list_datasets, short_name
from because_rl.datasets.validate import Checker
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.transitions import Transitions


def load(
    dataset: str | Path, root: str | Path | None = None, factors: FactorSpec | str | Path | None = None
) -> Transitions:
    """Load and validate a dataset. Its horizon is the length of its longest episode.

    `dataset`: an id under `root` (``because/unlock-medium-v1``, or short ``unlock-medium``) or the path of any Minari
    dataset folder. `factors`: a spec, or the path of one in JSON or YAML; datasets that this package wrote contain one.
    """
    folder, name = _find_folder(dataset, root)
    metadata = read_metadata(folder, name)
    _check_version(metadata, name)
    spec = _choose_spec(factors, metadata, name)
    checker = Checker(name, *read_spaces(metadata, name), folder)
    checker.check_spec(spec)
    raw_episodes = read_episodes(folder, metadata, name)
    episodes = [checker.check_episode(number, raw, spec) for number, raw in enumerate(raw_episodes)]
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
        episode=np.repeat(np.arange(len(episodes)), lengths),
        step=np.concatenate([np.arange(length) for length in lengths]),
        factors=spec,
        horizon=max(lengths),
        name=name,
        metadata=metadata,
    )


def _find_folder(dataset: str | Path, root: str | Path | None) -> tuple[Path, str]:
    """The dataset's folder (the one that holds ``data/``) and its name for messages."""
    path = Path(dataset)
    if (path / "metadata.json").is_file():
        path = path.resolve().parent
        return path, path.name
    if (path / "data").is_dir():
        return path, path.name
    for dataset_id in (str(dataset), f"because/{dataset}-{VERSION}"):
        try:
            folder = dataset_path(dataset_id, root)
        except BecauseError:
            continue
        if (folder / "data").is_dir():
            return folder, dataset_id
    if current_id(str(dataset)) != str(dataset):
        raise _old_version(str(dataset), short_name(str(dataset)))
    known = list_datasets(root)
    raise BecauseError(
        f"There is no dataset {str(dataset)!r}.",
        need="an id or the path of a Minari dataset; "
        + (f"under this root there are {', '.join(known)}." if known else "under this root there is none."),
        fix="run 'because datasets' to see them, or 'because collect NAME' to make one.",
    )


def _check_version(metadata: dict[str, Any], name: str) -> None:
    """Refuse a dataset that an earlier version of this package collected."""
    own, dataset_id = metadata.get("because", {}), str(metadata.get("dataset_id"))
    if "recipe" in own and current_id(dataset_id) != dataset_id:
        raise _old_version(name, short_name(dataset_id))


def _old_version(name: str, short: str) -> BecauseError:
    return BecauseError(
        f"Dataset {name} is of an earlier version of because-rl, with observations of another form.",
        need=f"because/{short}-{VERSION}, which has the same transitions.",
        fix=f"collect it again: 'because collect {'-'.join(short.split('-')[:2])}', with the options it was made with.",
    )


def _choose_spec(factors: FactorSpec | str | Path | None, metadata: dict[str, Any], name: str) -> FactorSpec:
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
