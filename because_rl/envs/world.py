"""Base class of the three worlds: a Gymnasium environment on a real simulator, with named factors.

A world is deterministic: ``reset(seed=s)`` fixes the scene and every hidden variable of the episode. The
hidden confounders are in ``info`` for analysis and never in the observation.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from because_rl.envs import spurious as spurious_channels
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.graph import Graph

Hidden = dict[str, Any]
GoalObservation = dict[str, np.ndarray]
"""observation (state_size,), achieved_goal and desired_goal (goal_size,), float32"""


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


class World(gym.Env[Any, Any]):
    """One goal-conditioned world; `split` is its distribution of scenes, `spurious` the number of spurious channels.

    Observations follow the convention of goal environments: "observation" is the state, "achieved_goal" the state
    columns that the goal is about (`FactorSpec.achieved_goal`), "desired_goal" the goal. Reward: 1 on the step that
    reaches the goal, which ends the episode, else 0. After `horizon` steps it is truncated.
    """

    metadata = {  # noqa: RUF012  (Gymnasium declares it as an instance variable)
        "render_modes": ["rgb_array"],
        "render_fps": 4,
    }
    name: ClassVar[str]
    horizon: ClassVar[int]
    splits: ClassVar[tuple[str, ...]] = ("I", "O")
    factors: FactorSpec

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
                "achieved_goal": _box(self.factors.achieved_goal(low), self.factors.achieved_goal(high)),
                "desired_goal": _box(goal_low, goal_high),
                "observation": _box(low, high),
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
    def make_action_space(cls) -> spaces.Space[Any]: ...

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
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObservation, dict[str, Any]]:
        super().reset(seed=seed)
        episode_seed = seed if seed is not None else int(self.np_random.integers(2**31))
        self._place(episode_seed)
        self._episode_seed, self._steps, self._done = episode_seed, 0, False
        observation = self._observe()
        return observation, self._info(observation)

    def step(self, action: Any) -> tuple[GoalObservation, float, bool, bool, dict[str, Any]]:
        self._check_reset("step")
        if self._done:
            raise self._misuse("step was called after the episode ended")
        self.advance(self.factors.encode_action(self._member(action)))
        observation = self._observe()
        info = self._info(observation)
        success = info["is_success"]
        truncated = not success and info["steps"] >= self.horizon
        self._done = success or truncated
        return observation, float(success), success, truncated, info

    def render(self) -> np.ndarray | None:
        self._check_reset("render")
        return None if self.render_mode is None else self.picture()

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """The reward of steps that end with these goals: (...) float32 for goals (..., goal_size).

        `info` is not used; it is an argument in the convention of goal environments.
        """
        return self._satisfied(achieved_goal, desired_goal).astype(np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Whether such steps end the episode at its goal: (...) bool."""
        return self._satisfied(achieved_goal, desired_goal)

    def compute_truncated(
        self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> Any:
        """Whether such steps are the last and miss the goal: (...) bool.

        `info`: that of the step, or one for each of a batch; "steps" in it counts the steps of the episode.
        """
        steps = info.get("steps", 0) if isinstance(info, Mapping) else [one.get("steps", 0) for one in info]
        return ~self._satisfied(achieved_goal, desired_goal) & (np.asarray(steps) >= self.horizon)

    def advance(self, columns: np.ndarray) -> None:
        """Step with encoded action columns (action_size,), without checking whether the episode has ended."""
        self._advance(columns)
        self._steps = (self._steps or 0) + 1

    def _satisfied(self, achieved_goal: Any, desired_goal: Any) -> np.ndarray:
        """(...) bool. In float32, as observed: the reward of a step must follow from its observation."""
        achieved, desired = np.asarray(achieved_goal, np.float32), np.asarray(desired_goal, np.float32)
        return self.factors.satisfied(achieved, desired)

    def _observe(self) -> GoalObservation:
        state = self.exact_state().astype(np.float32)
        goal = self.exact_goal().astype(np.float32)
        return {"achieved_goal": self.factors.achieved_goal(state), "desired_goal": goal, "observation": state}

    def _info(self, observation: GoalObservation) -> dict[str, Any]:
        success = self._satisfied(observation["achieved_goal"], observation["desired_goal"])
        return {"seed": self._episode_seed, "steps": self._steps, "is_success": bool(success)} | self.hidden()

    def _member(self, action: Any) -> Any:
        """The action, with continuous ones of any number type cast to that of the space."""
        space = self.action_space
        with contextlib.suppress(TypeError, ValueError):
            member = np.asarray(action, space.dtype) if isinstance(space, spaces.Box) else action
            if space.contains(member):
                return member
        raise BecauseError(
            f"Got the action {action!r} for {self.name}.",
            need=f"a member of {space}.",
            fix="clip it; env.action_space.sample() gives an example.",
        )

    def _check_reset(self, method: str) -> None:
        if self._steps is None:
            raise self._misuse(f"{method} was called before reset")

    def _misuse(self, what: str) -> BecauseError:
        return BecauseError(f"{self.name}.{what}.", need="a running episode.", fix="call env.reset(seed=...) first.")

    # Pickling and copying: simulators cannot be pickled, so a new one is put into the same state -------------------
    def __getstate__(self) -> dict[str, Any]:
        kept = ("spec", "observation_space", "action_space", "_np_random", "_np_random_seed")
        state: dict[str, Any] = {name: getattr(self, name) for name in kept}
        state["arguments"] = self.split, self.spurious, self.render_mode
        if self._steps is not None:
            state["episode"] = self._episode_seed, self._steps, self._done, self.snapshot()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        episode = state.pop("episode", None)
        World.__init__(self, *state.pop("arguments"))
        self.__dict__.update(state)
        if episode is not None:
            seed, steps, done, snapshot = episode
            self._place(seed)
            self.restore(snapshot)
            self._episode_seed, self._steps, self._done = seed, steps, done


def get_world(env: gym.Env[Any, Any]) -> World:
    """The world inside `env`, which ``gymnasium.make`` returns in a wrapper: ``get_world(env).true_graph()``."""
    world = env.unwrapped
    if not isinstance(world, World):
        raise BecauseError(
            f"{env} is none of the worlds of because-rl.",
            need="an environment like gymnasium.make('because/Unlock-v1').",
            fix="pass such an environment, wrapped or not.",
        )
    return world


def _box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    return spaces.Box(np.float32(low), np.float32(high), dtype=np.float32)


def caption(frame: np.ndarray, text: str, height: int = 26) -> np.ndarray:
    """`frame` (h, w, 3) uint8 with a caption bar of `height` pixels below it."""
    from PIL import Image, ImageDraw, ImageFont

    bar = Image.new("RGB", (frame.shape[1], height), "white")
    font = ImageFont.load_default(size=int(height * 0.55))
    ImageDraw.Draw(bar).text((8, height // 2), text, fill="black", font=font, anchor="lm")
    return np.concatenate([frame, np.asarray(bar)])
