"""An agent that is shown pictures: it reads the factors from them and acts as the agent that was fitted on these."""

from __future__ import annotations

from typing import Any

import numpy as np

from because_rl.training.method import Agent, Controller
from because_rl.vision.encoder import PictureEncoder

PREFIX = "encoder/"
"""Of the encoder's arrays among those of a saved agent."""


class PictureController(Controller):
    def __init__(self, encoder: PictureEncoder, controller: Controller):
        self.encoder, self.controller = encoder, controller

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """`state`: (K, n, bytes of a picture) uint8. `goal`: (K, n, 0), since it is the same in all episodes."""
        seeds, worlds = state.shape[:2]
        columns = self.encoder.read(state.reshape(seeds * worlds, *self.encoder.shape, 3))
        wanted = np.broadcast_to(self.encoder.wanted, (seeds, worlds, len(self.encoder.wanted)))
        return self.controller.act(columns.reshape(seeds, worlds, -1), wanted, steps_left)


class PictureAgent(Agent):
    """`agent` behind `encoder`. `predict` and `act` are those of the columns that the encoder reads."""

    def __init__(self, encoder: PictureEncoder, agent: Agent):
        super().__init__(agent.method, agent.seeds, agent.factors, agent.horizon)
        self.encoder, self.agent = encoder, agent
        self.trained_on, self.diagnostics = agent.trained_on, agent.diagnostics
        self.sees_pictures = True

    def start(self, worlds: int, seed: int = 0) -> Controller:
        return PictureController(self.encoder, self.agent.start(worlds, seed))

    def single_step_controller(self, worlds: int) -> Controller:
        return self.agent.single_step_controller(worlds)  # of columns, as `act` takes them

    def arrays(self) -> dict[str, np.ndarray]:
        return self.agent.arrays() | {PREFIX + name: array for name, array in self.encoder.arrays().items()}

    def description(self) -> dict[str, Any]:
        return self.agent.description() | {"encoder": self.encoder.description()}

    def _one_seed(self, k: int) -> Agent:
        return PictureAgent(self.encoder, self.agent._one_seed(k))

    def _predict(self, state: np.ndarray, action: np.ndarray) -> Any:
        return self.agent._predict(state, action)


def with_encoder(agent: Agent, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Agent:
    """The agent of a file, behind its encoder where the file has one."""
    if "encoder" not in record:
        return agent
    own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    return PictureAgent(PictureEncoder.restore(record["encoder"], agent.factors, own), agent)
