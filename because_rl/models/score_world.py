"""The world model of `bilinear` with the paper's prediction: the score phi^T M mu in place of a readout of phi_j.

All else is as there: mu, its regression on psi_j = phi^T (M * C), the networks that vote on events and what tells their
rows from the data. So `because` can have this prediction and nothing else of the paper. The mask gates the inputs of
phi, as it does there, or multiplies the core, as in the paper.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import EVENT_NETWORKS, BilinearModel, Gates, Outputs, Views, dense, mu_width, take_rows
from because_rl.models.bilinear_score import ScoreModel, score_width
from because_rl.models.layout import Layout
from because_rl.models.nets import normal
from because_rl.models.prepared_data import Statistics


class ScoreWorld(BilinearModel):
    score: ScoreModel
    voters: ScoreModel | None
    """for binary factors, with a leading axis of `events` networks; None where there are none"""
    gated: bool = eqx.field(static=True)
    """whether the mask gates the inputs; else it multiplies the core"""

    def __init__(
        self,
        layout: Layout,
        key: PRNGKeyArray,
        *,
        gated: bool,
        hidden: int = 128,
        places: int = 32,
        events: int = EVENT_NETWORKS,
    ):
        super().__init__(layout, key, hidden=hidden, places=places, events=events)
        k1, k2, k3 = jax.random.split(jax.random.fold_in(key, len(layout.families)), 3)
        sizes = [(score_width(family, places), mu_width(family)) for family in layout.families]
        self.core = [normal(k, size) / 8.0 for k, size in zip(jax.random.split(k1, len(sizes)), sizes, strict=True)]
        self.heads, self.embed, self.gated = [], {}, gated
        self.score = ScoreModel(layout, k2, hidden=hidden, places=places)
        self.voters = None
        if any(votes(layout)):
            width = hidden if events == 1 else hidden // 2
            make = jax.vmap(lambda k: ScoreModel(layout, k, hidden=width, places=places))
            self.voters = make(jax.random.split(k3, events))

    def __call__(
        self, stats: Statistics, gates: Gates, x: Float[Array, " columns"], families: tuple[int, ...] | None = None
    ) -> list[Outputs]:
        layout, first = self.layout, [columns.start for columns in self.layout.columns]
        mask, inputs = gates.weight[:, jnp.array(first)].T, None
        if self.gated:
            mask, inputs = jnp.ones_like(mask), gates.weight
        out = self.score(stats, mask, x, inputs)
        if self.voters is not None:
            each = jax.vmap(lambda voter: voter(stats, mask, x, inputs))(self.voters)
            for n, voting in enumerate(votes(layout)):
                if voting:
                    value = jnp.moveaxis(each[n].value[:, :, 0], 0, 1)
                    out[n] = Outputs(each[n].phi.mean(0), value, each[n].spread[0])
        return out if families is None else [out[n] for n in families]

    def features(self, all_views: Views, family: int) -> Float[Array, "members n"]:
        members = self.layout.families[family].members
        family_views = Views(*(take_rows(part, members) for part in all_views))
        return jax.vmap(lambda view: dense(self.layout, view, self.score.embed))(family_views)

    def penalised(self) -> list[Any]:
        return [self.score]


def votes(layout: Layout) -> list[bool]:
    """For each family whether several networks vote on it."""
    return [family.type == "binary" and not family.slots for family in layout.families]
