"""Folders of datasets, runs and everything else that the package keeps."""

from __future__ import annotations

import os
import re
from pathlib import Path

from because_rl.errors import BecauseError


def home_folder(root: str | Path | None = None) -> Path:
    """The folder that holds datasets and runs: `root` if given, else ``$BECAUSE_HOME``, else ``~/.because-rl``."""
    # Absolute, since Minari reports a wrong size for a dataset at a relative path.
    return Path(root or os.environ.get("BECAUSE_HOME") or Path.home() / ".because-rl").expanduser().absolute()


def dataset_path(dataset_id: str, root: str | Path | None = None) -> Path:
    """The folder of a dataset. With ``MINARI_DATASETS_PATH=<root>/datasets`` Minari finds it by the same id."""
    if not re.fullmatch(r"[\w-]+(/[\w-]+)*", dataset_id):
        raise BecauseError(
            f"Got the dataset id {dataset_id!r}.",
            need="letters, digits, '_' and '-', with '/' between namespace and name.",
            fix="for example because/unlock-medium-v0.",
        )
    return home_folder(root) / "datasets" / dataset_id


def list_datasets(root: str | Path | None = None) -> list[str]:
    """Ids of all datasets under `root`, sorted; hidden folders, which are unfinished datasets, are left out."""
    base = home_folder(root) / "datasets"
    ids = []
    for metadata in base.rglob("data/metadata.json"):
        name = metadata.parent.parent.relative_to(base)
        if not any(part.startswith(".") for part in name.parts):
            ids.append(name.as_posix())
    return sorted(ids)
