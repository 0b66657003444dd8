"""Read a Minari dataset, check it, and return its transitions. Learning gets its data nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.columns import Columns
from because_rl.datasets.large_log import SAMPLE_ROWS
from because_rl.datasets.minari_files import read_episodes, read_metadata, read_spaces
from because_rl.datasets.paths import current_id, dataset_path, full_id, list_datasets, short_name
from because_rl.datasets.user_dataset import add_outcomes, complete_spec, encode_log, prepare_log
from because_rl.datasets.user_log import FORMATS, Log, read_chunk, read_log
from because_rl.datasets.validate import COLLECT_AGAIN, CORRECT, Checker
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.transitions import Transitions


def load(
    dataset: Any,
    root: str | Path | None = None,
    factors: FactorSpec | str | Path | None = None,
    *,
    state: Sequence[str] = (),
    action: Sequence[str] = (),
    episode: str = "",
    time: str = "",
    reward: str = "",
    missing: str = "",
    goal: Sequence[float] | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Transitions:
    """Load and validate a dataset or a user's own log. Its horizon is the length of its longest episode.

    Args:
        dataset: an id under `root` (``because/unlock-medium-v1``, or short ``unlock-medium``), the path of a Minari
            dataset folder, or a log: a CSV, Parquet, NPZ or HDF5 file, a pandas or Polars frame, a dict of arrays.
        root: where ids are looked up; None: BECAUSE_HOME or ~/.because-rl.
        factors: a spec, or the path of one in JSON or YAML; datasets that this package wrote contain one.
        state: columns of the state in a table; empty: as the factor file names them, or by the names of the columns.
        action: likewise those of the action.
        episode: the column that names the episode, numbers or text.
        time: the column that orders the rows of an episode.
        reward: the column of the reward.
        missing: what is done about missing values: drop-episode, forward-fill or indicator; empty: they are refused.
        goal: one goal for all episodes of a log, a number per goal column; None: the goals that it has.
        sample_rows: of Parquet with more rows, about as many are read, in whole episodes drawn at random, and the
            others are in `Transitions.rest`; 0: all rows are read.

    >>> import numpy as np
    >>> from because_rl.factors import pack
    >>> table = {"batch": np.repeat(np.arange(20), 5), "temp": np.arange(100.0), "valve": np.ones(100)}
    >>> spec = FactorSpec(pack(("temp", 1, "continuous")), pack(("valve", 1, "binary")))
    >>> data = load(table, factors=spec, state=["temp"], action=["valve"], episode="batch")
    >>> len(data), data.episodes
    (80, 20)
    """
    roles = Columns(tuple(state), tuple(action), (), episode, time, reward, missing)
    if factors is not None and not isinstance(factors, FactorSpec):
        roles = roles.over(Columns.from_file(factors))
    if not isinstance(dataset, str | os.PathLike) or is_log_file(dataset) or roles != Columns() or goal is not None:
        return _load_log(dataset, root, factors, roles, goal, sample_rows)
    folder, name = find_folder(str(dataset), root)
    metadata = read_metadata(folder, name)
    _check_version(metadata, name)
    spec = _choose_spec(factors, metadata, name)
    fix = COLLECT_AGAIN if "recipe" in metadata.get("because", {}) else CORRECT
    checker = Checker(name, *read_spaces(metadata, name), folder, fix)
    checker.check_spec(spec)
    raw_episodes = read_episodes(folder, metadata, name)
    episodes = [checker.check_episode(number, raw, spec) for number, raw in enumerate(raw_episodes)]
    steps = sum(len(e["action"]) for e in episodes)
    if steps != metadata["total_steps"]:
        raise checker.error(
            f"the episodes have {steps} steps but the metadata says {metadata['total_steps']}", "the same number"
        )
    spec = add_outcomes(spec, [e["reward"] for e in episodes], [e["terminated"] for e in episodes])
    return join_episodes(episodes, spec, name, metadata)


def _load_log(
    data: Any,
    root: str | Path | None,
    factors: FactorSpec | str | Path | None,
    columns: Columns,
    goal: Sequence[float] | None,
    sample_rows: int,
) -> Transitions:
    """The transitions of a user's log; what was left out or filled is in ``metadata["notes"]``."""
    log = read_log(data, root, columns, sample_rows)
    spec = complete_spec(log, _choose_spec(factors or log.factors, {}, log.name))
    if spec.goal and goal is None and not log.has_goals:
        spec = replace(spec, goal=())  # enough to discover and to model
    log = prepare_log(log, spec, goal)
    metadata: dict[str, Any] = {"notes": list(log.notes)}
    if log.large is not None:
        metadata["sample"] = log.large.describe()
    data = join_episodes(encode_log(log), spec, log.name, metadata)
    return data if log.large is None else replace(data, rest=Rest(log, spec, goal))


