"""Whether the fitted world model tells that its mask lacks a cause, and takes it back."""

import numpy as np
import pytest

from because_rl.algorithms.because import BecauseConfig, estimate_mask, fit_world_model
from because_rl.discovery.mask import CausalMask
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.io import unpack_json
from because_rl.models.prepared_data import prepare
from because_rl.models.sufficiency import compare
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.support import logged

FACTORS = FactorSpec(
    pack(("wind", 1, "continuous"), ("boat", 1, "continuous"), ("shore", 1, "continuous")),
    pack(("oar", 1, "continuous")),
    (GoalFactor("there", 0, 1, "continuous", factor="boat"),),
)


def boats(episodes=150):
    """Wind and oar move a boat; the shore is another one in every episode, and wind blows towards it."""
    rng, n = stream(0, "boats"), episodes * 10
    shore = np.repeat(rng.normal(size=episodes), 10)
    wind, oar = shore + rng.normal(size=n), rng.normal(size=n)
    boat = rng.normal(size=n)
    after = np.stack([0.5 * wind + rng.normal(size=n), boat + np.tanh(wind) + 0.5 * oar, shore], 1)
    return logged(FACTORS, np.stack([wind, boat, shore], 1), oar[:, None], after, np.zeros((n, 1)))


def boat_mask(wind_boat, hidden_cause=False):
    """Own pasts and oar -> boat; the verdict on wind -> boat as given, and whether a hidden cause shifts the boat."""
    statuses = {("oar", "boat"): "established", ("wind", "boat"): wind_boat}
    rows = [
        {"from": i, "to": j, "p": 0.5, "effect": 0.0, "statistic": 0.0, "detectable": None}
        | {"status": (status := "forced" if i == j else statuses.get((i, j), "excluded"))}
        | {"kept": (kept := status in ("forced", "established")), "weight": float(kept)}
        for j in FACTORS.targets
        for i in FACTORS.inputs
    ]
    checks = {"boat": {"loss": 0.0, "p": 1.0, "reopened": [], "suffices": True, "hidden_cause": hidden_cause}}
    names = {"inputs": FACTORS.inputs, "targets": FACTORS.targets}
    return CausalMask.from_dict({**names, "edges": rows, "sufficiency": checks})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "back"), [pytest.param("established", [], marks=pytest.mark.long), ("undetermined", ["wind"])]
)
def test_a_missing_cause_comes_back(tmp_path, verdict, back):
    data, run = boats(), Run([0], tmp_path)
    config = BecauseConfig(hidden=16, batch=64, world_steps=300, check_steps=200, rate=5e-3)
    edges = estimate_mask(config, data, run, boat_mask(verdict))
    mask = fit_world_model(config, prepare(data), run, edges)[1].mask
    checks = unpack_json(run.cached("sufficiency", dict)["checks"])
    assert {name: check["reopened"] for name, check in checks.items()} == {"wind": [], "boat": back, "shore": []}
    assert mask[0, 1] == 1
    assert checks["boat"]["suffices"]


def test_constants_of_episodes_and_forbidden_edges_stay_out():
    edges = estimate_mask(BecauseConfig(), boats(), Run([0]), boat_mask("forbidden"))
    assert edges.may_cause.tolist() == [[True, False, True], [True] * 3, [False] * 3, [True] * 3]


def test_what_goes_along_with_a_hidden_cause_stays_out():
    data = boats()
    for verdict, back in (("excluded", False), ("undetermined", True)):
        edges = estimate_mask(BecauseConfig(), data, Run([0]), boat_mask(verdict, hidden_cause=True))
        assert edges.may_cause[:, 1].tolist() == [back, True, False, True]
        assert edges.may_cause[:, 0].tolist() == [True, True, False, True]


def test_loss_needs_many_episodes_and_a_share_that_counts():
    rng = stream(0, "errors")
    errors, first = rng.exponential(size=400), np.arange(0, 400, 20)
    assert not compare(1.3 * errors, errors, first)["suffices"]
    assert compare(1.05 * errors, errors, first)["suffices"]
    one = np.where(np.arange(400) < 20, 5.0, 1.0)  # a single episode is no evidence
    assert compare(one * errors, errors, first)["suffices"]
    assert compare(1.3e-3 * errors, 1e-3 * errors, first)["suffices"]
