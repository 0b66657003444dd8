"""The small training of these tests: everything that decides its compiled program is the same for all of them."""

DATA = "because/unlock-medium-n20-v1"
OTHER_DATA = "because/unlock-medium-n20-seed1-v1"
SETTINGS = {"steps": 50, "hidden": 8, "batch": 16}
SMALL = {"seeds": [0, 1], "overrides": SETTINGS, "chunk": 10}
"""Keyword arguments of `train`."""
