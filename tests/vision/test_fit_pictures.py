"""`because fit` on pictures, from PNG files or a Minari dataset to a policy that is shown pictures, and its page."""

import json
import re

import gymnasium
import numpy as np
import pytest

from because_rl.algorithms.registry import load_agent
from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe
from because_rl.report.factor_pages import factors_view
from because_rl.runs import pictures as encoded
from because_rl.runs.fit import fit
from because_rl.training.run import Run
from because_rl.vision.encoder import fit_encoder
from because_rl.vision.views import read_factor_views, view_factors, write_factor_views
from tests.support import because
from tests.vision.logs import TRUE, unlock_log, write_folder

TINY = {"hidden": 8, "batch": 32, "world_steps": 0, "energy_steps": 0, "check_steps": 0, "batches": 0}
TINY |= {"behaviour_steps": 0, "value_steps": 0, "planner.population": 8, "planner.horizon": 2}


@pytest.fixture
def untrained(monkeypatch):
    """Encoders have random convolutions, which tell different tiles apart as well."""
    monkeypatch.setattr(encoded.trained_encoder, "__defaults__", (None, lambda *report: None, 0))


@pytest.fixture(scope="module")
def log():
    return unlock_log(40)


@pytest.mark.slow
def test_a_folder_of_pictures_becomes_a_policy_of_pictures(log, tmp_path, untrained):
    """Networks are hardly trained; the graph is of the factors that were read."""
    pictures = log[0]
    write_folder(pictures, tmp_path / "own")
    options = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    out = tmp_path / "fitted"
    command = ("fit", tmp_path / "own", "-o", out, "--seeds", 1, *options)
    result = json.loads(because(*command, "--json", root=tmp_path / "home").stdout)
    assert list(result["graph"]) == ["mover_1", "still_1", "still_2", "switch_1"]
    assert result["transitions"] == len(pictures.before)
    assert result["goal_reached"] == pytest.approx(pictures.terminated.sum() / 40)
    data = load("own/log-v0", out)
    agent = load_agent(out)
    assert (agent.encoder.read(pictures.frames)[pictures.before] == data.state).all()
    assert (data.action.argmax(1) == (pictures.action[:, None] == np.array(TRUE.codes)).all(2).argmax(1)).all()
    assert agent.act(pictures.frames[0]) in range(6)  # a number, as in the table
    page = (out / "report/index.html").read_text()
    for name in result["graph"]:
        assert f'<h3>{name}</h3><img src="data:image/png;base64,' in page
    assert "holds this fit already" in because(*command, root=tmp_path / "home", code=2).stderr


@pytest.mark.long
def test_a_minari_dataset_of_pictures_is_fitted(tmp_path, untrained):
    collect(Recipe.parse("unlock-visual-medium", 40, seed=500), tmp_path)
    result = fit("unlock-visual-medium-n40-seed500", None, tmp_path / "fitted", tmp_path, [0], TINY)
    assert "move" in result["graph"]["mover_1"]
    assert result["policy"] is not None
    agent = load_agent(tmp_path / "fitted")
    played = agent.rollout(gymnasium.make("because/UnlockVisual-v0", split="I"), 1, most_steps=2)
    assert played.steps.tolist() == [2]
    assert because("explain", tmp_path / "fitted", "--row", 3, "--json").stdout


def test_a_page_shows_where_factors_are_what_moves_them_and_how_often(log, tmp_path):
    pictures, states = log
    encoder = fit_encoder(pictures, Run([0]), steps=0)
    write_factor_views(tmp_path / "factors.npz", view_factors(encoder, pictures))
    views = {view.name: view for view in read_factor_views(tmp_path / "factors.npz")}
    agent = states[:, TRUE["agent"].slice]
    moved = (agent[pictures.before] != agent[pictures.before + 1]).any(1).mean()
    assert views["mover_1"].changes == pytest.approx(moved)
    assert [name for name, view in views.items() if view.goal] == [encoder.goal.factor]
    everywhere, first = views["mover_1"].frames[:2].astype(int).reshape(2, 8, 8, 8, 8, 3).mean((2, 4))
    green = [frame[..., 1] - frame[..., 0] > 60 for frame in (everywhere, first)]
    assert green[0][1:7, 1:7].all()
    assert green[0].sum() == 36
    assert green[1].sum() == 1
    edge = {"kept": True, "weight": 1.0, "p": 0.0, "effect": 1.0, "to": "mover_1"}
    edges = [edge | {"from": "mover_1", "status": "forced"}, edge | {"from": "push", "status": "established"}]
    edges += [edge | {"from": "maybe", "status": "undetermined"}]
    edges += [edge | {"from": "never", "status": "excluded", "kept": False}]
    text = factors_view(list(views.values()), [{"edges": edges}])
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    assert facts[0] == ("type", "Categorical: which of 36 cells it is in")
    assert facts[1] == ("changes", f"in {100 * moved:.1f}% of the logged steps")
    assert facts[2] == ("moved by", "push, maybe (undetermined, kept to be safe)")
    assert ("moved by", "nothing but its own past") in facts
    assert text.count("<img") == 4
    assert factors_view([], []) is None
