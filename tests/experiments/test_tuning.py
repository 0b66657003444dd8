"""Tuning: valid trials for every method, scenes that nothing else contains, the rule, and a small real round."""

import json
from dataclasses import asdict, replace
from functools import partial
from itertools import product

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
from because_rl.experiments.grid.cells import join_jobs
from because_rl.experiments.grid.grid import Grid
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.tuning import table as tuning_table
from because_rl.experiments.tuning import trials as tuning_trials
from because_rl.experiments.tuning import tune as tuning
from because_rl.experiments.tuning.development import DATASET_SEEDS, develop, develop_together, held_out, scenes
from because_rl.experiments.tuning.table import choose, write_table
from because_rl.experiments.tuning.trials import CHANGES, PLANNING_CHANGES, SHARED, TRIALS, Times, trials
from because_rl.io import write_json
from because_rl.models.prepared_data import summarise
from because_rl.planning import agent as planner_agent
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.learned_model import LearnedModel
from because_rl.planning.proposals import PlanningConfig
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
    changes = trials("mopo", "unlock")
    assert len(changes) == TRIALS
    assert (changes[1], changes[4], changes[-1]) == ({"rate": 0.0006}, {"hidden": 128}, {"world_steps": 5000})
    monkeypatch.delitem(tuning_trials.CHANGES, "td3bc")
    with pytest.raises(BecauseError, match="no trials for the method 'td3bc'"):
        trials("td3bc", "unlock")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", CHANGES)
def test_trials_are_different_configs_with_the_preset_first(method, world):
    settings_of_trials = trials(method, world)
    assert len(settings_of_trials) == TRIALS == 8
    assert settings_of_trials[0] == {}
    methods = [make_method(method, settings, world, tuned=False) for settings in settings_of_trials]
    configs = [json.dumps(asdict(each.config)) for each in methods]
    assert configs[0] == json.dumps(asdict(make_method(method, None, world, tuned=False).config))
    assert len(set(configs)) == TRIALS


@pytest.mark.parametrize("method", CHANGES)
def test_no_trial_is_without_effect_where_actions_are_discrete(method):
    idle = ("planner.", "behaviour", "value_", "memory", "expectile", "noise", "clip")
    assert not [name for settings in trials(method, "unlock") for name in settings if name.startswith(idle)]


def test_multiples_are_of_the_preset_of_the_world():
    assert [trials("td3bc", world)[1]["alpha"] for world in ("lift", "unlock")] == [0.3, 0.09]
    assert trials("td3bc", "lift", {"steps": 100})[6] == {"steps": 20}
    assert trials("because", "crash")[6] == {"planner.population": 384}
    assert Times(2) in CHANGES["because"][5]["other"].values()
    with pytest.raises(BecauseError, match="'mopi'"):
        trials("mopi", "lift")


def test_what_because_chose_earlier_is_tried_or_shared():
    tried = {name for world in WORLDS for settings in trials("because", world) for name in settings}
    chosen = {
        "feared",
        "price",
        "weights.jackknife",
        "planner.warm_start_share",
        "planner.population",
        "hidden",
        "rate",
    }
    assert chosen <= tried
    for world in WORLDS:
        planners = [make_method(name, None, world, tuned=False).config for name in CHANGES]
        planners = [config for config in planners if isinstance(config, PlanningConfig)]
        for shared in ("planner", "price", "behaviour_hidden", "behaviour_steps", "rate", "batch", "world_steps"):
            assert len({getattr(config, shared) for config in planners}) == 1


# Development scenes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_no_dataset_or_evaluation_contains_a_development_scene(world):
    development = {scene for split in SPLITS for scene in scenes(world, 1000, split)}
    assert len(development) == 2000
    for split in (*SPLITS, *SUBCASES.get(world, ())):
        assert not development & set(layouts(world, split, 1000))
    for behaviour in BEHAVIOURS:
        for seed in (0, 1, 2, *DATASET_SEEDS[:2], OTHER_SEED):
            recipe = Recipe.parse(f"{world}-{behaviour}", seed=seed)
            assert not development & {recipe.episode_seed(episode) for episode in range(1000)}


