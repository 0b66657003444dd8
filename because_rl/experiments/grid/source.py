"""Which source decides a method's results: cells of other versions of it are other cells."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SHARED_SOURCE = (
    "envs",
    "datasets",
    "evaluation/rollout.py",
    "evaluation/one_step.py",
    "factors.py",
    "graph.py",
    "rng.py",
    "transitions.py",
)
"""Source that decides the results of every method, in addition to the method's own."""
LEARNING_PACKAGES = ("algorithms", "models", "planning", "training", "discovery")
VISION = "vision"
"""What decides results on pictures, in addition."""
PACKAGE = Path(__file__).resolve().parents[2]


@cache
def code_version(method: str | None = None, visual: bool = False) -> str:
    """A hash of the source that decides a method's results (None: those of all methods), on pictures if `visual`.

    Docs, commands, reports and other methods are left out.
    """
    from because_rl.algorithms.registry import METHODS

    if method is None:
        own = [file for folder in LEARNING_PACKAGES for file in (PACKAGE / folder).rglob("*.py")]
    else:
        imported = imported_files(METHODS[method].method.__module__)
        own = [file for file in imported if file.relative_to(PACKAGE).parts[0] in LEARNING_PACKAGES]
    for path in map(PACKAGE.joinpath, (*SHARED_SOURCE, *[VISION] * visual)):
        own += path.rglob("*.py") if path.is_dir() else [path]
    return hash_files(own)


def hash_files(files: Iterable[Path]) -> str:
    """A hash of the names and contents of files of this package."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def imported_files(module: str) -> set[Path]:
    """The source files of a module of this package and of all that it imports from the package, directly or not."""
    files, modules = set[Path](), [module]
    while modules:
        file = PACKAGE.joinpath(*modules.pop().split(".")[1:]).with_suffix(".py")
        if file in files or not file.is_file():
            continue
        files.add(file)
        modules += _imported_names(file.read_text("utf-8"))
    return files


@cache
def _imported_names(source: str) -> tuple[str, ...]:
    """What a source imports from this package: modules, and names in them, which may be modules too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}."):
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)
