"""BECAUSE as its paper prints it (Lin et al., NeurIPS 2024): Algorithm 1 in its order, equation by equation.

    M_0 = 1
    for i = 1 ... K:
        update phi, mu under the mask                                               (equation 6)
        if i mod k = 0:  test phi^(i) against mu^(j) on batches of trajectories     (equation 5)
                         average the masks with weights to M-bar                    (equation 7)
    fit E_theta(mu(s') | phi(s, a))                                                 (equation 8)
    plan by r - E + E V                                                             (equation 9)

The model is T(s' | s, a) from phi^T (M-bar * C) mu (`models.bilinear_score`): the mask multiplies the core, and the raw
inputs are not gated. `because` is what works best; here only what cannot run as printed is repaired:

- *Equation 6 collapses*: with K_mu^-1 mu grows without bound, without it everything shrinks. Its other form, the first
  line of equation 5, does not: -log p(D; phi, mu, M), in which the normaliser over s' does what K_mu^-1 is there for.
- *phi^(i) is about factor i*. With phi free, M = 1 on the diagonal alone is a solution in every world.
- *The tests take elements*: phi^(i) is a network of z_i, so z_i is tested, against s'_j. An invertible map changes no
  independence, and trees need few columns. Discrete elements are their levels: rounds change z where columns are
  continuous, and the mask of a discrete world is estimated once.
- *chi-square given all other factors has no degree of freedom left* in 2,400 rows of seven factors; the G-test, which
  is chi-square in the limit, conditions on the parents that it has found. fcit takes 32 splits, without which it
  cannot reach the thresholds.
- *An edge is kept when p is below the threshold*; the appendix states the opposite. A factor's own last value is kept.
- *The last round is one of features*: a model that was not fitted under its last mask would be another model's.
- *E in (-1, 1) would pay for certainty*: the planner pays lambda (E + 1) / 2, with lambda set by held-out rows.
- *The budget of plans*. Where states can be listed V_h = max_a Q_h is backed up from V_{H+1} = 0 as in Algorithm 1,
  with H the end of the episode: a plan of the appendix's 10 steps cannot reach a door 15 steps away. Elsewhere the
  appendix's candidates, as many and as long, are drawn from the cloned behaviour policy, since the paper does not say
  from what, and a learned value stands at their end. Both see every factor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.discovery.discover import discover
from because_rl.discovery.mbar import batch_shares, consecutive_batches, log_density, spread_episodes
from because_rl.discovery.variables import Variables
from because_rl.io import arrays_sha256
from because_rl.models.bilinear import Outputs
from because_rl.models.bilinear_score import ScoreModel, mixable
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode, negative_log_likelihood
from because_rl.models.mixing import shuffles
from because_rl.models.nets import MLP
from because_rl.models.objective import squared_norms
from because_rl.models.prepared_data import PreparedData, Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Run, Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class BecausePaperConfig(PlanningConfig):
    world_steps: int = 1200
    """of each round"""
    alternations: int = 5
    """K"""
    every: int = 2
    """k"""
    alternate: bool = True
    """False: the mask is estimated first, from the factors as they were logged, and stays"""
    phi: int = 32
    """features of each input factor"""
    norm: float = 1e-4
    """lambda_phi, lambda_mu and lambda_EBM"""
    test: str | None = None
    """independence test; None: the G-test where every factor is discrete, fcit where one is not"""
    threshold: float = 1e-4
    """p-value below which an edge is kept"""
    batches: int = 3
    """of trajectories, over which the mask is averaged (M-bar); fewer where one would have less than 150"""
    mask_rows: int | None = None
    """transitions from which a mask is estimated, in whole episodes spread over the data; None: all"""
    energy_steps: int = 1000
    energy_hidden: int = 64


class BecausePaper(PlanningMethod):
    name = "because-paper"

    def __init__(self, config: BecausePaperConfig | None = None):
        self.config = config or BecausePaperConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared = self.config, as_run(seeds), prepare(data)

        # Line 1: M_0 = 1
        mask = jnp.broadcast_to(full_mask(data.factors), (len(run.seeds), *full_mask(data.factors).shape))
        model = None
        if not c.alternate:
            mask = estimate_masks(c, data, run, prepared.stats, None, 0)
        for i in range(1, c.alternations + 1):
            # Line 3: the features under the mask
            model = run.fit(features_stage(c, prepared, i), prepared.train, (model, mask))
            # Lines 4 to 6: the mask from the features, unless no round is left in which they could follow it
            if c.alternate and i in mask_rounds(c, prepared.layout):
                mask = estimate_masks(c, data, run, prepared.stats, model, i)

        # Line 7: the energy on phi and mu
        energy = run.fit(energy_stage(c, prepared), prepared.train, (model, mask))

        # Lines 8 to 14: pessimistic plans; what they are drawn from sees every factor
        proposals = fit_proposals(c, prepared, run, full_mask(data.factors))
        parameters = {"world": model, "energy": energy, "mask": mask}
        return self.make_agent(prepared, run, parameters, proposals, {"edges": np.asarray((mask >= 0.5).sum((1, 2)))})

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        world = ScoreModel(summary.layout, key, hidden=self.config.hidden, phi=self.config.phi)
        energy = Energy(world, summary.stats, key, self.config.energy_hidden)
        return {"world": world, "energy": energy, "mask": jnp.asarray(full_mask(summary.factors))}

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The scores of the next state, and (E + 1) / 2 of the state that is expected."""
        x = jnp.concatenate([state, action])
        outputs = p["world"](stats, p["mask"], x)
        expected = decode(layout, stats, outputs, state, hard=False).state
        energy = p["energy"](p["world"].phi(stats, x), concatenated(p["world"].mu(stats, expected)))
        return outputs, (energy + 1.0) / 2.0


