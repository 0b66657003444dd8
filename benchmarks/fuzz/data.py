"""Fuzzed files of numbers: logs, datasets and checkpoints.

An accepted log must be fit to learn from. An accepted dataset or checkpoint, which has checksums, must be the one that
was written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import yaml

from because_rl.algorithms.registry import load_agent as load_saved_agent
from because_rl.datasets.columns import Columns
from because_rl.datasets.load import load
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_dataset import add_action_codes, prepare_log, write_dataset
from because_rl.datasets.user_log import Log, read_log
from because_rl.factors import FactorSpec
from because_rl.io import arrays_sha256, read_arrays, read_json, sha256, write_arrays, write_text
from because_rl.rng import stream
from because_rl.runs.folder import IDENTITY, read_run
from because_rl.runs.train import load_agent, train
from because_rl.training.saved import AGENT, FIELDS, WEIGHTS
from because_rl.transitions import Transitions
from benchmarks.fuzz import mutations as damage
from benchmarks.fuzz.configs import Case, Wrong
from benchmarks.fuzz.mutations import Rng, pick

# Logs and datasets --------------------------------------------------------------------------------------------------


def prepare_data(base: Path) -> None:
    """Write a log in three layouts and the Minari dataset made from it into `base`."""
    rng, episodes, length = stream(0, "fuzz", "data"), 24, 5
    n = episodes * length
    push = rng.normal(size=(n, 1)).astype(np.float32)
    now, after = np.zeros((n, 2), np.float32), np.zeros((n, 2), np.float32)
    for row in range(n):
        now[row] = after[row - 1] if row % length else (rng.normal(), 0)
        x = now[row, 0] + 0.3 * push[row, 0]
        after[row] = x, x > 0.5
    last = np.arange(n) % length == length - 1
    common = {"observations": now, "actions": push, "rewards": now[:, 0], "goals": np.ones((n, 1), np.float32)}
    ends = {"terminations": last & (after[:, 0] >= 1), "truncations": last & (after[:, 0] < 1)}
    with h5py.File(base / "flat.hdf5", "w") as file:
        for name, array in (common | ends | {"next_observations": after}).items():
            file[name] = array
        file["observations"].attrs["names"] = ["x", "on"]
        file["actions"].attrs["names"] = ["push"]
    with h5py.File(base / "ids.hdf5", "w") as file:
        for name, array in (common | {"episodes": np.repeat(np.arange(episodes), length)}).items():
            file[name] = array
    with h5py.File(base / "grouped.hdf5", "w") as file:
        for k in range(episodes):
            rows = slice(k * length, (k + 1) * length)
            group = file.create_group(f"episode_{k}")
            group["observations/state"] = np.concatenate([now[rows], after[rows][-1:]])
            group["observations/goal"] = np.ones((length + 1, 1), np.float32)
            for name in ("actions", "rewards"):
                group[name] = common[name][rows]
            for name, array in ends.items():
                group[name] = array[rows]
            group.attrs["total_steps"] = length
    columns: dict[str, Any] = {
        "x": now[:, 0],
        "on": now[:, 1],
        "push": push[:, 0],
        "run": np.repeat(np.arange(episodes), length),
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    write_text(base / "table.csv", "\n".join(lines) + "\n")
    np.savez(base / "table.npz", **columns)
    log = read_log(base / "flat.hdf5")
    write_dataset(prepare_log(log, _proposed(log)), base / "dataset")
    write_text(base / "sha256", _transitions_sha256(load(base / "dataset")))


def log_case(rng: Rng, base: Path, work: Path) -> Case:
    """A damaged log in one of the layouts, or a damaged table."""
    name = pick(rng, ("flat.hdf5", "ids.hdf5", "grouped.hdf5", "table.csv", "table.npz"))
    path = work / f"log{Path(name).suffix}"
    shutil.copy(base / name, path)
    what = _damage_table(rng, path) if name.startswith("table") else _damage_hdf5_file(rng, path)
    missing = pick(rng, ("", "drop-episode", "forward-fill", "indicator"))
    roles = Columns(("x", "on"), ("push",), (), "run", "", "", missing) if name.startswith("table") else None

    def read() -> str:
        log = read_log(path, columns=roles)
        adopted = prepare_log(log, _proposed(log))
        for episode in adopted.episodes:
            steps = len(episode["actions"])
            if not all(np.isfinite(array).all() for array in episode.values()):
                raise Wrong("a number is not finite")
            if len(episode["observations"]) != steps + 1 or any(
                len(episode[name]) != steps for name in ("rewards", "terminations", "truncations")
            ):
                raise Wrong("an episode's arrays do not fit together")
        return "accepted"

    return what, read


def dataset_case(rng: Rng, base: Path, work: Path) -> Case:
    """A damaged dataset, read as a dataset or as a user's log: both readers verify its checksums."""
    folder = work / "dataset"
    shutil.copytree(base / "dataset", folder)
    name = pick(rng, ("data/main_data.hdf5",) * 3 + ("data/metadata.json", "checksums.json"))
    what = _damage_file(rng, folder / name)
    if unprotected := rng.random() < 0.2:
        (folder / "checksums.json").unlink(missing_ok=True)
    reader = pick(rng, (load, read_log))
    gone = not (folder / "checksums.json").exists()

    def read() -> str:
        content = reader(folder)
        if isinstance(content, Log):
            same = content.sha256 == read_log(base / "dataset").sha256
        else:
            same = _transitions_sha256(content) == (base / "sha256").read_text()
        if not same and not gone:
            raise Wrong("other data than were written")
        return "accepted" if same else "unprotected"

    return f"{name}: {what}" + " (no checksums)" * unprotected, read


