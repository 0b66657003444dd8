"""What ensembles share: bootstraps of whole episodes, the joint prediction of members, and the unit of a penalty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.rng import stream
from because_rl.training.stage import Batch
from because_rl.transitions import Transitions

MOST = 50.0
"""The largest penalty, in units of the ordinary one."""
LEAST_COUNT = 1e-6
"""Of a row: a batch without one row of a member's bootstrap is drawn from evenly."""


class Bootstraps(NamedTuple):
    """A bootstrap of whole episodes for each member, the same in all steps of training.

    Steps of one episode share what is hidden in it, so that rows drawn one by one would hardly differ between members.
    """

    episode: Float[Array, " rows"]
    """the number of each training row's episode: a column of the batch"""
    counts: Float[Array, "seeds episodes members"]
    """how often an episode is in a member's bootstrap"""


def make_bootstraps(data: Transitions, members: int, seeds: Sequence[int]) -> Bootstraps:
    """Bootstraps of the episodes that are not held out; those of a seed depend on it alone."""
    episodes, number = np.unique(data.episode[~data.held_out], return_inverse=True)
    even = np.full(len(episodes), 1 / len(episodes))
    counts = [stream(seed, "bootstrap").multinomial(len(episodes), even, members).T for seed in seeds]
    return Bootstraps(jnp.asarray(number, jnp.float32), jnp.asarray(np.stack(counts), jnp.float32))


def draw_bootstrap(batch: Batch, count: Float[Array, " rows"], key: PRNGKeyArray) -> Batch:
    """As many rows as the batch has, of which row i is in proportion to its count (systematic resampling)."""
    rows, share = len(count), jnp.cumsum(count + LEAST_COUNT)
    places = (jnp.arange(rows, dtype=share.dtype) + jax.random.uniform(key)) / rows
    drawn = jnp.minimum(jnp.searchsorted(share / share[-1], places), rows - 1)
    return {name: values[drawn] for name, values in batch.items()}


def combine_members(layout: Layout, each: list[Outputs], vote: bool = True) -> list[Outputs]:
    """One prediction from those of all members (a leading axis): their mean, of logits where these are logits.

    With `vote`, members vote on events as the several networks of one model do: where the goal hangs on an event, a
    planner believes the member that believes in it least (`likelihood.decode`).
    """
    combined = []
    for family, outputs in zip(layout.families, each, strict=True):
        mean = jax.tree.map(lambda a: a.mean(0), outputs)
        if vote and family.type == "binary" and not family.slots:
            votes = jnp.moveaxis(outputs.value, 0, 1)  # (family members, models, events, width)
            mean = mean._replace(value=votes.reshape(len(votes), -1, votes.shape[-1]))
        combined.append(mean)
    return combined


def as_penalty(uncertainty: Array, ordinary: Array) -> Array:
    """u in units of its mean on held-out data, as a share of the largest penalty: linear up to 50 ordinary ones.

    A penalty lies in [0, 1] in all methods, and lambda is its price at 1. Where lambda is set by the held-out data, an
    ordinary step costs the same in all of them.
    """
    return jnp.minimum(uncertainty / ordinary, MOST) / MOST
