"""A training run on disk (or in memory): what it has computed is kept, and a later run goes on from there.

`cached` keeps arrays that cost much and are computed once (a mask); `fit` keeps the state of a stage of training after
every chunk. Files are written atomically and carry checksums, so a killed process loses at most
one chunk, and what follows is the same to the bit as if it had not been killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import arrays_sha256, in_turn, read_arrays, sha256, write_arrays
from because_rl.training.stage import Batch, Progress, Stage, StreamedRows, fit, hoist, skeleton, start

Report = Callable[[str, int, int, dict[str, float]], None]
"""(stage, steps done, steps in all, mean metrics); of a mask, the targets, and no metrics"""

HISTORY = "history/"


def as_run(seeds: Seeds) -> Run:
    """The run itself, or a new one in memory of so many seeds, or of these.

    >>> as_run(3).seeds, as_run([7]).seeds
    ((0, 1, 2), (7,))
    """
    if isinstance(seeds, Run):
        return seeds
    return Run(range(seeds) if isinstance(seeds, int) else seeds, report=_show_progress)


def _show_progress(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
    """One line on a terminal that is written over; nothing where stderr is a file."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        loss = f"steps, loss {metrics['loss']:.4g}" if "loss" in metrics else ""
        print(f"\r{stage}: {done} of {total} {loss}   ", end=end, file=sys.stderr, flush=True)


