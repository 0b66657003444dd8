"""The settings that a dataset is collected with: world, behaviour, episodes, seed, spurious level, coverage."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from because_rl.datasets.paths import full_id, short_name
from because_rl.envs.behaviour import Behaviour
from because_rl.envs.spurious import check_level
from because_rl.envs.tasks import BEHAVIOURS, WORLDS
from because_rl.errors import BecauseError
from because_rl.io import sha256
from because_rl.rng import child_seed

FORMAT = 1
"""Version of the data that a recipe gives, to be increased with any change of them.

Unfinished chunks of another version are not reused.
"""


@dataclass(frozen=True)
class Recipe:
    """Settings of a dataset; the same recipe always gives the same id and the same data.

    For unlock only: `coverage` is the share of episodes that try the door first; with `visual`, observations are
    pictures, of the same episodes.

    >>> Recipe.parse("unlock-medium").id
    'because/unlock-medium-v1'
    >>> Recipe.parse("unlock-medium", seed=3, coverage=0.05).id
    'because/unlock-medium-q005-seed3-v1'
    >>> Recipe.parse("unlock-visual-medium").id
    'because/unlock-visual-medium-v0'
    """

    world: str
    behaviour: str
    episodes: int
    seed: int = 0
    spurious: int = 1
    coverage: float | None = None
    visual: bool = False

    def __post_init__(self) -> None:
        check_level(self.spurious)
        if self.episodes < 1:
            raise BecauseError(f"Got {self.episodes} episodes.", need="at least 1.", fix="pass --episodes 200.")
        if self.seed < 0:
            raise BecauseError(f"Got seed {self.seed}.", need="0 or more.", fix="pass --seed 0.")
        if self.coverage is not None and (self.world != "unlock" or not 0 <= self.coverage <= 1):
            raise BecauseError(
                f"Got coverage {self.coverage} for {self.world}.",
                need="a number in [0, 1], and only for unlock (the share of episodes that try the door first).",
                fix="leave --coverage out.",
            )
        if self.visual and (self.world != "unlock" or self.spurious != 1):
            raise BecauseError(
                f"Got pictures of {self.world} with spurious level {self.spurious}.",
                need="unlock, without spurious cues.",
                fix="take unlock-visual-{random,medium,expert}, and leave --spurious out.",
            )

    @classmethod
    def parse(cls, name: str, episodes: int | None = None, **settings: Any) -> Recipe:
        """From ``unlock-medium`` (or the id ``because/unlock-medium-v1``) and the other fields; `episodes` defaults to
        the world's."""
        world, *middle, behaviour = short_name(name).split("-")
        if middle not in ([], ["visual"]) or world not in WORLDS or behaviour not in BEHAVIOURS:
            raise BecauseError(
                f"There is no dataset recipe {name!r}.",
                need="{lift,unlock,crash,unlock-visual}-{random,medium,expert}, or 'all'.",
                fix="for example: because collect unlock-medium.",
            )
        if middle:
            settings = {**settings, "visual": True}
        return cls(world, behaviour, WORLDS[world].episodes if episodes is None else episodes, **settings)

    @property
    def id(self) -> str:
        """The dataset id. Every setting that is not the default adds a part, so the paper's nine have plain names."""
        parts = [self.world, *["visual"] * self.visual, self.behaviour]
        if self.spurious != 1:
            parts.append(f"x{self.spurious}")
        if self.coverage is not None:
            parts.append("q" + f"{self.coverage:g}".replace(".", ""))
        if self.episodes != WORLDS[self.world].episodes:
            parts.append(f"n{self.episodes}")
        if self.seed != 0:
            parts.append(f"seed{self.seed}")
        return full_id("-".join(parts))

    @property
    def key(self) -> str:
        """16 digits of a hash of all settings and of the format version: names the chunks of an unfinished dataset."""
        return sha256(json.dumps(self.to_dict() | {"format": FORMAT}, sort_keys=True).encode())[:16]

    def episode_seed(self, episode: int) -> int:
        """The seed of one episode, whatever the number of episodes: a longer dataset begins with the shorter one."""
        return child_seed(self.seed, "dataset", self.world, self.behaviour, episode)

    def make_behaviour(self) -> Behaviour:
        """A new instance of the behaviour policy."""
        module = importlib.import_module(f"because_rl.envs.{self.world}.behaviour")
        settings = {} if self.coverage is None else {"coverage": self.coverage}
        return getattr(module, f"{self.world.capitalize()}Behaviour")(self.behaviour, **settings)

    def to_dict(self) -> dict[str, Any]:
        """All settings; `visual` only where it is set, so that records of other datasets stay what they were."""
        return {name: value for name, value in asdict(self).items() if name != "visual" or value}


def all_recipes(**settings: Any) -> list[Recipe]:
    """The paper's nine datasets, cheap worlds first. `settings` replace fields of all of them, where not None."""
    names = [f"{world}-{behaviour}" for world in ("unlock", "crash", "lift") for behaviour in BEHAVIOURS]
    recipes = [Recipe.parse(name) for name in names]
    return [replace(r, **{k: v for k, v in settings.items() if v is not None}) for r in recipes]
