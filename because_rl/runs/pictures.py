"""Data of any kind for a run: columns as they were logged, or read from pictures by an encoder that is trained once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from because_rl.datasets.columns import Columns
from because_rl.datasets.load import load
from because_rl.datasets.paths import home_folder
from because_rl.datasets.pictures import Pictures, holds_pictures, load_pictures
from because_rl.datasets.user_log import Log, check_episode_count
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import exclusive, pack_json, read_arrays, remove_folder, remove_leftovers, unpack_json, write_arrays
from because_rl.training.run import Report, Run
from because_rl.transitions import Transitions
from because_rl.vision.encoder import FORMAT, STEPS, PictureEncoder, check_size, fit_encoder

DESCRIPTION = "description"


def load_encoded(
    dataset: Any,
    root: str | Path | None = None,
    factors: FactorSpec | str | Path | None = None,
    report: Report = lambda stage, done, total, metrics: None,
    **roles: Any,
) -> tuple[Transitions, PictureEncoder | None]:
    """What `load` returns, and None; of pictures what an encoder reads from them, and the encoder.

    The encoder of a log is trained when it is first needed, and kept under the root.
    """
    if not holds_pictures(dataset, root):
        return load(dataset, root, factors, **roles), None
    if factors is not None and not isinstance(factors, FactorSpec):
        raise _learned(dataset, "--factors")
    named = {name: roles[name] for name in ("state", "action", "episode", "time", "reward", "missing") if name in roles}
    pictures = load_pictures(dataset, root, Columns(**named))
    encoder = trained_encoder(pictures, root, report)
    return encoder.transitions(pictures), encoder


def read_picture_log(
    dataset: str | Path,
    root: str | Path | None = None,
    columns: Columns | None = None,
    given: Sequence[str] = (),
    report: Report = lambda stage, done, total, metrics: None,
) -> tuple[Log, Pictures, PictureEncoder]:
    """A user's log of pictures, as `read_log` returns a log of columns: in the columns that an encoder reads from them.

    Args:
        dataset: of which `holds_pictures` is true.
        root: where ids are looked up, and the encoder is kept.
        columns: the roles of the columns of a table of pictures.
        given: options that the user gave for what is learned, which are refused.
        report: of the training of the encoder.

    Returns:
        The log with the goal that the logged ends show, the pictures, and the encoder.
    """
    if given:
        raise _learned(dataset, given[0])
    pictures = load_pictures(dataset, root, columns)
    notes = tuple(pictures.metadata.get("notes", ()))
    check_episode_count(pictures.name, int(pictures.episode[-1]) + 1, notes)
    encoder = trained_encoder(pictures, root, report)
    log = Log(pictures.name.rpartition("/")[2], encoder.episodes(pictures), {}, encoder.factors, notes)
    return log, pictures, encoder


def _learned(dataset: str | Path, option: str) -> BecauseError:
    return BecauseError(
        f"{dataset} holds pictures, and {option} was given.",
        need="neither factors nor a goal: both are read from the pictures.",
        fix=f"leave {option} out.",
    )


def trained_encoder(
    pictures: Pictures,
    root: str | Path | None = None,
    report: Report = lambda stage, done, total, metrics: None,
    steps: int = STEPS,
) -> PictureEncoder:
    """The encoder of a log of pictures: kept under the root, or trained and kept. Continues where it was stopped."""
    check_size(pictures)
    folder = home_folder(root) / "encoders"
    name = f"{pictures.sha256()[:16]}-{FORMAT}-{steps}"
    file, unfinished = folder / f"{name}.npz", folder / f"{name}.unfinished"
    while not file.exists():
        try:
            with exclusive(folder / f".{name}.lock", f"training the encoder of {pictures.name}"):
                encoder = fit_encoder(pictures, Run([0], unfinished, report, chunk=100), steps)
                write_arrays(file, encoder.arrays() | {DESCRIPTION: pack_json(encoder.description())})
                remove_folder(unfinished)
                remove_leftovers(folder)
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            time.sleep(1)
    arrays = read_arrays(file)
    return PictureEncoder.restore(unpack_json(arrays.pop(DESCRIPTION)), pictures.factors, arrays)