class Run:
    def __init__(
        self,
        seeds: Sequence[int],
        folder: Path | None = None,
        report: Report = lambda stage, done, total, metrics: None,
        chunk: int = 500,
        shared: Path | None = None,
        rounds: int = 1,
    ):
        """A training of `seeds`, all as one program.

        `folder`: where stages are kept; None: in memory. `report` is called after every `chunk` of steps. `shared`: a
        folder in which runs on the same data share masks and stages. With several `rounds` a method is fitted that
        many times, with `round` = 1, 2, ...: each time every stage goes on for its share of steps, on what the stages
        before it have become.
        """
        if rounds < 1 or (rounds > 1 and folder is None):
            raise BecauseError(f"Got {rounds} rounds.", need="at least 1, and a folder for more.", fix="name a folder.")
        if len(set(seeds)) != len(seeds) or not seeds:
            raise BecauseError(f"Got seeds {list(seeds)}.", need="at least one, all different.", fix="pass --seeds 10.")
        self.seeds, self.folder, self.report, self.chunk = tuple(seeds), folder, report, chunk
        self.shared, self.rounds, self.round = shared, rounds, rounds
        self.history: dict[str, dict[str, np.ndarray]] = {}
        """stage -> metric -> (chunks, seeds)"""

    def cached(
        self, name: str, compute: Callable[[], Mapping[str, np.ndarray]], cache_key: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Arrays by name: from the folder if they are there, else computed and kept.

        `cache_key` holds all that decides them, in plain data: runs with the same key share them in the shared folder,
        and one of several processes computes them while the others wait.
        """
        if (known := self._read(name)) is not None:
            return known
        shared = self._shared_file(name, cache_key)
        with nullcontext() if shared is None else in_turn(shared.with_suffix(".lock")):
            if shared is not None and shared.exists():
                arrays = read_arrays(shared)
            else:
                arrays = {key: np.asarray(value) for key, value in compute().items()}
                if shared is not None:
                    write_arrays(shared, arrays)
        if self.folder is not None:
            write_arrays(self._file(name), arrays)
        return arrays

    def fit(self, stage: Stage, data: Batch, fixed: Any) -> Any:
        """Train a stage to its end, or to the end of the round.

        `data`: arrays with a leading axis of rows. `fixed`: what the loss needs and training does not change, with a
        leading axis of seeds. Returns the stage's model, every array with a leading axis of seeds. A stage with
        `settings` is trained once for all runs that share a folder and agree in everything that decides it.
        """
        shared = self._shared_file(stage.name, self._cache_key(stage, data, fixed))
        known = self._read(stage.name)
        if known is None and shared is not None and shared.exists():
            known = read_arrays(shared)
            if self.folder is not None:
                write_arrays(self._file(stage.name), known)
        history: dict[str, list[np.ndarray]] = {}
        progress = None
        if known is not None:
            progress = unflatten(jax.eval_shape(lambda: start(stage, fixed, self.seeds)), known, stage.name)
            history = {k.removeprefix(HISTORY): list(v) for k, v in known.items() if k.startswith(HISTORY)}

        def after(stage: Stage, progress: Progress, metrics: dict[str, np.ndarray]) -> None:
            done = int(progress.step[0])
            for name, value in (metrics | {"step": np.full(len(self.seeds), done)}).items():
                history.setdefault(name, []).append(value)
            if self.folder is not None:
                past = {HISTORY + name: np.stack(values) for name, values in history.items()}
                write_arrays(self._file(stage.name), flatten(progress) | past)
            self.report(stage.name, done, stage.steps, {k: float(v.mean()) for k, v in metrics.items()})

        chunks = -(-stage.steps * self.round // (self.rounds * self.chunk))  # whole ones: another length compiles anew
        until = min(stage.steps, chunks * self.chunk)
        progress = fit(stage, data, fixed, self.seeds, progress, until=until, chunk=self.chunk, report=after)
        self.history[stage.name] = {name: np.stack(values) for name, values in history.items()}
        if shared is not None and not shared.exists():
            past = {HISTORY + name: values for name, values in self.history[stage.name].items()}
            write_arrays(shared, flatten(progress) | past)
        return eqx.combine(progress.params, skeleton(stage, fixed))

    def _shared_file(self, name: str, cache_key: Mapping[str, Any] | None) -> Path | None:
        """Where runs that share a folder keep what `cache_key` decides; None: it is not shared."""
        if self.shared is None or cache_key is None:
            return None
        return self.shared / f"{name}-{sha256(json.dumps(cache_key, sort_keys=True).encode())[:16]}.npz"

    def _cache_key(self, stage: Stage, data: Batch, fixed: Any) -> dict[str, Any] | None:
        """All that decides a trained stage, in plain data; None where the stage cannot be shared.

        With several rounds a stage depends on what the others were in earlier ones; streamed rows are not all read.
        """
        if stage.settings is None or self.rounds > 1 or isinstance(data, StreamedRows):
            return None
        inside, _ = hoist(stage.loss)
        arrays = flatten({"data": dict(data), "fixed": eqx.filter(fixed, eqx.is_array), "loss": inside})
        descent = {name: getattr(stage, name) for name in ("steps", "batch", "rate", "decay")}
        run = {"seeds": list(self.seeds), "chunk": self.chunk, "arrays": arrays_sha256(arrays)}
        return dict(stage.settings) | descent | run

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.npz"

    def _read(self, name: str) -> dict[str, np.ndarray] | None:
        if self.folder is None or not self._file(name).exists():
            return None
        return read_arrays(self._file(name))


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their place in it."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, _is_array))[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def unflatten(like: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    """The arrays of `flatten` in the structure of `like`, whose shapes and types they must have."""

    def place(path: Any, leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        key = jax.tree_util.keystr(path)
        check_saved(arrays, key, leaf.shape, leaf.dtype, name)
        return jax.numpy.asarray(arrays[key], leaf.dtype)

    return jax.tree_util.tree_map_with_path(place, like)


def check_saved(
    arrays: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...], dtype: Any = np.float32, name: str = "agent"
) -> None:
    """Refuse saved arrays in which `key` is missing, or has another shape or a type that is not like `dtype`."""
    if key not in arrays or arrays[key].shape != shape or not np.can_cast(arrays[key].dtype, dtype, "same_kind"):
        got = f"{arrays[key].dtype} {arrays[key].shape}" if key in arrays else "nothing"
        raise BecauseError(
            f"What was saved of '{name}' has {got} at {key}.",
            need=f"an array of shape {shape}: the same method, config, data and seeds.",
            fix="train into a new folder, or remove this one.",
        )


def untrained_of_seeds(untrained: Callable[[jax.Array], Any], seeds: int) -> Any:
    """The structure of parameters with a leading axis of seeds: shapes in place of arrays."""
    one = eqx.filter_eval_shape(untrained, jax.random.key(0))
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        ),
        one,
    )


Seeds = int | Sequence[int] | Run
"""How many seeds to train, or which, or a run that keeps what they come to."""
