"""An agent that is shown pictures, from training to a rollout in the environment."""

import gymnasium
import numpy as np
import pytest

from because_rl.algorithms.registry import load_agent
from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe
from because_rl.envs.unlock.visual import UnlockVisualBatch
from because_rl.errors import BecauseError
from because_rl.evaluation.recovery import accuracy, edge_score, match_factors
from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph
from because_rl.runs import pictures as encoded
from because_rl.runs.evaluate import evaluate_run
from because_rl.runs.report import report_run
from because_rl.runs.train import train

SETTINGS = {"steps": 20, "hidden": 8, "batch": 16}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of TD3+BC on pictures, hardly trained; its encoder has random convolutions."""
    root = tmp_path_factory.mktemp("visual")
    recipe = Recipe.parse("unlock-visual-medium", 40)
    collect(recipe, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded.trained_encoder, "__defaults__", (None, lambda *report: None, 0))
        train("td3bc", recipe.id, root, root / "run", [0, 1], SETTINGS)
        with pytest.raises(BecauseError, match=r"observations of dataset .* are pictures"):
            load(recipe.id, root)
        yield root / "run"


@pytest.mark.slow
def test_a_run_on_pictures_is_evaluated_on_pictures(run):
    evaluation = evaluate_run(run, "O", 3)["O"]
    agent = load_agent(run)
    assert agent.sees_pictures
    shown = UnlockVisualBatch("O").reset(range(3)).state
    states = np.broadcast_to(shown, (2, *shown.shape))
    first = agent.start(3).act(states, np.zeros((2, 3, 0)), 15)
    columns = agent.encoder.read(shown.reshape(3, 64, 64, 3))
    assert (first == agent.start(3).act(np.stack([columns] * 2), np.zeros((2, 3, 36), np.float32), 15)).all()
    assert (agent.act(shown.reshape(3, 64, 64, 3)) == agent.act(columns)).all()
    assert agent.act(shown[0].reshape(64, 64, 3)).shape == ()
    assert len(evaluation["outcomes"]) == 2


@pytest.mark.slow
def test_an_agent_of_pictures_plays_in_the_environment(run):
    agent = load_agent(run)
    played = agent.rollout(gymnasium.make("because/UnlockVisual-v0", split="O"), 2, seed=1)
    assert (played.steps == 15).all() | played.terminated.any()


@pytest.mark.slow
def test_a_saved_agent_of_pictures_is_the_same(run, tmp_path):
    agent = load_agent(run)
    agent.select(1).save(tmp_path / "one")
    again = load_agent(tmp_path / "one")
    frames = UnlockVisualBatch("I").reset(range(5)).state.reshape(5, 64, 64, 3)
    assert (again.act(frames) == agent.act(frames, seed=1)).all()


@pytest.mark.slow
def test_the_page_of_a_run_on_pictures_shows_its_factors(run, tmp_path):
    report_run(run, tmp_path, run.parent)
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == len(load_agent(run).encoder.parts) == 4
    assert "unknown: there is no graph" in page  # TD3+BC has none


# Recovery ----------------------------------------------------------------------------------------------

TRUE = FactorSpec(
    pack(("place", 3, "categorical"), ("lamps", 3, "binary"), ("on", 2, "categorical")), pack(("go", 1, "binary"))
)
READ = FactorSpec(pack(("a", 2, "categorical"), ("b", 3, "binary"), ("c", 3, "categorical")), pack(("go", 1, "binary")))


def true_and_read(rng, n=400):
    place, lamps, on = np.eye(3)[rng.integers(0, 3, n)], rng.random((n, 3)) < 0.4, np.eye(2)[rng.integers(0, 2, n)]
    return np.hstack([place, lamps, on]), np.hstack([on[:, ::-1], lamps[:, [2, 0, 1]], place[:, [1, 2, 0]]])


def test_factors_are_matched_whatever_their_order_and_columns():
    true, read = true_and_read(np.random.default_rng(0))
    matches = match_factors(read, READ, true, TRUE)
    assert {name: match.factor for name, match in matches.items()} == {"place": "c", "lamps": "b", "on": "a"}
    assert set(accuracy(matches, read, true, TRUE).values()) == {1.0}
    wrong = read.copy()
    wrong[:100, 2] = 1 - wrong[:100, 2]
    assert accuracy(matches, wrong, true, TRUE) == {"place": 1.0, "lamps": 0.75, "on": 1.0, "all": 0.75}


def test_edges_are_scored_under_the_names_of_the_truth():
    true, read = true_and_read(np.random.default_rng(0))
    matches = match_factors(read, READ, true, TRUE)
    truth = Graph.from_parents(TRUE.inputs, {"place": ("place", "go"), "lamps": ("lamps",), "on": ("on", "place")})
    graph = Graph.from_parents(READ.inputs, {"c": ("c", "go"), "b": ("b", "a"), "a": ("a", "c")})
    scored = edge_score(graph, matches, truth)
    assert scored["f1"] == pytest.approx(2 * 5 / (6 + 5))
    assert scored["false"] == [["on", "lamps"]]
    assert scored["missed"] == []
