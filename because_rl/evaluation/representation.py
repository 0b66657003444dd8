"""Whether the learned representation has collapsed: the effective rank of mu."""

from __future__ import annotations

import jax
import numpy as np

from because_rl.models.bilinear import BilinearModel, whiten_mu, whitening_stride
from because_rl.models.objective import effective_rank
from because_rl.models.prepared_data import prepare
from because_rl.planning.agent import PlannerAgent
from because_rl.transitions import Transitions


def agent_diagnostics(agent: PlannerAgent, data: Transitions) -> dict[str, np.ndarray]:
    """Name -> one number per seed: what the method reports, and for BECAUSE the least rank of mu over all targets.

    `data`: what the agent was trained on. mu is whitened on one part of the training rows, and its rank is that of
    another part, as a share of its width: 1 is no collapse.
    """
    world = agent.parameters.get("world")
    if not isinstance(world, BilinearModel):
        return dict(agent.diagnostics)
    prepared = prepare(data)
    states = prepared.train["next_state"]
    stride = whitening_stride(len(states))
    whitening = whiten_mu(world, prepared.stats, states)
    other_states = states[stride // 2 :: stride]
    rank = jax.jit(jax.vmap(lambda model, white: effective_rank(prepared.stats, model, white, other_states)))
    return {"least rank of mu": np.asarray(rank(world, whitening)).min(1)} | agent.diagnostics