class Idle(Controller):
    """Takes action 0, and keeps the first states; an agent that is its own controller."""

    seeds, sees_pictures = (0, 1), False
    first = None

    def start(self, worlds, seed):
        return self

    def act(self, state, goal, steps_left):
        self.first = state if self.first is None else self.first
        return np.zeros(state.shape[:2], int)


@pytest.mark.parametrize("split", SPLITS)
def test_development_is_in_its_scenes_of_the_split(split):
    agents = Idle(), Idle()
    results = develop_together(agents, "unlock", 6, split=split)
    batch = make_batch("unlock", split)
    for states in (states for agent in agents for states in agent.first):
        np.testing.assert_array_equal(states, batch.reset(scenes("unlock", 6, split)).state)
    assert results[0] == results[1] == develop(Idle(), "unlock", 6, split=split)
    assert results[0]["per_seed"] == [0.0, 0.0]
    assert results[0]["outcomes"] == ["000000", "000000"]


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


def test_a_round_has_the_same_trainings_for_every_method():
    jobs = tuning.jobs(tuning.Round(methods=("td3bc", "because")))
    cells = [cell for job in jobs for cell in job.cells.values()]
    assert len(jobs) == 2 * 3 * TRIALS * 6
    assert [cell["trial"] for cell in cells] == sorted(cell["trial"] for cell in cells)
    tasks = [(cell["method"], cell["trial"], cell["dataset"], cell["split"]) for cell in cells]
    datasets = [f"because/{w}-{b}-seed{seed}-v1" for w in WORLDS for b in BEHAVIOURS for seed in (500, 501)]
    assert set(tasks) == set(product(("td3bc", "because"), range(TRIALS), datasets, SPLITS))
    assert len(tasks) == len(set(tasks))
    assert {(cell["measure"], cell["episodes"], *cell["seeds"]) for cell in cells} == {("development", 100, 0)}
    first = next(cell for cell in cells if (cell["method"], cell["recipe"]["world"]) == ("td3bc", "crash"))
    assert first["config"] == json.loads(json.dumps(asdict(make_method("td3bc", None, "crash", tuned=False).config)))


def test_the_trainings_of_a_trial_are_one_job_presets_first():
    wanted = tuning.Round(methods=("td3bc", "gnn"), worlds=("crash",))
    joint = join_jobs(tuning.jobs(wanted), wanted.datasets)
    trials_of_jobs = [{(cell["method"], cell["trial"]) for cell in job.cells.values()} for job in joint]
    assert trials_of_jobs == [{(method, trial)} for trial in range(TRIALS) for method in ("td3bc", "gnn")]
    assert all(len(job.trainings) == 6 and len(job.cells) == 12 for job in joint)


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


def test_variants_take_what_their_method_chose(monkeypatch):
    monkeypatch.setattr(registry, "TUNED", {"because": {"crash": {"price": 0.2}}, "mopo": {"crash": {"members": 9}}})
    prices = {name: make_method(name, None, "crash").config.price for name in ("because", "linear", "because-paper")}
    assert prices == {"because": 0.2, "linear": 0.2, "because-paper": 0.06}
    assert make_method("mopo-plain", None, "crash").config.members == 9


def test_tuned_settings_are_the_winners_of_the_committed_table():
    """Of the first round: the highest mean; BECAUSE moves only where its lead is beyond noise."""
    winners = json.loads((REPOSITORY / "results/tuning/table.json").read_text())["winners"]
    assert {(winner["method"], winner["world"]) for winner in winners} == set(product(CHANGES, WORLDS))
    for winner in winners:
        settings = winner["settings"] if winner["method"] != "because" or winner["noise"] == "beyond" else None
        assert TUNED.get(winner["method"], {}).get(winner["world"], {}) == (settings or {}), winner


