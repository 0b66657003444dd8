"""Does a world model predict as well with the mask that is discovered as with all inputs?

Logs of systems with known equations are fitted twice by `because fit`, with the mask that it discovers and with
`mask=full`; both are judged by their held-out accuracy of every factor. A log is a file of its own, so an interrupted
run goes on where it stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import h5py
import numpy as np

from because_rl.io import read_json, write_json
from because_rl.provenance import provenance, revision
from because_rl.rng import stream
from because_rl.runs.fit import SETTINGS, fit
from because_rl.transitions import Transitions
from benchmarks.discovery.recovery import make_system, parse_size

SYSTEMS = ("pendulum", "acrobot")
SIZES = ("30x200", "50x200")
"""Episodes x rows of each; 200 are the steps of an episode of Gymnasium's Pendulum."""
MASKS = ("discovered", "full")
MOST_LOSS = 0.02
"""Of R^2 (or of the share of steps that are predicted correctly), that counts as predicting as well."""
UNTRAINED = {"energy_steps": 0}
"""Settings that leave out what held-out accuracy does not depend on."""

Report = Callable[[int, int], None]


class LogName(NamedTuple):
    """What one file is about."""

    system: str
    behaviour: str
    size: str
    seed: int


def compare_masks(
    systems: Sequence[str],
    behaviours: Sequence[str],
    sizes: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    training_seeds: int = 3,
    settings: dict[str, Any] | None = None,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Held-out accuracy of every factor with both masks.

    Args:
        systems: names that `make_system` knows.
        behaviours: of `systems.BEHAVIOURS`.
        sizes: as `parse_size` reads them.
        seeds: of the logs; the rows are those of the benchmark `systems`.
        folder: where results are kept, a file per log.
        training_seeds: world models of each fit, over which accuracy is averaged.
        settings: of BECAUSE, beside those of `because fit`.
        report: called with (logs done, logs in all).

    Returns:
        JSON-ready: "rows", one per log and factor, "largest_loss", "within" (whether no factor loses more than
        `MOST_LOSS`), "provenance".
    """
    choices = [LogName(*choice) for choice in itertools.product(systems, behaviours, sizes, seeds)]
    rows: list[dict[str, Any]] = []
    for done, name in enumerate(choices, 1):
        path = Path(folder) / f"{name.system}--{name.behaviour}--{name.size}--seed{name.seed}.json"
        if not path.exists():
            write_json(path, compare_on_log(name, training_seeds, settings or {}))
        kept = read_json(path)
        rows += [row | {"revision": kept["revision"]} for row in kept["rows"]]
        report(done, len(choices))
    largest = max(row["loss"] for row in rows)
    config = {"systems": list(systems), "behaviours": list(behaviours), "sizes": list(sizes), "seeds": list(seeds)}
    config |= {
        "training_seeds": training_seeds,
        "settings": SETTINGS | UNTRAINED | (settings or {}),
        "most_loss": MOST_LOSS,
    }
    return {
        "rows": rows,
        "largest_loss": largest,
        "within": bool(largest <= MOST_LOSS),
        "provenance": provenance(**config),
    }


def compare_on_log(name: LogName, training_seeds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Both fits of one log: "rows", one per factor that changes, and "revision"."""
    system = make_system(name.system)
    rng = stream(name.seed, "system", *name[:3])
    data = system.transitions(rng, name.behaviour, *parse_size(name.size))
    with TemporaryDirectory() as scratch:
        log, spec = Path(scratch) / "log.hdf5", Path(scratch) / "factors.json"
        write_log(log, data)
        write_json(spec, system.factors.to_dict())
        fits = {
            mask: fit(
                log, spec, Path(scratch) / mask, None, range(training_seeds), UNTRAINED | settings | {"mask": mask}
            )
            for mask in MASKS
        }
    accuracy = {mask: {row["factor"]: row for row in fits[mask]["accuracy"]} for mask in MASKS}
    rows = []
    for factor, row in accuracy["discovered"].items():
        if row["value"] is None:  # never changes
            continue
        values = {mask: accuracy[mask][factor]["value"] for mask in MASKS}
        rows.append(
            {**name._asdict(), "factor": factor, "measure": row["measure"], **values}
            | {f"{mask}_per_seed": accuracy[mask][factor]["per_seed"] for mask in MASKS}
            | {"loss": values["full"] - values["discovered"], "causes": fits["discovered"]["graph"][factor]}
            | {"true_causes": list(system.graph.parents(factor))}
        )
    return {"rows": rows, "revision": revision()}


def write_log(path: Path, data: Transitions) -> None:
    """Write transitions as a user's log (HDF5)."""
    with h5py.File(path, "w") as file:
        for key, values in {
            "observations": data.state,
            "actions": data.action,
            "next_observations": data.next_state,
            "episodes": np.asarray(data.episode),
        }.items():
            file[key] = values