def _proposed(log: Log) -> FactorSpec:
    return add_action_codes(log, FactorSpec.from_dict(yaml.safe_load(propose_factors(log))))


def _transitions_sha256(data: Transitions) -> str:
    names = ("state", "action", "next_state", "goal", "reward", "terminated", "truncated", "episode", "step")
    return arrays_sha256({name: getattr(data, name) for name in names})


# Checkpoints -------------------------------------------------------------------------------------------


def prepare_arrays(base: Path) -> None:
    """Write a checkpoint of several arrays into `base`."""
    rng = stream(0, "fuzz", "arrays")
    arrays = {f"layer/{n}": rng.normal(size=(n, 3)).astype(np.float32) for n in range(1, 4)}
    write_arrays(base / "arrays.npz", arrays | {"step": np.array([7, 7]), "flag": np.array(True), "none": np.zeros(0)})


def arrays_case(rng: Rng, base: Path, work: Path) -> Case:
    """A checkpoint with damaged bytes, or a valid archive of other arrays."""
    path = work / "arrays.npz"
    if rng.random() < 0.7:
        what, data = damage.damage_bytes(rng, (base / "arrays.npz").read_bytes())
        path.write_bytes(data)
    else:  # a valid archive of other arrays with the old checksum
        with np.load(base / "arrays.npz") as file:
            arrays = {name: file[name] for name in file.files}
        name = pick(rng, sorted(arrays))
        what = pick(rng, ("lost", "renamed", "type", "shape", "value"))
        old = arrays.pop(name)
        if what == "renamed":
            arrays[name + "_"] = old
        elif what != "lost":
            kinds = {"type": old.astype(np.float16), "shape": old[None]}
            arrays[name] = kinds.get(what, old ^ True if old.dtype.kind in "bu" else old + 1)
        np.savez(path, **arrays)

    def read() -> str:
        if arrays_sha256(read_arrays(path)) != arrays_sha256(read_arrays(base / "arrays.npz")):
            raise Wrong("other arrays than were written")
        return "accepted"

    return what, read


def prepare_run(base: Path) -> None:
    """Train a tiny run into `base`."""
    prepare_data(base)
    tiny = {"steps": 4, "hidden": 4, "batch": 4}
    train("td3bc", base / "dataset", base, base / "run", [0, 1], tiny, chunk=4)


def run_case(rng: Rng, base: Path, work: Path) -> Case:
    """A run folder with a damaged run.json or checkpoint."""
    folder = work / "run"
    shutil.copytree(base / "run", folder)
    name = pick(rng, ("run.json", "td3bc.npz"))
    what = _damage_file(rng, folder / name)

    def read() -> str:
        load_agent(folder)
        damaged, intact = read_run(folder), read_run(base / "run")
        if arrays_sha256(read_arrays(folder / "td3bc.npz")) != arrays_sha256(read_arrays(base / "run" / "td3bc.npz")):
            raise Wrong("other weights than were written")
        if any(damaged[key] != intact[key] for key in IDENTITY):
            raise Wrong("another run than was written")
        return "accepted"

    return f"{name}: {what}", read


