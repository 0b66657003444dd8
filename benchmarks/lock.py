"""Rewrite the hashes of ``requirements.lock``: ``make lock``, after a pin has been changed.

Each pin gets the SHA-256 of every file of that version that Linux can install, on x86-64 and ARM, with Python 3.11 to
3.13: wheels, and the source where a wheel is missing. The index is the one that pip is configured with.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.io import read_text, write_text

PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.+!]+)")
WHEEL = re.compile(r"-(?:[\w.]*py3[\w.]*-none|cp31[123]-(?:none|cp31[123])|cp3\d+-abi3)-(?:any|\S*linux\S*)\.whl$")
MACHINES = ("x86_64", "aarch64", "any.whl")


def hashed(lock: str, files_of: Callable[[str], Iterable[tuple[str, str]]]) -> str:
    """The text of a lock with new hashes; `files_of(name)` yields (file name, SHA-256) of all versions of a package."""
    lines = []
    for line in lock.splitlines():
        if pin := PIN.match(line):
            hashes = {digest for file, digest in files_of(pin["name"]) if _fits(file, pin["name"], pin["version"])}
            if not hashes:
                raise BecauseError(
                    f"The index has no file of {pin[0]}.", need="a version that it has.", fix="correct the pin."
                )
            line = " ".join([pin[0], *(f"--hash=sha256:{digest}" for digest in sorted(hashes))])
        lines.append(line)
    return "\n".join(lines) + "\n"


def _fits(file: str, name: str, version: str) -> bool:
    if not re.match(rf"{re.sub('[-_.]+', '[-_.]+', name)}-{re.escape(version)}(-|\.tar\.gz$|\.zip$)", file, re.I):
        return False
    return not file.endswith(".whl") or bool(WHEEL.search(file) and any(machine in file for machine in MACHINES))


@contextlib.contextmanager
def index_files() -> Iterator[Callable[[str], Iterable[tuple[str, str]]]]:
    """Yields `files_of` for the index of pip's own settings (address, certificates), which only its insides know."""
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links
    from pip._internal.models.link import Link

    command: Any = create_command("download")
    options, _ = command.parse_args([])

    def files_of(name: str) -> Iterable[tuple[str, str]]:
        page = re.sub("[-_.]+", "-", name).lower()
        content = collector.fetch_response(Link(f"{options.index_url.rstrip('/')}/{page}/"))
        links = parse_links(content) if content else ()
        return [(link.filename, str(link.hash)) for link in links if link.hash_name == "sha256" and not link.is_yanked]

    with command.main_context():
        collector = command._build_package_finder(options, command.get_default_session(options))._link_collector
        yield files_of


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "requirements.lock"
    with index_files() as files_of:
        write_text(file, hashed(read_text(file), files_of))
