"""An agent that is shown pictures: it reads the factors from them and acts as the agent that was fitted on these."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from because_rl.training.method import Agent, Controller
from because_rl.vision.encoder import PictureEncoder

PREFIX = "encoder/"
"""Of the encoder's arrays among those of a saved agent."""


class PictureController(Controller):
    def __init__(self, encoder: PictureEncoder, controller: Controller, outcomes: int):
        self.encoder, self.controller = encoder, controller
        self.outcomes = outcomes
        """columns of the state that no picture shows: the outcomes of the last step"""

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """`state`: (K, n, bytes of a picture) uint8, with `goal` (K, n, 0); or columns and their goal."""
        if state.dtype != np.uint8:
            return self.controller.act(state, goal, steps_left)
        seeds, worlds = state.shape[:2]
        columns = self.encoder.read(state.reshape(seeds * worlds, *self.encoder.shape, 3))
        columns = np.pad(columns, ((0, 0), (0, self.outcomes)))
        wanted = np.broadcast_to(self.encoder.wanted, (seeds, worlds, len(self.encoder.wanted)))
        return self.controller.act(columns.reshape(seeds, worlds, -1), wanted, steps_left)


class PictureAgent(Agent):
    """`agent` behind `encoder`. `act` and `predict` take pictures, or columns that the encoder has read from them.

    The goal is the one that the logged ends show, and need not be given.
    """

    def __init__(self, encoder: PictureEncoder, agent: Agent):
        super().__init__(agent.method, agent.seeds, agent.factors, agent.horizon)
        self.encoder, self.agent = encoder, agent
        self.trained_on, self.diagnostics = agent.trained_on, agent.diagnostics
        self.sees_pictures = True

    def start(self, worlds: int, seed: int = 0) -> Controller:
        outcomes = self.factors.state_size - self.factors.observed_size
        return PictureController(self.encoder, self.agent.start(worlds, seed), outcomes)

    def single_step_controller(self, worlds: int) -> Controller:
        return self.agent.single_step_controller(worlds)  # of columns, as `act` takes them

    def act(
        self, state: ArrayLike, goal: ArrayLike | None = None, steps_left: int | None = None, *, seed: int | None = None
    ) -> np.ndarray:
        """As `Agent.act`, of a picture (height, width, 3) uint8 or of n pictures."""
        return super().act(state, self.encoder.wanted if goal is None else goal, steps_left, seed=seed)

    def _split(self, observation: Any) -> tuple[np.ndarray, np.ndarray]:
        picture = observation["observation"] if isinstance(observation, dict) else observation
        return self.encoder.read(np.asarray(picture)[None])[0], self.encoder.wanted

    def _states(self, state: ArrayLike) -> tuple[np.ndarray, bool]:
        pictures = np.asarray(state)
        if pictures.dtype != np.uint8:
            return super()._states(state)
        columns, _ = super()._states(self.encoder.read(pictures if pictures.ndim == 4 else pictures[None]))
        return columns, pictures.ndim == 3

    def arrays(self) -> dict[str, np.ndarray]:
        return self.agent.arrays() | {PREFIX + name: array for name, array in self.encoder.arrays().items()}

    def description(self) -> dict[str, Any]:
        return self.agent.description() | {"encoder": self.encoder.description()}

    def _one_seed(self, k: int) -> Agent:
        return PictureAgent(self.encoder, self.agent._one_seed(k))

    def _predict(self, state: np.ndarray, action: np.ndarray) -> Any:
        return self.agent._predict(state, action)


def without_encoder(agent: Agent) -> Agent:
    """The agent that acts on columns: behind the encoder of an agent of pictures, else the agent itself."""
    return agent.agent if isinstance(agent, PictureAgent) else agent


def with_encoder(agent: Agent, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Agent:
    """The agent of a file, behind its encoder where the file has one."""
    if "encoder" not in record:
        return agent
    own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    return PictureAgent(PictureEncoder.restore(record["encoder"], agent.factors, own), agent)
