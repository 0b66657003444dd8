"""The one error that this package raises for what a user gave it."""

from __future__ import annotations


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
