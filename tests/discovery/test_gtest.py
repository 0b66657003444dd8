"""The categorical test: level, power, the Unlock graph, and what is untestable."""

import numpy as np
import pytest

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.independence.gtest import GTest, joint_codes, permutation_test, row_codes
from because_rl.discovery.mask import decide
from because_rl.discovery.variables import Variables
from because_rl.envs.tasks import world_class
from because_rl.factors import FactorSpec, pack
from because_rl.graph import score


def unlock(level, episodes, **knobs):
    """The transitions of a small Unlock dataset."""
    recipe = Recipe.parse(f"unlock-{level}", episodes, **knobs)
    rolled, factors = rollout(recipe, range(episodes)), world_class("unlock").make_factors(recipe.spurious)
    action = factors.encode_action(np.concatenate([e["action"] for e in rolled]))
    state, after = (np.concatenate([e["state"][cut] for e in rolled]) for cut in (slice(None, -1), slice(1, None)))
    episode = np.repeat(np.arange(episodes), [len(e["action"]) for e in rolled])
    return Variables.from_arrays(factors, state, action, after, episode)


def find_mask(variables, **settings):
    test = GTest(**settings)
    return decide(variables, test(variables), test, 0.002)


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


def test_p_is_below_the_permutation_limit_only_when_clear():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 1000)
    result = permutation_test(x, x, np.zeros(1000, int), rng, 9999)
    assert result.p < 1e-8
    assert result.effect > 0.9


def unlock_f1(level, episodes, **settings):
    mask = find_mask(unlock(level, episodes), **settings)
    return score(mask.graph, world_class("unlock").make_true_graph(1)).f1


def test_unlock_graph_is_found_from_100_episodes():
    assert unlock_f1("medium", 100, permutations=999) >= 0.92


@pytest.mark.long
@pytest.mark.parametrize("level", ["random", "medium", "expert"])
def test_unlock_graph_is_found(level):
    assert unlock_f1(level, 200) >= 0.92


def test_situations_never_logged_are_untestable_and_kept():
    """Without coverage no door is ever tried without the key: no data show that it would fail."""
    mask = find_mask(unlock("expert", 60, coverage=0.0), permutations=999)
    i, j = mask.inputs.index("has_key"), mask.targets.index("door")
    assert mask.status[i, j] == "untestable"
    assert mask.matrix[i, j]


@pytest.fixture(scope="module")
def toggled():
    """a is flipped by u; still never varies."""
    rng = np.random.default_rng(0)
    n = 400
    factors = FactorSpec(pack(("a", 2, "categorical"), ("still", 2, "categorical")), pack(("u", 2, "categorical")))
    bit = rng.integers(0, 2, (n, 2))
    state = np.concatenate([np.eye(2)[bit[:, 0]], np.eye(2)[np.zeros(n, int)]], 1)
    after = np.concatenate([np.eye(2)[bit[:, 0] ^ bit[:, 1]], state[:, 2:]], 1)
    return Variables.from_arrays(factors, state, np.eye(2)[bit[:, 1]], after)


def test_a_constant_input_is_untestable(toggled):
    mask = find_mask(toggled)
    status = {(r["from"], r["to"]): r["status"] for r in mask.rows()}
    assert status["u", "a"] == "edge"
    assert status["still", "a"] == "untestable"
    assert mask.why["still", "a"] == "it never varies"


def test_same_seed_same_answer():
    variables, test = unlock("medium", 15), GTest(permutations=199, scan=99)
    first, again, other = test(variables, seed=3), test(variables, seed=3), test(variables, seed=4)
    assert (first.p == again.p).all()
    assert (first.p != other.p).any()


def test_a_small_threshold_gets_enough_permutations():
    """p is at least 1 / (1 + permutations): with the default number no sparse edge would pass the paper's 1e-4."""
    assert GTest().for_threshold(2e-3).permutations == GTest().permutations
    assert 1 / (1 + GTest().for_threshold(1e-4).permutations) < 1e-4
    assert GTest().for_threshold(1e-300).permutations == 100_000
