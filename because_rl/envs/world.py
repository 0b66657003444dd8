"""Base class of the three worlds: a Gymnasium environment on a real simulator, with named factors.

A world is deterministic: ``reset(seed=s)`` fixes the scene and every hidden variable of the episode. The
hidden confounders are in ``info`` for analysis and never in the observation.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from because_rl.envs import spurious as spurious_channels
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.graph import Graph

Hidden = dict[str, Any]


ROBOSUITE = "pip install --no-deps robosuite==1.5.2 (its own pins exclude NumPy 2)"


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """While importing a simulator: say which extra of because-rl, named like its world, installs what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        then = f", then {ROBOSUITE}" if extra == "lift" else ""
        raise BecauseError(
            f"Module {error.name!r} is not installed.",
            need=f"the simulator of {extra}.",
            fix=f"pip install 'because-rl[{extra}]'{then}.",
        ) from error


class World(gym.Env):
    """One goal-conditioned world; `split` is its distribution of scenes, `spurious` the number of spurious channels.

    Observation: ``{"state": (state_size,), "goal": (goal_size,)}``, float32. Reward: 1 on the step
    that reaches the goal, which ends the episode, else 0. After `horizon` steps it is truncated.
    """

    metadata = {  # noqa: RUF012  (Gymnasium declares it as an instance variable)
        "render_modes": ["rgb_array"],
        "render_fps": 4,
    }
    name: ClassVar[str]
    horizon: ClassVar[int]
    splits: ClassVar[tuple[str, ...]] = ("I", "O")

    def __init__(self, split: str = "I", spurious: int = 1, render_mode: str | None = None):
        if split not in self.splits:
            raise BecauseError(
                f"Got split={split!r} for {self.name}.",
                need=f"one of {', '.join(self.splits)}.",
                fix="pass split='I' (training distribution) or split='O' (shifted distribution).",
            )
        if render_mode not in (None, "rgb_array"):
            raise BecauseError(
                f"Got render_mode={render_mode!r}.", need="None or 'rgb_array'.", fix="pass render_mode='rgb_array'."
            )
        self.split, self.spurious, self.render_mode = split, spurious_channels.check_level(spurious), render_mode
        self.factors = self.make_factors(spurious)
        low, high = self.state_bounds(spurious)
        goal_low, goal_high = self.goal_bounds()
        self.observation_space = spaces.Dict(
            {
                "goal": spaces.Box(np.float32(goal_low), np.float32(goal_high), dtype=np.float32),
                "state": spaces.Box(np.float32(low), np.float32(high), dtype=np.float32),
            }
        )
        self.action_space = self.make_action_space()
        self._steps: int | None = None

    # Implemented by each world -------------------------------------------------------------------
    @classmethod
    @abstractmethod
    def make_factors(cls, spurious: int) -> FactorSpec:
        """The columns of state, action and goal, grouped into named factors."""

    @classmethod
    @abstractmethod
    def state_bounds(cls, spurious: int) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest value of each state column, each (state_size,)."""

    @classmethod
    @abstractmethod
    def goal_bounds(cls) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest value of each goal column, each (goal_size,)."""

    @classmethod
    @abstractmethod
    def make_action_space(cls) -> spaces.Space: ...

    @classmethod
    @abstractmethod
    def make_true_graph(cls, spurious: int) -> Graph:
        """Edges from state and action factors to next-state factors."""

    def true_graph(self) -> Graph:
        """The causal graph of one step; tests verify it by interventions in the simulator."""
        return self.make_true_graph(self.spurious)

    @abstractmethod
    def _place(self, seed: int) -> None:
        """Draw the scene of this seed and set the simulator to it."""

    @abstractmethod
    def _advance(self, columns: np.ndarray) -> None:
        """Step the simulator once with encoded action columns (action_size,)."""

    @abstractmethod
    def exact_state(self) -> np.ndarray:
        """The simulator's state, (state_size,) float64."""

    @abstractmethod
    def exact_goal(self) -> np.ndarray:
        """The goal of this episode, (goal_size,) float64."""

    @abstractmethod
    def hidden(self) -> Hidden:
        """The hidden confounders ``u_c`` and ``u_pi`` of this episode, and other hidden variables for analysis."""

    # For interventions and planning with the simulator -------------------------------------------
    @abstractmethod
    def snapshot(self) -> Any:
        """Everything that `restore` needs to return to this moment."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None: ...

    @abstractmethod
    def intervene(self, factor: str, value: np.ndarray) -> None:
        """do(factor = value): set one state factor in the simulator and leave the others unchanged."""

    @abstractmethod
    def picture(self) -> np.ndarray:
        """An image of the current scene, (height, width, 3) uint8."""

    # Gymnasium's interface -----------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        episode_seed = seed if seed is not None else int(self.np_random.integers(2**31))
        self._place(episode_seed)
        self._episode_seed, self._steps, self._done = episode_seed, 0, False
        return self._observe(), self._info()

    def step(self, action: Any):
        if self._steps is None or self._done:
            raise BecauseError(
                f"{self.name}.step was called "
                + ("before reset." if self._steps is None else "after the episode ended."),
                need="a running episode.",
                fix="call env.reset(seed=...) first.",
            )
        if not self.action_space.contains(action):
            raise BecauseError(
                f"Got the action {action!r} for {self.name}.",
                need=f"a member of {self.action_space}.",
                fix="clip or cast it; env.action_space.sample() gives an example.",
            )
        self.advance(self.factors.encode_action(action))
        success = bool(self.factors.reached(self.exact_state(), self.exact_goal()))
        truncated = not success and self._steps >= self.horizon
        self._done = success or truncated
        return self._observe(), float(success), success, truncated, self._info()

    def render(self) -> np.ndarray | None:
        return None if self.render_mode is None else self.picture()

    def advance(self, columns: np.ndarray) -> None:
        """Step with encoded action columns (action_size,), without checking whether the episode has ended."""
        self._advance(columns)
        self._steps = (self._steps or 0) + 1

    def _observe(self) -> dict[str, np.ndarray]:
        return {"goal": self.exact_goal().astype(np.float32), "state": self.exact_state().astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        return {
            "seed": self._episode_seed,
            "success": bool(self.factors.reached(self.exact_state(), self.exact_goal())),
        } | self.hidden()


def caption(frame: np.ndarray, text: str, height: int = 26) -> np.ndarray:
    """`frame` (h, w, 3) uint8 with a caption bar of `height` pixels below it."""
    from PIL import Image, ImageDraw, ImageFont

    bar = Image.new("RGB", (frame.shape[1], height), "white")
    font = ImageFont.load_default(size=int(height * 0.55))
    ImageDraw.Draw(bar).text((8, height // 2), text, fill="black", font=font, anchor="lm")
    return np.concatenate([frame, np.asarray(bar)])