def test_addresses_do_not_depend_on_the_order_of_trials(monkeypatch):
    wanted = tuning.Round(methods=("td3bc",), worlds=("unlock",))
    before = {key for job in tuning.jobs(wanted) for key in job.cells}
    monkeypatch.setitem(tuning_trials.CHANGES, "td3bc", CHANGES["td3bc"][::-1])
    assert {key for job in tuning.jobs(wanted) for key in job.cells} == before
    monkeypatch.setitem(tuning_trials.CHANGES, "td3bc", ({"alpha": 0.1},) * 7)
    with pytest.raises(BecauseError, match="twice"):
        tuning.jobs(wanted)


def test_wrong_names_are_refused():
    with pytest.raises(BecauseError, match="because, whose trials it shares"):
        tuning.jobs(tuning.Round(methods=("optimism",)))
    for wrong in ({"methods": ("mopi",)}, {"worlds": ("lift", "mars")}, {"policies": ("clever",)}, {"worlds": ()}):
        with pytest.raises(BecauseError):
            tuning.jobs(replace(tuning.Round(methods=("td3bc",)), **wrong))


@pytest.mark.parametrize("seeds", [(0, 1), (500, 600), (499,)])
def test_datasets_of_other_seeds_than_development_are_refused(seeds):
    with pytest.raises(BecauseError, match="for development"):
        tuning.Round(dataset_seeds=seeds)


# The rule ----------------------------------------------------------------------------------------------

RATES = np.array([[0.1, 0.3], [0.5, 0.7], [0.9, 0.8]])
"""Of the preset: three policies, two datasets each."""
NOISE = np.array([[0.01, -0.01], [-0.02, 0.02], [0.0, 0.0]])
"""No part of the mean of a policy"""


def outcome(*changes):
    """The choice among the preset and changes that add this much to each of its trainings; the others lose."""
    more = [0.0, *changes, *[-0.05] * (TRIALS - 1 - len(changes))]
    return choose(
        [
            {"trial": n, "settings": {"alpha": n} if n else {}, "trainings": trainings.tolist()}
            | {"success": round(float(trainings.mean()), 9)}
            for n, trainings in enumerate(RATES + part for part in more)
        ]
    )


def test_a_lead_beyond_noise_is_taken():
    choice = outcome(0.02, 0.1 + NOISE)
    assert (choice["best"], choice["taken"], choice["settings"]) == (2, 2, {"alpha": 2})
    assert choice["lead"] == pytest.approx(0.1)
    assert choice["noise"] == "beyond"


def test_a_lead_within_noise_leaves_the_preset():
    choice = outcome(0.02 + 3 * NOISE)
    assert (choice["best"], choice["taken"], choice["settings"]) == (1, 0, {})
    assert choice["lead"] == pytest.approx(0.02)
    # The noise of the eight settings, of which only one has any: r = 7/8 of its own, and 1/8 in the other seven
    total = ((3 * NOISE) ** 2).sum() * (49 + 7) / 64
    error = np.sqrt(2 * total / 21 / 6)
    assert choice["p"] == pytest.approx(7 * stats.t.sf(0.02 / error, 21))
    assert choice["noise"] == "within"


def test_what_helps_on_one_policy_alone_is_no_noise():
    assert outcome(np.array([[0.3], [0.0], [0.0]]) + NOISE)["taken"] == 1
    assert outcome(np.array([[0.3, -0.3], [0.3, 0.0], [0.0, 0.0]]) + NOISE)["taken"] == 0


def test_a_tie_goes_to_the_first_and_never_from_the_preset():
    tie = outcome(NOISE, -NOISE)
    assert (tie["best"], tie["taken"], tie["settings"], tie["noise"]) == (0, 0, {}, None)
    both = outcome(0.1, 0.1)
    assert (both["best"], both["taken"]) == (1, 1)


def test_one_dataset_of_each_policy_leaves_the_preset():
    rows = [{"trial": n, "settings": {}, "trainings": [[n / 10]], "success": n / 10} for n in range(TRIALS)]
    assert choose(rows) == {
        **{"trials": TRIALS, "best": 7, "taken": 0, "settings": {}, "lead": 0.7, "p": None, "noise": "unknown"}
    }