def agent_case(rng: Rng, base: Path, work: Path) -> Case:
    """A saved agent with a damaged description or damaged weights, with checksums to match for half of them."""
    folder = work / "agent"
    shutil.copytree(base / "run" / "agent", folder)
    name, record = pick(rng, (AGENT, WEIGHTS)), read_json(folder / AGENT)
    signed = rng.random() < 0.5
    if not signed:
        what = _damage_file(rng, folder / name)
    elif name == AGENT:
        what, record = damage.damage_tree(rng, record)
    else:
        arrays = safetensors.numpy.load((folder / WEIGHTS).read_bytes())
        what = pick(rng, ("lost", "renamed", "type", "shape", "nan", "huge"))
        _damage_weights(rng, arrays, what)
        (folder / WEIGHTS).write_bytes(safetensors.numpy.save(arrays))
    if signed:
        record["weights_sha256"] = sha256((folder / WEIGHTS).read_bytes())
        if {"format", *FIELDS} <= set(record):
            fields = {key: record[key] for key in ("format", *FIELDS, "weights_sha256")}
            record["sha256"] = sha256(json.dumps(fields, sort_keys=True).encode())
        (folder / AGENT).write_text(damage.as_json(record))

    def read() -> str:
        agent = load_saved_agent(folder)
        if not signed and read_json(folder / AGENT)["sha256"] != read_json(base / "run" / "agent" / AGENT)["sha256"]:
            raise Wrong("another agent than was written")
        actions = agent.act(np.zeros((2, agent.factors.state_size)), np.zeros((2, agent.factors.goal_size)))
        if not np.isfinite(actions).all():
            raise Wrong("an action that is not finite")
        return "unprotected" if signed else "accepted"

    return f"{name}: {what}{', signed' * signed}", read


def _damage_weights(rng: Rng, arrays: dict[str, np.ndarray], what: str) -> None:
    name = pick(rng, sorted(arrays))
    old = arrays.pop(name)
    if what == "renamed":
        arrays[pick(rng, damage.WORDS[1:4])] = old
    elif what == "type":
        arrays[name] = old.astype(pick(rng, ("f2", "f8", "i4", "u1", "?")))
    elif what == "shape":
        arrays[name] = pick(rng, (old[None], old.reshape(-1), old.reshape(-1)[:0], old[..., None]))
    elif what in ("nan", "huge"):
        arrays[name] = np.full_like(
            old, pick(rng, (np.nan, np.inf)) if what == "nan" and old.dtype.kind == "f" else 100
        )


# Damage ------------------------------------------------------------------------------------------------


def _damage_file(rng: Rng, path: Path) -> str:
    if rng.random() < 0.05:
        path.unlink()
        return "file lost"
    if path.suffix == ".hdf5":
        return _damage_hdf5_file(rng, path)
    if path.suffix == ".json" and rng.random() < 0.6:
        what, tree = damage.damage_tree(rng, read_json(path))
        path.write_text(damage.as_json(tree))
    else:
        what, data = damage.damage_bytes(rng, path.read_bytes())
        path.write_bytes(data)
    return what


def _damage_table(rng: Rng, path: Path) -> str:
    """Other cells, lines or bytes in a CSV file; other arrays or bytes in an archive."""
    if rng.random() < 0.3:
        what, data = damage.damage_bytes(rng, path.read_bytes())
        path.write_bytes(data)
        return what
    if path.suffix == ".csv":
        lines = path.read_text().splitlines()
        for _ in range(int(rng.integers(1, 4))):
            at = 0 if rng.random() < 0.3 else int(rng.integers(len(lines)))
            cells = lines[at].split(",")
            cells[int(rng.integers(len(cells)))] = str(
                pick(rng, (*damage.WORDS, *damage.NUMBERS, '"', ",", "1,2", "#"))
            )
            lines[at] = ",".join(cells)
        what, text = damage.damage_lines(rng, "\n".join(lines)) if rng.random() < 0.3 else ("cells", "\n".join(lines))
        path.write_text(text)
        return what
    with np.load(path) as file:
        arrays = dict(file)
    what = pick(rng, ("lost", "renamed", "type", "shape", "nan", "huge", "text"))
    name = pick(rng, sorted(arrays))
    if what == "text":
        arrays[name] = np.array([str(pick(rng, damage.WORDS)) for _ in arrays[name]])
    else:
        _damage_weights(rng, arrays, what)
    np.savez(path, **arrays)
    return what


def _damage_hdf5_file(rng: Rng, path: Path) -> str:
    if rng.random() < 0.4:
        what, data = damage.damage_bytes(rng, path.read_bytes())
        path.write_bytes(data)
        return what
    whats = []
    for _ in range(int(rng.integers(1, 3))):
        try:
            whats.append(damage.damage_hdf5(rng, path))
        except Exception as error:  # HDF5 may refuse a change after an earlier one
            whats.append(type(error).__name__)
    return ", ".join(whats)
