"""BECAUSE (Lin et al., NeurIPS 2024): bilinear causal representation for generalizable offline model-based RL.

    1  estimate the causal mask M from the data, weighted over batches of trajectories (M-bar, equation 7)
    2  learn phi, mu and the core under it                                             (equations 5 and 6)
    3  fit the energy of (s, a, s') on the causal representation                       (equation 8)
    4  plan pessimistically: Q(s, a) = r - lambda (E(s, a) + 1) / 2 + E V(s')          (equation 9)

The paper's ablations are configs: `optimism` plans without the energy, with uniform proposals; `linear` keeps
every edge; `full` takes one mask of all the data instead of the weighted mean over batches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.discovery.discover import discover
from because_rl.io import arrays_sha256
from because_rl.models.bilinear import BilinearModel, Outputs, make_gates, whiten
from because_rl.models.column_statistics import Statistics, statistics
from because_rl.models.energy import EnergyModel, EnergyWeights, energy_loss, predict_mu, view
from because_rl.models.layout import Layout
from because_rl.models.objective import Weights, effective_rank, world_model_loss
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, make_planner_agent
from because_rl.training.method import Agent, Method
from because_rl.training.run import Run
from because_rl.training.stage import Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class BecauseConfig(PlanningConfig):
    energy_steps: int = 1000
    energy_hidden: int = 64
    mask: Literal["discovered", "full"] = "discovered"
    test: str | None = None
    """independence test; None: by the factors' types"""
    threshold: float | None = None
    """p-value below which an edge is kept; None: the test's own"""
    batches: int = 3
    """of trajectories, over which the mask is averaged (M-bar); 0: one mask of all the data"""
    mask_rows: int | None = None
    """transitions that the mask is found from, in whole episodes spread over the data; None: all"""
    weights: Weights = field(default_factory=Weights)
    energy: EnergyWeights = field(default_factory=EnergyWeights)


class Because(Method):
    name = "because"

    def __init__(self, config: BecauseConfig):
        self.config = config

    def fit(self, data: Transitions, run: Run) -> Agent:
        c, seeds = self.config, len(run.seeds)
        layout = Layout(data.factors)
        train = data.batch(~data.held_out)
        stats = statistics(layout, data.state, data.action, data.next_state)

        # Causal mask (lines 5 to 9 of Algorithm 1)
        weights = run.cached("mask", lambda: {"weights": self._mask(data)}, self._mask_of(data))["weights"]
        gates = broadcast_over_seeds(make_gates(layout, weights), seeds)

        # World model (line 4)
        world = run.fit(
            Stage(
                "world",
                lambda key, fixed: BilinearModel(layout, key, hidden=c.hidden),
                partial(world_model_loss, c.weights, stats),
                c.world_steps,
                c.batch,
                c.rate,
            ),
            train,
            gates,
            of={"hidden": c.hidden, "weights": asdict(c.weights)},
        )
        apart = max(1, len(train["next_state"]) // 4000)
        some, others = train["next_state"][::apart], train["next_state"][apart // 2 :: apart]
        whitening = jax.jit(
            jax.vmap(lambda model: [whiten(f)[1] for f in jax.vmap(partial(model.represent, stats))(some)])
        )(world)
        rank = jax.jit(jax.vmap(lambda model, white: effective_rank(stats, model, white, others)))(world, whitening)

        # Uncertainty (line 11)
        energy = run.fit(
            Stage(
                "energy",
                lambda key, fixed: EnergyModel(layout, key, hidden=c.energy_hidden),
                partial(energy_loss, c.energy, stats),
                c.energy_steps,
                c.batch,
                c.rate,
            ),
            train,
            (world, whitening, gates),
            of={"hidden": c.energy_hidden, "energy": asdict(c.energy)},
        )

        # Pessimistic planning (lines 12 to 18)
        parameters = {"world": world, "energy": energy, "gates": gates}
        figures = {"least rank of mu": np.asarray(rank).min(1)}
        return make_planner_agent(data, run, c, layout, stats, weights, parameters, predict, figures)

    def _mask_of(self, data: Transitions) -> dict[str, Any]:
        """All that decides the mask."""
        seen = {"state": data.state, "action": data.action, "next_state": data.next_state, "episode": data.episode}
        c = self.config
        settings = {"mask": c.mask, "test": c.test, "threshold": c.threshold, "batches": c.batches}
        if c.mask_rows is not None:
            settings["rows"] = c.mask_rows
        return settings | {"data": arrays_sha256(seen), "factors": data.factors.to_dict()}

    def _mask(self, data: Transitions) -> np.ndarray:
        """(inputs, targets) weights in [0, 1]."""
        c = self.config
        if c.mask == "full":
            return np.ones((len(data.factors.inputs), len(data.factors.targets)), np.float32)
        keep = np.ones(len(data), bool)
        if c.mask_rows is not None:
            episodes, lengths = np.unique(data.episode, return_counts=True)
            count = np.clip(round(c.mask_rows / lengths.mean()), 1, len(episodes))
            keep = np.isin(data.episode, episodes[np.linspace(0, len(episodes) - 1, int(count)).astype(int)])
        found = discover(
            data.factors,
            data.state[keep],
            data.action[keep],
            data.next_state[keep],
            data.episode[keep],
            test=c.test,
            threshold=c.threshold,
            batches=c.batches,
        )
        return found.mask.weight.astype(np.float32)


def predict(
    layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The outputs, and (E + 1) / 2 where the goal is decided: the mean over the goal-bearing targets."""
    bearing = tuple(n for n, wanted in enumerate(layout.goal_bearing) if wanted) or tuple(range(len(layout.families)))
    x = jnp.concatenate([state, action])
    outputs = p["world"](stats, p["gates"], x)
    told = predict_mu(p["world"], outputs)
    seen = view(p["world"], stats, p["gates"], x, bearing)
    energy = p["energy"](seen, [told[n] for n in bearing], bearing)
    return outputs, (jnp.concatenate(energy).mean() + 1.0) / 2.0
