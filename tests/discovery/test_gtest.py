"""The categorical test: level, power, the Unlock graph, and honesty about what data cannot tell."""

import numpy as np
import pytest

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.independence.gtest import GTest, joint_codes, row_codes, permutation_test
from because_rl.discovery.mask import decide
from because_rl.discovery.variables import Variables
from because_rl.envs.tasks import world_class
from because_rl.factors import FactorSpec, pack
from because_rl.graph import score


def unlock(level, episodes=200, **knobs):
    recipe = Recipe.parse(f"unlock-{level}", episodes, **knobs)
    rolled, factors = rollout(recipe, range(episodes)), world_class("unlock").make_factors(recipe.spurious)
    action = factors.encode_action(np.concatenate([e["action"] for e in rolled]))
    state, after = (np.concatenate([e["state"][cut] for e in rolled]) for cut in (slice(None, -1), slice(1, None)))
    episode = np.repeat(np.arange(episodes), [len(e["action"]) for e in rolled])
    return Variables.from_arrays(factors, state, action, after, episode)


def mask_of(v, threshold=0.002):
    test = GTest()
    return decide(v, test(v), test, threshold)


def test_codes_are_equal_where_rows_are():
    rows = np.array([[0, 1], [1, 0], [0, 1], [1, 1]])
    code = row_codes(rows)
    assert code[0] == code[2]
    assert len(np.unique(code)) == 3
    assert len(np.unique(joint_codes(code, np.array([0, 0, 1, 0])))) == 4


def null_p(rng, n=300):
    """x and y both depend on z, not on each other; strata are small and uneven, as in Unlock."""
    z = rng.geometric(0.15, n)
    x = (z + rng.integers(0, 3, n)) % 5
    y = (z + (rng.random(n) < 0.2)) % 7
    return permutation_test(x, y, row_codes(z[:, None]), rng, 199).p


def test_holds_its_level_where_chi_square_would_not():
    rng = np.random.default_rng(0)
    p = np.array([null_p(rng) for _ in range(600)])
    for alpha in (0.05, 0.2):
        assert abs((p <= alpha).mean() - alpha) < 3 * np.sqrt(alpha * (1 - alpha) / 600) + 0.005


def test_finds_a_dependence_that_only_strata_show():
    rng = np.random.default_rng(0)
    z, x = rng.integers(0, 20, 800), rng.integers(0, 20, 800)
    y = ((x == z) & (rng.random(800) < 0.9)).astype(int)
    assert permutation_test(x, y, row_codes(z[:, None]), rng, 999).p < 0.002
    assert permutation_test(x, y, np.zeros(800, int), rng, 999).p > 0.01


def test_p_values_go_below_the_number_of_shuffles_only_when_it_is_clear():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 1000)
    result = permutation_test(x, x, np.zeros(1000, int), rng, 9999)
    assert result.p < 1e-8
    assert result.effect > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("level", ["random", "medium", "expert"])
def test_unlock_graph_is_found(level):
    v = unlock(level)
    assert score(mask_of(v).graph, world_class("unlock").make_true_graph(1)).f1 >= 0.92


@pytest.mark.slow
def test_what_was_never_logged_is_untestable_and_kept():
    """Without coverage no door is ever tried without the key: nobody can know that it fails."""
    v = unlock("expert", coverage=0.0)
    mask = mask_of(v)
    i, j = mask.inputs.index("has_key"), mask.targets.index("door")
    assert mask.status[i, j] == "untestable"
    assert mask.matrix[i, j]


def test_a_constant_input_is_untestable():
    rng = np.random.default_rng(0)
    n = 400
    factors = FactorSpec(pack(("a", 2, "categorical"), ("still", 2, "categorical")), pack(("u", 2, "categorical")))
    bit = rng.integers(0, 2, (n, 3))
    state = np.concatenate([np.eye(2)[bit[:, 0]], np.eye(2)[np.zeros(n, int)]], 1)
    after = np.concatenate([np.eye(2)[bit[:, 0] ^ bit[:, 1]], state[:, 2:]], 1)
    v = Variables.from_arrays(factors, state, np.eye(2)[bit[:, 1]], after)
    mask = mask_of(v)
    status = {(r["from"], r["to"]): r["status"] for r in mask.rows()}
    assert status["u", "a"] == "edge"
    assert status["still", "a"] == "untestable"
    assert mask.why["still", "a"] == "it never varies"


def test_same_seed_same_answer():
    v = unlock("medium", 30)
    first, second = GTest(permutations=199)(v, seed=3), GTest(permutations=199)(v, seed=3)
    assert (first.p == second.p).all()


def test_a_fine_threshold_gets_enough_shuffles_to_be_reached():
    """p is never under 1 / (1 + shuffles): with the default number no sparse edge would pass the paper's 1e-4."""
    assert GTest().for_threshold(2e-3).permutations == GTest().permutations
    assert 1 / (1 + GTest().for_threshold(1e-4).permutations) < 1e-4
    assert GTest().for_threshold(1e-300).permutations == 100_000
