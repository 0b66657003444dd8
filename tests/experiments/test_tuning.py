"""Tuning: valid trials for every method, scenes that nothing else contains, the winner, and a small real round."""

import json
from dataclasses import asdict, replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from because_rl.algorithms import registry
from because_rl.algorithms.because import Because
from because_rl.algorithms.presets import TUNED
from because_rl.algorithms.registry import METHODS, make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import BEHAVIOURS, SPLITS, WORLDS, make_batch
from because_rl.errors import BecauseError
from because_rl.evaluation.one_step import OTHER_SEED
from because_rl.evaluation.rollout import SUBCASES, layouts
from because_rl.experiments.grid.grid import Grid
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.tuning import table as tuning_table
from because_rl.experiments.tuning import trials as tuning_trials
from because_rl.experiments.tuning import tune as tuning
from because_rl.experiments.tuning.development import develop, held_out, scenes
from because_rl.experiments.tuning.table import find_winner, write_table
from because_rl.experiments.tuning.trials import CHANGES, PLANNING_CHANGES, SHARED, TRIALS, Times, trials
from because_rl.io import write_json
from because_rl.models.prepared_data import summarise
from because_rl.planning import agent as planner_agent
from because_rl.planning.agent import LearnedModel, PlannerAgent
from because_rl.runs.train import load_for_training
from because_rl.training.method import Controller
from tests.experiments.support import SMALL, command
from tests.support import REPOSITORY

# The trials --------------------------------------------------------------------------------------------


def test_every_method_has_its_trials_or_shares_those_of_another():
    assert {*CHANGES, *SHARED} <= set(METHODS)
    assert not set(CHANGES) & set(SHARED)
    assert all(len(changes) == TRIALS - 1 for changes in (*CHANGES.values(), PLANNING_CHANGES))


def test_a_new_planning_method_has_trials_without_an_entry(monkeypatch):
    monkeypatch.delitem(tuning_trials.CHANGES, "mopo")
    assert trials("mopo", "unlock") == [{}, {"rate": 0.0006}, {"hidden": 128}, {"world_steps": 5000}]
    monkeypatch.delitem(tuning_trials.CHANGES, "td3bc")
    with pytest.raises(BecauseError, match="no trials for the method 'td3bc'"):
        trials("td3bc", "unlock")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_trials_are_different_configs_with_the_preset_first(method, world):
    settings_of_trials = trials(method, world)
    assert len(settings_of_trials) == TRIALS == 4
    assert settings_of_trials[0] == {}
    methods = [make_method(method, settings, world, tuned=False) for settings in settings_of_trials]
    configs = [json.dumps(asdict(each.config)) for each in methods]
    assert configs[0] == json.dumps(asdict(make_method(method, None, world, tuned=False).config))
    assert len(set(configs)) == TRIALS


@pytest.mark.parametrize("method", CHANGES)
def test_no_trial_is_without_effect_where_actions_are_discrete(method):
    idle = ("planner.", "behaviour", "value_", "memory", "expectile")
    assert not [name for settings in trials(method, "unlock") for name in settings if name.startswith(idle)]


def test_multiples_are_of_the_preset_of_the_world():
    assert [trials("td3bc", world)[1]["alpha"] for world in ("lift", "unlock")] == [0.3, 0.09]
    assert trials("td3bc", "lift", {"steps": 100})[3] == {"steps": 200}
    assert trials("because", "crash")[3] == {"planner.population": 384}
    assert trials("because-paper", "lift")[3] == {"planner.population": 3000}
    assert Times(2) in CHANGES["because"][2]["other"].values()
    with pytest.raises(BecauseError, match="'mopi'"):
        trials("mopi", "lift")


# Development scenes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_no_dataset_or_evaluation_contains_a_development_scene(world):
    development = set(scenes(world, 1000))
    assert len(development) == 1000
    for split in (*SPLITS, *SUBCASES.get(world, ())):
        assert not development & set(layouts(world, split, 1000))
    for behaviour in BEHAVIOURS:
        for seed in (0, 1, 2, OTHER_SEED):
            recipe = Recipe.parse(f"{world}-{behaviour}", seed=seed)
            assert not development & {recipe.episode_seed(episode) for episode in range(1000)}


class Idle(Controller):
    """Takes action 0, and keeps the first states; an agent that is its own controller."""

    seeds = (0, 1)
    first = None

    def start(self, worlds, seed):
        return self

    def act(self, state, goal, steps_left):
        self.first = state if self.first is None else self.first
        return np.zeros(state.shape[:2], int)


def test_development_is_in_its_scenes_of_split_i():
    agent = Idle()
    result = develop(agent, "unlock", 6)
    batch = make_batch("unlock", "I")
    for states in agent.first:
        np.testing.assert_array_equal(states, batch.reset(scenes("unlock", 6)).state)
    assert result["per_seed"] == [0.0, 0.0]
    assert result["outcomes"] == ["000000", "000000"]