def test_no_choice_before_all_cells_are_finished(tmp_path):
    wanted = tuning.Round(methods=("td3bc",), worlds=("unlock",), policies=("random", "expert"), splits=("I",))
    jobs = tuning.jobs(wanted)
    for job in jobs:
        if job in (jobs[0], jobs[-1]):
            table = write_table(wanted, jobs, tmp_path)
            assert (table["choices"][0]["taken"], table["presets_would_take"]) == (None, {})
        ((key, head),) = job.cells.items()
        rate = 0.25 + 0.5 * (head["trial"] == 2) + 0.1 * (head["recipe"]["seed"] == 501)
        cell = {"per_seed": [rate], "held_out": None}
        write_json(tmp_path / "cells" / f"{key}.json", cell | head)
    assert "1 of 32 cells are missing" in (tmp_path / "table.md").read_text()
    assert write_table(wanted, jobs, tmp_path)["presets_would_take"] == {"td3bc": {"unlock": {"alpha": 2.5}}}
    text = (tmp_path / "table.md").read_text()
    assert "| TD3+BC | preset | 30.0 | 30.0 | 30.0 |" in text
    assert "| TD3+BC | `alpha=2.5` | 80.0 | 80.0 | **80.0** |" in text
    assert "- `td3bc` on unlock: alpha=2.5; the best mean leads by 50.0 points, beyond noise, p = <1e-9." in text
    assert "missing" not in text
    assert tuning_table.RULE in text
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[3] == "td3bc,unlock,2,alpha=2.5,0.8,0.8,0.8,"
    older = [Job(job.key, {f"{key}x": head | {"code": "older"} for key, head in job.cells.items()}) for job in jobs]
    assert [write_table(wanted, older, tmp_path, any_code)["missing"] for any_code in (False, True)] == [32, 0]


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
        calls.append(len(arguments[0]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return develop_together(*arguments)

    monkeypatch.setattr(tuning, "develop_together", interrupted_develop)
    out = tmp_path / "tuning"
    tune = ("tune", "--tiny", "--splits", "O", "--workers", "0", "-o", out, "--compile-cache", compile_cache)
    assert command(*tune).code == 130
    before = {file: file.read_bytes() for file in (out / "cells").glob("*.json")}
    cells = [json.loads(content) for content in before.values()]
    assert {(cell["trial"], cell["split"], cell["dataset"]) for cell in cells} == {
        (0, "O", f"because/unlock-medium-n40-seed{seed}-v1") for seed in (500, 501)
    }
    cell = cells[0]
    assert (cell["settings"], cell["seeds"], cell["config"]["steps"]) == ({}, [0], SMALL["steps"])
    assert [len(outcomes) for outcomes in cell["outcomes"]] == [8]
    assert {"revision", "when", "versions", "hardware"} <= set(cell["provenance"])
    assert np.isfinite(cell["stages"]["ccil"]["loss"])

    result = command(*tune, "--json").json
    assert calls == [2] * 3  # side by side, and what is finished is not computed again
    assert all(file.read_bytes() == content for file, content in before.items())
    assert [(row["trial"], row["settings"]) for row in result["rows"]] == [(0, {}), (1, {"greedy": False})]
    assert (result["cells"], result["missing"], result["failed"]) == (4, 0, [])
    assert result["choices"][0]["taken"] in (0, 1)
    assert not list((root / "sweep").glob("ccil-*"))  # the runs are removed

    table = {file: (out / file).read_bytes() for file in ("table.json", "table.csv", "table.md")}
    ended = command(*tune, "--no-run", "--together", "1")
    assert ended.code == 0
    assert ended.stdout.splitlines()[-2] == "A preset would take:"
    assert ended.stdout.splitlines()[-1].startswith("  ccil on unlock: ")
    assert len(calls) == 3
    assert table == {file: (out / file).read_bytes() for file in table}