def features_stage(c: BecausePaperConfig, prepared: PreparedData, round_number: int) -> Stage:
    """Equation 6 under the mask of the round, from the features of the round before."""

    def init(key: PRNGKeyArray, fixed: Any) -> ScoreModel:
        return fixed[0] if fixed[0] is not None else ScoreModel(prepared.layout, key, hidden=c.hidden, phi=c.phi)

    loss = partial(representation_loss, c.norm, prepared.stats)
    return Stage(f"features-{round_number}", init, loss, c.world_steps, c.batch, c.rate)


def representation_loss(
    norm: float, stats: Statistics, model: ScoreModel, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """L_rep: -log p(D; phi, mu, M) + lambda_phi |phi|^2 + lambda_mu |mu|^2."""

    def row(state: Array, action: Array, next_state: Array) -> Array:
        outputs = model(stats, fixed[1], jnp.concatenate([state, action]))
        return negative_log_likelihood(model.layout, stats, outputs, state, next_state).sum()

    nll = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean()
    norm_phi, norm_mu = model.norms()
    return nll + norm * (norm_phi + norm_mu), {"nll": nll, "norm_phi": norm_phi, "norm_mu": norm_mu}


def mask_rounds(c: BecausePaperConfig, layout: Layout) -> list[int]:
    """The rounds that estimate a mask; only the first of them where elements stay as they are."""
    rounds = list(range(c.every, c.alternations, c.every))
    return rounds if mixable(layout).any() else rounds[:1]


def estimate_masks(
    c: BecausePaperConfig, data: Transitions, run: Run, stats: Statistics, model: ScoreModel | None, round_number: int
) -> Float[Array, "seeds inputs targets"]:
    """M-bar of each seed, by tests of phi^(i) against mu^(j) given all other phi (equations 5 and 7).

    Without a model the factors are tested as they were logged.
    """
    layout, name = Layout(data.factors), f"mask-{round_number}"
    mixes = model is not None and bool(mixable(layout).any())  # without mixing all seeds have the same elements

    def estimate() -> dict[str, np.ndarray]:
        masks = []
        for k in range(len(run.seeds) if mixes else 1):
            run.report(name, k, len(run.seeds) if mixes else 1, {})
            one = jax.tree.map(lambda a, k=k: a[k], eqx.filter(model, eqx.is_array))
            rows = element_rows(data, stats, eqx.combine(one, model)) if mixes else data
            masks.append(average_mask(c, rows, layout))
        return {"weights": np.stack(masks)}

    arrays = {"state": data.state, "action": data.action, "next_state": data.next_state, "episode": data.episode}
    settings = {"test": c.test, "threshold": c.threshold, "batches": c.batches, "rows": c.mask_rows, "mask": "elements"}
    cache_key = settings | {"data": arrays_sha256(arrays), "factors": data.factors.to_dict()}
    weights = run.cached(name, estimate, None if mixes else cache_key)["weights"]
    return jnp.broadcast_to(jnp.asarray(weights, jnp.float32), (len(run.seeds), *weights.shape[1:]))


def average_mask(c: BecausePaperConfig, rows: Transitions, layout: Layout) -> np.ndarray:
    """(inputs, targets) M-bar, by equation 7, of rows whose columns are the elements of phi and mu.

    Batches are of consecutive trajectories, in which a hidden cause that changes slowly hardly varies.
    """
    test = c.test or ("fcit" if any(f.is_continuous for f in layout.inputs) else "gtest")
    rows = rows.rows(spread_episodes(rows.episode, c.mask_rows))
    variables = Variables.from_arrays(rows.factors, rows.state, rows.action, rows.next_state, rows.episode)
    batches = consecutive_batches(rows.episode, c.batches)
    masks = [discover(rows.rows(batch), test=test, threshold=c.threshold, batches=0).weight for batch in batches]
    return np.einsum("b,bij->ij", batch_shares(log_density(variables), batches), np.stack(masks))


def element_rows(data: Transitions, stats: Statistics, model: ScoreModel) -> Transitions:
    """The data with the elements z of phi in place of the columns of state and action."""
    x = np.hstack([data.state, data.action]).astype(np.float64)
    mix = np.asarray(model.mix) * mixable(model.layout)
    standard = (x - np.asarray(stats.mean)) / np.asarray(stats.scale)
    x += np.asarray(stats.scale) * (standard @ mix.T)
    size = data.factors.state_size
    return replace(data, state=x[:, :size].astype(np.float32), action=x[:, size:].astype(np.float32))


class Energy(eqx.Module):
    """E_theta(mu(s') | phi(s, a)) in (-1, 1), from both side by side."""

    net: MLP

    def __init__(self, world: ScoreModel, stats: Statistics, key: PRNGKeyArray, hidden: int):
        def size(world: ScoreModel) -> Array:
            row, state = jnp.zeros(world.layout.size), jnp.zeros(world.layout.factors.state_size)
            return jnp.concatenate([world.phi(stats, row).reshape(-1), concatenated(world.mu(stats, state))])

        (inputs,) = eqx.filter_eval_shape(size, world).shape
        self.net = MLP((inputs, hidden, hidden, 1), key, last=0.1)

    def __call__(self, phi: Float[Array, "inputs phi"], mu: Float[Array, " mu"]) -> Float[Array, ""]:
        return jnp.tanh(self.net(jnp.concatenate([phi.reshape(-1), mu]))[0])


def concatenated(mu: list[Array]) -> Float[Array, " mu"]:
    return jnp.concatenate([part.reshape(-1) for part in mu])


def energy_stage(c: BecausePaperConfig, prepared: PreparedData) -> Stage:
    return Stage(
        "energy",
        lambda key, fixed: Energy(fixed[0], prepared.stats, key, c.energy_hidden),
        partial(energy_loss, c.norm, prepared.stats),
        c.energy_steps,
        c.batch,
        c.rate,
    )


def energy_loss(
    norm: float, stats: Statistics, model: Energy, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """Equation 8. Positives are what happened and what the model expects; negatives mix the columns of mu, as in the
    appendix: mu^(j) of another row for each target j."""
    world, mask = fixed
    layout = world.layout

    def row(state: Array, action: Array, next_state: Array) -> tuple[Array, list[Array], Array]:
        x = jnp.concatenate([state, action])
        expected = decode(layout, stats, world(stats, mask, x), state, hard=False).state
        return world.phi(stats, x), world.mu(stats, next_state), concatenated(world.mu(stats, expected))

    phi, mu, expected = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"])
    mixed = [
        jnp.take_along_axis(part, shuffles(k, *part.shape[:2])[:, :, None], axis=0)
        for part, k in zip(mu, jax.random.split(key, len(mu)), strict=True)
    ]
    happened, negatives = (jax.vmap(concatenated)(parts) for parts in (mu, mixed))
    energies = jax.vmap(model)
    positive = 0.5 * (energies(phi, happened).mean() + energies(phi, expected).mean())
    negative = energies(phi, negatives).mean()
    return positive - negative + norm * squared_norms(model), {"positive": positive, "negative": negative}
