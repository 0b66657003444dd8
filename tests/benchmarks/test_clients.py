"""The benchmark of clients, without the clients."""

import pytest

from because_rl.errors import BecauseError
from benchmarks.clients import run


def test_missing_clients_are_named(monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "d3rlpy" else object())
    with pytest.raises(BecauseError, match=r"^d3rlpy cannot be imported.*benchmarks/clients/run.py"):
        run.clients()
