"""What a policy or a critic sees of a state and a goal: the features and the encoders that world models have.

`StateFeatures` has nothing to learn. Its row holds the standardised columns of factors without slots, the differences
of factors of one kind and of each goal from its factor, also through asinh, and whether two factors meet in a slot.
Behind them are the columns of the factors on slots (`layout`), and of goals about them, as they are.

`FeatureNetwork` is an MLP on such a row in which the factors of a kind share an encoder of their slots. A factor i that
moves and another one k on the same slots, or its goal, are related by one network for all of them,

    relation(i, k) = mean over the slots c of i and d of k of silu(A e_c + B e_d + b),

with an embedding e_c of each slot, and the MLP sees means of the relations. Their weights (attention) depend on the
rest of the row. So what is learned about walking from the agent's cell to the key's holds for the door's, and in cells
that no door was in. With a column for each factor and cell there would be weights that were never trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec, GoalFactor
from because_rl.models.bilinear import ZOOM, standardise
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP, normal, silu
from because_rl.models.prepared_data import Statistics, blank_outcomes

PLACES = 32
"""Width of a slot's embedding and of a relation."""
HEADS = 2
"""How many weighted means of the relations a network sees."""


class SlotGroup(NamedTuple):
    """The factors on the slots of one kind, and behind them the goals about them: the rows of `Slots`."""

    slots: int
    rows: int
    pairs: tuple[tuple[int, int], ...]
    """those related, by the numbers of their rows: a factor that moves, and another factor or its goal"""


class StateFeatures(eqx.Module):
    """The row of features of a state and a goal."""

    layout: Layout = eqx.field(static=True)
    groups: tuple[SlotGroup, ...] = eqx.field(static=True)
    stats: Statistics

    def __init__(self, factors: FactorSpec, stats: Statistics):
        self.layout, self.stats = Layout(factors), stats
        self.groups = tuple(self._slot_group(kind) for kind in self.layout.slot_kinds)

    @property
    def size(self) -> int:
        """The length of a row."""
        factors = self.layout.factors
        shapes = jax.eval_shape(self, jnp.zeros(factors.state_size), jnp.zeros(factors.goal_size))
        return shapes.shape[0]

    def __call__(
        self, state: Float[Array, " state"], goal: Float[Array, " goal"], gate: Float[Array, " state"] | None = None
    ) -> Float[Array, " size"]:
        """`gate`: what each column of the state is multiplied by, after it is standardised; None: 1.

        Outcomes are blank, whatever the state says: they are not known when an action is chosen.
        """
        layout, stats, size = self.layout, self.stats, len(state)
        state = blank_outcomes(layout.factors, stats, state)
        gate = jnp.ones(size) if gate is None else gate
        standard, cosine = standardise(layout, stats, state)
        gated = standard * gate
        plain = layout.plain_columns[layout.plain_columns < size]
        angles = layout.angle_columns[layout.angle_columns < size]
        first, second = layout.pair_columns
        difference = (state[first] - state[second]) / stats.difference * gate[first] * gate[second]
        meetings = [
            (gated[layout.columns[i]] * gated[layout.columns[k]]).sum(keepdims=True) for i, k in layout.meetings
        ]
        parts = [gated[plain], (cosine * gate)[angles], difference, _zoom(difference), *meetings]
        for wanted in self._goals_on(None):
            parts += self._relative_goal(wanted, state, goal, gate)
        for kind, members in layout.slot_kinds.items():
            parts += [gated[layout.columns[j]] for j in members]
            parts += [goal[wanted.slice] for wanted in self._goals_on(kind)]
        return jnp.concatenate(parts)

    def _slot_group(self, kind: str) -> SlotGroup:
        members, goals = self.layout.slot_kinds[kind], self._goals_on(kind)
        names = [self.layout.factors.state[j].name for j in members]
        moves = np.asarray(self.stats.moves)  # a number also while a program is traced
        moving = [n for n, j in enumerate(members) if moves[j] > 0] or range(len(members))
        pairs = [(i, k) for i in moving for k in range(len(members)) if i != k]
        pairs += [(i, len(members) + n) for i in moving for n, goal in enumerate(goals) if goal.factor == names[i]]
        return SlotGroup(self.layout.inputs[members[0]].width, len(members) + len(goals), tuple(pairs))

    def _relative_goal(self, wanted: GoalFactor, state: Array, goal: Array, gate: Array) -> list[Array]:
        """A goal in the units of its factor, and its difference from the factor where that is a number."""
        factor = self.layout.factors[wanted.factor]
        mean, scale = (part[factor.slice] for part in (self.stats.mean, self.stats.scale))
        if not factor.is_continuous:
            return [(goal[wanted.slice] - mean) / scale]
        difference = wanted.difference(goal[wanted.slice], state[factor.slice]) / scale * gate[factor.slice]
        if factor.period is not None:
            turn = goal[wanted.slice] * (2 * np.pi / factor.period)
            return [jnp.sin(turn), jnp.cos(turn), difference]
        return [(goal[wanted.slice] - mean) / scale, difference]

    def _goals_on(self, kind: str | None) -> list[GoalFactor]:
        """The goals about factors on the slots of a kind; None: about factors on no slots."""
        layout = self.layout
        slotted = {layout.factors.state[j].name: k for k, members in layout.slot_kinds.items() for j in members}
        goals = sorted(layout.factors.goal, key=lambda wanted: wanted.start)
        return [wanted for wanted in goals if slotted.get(wanted.factor) == kind]