def test_held_out_error_of_a_model_that_predicts_no_change(root, monkeypatch):
    recipe = Recipe.parse("unlock-expert", 20)
    collect(recipe, root, workers=1)
    data = load_for_training(recipe.id, root)
    learned = LearnedModel(None, None, lambda p, state, action: (state, jnp.zeros(()), jnp.zeros(())), None, None)
    monkeypatch.setattr(planner_agent, "split_learned", lambda predict, summary, parameters: (jnp.zeros(2), learned))
    agent = PlannerAgent(Because(), summarise(data), (0, 1), {}, np.zeros(2))
    error = held_out(agent, data)
    rows = data.episode % 10 == 9
    moved = (data.state != data.next_state)[rows]
    assert error["rows"] == rows.sum()
    assert error["per_seed"] == pytest.approx(
        [np.mean([moved[:, f.slice].any(1).mean() for f in data.factors.state])] * 2
    )
    assert held_out(Idle(), data) is None


# Jobs --------------------------------------------------------------------------------------------------


def test_a_round_has_one_cell_of_each_trial_presets_first():
    jobs = tuning.jobs(tuning.Round(methods=("td3bc", "icil"), seeds=3))
    cells = [cell for job in jobs for cell in job.cells.values()]
    assert len(jobs) == len(cells) == 2 * 3 * TRIALS
    assert [cell["trial"] for cell in cells] == sorted(cell["trial"] for cell in cells)
    assert {(cell["split"], cell["measure"], cell["scenes"]) for cell in cells} == {("I", "development", 100)}
    assert {cell["dataset"] for cell in cells} == {f"because/{world}-medium-v1" for world in WORLDS}
    assert all(cell["seeds"] == [0, 1, 2] for cell in cells)
    first = next(cell for cell in cells if (cell["method"], cell["recipe"]["world"]) == ("td3bc", "crash"))
    assert first["config"] == json.loads(json.dumps(asdict(make_method("td3bc", None, "crash", tuned=False).config)))


def test_tuned_settings_change_the_method_and_not_the_round(monkeypatch):
    wanted = tuning.Round(methods=("td3bc", "mopo"), worlds=("crash",))
    before = [job.key for job in tuning.jobs(wanted)]
    chosen = {"td3bc": {"crash": {"alpha": 7.0}}, "mopo": {"crash": {"planner.population": 5}}}
    monkeypatch.setattr(registry, "TUNED", chosen)
    assert make_method("td3bc", None, "crash").config.alpha == 7
    assert make_method("td3bc", {"alpha": 1}, "crash").config.alpha == 1
    assert make_method("td3bc", None, "lift").config.alpha != 7
    assert make_method("mopo", None, "crash").config.planner.population == 5
    assert [job.key for job in tuning.jobs(wanted)] == before


def test_tuned_settings_are_the_winners_of_the_committed_table():
    """The highest mean of a complete set of trials; BECAUSE moves only where its lead is beyond noise."""
    winners = json.loads((REPOSITORY / "results/tuning/table.json").read_text())["winners"]
    assert len(winners) == len(CHANGES) * len(WORLDS)
    for winner in winners:
        settings = winner["settings"] if winner["method"] != "because" or winner["noise"] == "beyond" else None
        assert TUNED.get(winner["method"], {}).get(winner["world"], {}) == (settings or {}), winner


def test_addresses_do_not_depend_on_the_order_of_trials(monkeypatch):
    wanted = tuning.Round(methods=("td3bc",), worlds=("unlock",))
    before = {key for job in tuning.jobs(wanted) for key in job.cells}
    monkeypatch.setitem(tuning_trials.CHANGES, "td3bc", CHANGES["td3bc"][::-1])
    assert {key for job in tuning.jobs(wanted) for key in job.cells} == before
    monkeypatch.setitem(tuning_trials.CHANGES, "td3bc", ({"alpha": 0.1},) * 3)
    with pytest.raises(BecauseError, match="twice"):
        tuning.jobs(wanted)


def test_wrong_names_are_refused():
    with pytest.raises(BecauseError, match="because, whose trials it shares"):
        tuning.Round(methods=("optimism",))
    for wrong in ({"methods": ("mopi",)}, {"worlds": ("lift", "mars")}, {"policy": "clever"}, {"worlds": ()}):
        with pytest.raises(BecauseError):
            tuning.jobs(replace(tuning.Round(methods=("td3bc",)), **wrong))


# The winner --------------------------------------------------------------------------------------------


def rows(*rates):
    """The rows of trials with these success rates of their seeds."""
    return [
        {"trial": n, "settings": {"alpha": n} if n else {}, "per_seed": per_seed, "success": float(np.mean(per_seed))}
        for n, per_seed in enumerate(rates)
    ]