@dataclass(frozen=True)
class Rest:
    """The episodes of a large log that are not in its sample: iterates over chunks of them, each time anew."""

    sample: Log
    """as `prepare_log` returned it"""
    factors: FactorSpec
    goal: Sequence[float] | None = None

    def __len__(self) -> int:
        assert self.sample.large is not None
        return len(self.sample.large.chunks())

    def __iter__(self) -> Iterator[Transitions]:
        large = self.sample.large
        assert large is not None
        rewards, ends = ([e[name] for e in self.sample.episodes] for name in ("rewards", "terminations"))
        reference = np.concatenate(rewards), np.concatenate(ends)
        for (first, stop), table in zip(large.chunks(), large.rest(), strict=True):
            where = f"{self.sample.name}, rows {large.starts[first]:,} to {large.starts[stop]:,}"
            chunk = prepare_log(read_chunk(self.sample, table, where), self.factors, self.goal)
            metadata = {"rows": [int(large.starts[first]), int(large.starts[stop])], "notes": list(chunk.notes)}
            yield join_episodes(encode_log(chunk), self.factors, where, metadata, reference)


def is_log_file(data: str | os.PathLike) -> bool:
    """Whether a path is a file or a folder of Parquet parts, and no Minari dataset."""
    path = Path(data)
    if path.is_dir():
        return not any((path / name).exists() for name in ("data", "metadata.json")) and any(path.rglob("*.parquet"))
    return path.is_file() and not (path.name == "main_data.hdf5" and (path.parent / "metadata.json").is_file())


Outcomes = tuple[np.ndarray, np.ndarray]
"""The reward, and whether the episode ended, of n steps."""


def join_episodes(
    episodes: Sequence[Mapping[str, np.ndarray]],
    spec: FactorSpec,
    name: str,
    metadata: dict[str, Any],
    reference: Outcomes | None = None,
) -> Transitions:
    """The transitions of episodes as `Checker.check_episode` returns them; `reference`: of `blank_and_logged`."""
    lengths = [len(e["action"]) for e in episodes]

    def joined(key: str) -> np.ndarray:
        return np.concatenate([e[key] for e in episodes])

    no_goal = np.zeros((1, 0), np.float32)
    before, after = blank_and_logged(spec, (joined("reward"), joined("terminated")), reference)
    return Transitions(
        state=np.hstack([np.concatenate([e["state"][:-1] for e in episodes]), before]),
        action=joined("action"),
        next_state=np.hstack([np.concatenate([e["state"][1:] for e in episodes]), after]),
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


def blank_and_logged(
    spec: FactorSpec, logged: Outcomes, reference: Outcomes | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The columns of outcomes before a step, where they are blank, and after it, (n, outcomes) float32 each.

    Blank is the mean of all rewards, and no end: what does not vary tells nothing. What an end brings on average beyond
    other steps (100 at a flag) is taken off the reward, beside which its smaller causes would not show; planners give
    it back with the chance of the end (`models.value.Returns`). Both means are those of the steps of `reference`, in
    place of these steps.
    """
    (reward, terminated), (rewards, ends) = logged, logged if reference is None else reference
    typical = rewards
    if any(f.role == "end" for f in spec.outcomes) and ends.any() and not ends.all():
        extra = rewards[ends].mean() - rewards[~ends].mean()
        reward, typical = reward - terminated * extra, rewards - ends * extra
    columns = {"reward": reward, "end": terminated}
    after = np.stack([columns[f.role] for f in spec.outcomes], 1) if spec.outcomes else np.zeros((len(reward), 0))
    blank = [typical.mean(dtype=np.float64) if f.role == "reward" else 0.0 for f in spec.outcomes]
    return np.broadcast_to(np.asarray(blank, np.float32), after.shape), after.astype(np.float32)


def find_folder(dataset: str | Path, root: str | Path | None) -> tuple[Path, str]:
    """The dataset's folder (the one that holds ``data/``) and its name for messages."""
    path = Path(dataset)
    if path.name == "main_data.hdf5":
        path = path.parent
    if (path / "metadata.json").is_file():
        path = path.resolve().parent
        return path, path.name
    if (path / "data").is_dir():
        return path, path.name
    for dataset_id in (str(dataset), full_id(str(dataset))):
        try:
            folder = dataset_path(dataset_id, root)
        except BecauseError:
            continue
        if (folder / "data").is_dir():
            return folder, dataset_id
    if current_id(str(dataset)) != str(dataset):
        raise _old_version(str(dataset), short_name(str(dataset)))
    known = list_datasets(root)
    if path.suffix or path.is_absolute() or path.exists():  # a path rather than an id
        raise BecauseError(f"There is no data at {str(dataset)!r}.", need=f"{FORMATS}.", fix="correct the path.")
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
        need=f"{full_id(short)}, which has the same transitions.",
        fix=f"collect it again: 'because collect {'-'.join(short.split('-')[:2])}', with the options it was made with.",
    )


def _choose_spec(factors: FactorSpec | str | Path | None, metadata: dict[str, Any], name: str) -> FactorSpec:
    if isinstance(factors, FactorSpec):
        return factors
    if factors is not None:
        return FactorSpec.from_file(factors)
    if "action_factors" in metadata.get("because", {}):
        raise BecauseError(
            f"The observations of dataset {name} are pictures.",
            need="columns: the factors of pictures are learned first.",
            fix="'because train' and 'because discover' do that; in Python because_rl.runs.pictures.load_encoded.",
        )
    if "factors" in metadata.get("because", {}):
        return FactorSpec.from_dict(metadata["because"]["factors"])
    raise BecauseError(
        f"Dataset {name} has no factor spec.",
        need="a file that names the columns of state and action.",
        fix="let 'because factors DATA -o factors.yaml' propose one, edit it, and pass it with --factors FILE.",
    )