def _zoom(difference: Array) -> Array:
    return jnp.arcsinh(ZOOM * difference) / 3.0


class Slots(eqx.Module):
    """The encoder of the factors, and of the goals, on the slots of one kind."""

    group: SlotGroup = eqx.field(static=True)
    embed: Float[Array, "slots places"]
    source: Array
    """A"""
    target: Array
    """B"""
    bias: Array
    attention: MLP

    def __init__(self, group: SlotGroup, context: int, key: PRNGKeyArray):
        """`context`: how many numbers the attention sees beside how many slots each factor fills."""
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.group = group
        self.embed = normal(k1, (group.slots, PLACES)) * (2.0 / PLACES**0.5)
        self.source, self.target = (normal(k, (PLACES, PLACES)) / PLACES**0.5 for k in (k2, k3))
        self.bias = jnp.zeros(PLACES)
        self.attention = MLP((context + group.rows, PLACES, HEADS * len(group.pairs)), k4, last=0.1)

    @property
    def size(self) -> int:
        return self.group.rows + HEADS * PLACES

    def __call__(self, rows: Float[Array, "rows slots"], context: Float[Array, " context"]) -> Float[Array, " size"]:
        filled, slots = rows.sum(1), self.group.slots
        share = rows / jnp.maximum(filled, 1.0)[:, None]
        sources, targets = self.embed @ self.source.T + self.bias[None], self.embed @ self.target.T
        table = silu(sources[:, None] + targets[None]).reshape(slots, -1)  # the same for all rows of a batch
        relations = {i: share @ (share[i] @ table).reshape(slots, PLACES) for i in {i for i, _ in self.group.pairs}}
        each = jnp.stack([relations[i][k] for i, k in self.group.pairs])
        scores = self.attention(jnp.concatenate([context, filled])).reshape(HEADS, len(each))
        return jnp.concatenate([filled, (jax.nn.softmax(scores, axis=1) @ each).ravel()])


class FeatureNetwork(eqx.Module):
    """An MLP on a row of `StateFeatures` and further inputs, such as an action."""

    slots: list[Slots]
    mlp: MLP

    def __init__(
        self, features: StateFeatures, sizes: Sequence[int], key: PRNGKeyArray, last: float = 1.0, more: int = 0
    ):
        """`sizes`: of the MLP's layers after the first. `more`: how many further inputs there are."""
        key, *keys = jax.random.split(key, 1 + len(features.groups))
        context = features.size - sum(group.rows * group.slots for group in features.groups)
        self.slots = [Slots(group, context, k) for group, k in zip(features.groups, keys, strict=True)]
        self.mlp = MLP((context + sum(slots.size for slots in self.slots) + more, *sizes), key, last)

    def __call__(self, x: Float[Array, " size"], *more: Array) -> Array:
        lengths = [slots.group.rows * slots.group.slots for slots in self.slots]
        context, *columns = jnp.split(x, np.cumsum([len(x) - sum(lengths), *lengths])[:-1])
        parts = [
            slots(part.reshape(slots.group.rows, slots.group.slots), context)
            for slots, part in zip(self.slots, columns, strict=True)
        ]
        return self.mlp(jnp.concatenate([context, *parts, *more]))
