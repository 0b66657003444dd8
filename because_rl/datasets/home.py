"""Where datasets and runs live, and where in there a dataset is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from because_rl.errors import BecauseError


def home(root: str | Path | None = None) -> Path:
    """`root` if given, else ``$BECAUSE_HOME``, else ``~/.because-rl``."""
    # Absolute, since Minari misreads the size of a dataset at a relative path.
    return Path(root or os.environ.get("BECAUSE_HOME") or Path.home() / ".because-rl").expanduser().absolute()


def dataset_path(dataset_id: str, root: str | Path | None = None) -> Path:
    """The folder of a dataset; ``MINARI_DATASETS_PATH=<root>/datasets`` shows them to Minari too."""
    if not re.fullmatch(r"[\w-]+(/[\w-]+)*", dataset_id):
        raise BecauseError(
            f"Got the dataset id {dataset_id!r}.",
            need="letters, digits, '_' and '-', with '/' between namespace and name.",
            fix="for example because/unlock-medium-v0.",
        )
    return home(root) / "datasets" / dataset_id


def list_datasets(root: str | Path | None = None) -> list[str]:
    """Ids of all datasets under `root`, sorted; hidden folders are unfinished work."""
    base = home(root) / "datasets"
    found = []
    for metadata in base.rglob("data/metadata.json"):
        name = metadata.parent.parent.relative_to(base)
        if not any(part.startswith(".") for part in name.parts):
            found.append(name.as_posix())
    return sorted(found)