def test_the_highest_mean_wins_and_a_tie_goes_to_the_preset():
    winner = find_winner(rows([0.5, 0.6, 0.7], [0.1, 0.2, 0.3], [0.7, 0.8, 0.6], [0.5, 0.5, 0.5]))
    assert (winner["winner"], winner["settings"], winner["trials"]) == (2, {"alpha": 2}, 4)
    assert winner["lead"] == pytest.approx(0.1)
    p = stats.ttest_ind([0.7, 0.8, 0.6], [0.5, 0.6, 0.7], equal_var=False, alternative="greater").pvalue
    assert winner["p"] == pytest.approx(3 * p)  # the least of three
    assert winner["noise"] == "within"
    assert find_winner(rows([0.1, 0.2, 0.3], [0.9, 1.0, 0.95], [0, 0, 0], [0, 0, 0]))["noise"] == "beyond"
    # Means that differ by rounding only
    tie = find_winner(rows([0.3, 0.2, 0.1], [0.1, 0.2, 0.3], [0.2, 0.2, 0.2], [0, 0, 0]))
    assert (tie["winner"], tie["settings"], tie["noise"]) == (0, {}, None)
    assert find_winner(rows([0.0], [0.5], [0.5], [0.4])) | {"lead": 0} == {
        **{"winner": 1, "settings": {"alpha": 1}, "trials": 4, "lead": 0, "p": None, "noise": "unknown"}
    }


def test_no_winner_before_all_trials_are_finished(tmp_path):
    winner = find_winner(rows([0.1, 0.2], [0.9, 0.9], [0.0, 0.0]))
    assert (winner["winner"], winner["trials"]) == (None, 3)
    wanted = tuning.Round(methods=("td3bc",), worlds=("unlock",), seeds=2)
    jobs = tuning.jobs(wanted)
    for job, rate in zip(jobs, (0.25, 0.5, 0.75, 0.5), strict=True):
        table = write_table(wanted, jobs, tmp_path)
        assert table["winners"][0]["winner"] is None
        ((key, head),) = job.cells.items()
        cell = {"per_seed": [rate, rate + 0.25], "held_out": None, "seconds": {"training": 1, "evaluation": 2}}
        write_json(tmp_path / "cells" / f"{key}.json", cell | head)
    assert "1 of 4 trials are missing" in (tmp_path / "table.md").read_text()
    write_table(wanted, jobs, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "| TD3+BC | unlock | 37.5 ± 158.8 | `alpha=0.09` 62.5 ± 158.8 | `alpha=0.9` **87.5 ± 158.8** |" in text
    assert "- `td3bc` on unlock: `alpha=0.9`, +50.0 points, within noise (p = " in text
    assert "missing" not in text
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 1 + TRIALS
    older = [Job(job.key, {f"{key}x": head | {"code": "older"} for key, head in job.cells.items()}) for job in jobs]
    assert [write_table(wanted, older, tmp_path, any_code)["missing"] for any_code in (False, True)] == [4, 0]
    assert lines[3].startswith("td3bc,unlock,because/unlock-medium-v1,2,alpha=0.9,0 1,100,0.875,0.0,1.0,1,")


# A real round ------------------------------------------------------------------------------------------


@pytest.fixture
def small_round(monkeypatch):
    """Nearly all the time goes into compiling: two trials that differ in acting only, and so train by one program."""
    monkeypatch.setitem(tuning_trials.CHANGES, "ccil", ({"greedy": False},))
    monkeypatch.setattr(tuning, "TINY", replace(tuning.TINY, given={"ccil": SMALL}))
    monkeypatch.setattr(tuning, "Grid", partial(Grid, chunk=20))
    for module in (tuning, tuning_table):
        monkeypatch.setattr(module, "TRIALS", 2)


@pytest.mark.slow
def test_an_interrupted_round_continues_and_writes_its_table(tmp_path, root, compile_cache, small_round, monkeypatch):
    calls = []

    def interrupted_develop(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return develop(*arguments)

    monkeypatch.setattr(tuning, "develop", interrupted_develop)
    out = tmp_path / "tuning"
    tune = ("tune", "--tiny", "--methods", "ccil", "--workers", "0", "-o", out, "--compile-cache", compile_cache)
    assert command(*tune).code == 130
    (first,) = (out / "cells").glob("*.json")
    before = first.read_bytes()
    cell = json.loads(before)
    assert (cell["trial"], cell["settings"], cell["seeds"], cell["split"]) == (0, {}, [0, 1], "I")
    assert cell["config"]["steps"] == SMALL["steps"]
    assert [len(outcomes) for outcomes in cell["outcomes"]] == [8, 8]
    assert {"revision", "when", "versions", "hardware"} <= set(cell["provenance"])
    assert len(cell["stages"]["ccil"]["loss"]) == 2

    result = command(*tune, "--json").json
    assert len(calls) == 3  # the finished cell is not computed again
    assert first.read_bytes() == before
    assert [(row["trial"], row["settings"]) for row in result["rows"]] == [(0, {}), (1, {"greedy": False})]
    assert (result["missing"], result["failed"]) == (0, [])
    assert result["winners"][0]["winner"] in (0, 1)
    assert not list((root / "sweep").glob("ccil-*"))  # the runs are removed

    table = {file: (out / file).read_bytes() for file in ("table.json", "table.csv", "table.md")}
    assert command(*tune, "--no-run").code == 0
    assert len(calls) == 3
    assert table == {file: (out / file).read_bytes() for file in table}
