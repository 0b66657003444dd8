"""BECAUSE (Lin et al., NeurIPS 2024): bilinear causal representation for generalizable offline model-based RL.

The file follows Algorithm 1 of the paper; equation numbers are the paper's.

    estimate the causal mask M, averaged over batches of trajectories to M-bar      (equations 5 and 7)
    fit phi, mu and the core under the mask: the world model                        (equation 6)
    fit the energy of (s, a, s') on the causal representation                       (equation 8)
    plan pessimistically: Q(s, a) = r - lambda (E(s, a) + 1) / 2 + E V(s')          (equation 9)

Where it departs from the paper, and why: the mask is estimated once, from the factors themselves, and does not return
to the features in later rounds, since tests on factors do not depend on phi and mu; the next state is a readout of
phi, not of phi^T M mu (`models.bilinear`); and the mask gates the inputs of phi, so that a non-parent has no path to
its target. Energies also see the edges that the data cannot decide: where logged data never separated two causes, a
plan that separates them pays. Inputs that never change in an episode are left out of this: no plan can change them.
What counts is the mean energy of all factors that lead to the goal. The paper's ablations are settings
(`presets.VARIANTS`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.discovery.discover import discover
from because_rl.discovery.mask import CausalMask
from because_rl.discovery.mbar import spread_episodes
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.graph import Graph
from because_rl.io import arrays_sha256, pack_json, remove_folder, unpack_json
from because_rl.models.bilinear import BilinearModel, Outputs, make_gates, whiten_mu
from because_rl.models.energy import EnergyModel, EnergyWeights, energy_loss, family_features, predict_mu
from because_rl.models.l0_mask import l0_mask, l0_stage
from because_rl.models.layout import Layout
from because_rl.models.likelihood import per_target
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.prepared_data import PreparedData, Statistics, Summary, prepare
from because_rl.models.score_world import ScoreWorld
from because_rl.models.sufficiency import correction_stage, fitted, held_out_losses
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask, goal_ancestors
from because_rl.training.method import Agent
from because_rl.training.run import Run, Seeds, as_run
from because_rl.training.stage import Stage
from because_rl.transitions import Transitions

ATTEMPTS = 3
"""How often the world model is fitted at most until its mask suffices."""


@dataclass(frozen=True)
class BecauseConfig(PlanningConfig):
    energy_steps: int = 1000
    energy_hidden: int = 64
    check_steps: int = 500
    """of the check that the mask predicts as well as all inputs (`models.sufficiency`); 0: no check"""
    mask: Literal["discovered", "full", "l0"] = "discovered"
    """by independence tests; every edge; or by sparse maximum likelihood, the mean over seeds (equation 4)"""
    l0: float = 0.02
    """nats a row that an edge must save, where `mask` is l0"""
    test: str | None = None
    """independence test; None: by the factors' types"""
    threshold: float | None = None
    """p-value below which an edge is kept; None: the test's own"""
    batches: int = 3
    """of trajectories, over which the mask is averaged (M-bar); 0: one mask of all the data"""
    mask_rows: int | None = None
    """transitions from which the mask is estimated, in whole episodes spread over the data; None: all"""
    echo_rule: bool = True
    """whether inputs that never change in an episode are left out as echoes of a hidden cause; else all are context"""
    undetermined: Literal["kept", "open", "closed", "excluded"] = "kept"
    """which edges that the data cannot decide the world model sees: those that `discover` keeps, all of them or none;
    'excluded': nothing distinguishes them from edges that the data exclude"""
    prediction: Literal["readout", "gated-score", "score"] = "readout"
    """of the next state: a readout of phi, whose inputs the mask gates; the paper's score phi^T M mu, of inputs that it
    gates too; or that score with the mask on the core alone, as in the paper (`models.score_world`)"""
    vote: Literal["sceptical", "mean"] = "sceptical"
    """which of the networks that vote on an event that the goal is about plans believe"""
    energy_inputs: Literal["possible", "mask"] = "possible"
    """the edges that energies see: the mask's alone, or also those that the data cannot decide, of inputs that change
    within episodes"""
    proposal_mask: Literal["model", "discovered", "full"] = "model"
    """the mask in which proposals and value see the ancestors of the goal: the world model's, that of the tests even
    where the world model has another one, or every edge"""
    feared: Literal["goal", "ancestors"] = "ancestors"
    """the targets whose energies count as uncertainty: those that the goal is about, or all that lead to them"""
    weights: Weights = field(default_factory=Weights)
    energy: EnergyWeights = field(default_factory=EnergyWeights)


