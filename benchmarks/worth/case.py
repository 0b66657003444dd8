"""What a calibration of worth draws from a world: a log, and policies whose worth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from because_rl.evaluation.worth.estimate import QModel, WorldModel
from because_rl.evaluation.worth.log import LoggedEpisodes, Policy


class Case(NamedTuple):
    """A log, a way to fit Q to it, the policies to appraise, and what a world model says of them."""

    log: LoggedEpisodes
    model: QModel
    policies: Sequence[Policy]
    world_models: Mapping[str, WorldModel]


class Source(Protocol):
    """A world with policies."""

    truth: dict[str, float]
    """the worth of the behaviour and of the policies"""

    def draw(self, seed: int) -> Case: ...
