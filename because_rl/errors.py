"""The one error that this package raises for what a user gave it, and the check of all names that users choose."""

from __future__ import annotations

import re
import unicodedata

MAX_NAME = 200


class BecauseError(Exception):
    """Something the user gave us cannot be used.

    The message is one paragraph in three parts: what we got, what we need, how to fix it.

    >>> str(BecauseError("Got split='X'.", need="'I' or 'O'.", fix="Pass split='I'."))
    "Got split='X'. Needed: 'I' or 'O'. Fix: Pass split='I'."
    """

    def __init__(self, got: str, *, need: str, fix: str):
        self.got, self.need, self.fix = got, need, fix
        super().__init__(f"{got} Needed: {need} Fix: {fix}")

    def __reduce__(self):
        # Pickled when it is raised in a worker process; the default would call __init__ without the keywords.
        return (_rebuild, (type(self), self.got, self.need, self.fix))


def _rebuild(cls: type[BecauseError], got: str, need: str, fix: str) -> BecauseError:
    return cls(got, need=need, fix=fix)


def check_name(name: str, what: str, fix: str = "choose another name.") -> None:
    """Refuse a name that cannot be printed as it is.

    Such a name has control characters, unpaired surrogates, marks that change the direction of the text around it, code
    points that are no characters, or more than `MAX_NAME` characters.
    """
    unprintable = any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)
    if unprintable or re.search("[\u202a-\u202e\u2066-\u2069\ufffe\uffff]", name) or not 0 < len(name) <= MAX_NAME:
        shown = ascii(name) if len(name) <= MAX_NAME else ascii(name[:40]) + "..."
        raise BecauseError(f"{what} is {shown}.", need=f"1 to {MAX_NAME} printable characters.", fix=fix)