class Because(PlanningMethod):
    name = "because"

    def __init__(self, config: BecauseConfig | None = None):
        self.config = config or BecauseConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1, mask: CausalMask | Graph | np.ndarray | None = None) -> Agent:
        """`mask`: what `discover` returned, a graph, or (inputs, targets) weights; None: estimated from the data."""
        c, run, prepared = self.config, as_run(seeds), prepare(data)

        # Lines 5 to 9: the causal mask, estimated on batches of trajectories and averaged to M-bar (equations 5, 7)
        if c.mask == "l0" and mask is None:
            mask = l0_weights(c, prepared, run)
        edges = estimate_mask(c, data, run, mask)

        # Line 4: the world model, phi and mu under the mask (equation 6), which must not cost it what others would tell
        world, edges = fit_world_model(c, prepared, run, edges)
        gates, possible = (make_gates(prepared.layout, weights) for weights in (edges.mask, edges.possible))
        feared = jnp.asarray(feared_targets(c, prepared.layout, edges.possible))
        gates, possible, feared = broadcast_over_seeds((gates, possible, feared), len(run.seeds))

        # Line 11: the energy on the causal representation, our measure of uncertainty (equation 8)
        whitening = whiten_mu(world, prepared.stats, prepared.train["next_state"])
        energy = run.fit(energy_stage(c, prepared), prepared.train, (world, whitening, gates, possible))

        # Lines 12 to 18: candidates from the behaviour policy, the best of them by pessimistic return (equation 9)
        proposals = fit_proposals(c, prepared, run, mask_of_proposals(c, data, run, edges))
        model = {"world": world, "energy": energy, "gates": gates, "possible": possible, "feared": feared}
        return self.make_agent(prepared, run, model, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        layout, c = summary.layout, self.config
        return {
            "world": make_world(c, layout, key),
            "energy": EnergyModel(layout, key, hidden=c.energy_hidden),
            "gates": make_gates(layout, full_mask(summary.factors)),
            "possible": make_gates(layout, full_mask(summary.factors)),
            "feared": jnp.ones(len(layout.factors.state)),
        }

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The world model's outputs, and (E + 1) / 2, the mean over the targets that are feared."""
        x = jnp.concatenate([state, action])
        outputs = p["world"](stats, p["gates"], x)
        features = family_features(p["world"], stats, p["possible"], x)
        energy = per_target(layout, p["energy"](features, predict_mu(p["world"], outputs)))
        if self.config.vote == "mean":
            outputs = [out._replace(value=average_vote(out.value)) for out in outputs]
        # Not the largest of them: where one target is unlike the data whatever is done, the others still differ.
        return outputs, (p["feared"] * (energy + 1.0)).sum() / (2.0 * jnp.maximum(p["feared"].sum(), 1.0))


def make_world(c: BecauseConfig, layout: Layout, key: PRNGKeyArray) -> BilinearModel:
    if c.prediction == "readout":
        return BilinearModel(layout, key, hidden=c.hidden)
    return ScoreWorld(layout, key, hidden=c.hidden, gated=c.prediction == "gated-score")


def average_vote(value: Array) -> Array:
    """The mean of the networks that vote on events, (members, 1, width); other outputs as they are."""
    return value.mean(1, keepdims=True) if value.ndim == 3 else value


def feared_targets(c: BecauseConfig, layout: Layout, possible: np.ndarray) -> np.ndarray:
    """(targets,) 1 for those whose energies count as uncertainty.

    A plan fails as well where something that the goal hangs on turns out otherwise: the door does not open for an agent
    that only believes it has the key.
    """
    edges = possible if c.feared == "ancestors" else np.zeros_like(possible)
    gate = goal_ancestors(layout, edges)
    return np.array([gate[factor.slice].max() for factor in layout.factors.state], np.float32)


def l0_weights(c: BecauseConfig, prepared: PreparedData, run: Run) -> np.ndarray:
    """(inputs, targets) the share of seeds whose sparse maximum likelihood keeps an edge (equation 4)."""
    stage = l0_stage(prepared, c.l0, c.hidden, c.world_steps, c.batch, c.rate)
    return l0_mask(run.fit(stage, prepared.train, ()).alpha)


class Edges(NamedTuple):
    """Two masks, (inputs, targets) in [0, 1]."""

    mask: np.ndarray
    """M-bar: the share of batches that keep an edge, weighted by equation 7; what the world model sees"""
    possible: np.ndarray
    """the same, with 1 for every undetermined edge, if `energy_inputs` says so; what energies see"""
    undetermined: np.ndarray
    """(inputs, targets) bool: the edges that the data cannot decide and that may come back"""
    may_cause: np.ndarray
    """(inputs, targets) bool: all that may come back; not what the user forbade, nor what never changes in an episode,
    which no data distinguish from a hidden cause, nor what was excluded although a hidden cause shifts the target: any
    input that goes along with that cause would improve the prediction"""


def estimate_mask(
    c: BecauseConfig, data: Transitions, run: Run, given: CausalMask | Graph | np.ndarray | None = None
) -> Edges:
    """The causal mask of the data; one that is given is taken instead."""
    knows_echoes = c.test in (None, "residual")
    tested = data if c.echo_rule or not knows_echoes else replace(data, factors=all_context(data.factors))
    weights = None if given is None else edge_weights(data.factors, given)
    keep = None if run.folder is None else Path(run.folder) / "unfinished-mask"

    def progress(done: int, total: int) -> None:
        run.report("mask", done, total, {})

    def estimate() -> dict[str, np.ndarray]:
        if weights is not None:
            return given.to_arrays() if isinstance(given, CausalMask) else {"weights": weights}
        if c.mask == "full":
            return {"weights": full_mask(data.factors)}
        rows = tested.rows(spread_episodes(data.episode, c.mask_rows))
        mask = discover(rows, test=c.test, threshold=c.threshold, batches=c.batches, progress=progress, keep=keep)
        return mask.to_arrays()

    known = run.cached("mask", estimate, mask_cache_key(c, tested) if weights is None else None)
    if keep is not None:
        remove_folder(keep)
    weights = known["weights"]
    if "evidence" not in known:  # every edge, or what the user chose: nothing is in doubt
        return Edges(weights, weights, weights < 0, weights < 0)
    evidence = CausalMask.from_dict(unpack_json(known["evidence"]))
    status = evidence.status
    undetermined = status == "undetermined"
    if c.undetermined == "excluded":
        weights, undetermined = np.where(undetermined, 0, weights).astype(np.float32), np.zeros_like(undetermined)
    shifted = np.array([evidence.sufficiency.get(j, {}).get("hidden_cause", False) for j in evidence.targets])
    may_cause = (status != "forbidden") & ~(shifted & (status == "excluded"))
    may_cause &= ~(c.echo_rule & _constant_inputs(data)[:, None])
    possible = np.where(undetermined & may_cause, 1, weights).astype(np.float32)
    masks = {
        "kept": weights,
        "open": np.where(undetermined, 1, weights).astype(np.float32),
        "closed": np.where(undetermined, 0, weights).astype(np.float32),
    }
    mask = masks.get(c.undetermined, weights)
    possible = possible if c.energy_inputs == "possible" else mask
    return Edges(mask, possible, undetermined & may_cause, may_cause)


def all_context(factors: FactorSpec) -> FactorSpec:
    """The factors with the role 'context' where they have none."""
    groups = factors.state, factors.action
    state, action = (tuple(replace(factor, role=factor.role or "context") for factor in group) for group in groups)
    return replace(factors, state=state, action=action)


def mask_of_proposals(c: BecauseConfig, data: Transitions, run: Run, edges: Edges) -> np.ndarray:
    """(inputs, targets) the mask in which proposals and value see the ancestors of the goal."""
    if c.proposal_mask == "model":
        return edges.mask
    if c.proposal_mask == "full":
        return full_mask(data.factors)
    folder = None if run.folder is None else Path(run.folder) / "proposals"  # its mask is not the world model's
    own_run = Run(run.seeds, folder, run.report, shared=run.shared)
    return estimate_mask(replace(c, mask="discovered"), data, own_run).mask


def _constant_inputs(data: Transitions) -> np.ndarray:
    """(inputs,) bool: those that never change in an episode, unless their role is 'context'."""
    first = np.flatnonzero(np.diff(data.episode, prepend=-1))
    x = np.hstack([data.state, data.action])
    same = (np.maximum.reduceat(x, first) == np.minimum.reduceat(x, first)).all(0)
    inputs, columns = Layout(data.factors).inputs, Layout(data.factors).columns
    return np.array([f.role != "context" and bool(same[c].all()) for f, c in zip(inputs, columns, strict=True)])


def fit_world_model(c: BecauseConfig, prepared: PreparedData, run: Run, edges: Edges) -> tuple[BilinearModel, Edges]:
    """The world model under the mask, and the edges that it was fitted with.

    Where all inputs predict a target significantly better than the mask, edges come back: those that the data cannot
    decide, and if that is not enough all that may be causes.
    """
    layout, targets, estimated = prepared.layout, prepared.layout.factors.targets, edges.mask
    for attempt in range(1, ATTEMPTS + 1):
        suffix = "" if attempt == 1 else f"-{attempt}"
        gates = broadcast_over_seeds(make_gates(layout, edges.mask), len(run.seeds))
        world = run.fit(world_model_stage(c, prepared, f"world{suffix}"), prepared.train, gates)
        if not c.check_steps or not edges.may_cause.any() or run.rounds > 1:
            return world, edges
        every = np.where(edges.may_cause, 1, edges.mask).astype(np.float32)
        start = fitted(world, gates, broadcast_over_seeds(make_gates(layout, every), len(run.seeds)))
        stage = correction_stage(f"check{suffix}", prepared, c.hidden // 2, c.check_steps, c.batch, c.rate)
        checks = held_out_losses(prepared, run.fit(stage, prepared.train, start), start)
        closed = (edges.mask < 1) & np.array([not checks[target]["suffices"] for target in targets])[None]
        reopened = closed & edges.undetermined if (closed & edges.undetermined).any() else closed & edges.may_cause
        if attempt == ATTEMPTS or not reopened.any():
            break
        mask, possible = (np.where(reopened, 1, weights).astype(np.float32) for weights in edges[:2])
        edges = edges._replace(mask=mask, possible=possible)
    back = {
        j: [i for n, i in enumerate(layout.factors.inputs) if edges.mask[n, m] > estimated[n, m]]
        for m, j in enumerate(targets)
    }
    run.cached("sufficiency", lambda: {"checks": pack_json({j: checks[j] | {"reopened": back[j]} for j in targets})})
    return world, edges


def edge_weights(factors: FactorSpec, mask: CausalMask | Graph | np.ndarray) -> np.ndarray:
    """(inputs, targets) weights in [0, 1] of a mask that was found before."""
    if isinstance(mask, CausalMask | Graph):
        if (mask.inputs, mask.targets) != (factors.inputs, factors.targets):
            raise BecauseError(
                f"The mask is about {', '.join(mask.inputs)} and {', '.join(mask.targets)}.",
                need=f"the factors of the data: {', '.join(factors.inputs)}.",
                fix="discover it from these data.",
            )
        return np.asarray(mask.weight if isinstance(mask, CausalMask) else mask.matrix, np.float32)
    weights, shape = np.asarray(mask, np.float32), (len(factors.inputs), len(factors.targets))
    if weights.shape != shape or not ((weights >= 0) & (weights <= 1)).all():
        raise BecauseError(
            f"Got a mask of shape {weights.shape}.", need=f"{shape}, weights in [0, 1].", fix="correct the array."
        )
    return weights


def mask_cache_key(c: BecauseConfig, data: Transitions) -> dict[str, Any]:
    """All that decides the mask, so that runs on the same data can share it."""
    arrays = {"state": data.state, "action": data.action, "next_state": data.next_state, "episode": data.episode}
    settings = {"mask": c.mask, "test": c.test, "threshold": c.threshold, "batches": c.batches, "rows": c.mask_rows}
    return settings | {"data": arrays_sha256(arrays), "factors": data.factors.to_dict()}


def world_model_stage(c: BecauseConfig, prepared: PreparedData, name: str = "world") -> Stage:
    """Likelihood of the next factors, and equation 6 on whitened mu (`models.objective`)."""
    return Stage(
        name,
        lambda key, fixed: make_world(c, prepared.layout, key),
        partial(world_model_loss, c.weights, prepared.stats),
        c.world_steps,
        c.batch,
        c.rate,
        settings={"hidden": c.hidden, "weights": asdict(c.weights), "prediction": c.prediction},
    )


def energy_stage(c: BecauseConfig, prepared: PreparedData) -> Stage:
    """Equation 8: low energy for what happened, high energy for what did not (`models.energy`)."""
    return Stage(
        "energy",
        lambda key, fixed: EnergyModel(prepared.layout, key, hidden=c.energy_hidden),
        partial(energy_loss, c.energy, prepared.stats),
        c.energy_steps,
        c.batch,
        c.rate,
        settings={"energy_hidden": c.energy_hidden, "energy": asdict(c.energy), "prediction": c.prediction},
    )
