"""A training run on disk (or in memory): what it has computed is kept, and a later run goes on from there.

`remember` keeps arrays that cost much and are computed once (a mask); `fit` keeps the state of a stage of
training after every chunk. Files are written atomically and carry checksums, so a killed process loses at most
one chunk, and what follows is the same to the bit as if it had not been killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import arrays_sha256, read_arrays, sha256, write_arrays
from because_rl.training.stage import Batch, Progress, Stage, fit, hoist, skeleton, start

Report = Callable[[str, int, int, dict[str, float]], None]
"""(stage, steps done, steps in all, mean metrics)"""

HISTORY = "history/"


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
        """`shared`: a folder where runs on the same data leave each other what they all need.

        With several `rounds` a method is fitted as often, `round` being 1, 2, ...: each time every stage goes on for
        its share of steps, on what the stages before it have become.
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
        self, name: str, compute: Callable[[], Mapping[str, np.ndarray]], of: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Arrays by name: from the folder if they are there, else computed and kept.

        `of` says all that decides them, in plain data: then a run with the same leaves them in the shared folder.
        """
        if (known := self._read(name)) is not None:
            return known
        common = self._common(name, of)
        if common is not None and common.exists():
            arrays = read_arrays(common)
        else:
            arrays = {key: np.asarray(value) for key, value in compute().items()}
            if common is not None:
                write_arrays(common, arrays)
        if self.folder is not None:
            write_arrays(self._file(name), arrays)
        return arrays

    def fit(self, stage: Stage, data: Batch, fixed: Any, of: Mapping[str, Any] | None = None) -> Any:
        """Train a stage to its end, or the round's; returns its model, every array with a leading axis of seeds.

        `fixed` holds what the loss needs and training does not change, with a leading axis of seeds. `of` says in
        plain data what decides the stage beside all these arrays: then it is trained once for all runs that share
        a folder, and methods that differ elsewhere have it in common.
        """
        if self.rounds > 1:  # what a stage has come to depends on what others were in earlier rounds
            of = None
        common = self._common(stage.name, None if of is None else dict(of) | self._decides(stage, data, fixed))
        known = self._read(stage.name)
        if known is None and common is not None and common.exists():
            known = read_arrays(common)
            if self.folder is not None:
                write_arrays(self._file(stage.name), known)
        history: dict[str, list[np.ndarray]] = {}
        progress = None
        if known is not None:
            progress = _unflatten(jax.eval_shape(lambda: start(stage, fixed, self.seeds)), known, stage.name)
            history = {k.removeprefix(HISTORY): list(v) for k, v in known.items() if k.startswith(HISTORY)}

        def after(stage: Stage, progress: Progress, metrics: dict[str, np.ndarray]) -> None:
            done = int(progress.step[0])
            for name, value in (metrics | {"step": np.full(len(self.seeds), done)}).items():
                history.setdefault(name, []).append(value)
            if self.folder is not None:
                past = {HISTORY + name: np.stack(values) for name, values in history.items()}
                write_arrays(self._file(stage.name), _flatten(progress) | past)
            self.report(stage.name, done, stage.steps, {k: float(v.mean()) for k, v in metrics.items()})

        chunks = -(-stage.steps * self.round // (self.rounds * self.chunk))  # whole ones: another length compiles anew
        until = min(stage.steps, chunks * self.chunk)
        progress = fit(stage, data, fixed, self.seeds, progress, until=until, chunk=self.chunk, report=after)
        self.history[stage.name] = {name: np.stack(values) for name, values in history.items()}
        if common is not None and not common.exists():
            past = {HISTORY + name: values for name, values in self.history[stage.name].items()}
            write_arrays(common, _flatten(progress) | past)
        return eqx.combine(progress.params, skeleton(stage, fixed))

    def _common(self, name: str, of: Mapping[str, Any] | None) -> Path | None:
        """Where runs that share a folder keep what `of` decides."""
        if self.shared is None or of is None:
            return None
        return self.shared / f"{name}-{sha256(json.dumps(of, sort_keys=True).encode())[:16]}.npz"

    def _decides(self, stage: Stage, data: Batch, fixed: Any) -> dict[str, Any]:
        inside, _ = hoist(stage.loss)
        arrays = _flatten({"data": dict(data), "fixed": eqx.filter(fixed, eqx.is_array), "loss": inside})
        settings = {name: getattr(stage, name) for name in ("steps", "batch", "rate", "decay")}
        return settings | {"seeds": list(self.seeds), "chunk": self.chunk, "arrays": arrays_sha256(arrays)}

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.npz"

    def _read(self, name: str) -> dict[str, np.ndarray] | None:
        if self.folder is None or not self._file(name).exists():
            return None
        return read_arrays(self._file(name))


def _flatten(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _unflatten(like: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    """The arrays in the shape of `like`, which must fit exactly."""

    def place(path: Any, leaf: Any) -> jax.Array:
        key = jax.tree_util.keystr(path)
        if key not in arrays or arrays[key].shape != leaf.shape:
            got = arrays[key].shape if key in arrays else "nothing"
            raise BecauseError(
                f"The saved stage '{name}' has {got} at {key}.",
                need=f"an array of shape {leaf.shape}: the same method, config, data and seeds.",
                fix="train into a new folder, or remove this one.",
            )
        return jax.numpy.asarray(arrays[key])

    return jax.tree_util.tree_map_with_path(place, like)
